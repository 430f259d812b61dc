"""Calls written as text become calls; everything else stays what it is, however the stream is cut."""

import json
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers.base import Delta, Finished, LLMResponse, TextDelta, ToolCallDelta
from nanobot.providers.wire.tool_text import TextToolDeltas
from tests.support.sample_requests import TOOLS

WRITTEN = {
    "bare": '{"name": "list_dir", "arguments": {"path": "."}}',
    "parameters": '{"name": "list_dir", "parameters": {"path": "."}}',
    "arguments first": '{"arguments": {"path": "."}, "name": "list_dir"}',
    "arguments as text": '{"name": "list_dir", "arguments": "{\\"path\\": \\".\\"}"}',
    "openai": '{"id": "x", "type": "function", "function": {"name": "list_dir", "arguments": {"path": "."}}}',
    "list": '[{"name": "list_dir", "arguments": {"path": "."}}]',
    "tool_calls": '{"tool_calls": [{"name": "list_dir", "arguments": {"path": "."}}]}',
    "fenced": '```json\n{"name": "list_dir", "arguments": {"path": "."}}\n```',
    "fenced, no language": '```\n{"name": "list_dir", "arguments": {"path": "."}}\n```\n',
    "hermes": '<tool_call>\n{"name": "list_dir", "arguments": {"path": "."}}\n</tool_call>',
    "hermes, not closed": '<tool_call>{"name": "list_dir", "arguments": {"path": "."}}',
    "hermes, broken": '<tool_call>{"name": "list_dir", "arguments": {"path": "."}</tool_call>',
    "function": '<function=list_dir>{"path": "."}</function>',
    "qwen coder": "<tool_call>\n<function=list_dir>\n<parameter=path>\n.\n</parameter>\n</function>\n</tool_call>",
    "mistral": '[TOOL_CALLS] [{"name": "list_dir", "arguments": {"path": "."}}]',
    "mistral, new": '[TOOL_CALLS]list_dir[ARGS]{"path": "."}',
    "llama": '<|python_tag|>{"name": "list_dir", "parameters": {"path": "."}}',
    "invoke": '<function_calls>\n<invoke name="list_dir">\n<parameter name="path">.</parameter>\n</invoke>\n'
    "</function_calls>",
}
EXPLAINED = {
    "bare": WRITTEN["bare"] + "\n\nThis lists the folder.",
    "fenced": f"To list it I would send:\n\n{WRITTEN['fenced']}\n\nShall I?",
    "fenced, then bare": WRITTEN["fenced"] + "\nThat is the call.\n" + WRITTEN["bare"] + "\nAnd this too.",
    "several in a row": WRITTEN["fenced"] + "\n" + WRITTEN["bare"] + "\n" + WRITTEN["list"] + "\nThese three.",
    "several in a fence": f"```json\n{WRITTEN['bare']}\n{WRITTEN['bare']}\n```\nThese two.",
    "markup in a fence": f"```\n{WRITTEN['hermes']}\n```\nThat is how I call.",
    "markup behind words in a fence": f"```\nfor example:\n{WRITTEN['qwen coder']}\n```\nThat is how I call.",
    "markup as code in a line": f"I call with `{WRITTEN['function']}` and wait.",
    "with a remark in its fence": f"```\n{WRITTEN['bare']}\n# lists the folder\n```",
    "broken": '{"name": "list_dir", "arguments": {"path": ".}\n\nThis lists the folder.',
}
AT_THE_END = {
    "fence that was never closed": '```json\n{"name": "list_dir", "arguments": {"path": "."}}\n',
    "a brace too few": '{"name": "list_dir", "arguments": {"path": "."}',
    "behind other code": f"```py\nprint(1)\n```\n{WRITTEN['fenced']}\n\n",
    "behind one that is explained": f"{EXPLAINED['fenced']}\n{WRITTEN['bare']}",
    "in a fence behind words": f"```\nI call:\n{WRITTEN['bare']}\n```",
    "markup with prose behind it": f"{WRITTEN['hermes']}\nI wait for the result.",
    "markup behind one that is explained": f"{WRITTEN['bare']} is the call.\n{WRITTEN['hermes']}",
}
ORDINARY = [
    "Hello there.",
    "",
    "  indented\n\nand `code`",
    '{"name": "alice", "age": 3}',
    'An example:\n```json\n{"name": "alice", "arguments": {}}\n```\nThat is all.',
    '```python\nprint("list_dir")\n```',
    "if a < b and c > d: <b>bold</b> <tool_call> is a tag",
    "[1, 2, 3]\n[x] done\n[TOOL",
    'Say {"name": "list_dir", "arguments": {}} in the middle of a line.',
    '{"name": "list_dir", "description": "Lists a folder", "parameters": {"type": "object"}}',
    '{"name": "list_dir"}',
    "<function=unknown>{}</function>",
    "a ``` b\n``",
    "\n\n{",
]


def stream(pieces: list[str]) -> tuple[list[Delta], LLMResponse]:
    """What is handed on of an answer in these pieces, and its response."""
    answer: list[Delta] = [*map(TextDelta, pieces), Finished(LLMResponse("".join(pieces)))]
    texts = TextToolDeltas(TOOLS)
    *deltas, end = [out for delta in answer for out in texts.filter([delta])]
    assert isinstance(end, Finished)
    return deltas, end.response


