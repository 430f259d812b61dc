"""A stored conversation, as people read it."""

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.types import ChatMessage
from nanobot.session.conversation import format_markdown, format_text
from nanobot.session.manager import Session

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TABLES = st.dictionaries(st.sampled_from(["id", "function", "name", "arguments", "text", "type"]), SCALARS, max_size=3)
CALLS = st.fixed_dictionaries({"id": SCALARS, "function": SCALARS | TABLES})
ANYTHING = SCALARS | TABLES | st.lists(SCALARS | TABLES | CALLS, max_size=2)
FIELDS = ("content", "tool_calls", "tool_call_id", "timestamp", "error", "origin")
ROWS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "other"])}, optional=dict.fromkeys(FIELDS, ANYTHING)
)


@given(st.lists(ROWS, max_size=3))
def test_whatever_a_file_holds_can_be_shown(rows: list[dict[str, Any]]):
    messages = cast("list[ChatMessage]", rows)

    format_text("cli:direct", messages)
    format_markdown(Session("cli:direct", messages))


def test_a_call_without_a_result_says_so():
    call = {"id": "x", "type": "function", "function": {"name": "exec", "arguments": '{"command": "make"}'}}
    messages = cast("list[ChatMessage]", [{"role": "assistant", "content": "", "tool_calls": [call]}])

    assert '> exec {"command": "make"} -> no result' in format_text("k", messages)


def test_calls_whose_ids_come_again_stand_with_their_own_results():
    rows: list[dict[str, Any]] = []
    for name, answer in (("list_dir", "a.txt"), ("read_file", "plums")):
        call = {"id": "call_0", "function": {"name": name, "arguments": "{}"}}
        rows.append({"role": "assistant", "content": None, "tool_calls": [call]})
        rows.append({"role": "tool", "tool_call_id": "call_0", "name": name, "content": answer})

    shown = format_text("k", cast("list[ChatMessage]", rows))

    assert "list_dir {} -> a.txt" in shown
    assert "read_file {} -> plums" in shown


def test_a_long_call_and_a_long_result_stay_in_a_line():
    call = {"id": "x", "function": {"name": "exec", "arguments": "a" * 5000}}
    rows = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "line\n" * 500},
    ]

    text = format_text("k", cast("list[ChatMessage]", rows))

    assert max(map(len, text.splitlines())) < 300


def test_backticks_in_a_call_stay_inside_its_code():
    call = {"id": "x", "function": {"name": "exec", "arguments": "echo `date`"}}
    session = Session("k", cast("list[ChatMessage]", [{"role": "assistant", "content": None, "tool_calls": [call]}]))

    assert "- `` exec echo `date` -> no result ``" in format_markdown(session)


def test_what_went_wrong_is_told():
    rows = [{"role": "assistant", "content": "No answer came.", "error": "ProviderTimeoutError"}]

    assert "[failed: ProviderTimeoutError]" in format_text("k", cast("list[ChatMessage]", rows))