def shown(pieces: list[str]) -> str:
    return "".join(delta.text for delta in stream(pieces)[0] if isinstance(delta, TextDelta))


def read(pieces: list[str]) -> tuple[str, list[tuple[str, dict[str, object]]]]:
    deltas, response = stream(pieces)
    calls = [(call.name, call.arguments) for call in response.tool_calls]
    text = shown(pieces)
    if not calls:
        assert text == "".join(pieces), "text is never lost"
    assert [delta.name for delta in deltas if isinstance(delta, ToolCallDelta)] == [name for name, _ in calls]
    return response.content or "", calls


def cut(text: str, places: list[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[a:b] for a, b in pairwise(ends)]


@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN.keys())
def test_each_way_to_write_a_call_is_read(written):
    text, calls = read(["I will look.\n\n", written])

    assert calls == [("list_dir", {"path": "."})]
    assert text == "I will look.\n\n"


@pytest.mark.parametrize("ordinary", ORDINARY)
def test_ordinary_text_passes_unchanged(ordinary):
    assert read([ordinary]) == (ordinary, [])


@pytest.mark.parametrize("explained", EXPLAINED.values(), ids=EXPLAINED.keys())
def test_a_call_that_is_only_explained_is_text_and_does_not_run(explained):
    assert read([explained]) == (explained, [])


@pytest.mark.parametrize("written", AT_THE_END.values(), ids=AT_THE_END.keys())
def test_a_call_at_the_very_end_or_in_markup_counts_once(written):
    assert read([written])[1] == [("list_dir", {"path": "."})]


def test_calls_in_one_fence_at_the_end_are_all_read():
    text, calls = read([f"Both.\n```json\n{WRITTEN['bare']}\n{WRITTEN['bare']}\n```\n"])

    assert (text.strip(), len(calls)) == ("Both.", 2)


@given(
    st.lists(
        st.sampled_from([*WRITTEN.values(), *EXPLAINED.values(), *ORDINARY, "\n", " ", "Well: ", "`", "```\n"]),
        max_size=5,
    ).map("".join),
    st.lists(st.integers(0, 10_000), max_size=30),
)
def test_any_cut_of_a_text_gives_the_same_text_and_calls(text, places):
    assert read(cut(text, places)) == read([text])


@given(st.text(alphabet='`{}[]<>/"=:\n namelist_dirTOOLCALSfunction,', max_size=120), st.lists(st.integers(0, 200)))
def test_no_text_makes_it_raise_or_differ_by_its_cut(text, places):
    assert read(cut(text, places)) == read([text])


IN_MARKUP = [written for written in WRITTEN.values() if written.startswith(("<", "[TOOL_CALLS]"))]


@given(st.sampled_from(IN_MARKUP), st.sampled_from([*WRITTEN.values()]), st.lists(st.integers(0, 10_000), max_size=30))
def test_no_piece_of_a_call_is_ever_shown_in_markup_or_as_the_whole_answer(in_markup, whole, places):
    assert shown(cut(f"Looking.\n{in_markup}", places)) == "Looking.\n"
    assert shown(cut(whole, places)) == ""


LONG_CALL = json.dumps({"name": "write_file", "arguments": {"path": "a", "content": "x = {1}\n" * 20_000}})
LONG_JSON = "[\n" + ",\n".join('{"id": 1, "name": "alice"}' for _ in range(5_000))


@pytest.mark.parametrize(
    ("written", "piece", "calls"), [(LONG_CALL, 4, 1), (LONG_JSON + "]", 1000, 0), (LONG_JSON + '{"id": ', 1000, 0)]
)
def test_a_long_answer_is_read_in_time_that_grows_with_its_length(written, piece, calls):
    started = time.process_time()

    text, found = read([written[at : at + piece] for at in range(0, len(written), piece)])

    assert (len(found), bool(text)) == (calls, not calls)
    assert time.process_time() - started < 5


CONTENT = "<parameter=content>\nx = 1\n\ny &lt; 2\n</parameter>"


@pytest.mark.parametrize(
    ("written", "calls"),
    [
        (WRITTEN["hermes"] + "\n" + WRITTEN["hermes"] + WRITTEN["invoke"], [("list_dir", {"path": "."})] * 3),
        ('<invoke name="wait"><parameter name="seconds">5</parameter></invoke>', [("wait", {"seconds": 5})]),
        (
            f"<function=write_file><parameter=path>a</parameter>{CONTENT}</function>",
            [("write_file", {"path": "a", "content": "x = 1\n\ny < 2"})],
        ),
    ],
)
def test_markup_holds_several_calls_values_of_their_type_and_lines(written, calls):
    assert read([written]) == ("", calls)


@pytest.mark.parametrize(
    "text", ["<html><body>1 < 2", "[x] done", "A tag <tool_call> is", "So:\n```py\nx = {1}\n", "```py\nx = 1\n"]
)
def test_text_that_is_no_call_is_shown_at_once(text):
    assert (
        "".join(delta.text for delta in TextToolDeltas(TOOLS).filter([TextDelta(text)]) if isinstance(delta, TextDelta))
        == text
    )
