"""Any history comes out legal, whatever happened to it."""

import copy
import json
import time
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.messages.repair import EMPTY_MESSAGE, NO_RESULT, LegalHistory, legalise
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage, least_trusted
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems

Row = dict[str, Any]


HALF = "\ud800"
"""Half a surrogate pair, which no UTF-8 can hold."""


def user(text: Any = "hello", **extra: Any) -> Row:
    return {"role": "user", "content": text, **extra}


def says(text: str | None = "fine", *calls: str, **extra: Any) -> Row:
    row: Row = {"role": "assistant", "content": text, **extra}
    if calls:
        row["tool_calls"] = [call(call_id) for call_id in calls]
    return row


def call(call_id: str, name: str = "read_file", arguments: Any = '{"path": "a"}') -> Row:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(call_id: str, text: str = "done") -> Row:
    return {"role": "tool", "tool_call_id": call_id, "name": "read_file", "content": text}


def roles(rows: list[ChatMessage]) -> str:
    return "".join(row["role"][0] for row in rows)


def assert_legal(rows: list[ChatMessage]) -> None:
    assert openai_problems(rows) == []
    assert anthropic_problems(rows) == []


# --- one case each


def test_a_legal_history_comes_out_as_the_same_objects():
    history = [
        {"role": "system", "content": "be good"},
        user(),
        says(None, "a", "b"),
        result("a"),
        result("b"),
        says("ok"),
        user("more"),
    ]

    legal = legalise(history)

    assert all(before is after for before, after in zip(history, legal, strict=True))


def test_a_call_without_a_result_is_answered_neutrally():
    legal = legalise([user(), says(None, "a", "b"), result("b"), user("and?")])

    assert [row.get("tool_call_id") for row in legal] == [None, None, "a", "b", None]
    assert legal[2]["content"] == NO_RESULT


def test_results_are_sorted_into_the_order_of_the_calls():
    legal = legalise([user(), says(None, "a", "b"), result("b", "2"), user("meanwhile"), result("a", "1")])

    assert [row["content"] for row in legal[2:]] == ["1", "2", "meanwhile"]


def test_stray_and_second_results_go_and_the_first_one_stays():
    legal = legalise([result("x"), user(), says(None, "a"), result("a", "first"), result("a", "second"), result("y")])

    assert [row["content"] for row in legal] == ["hello", None, "first"]


def test_two_calls_under_one_id_get_a_result_each():
    twice = says(None)
    twice["tool_calls"] = [call("0", "glob"), call("0", "grep")]

    legal = legalise([user(), twice, result("0", "of glob"), result("0", "of grep")])

    assert_legal(legal)
    assert [(row["name"], row["content"]) for row in legal[2:]] == [("glob", "of glob"), ("grep", "of grep")]


def test_call_that_is_in_a_row_twice_is_one_call():
    twice = says(None, "a", "a")

    legal = legalise([user(), twice, result("a", "the only result")])

    assert [call["id"] for call in legal[1]["tool_calls"]] == ["a"]
    assert [row["content"] for row in legal[2:]] == ["the only result"]


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("marks", [("web", "owner"), ("owner", "web"), ("mail", "person"), ("person", "mail")])
def test_joined_rows_are_trusted_as_the_least_trusted_of_them(role: str, marks: tuple[str, str]):
    rows = [{"role": role, "content": mark, "provenance": mark} for mark in marks]

    joined = legalise([*([user()] if role == "assistant" else []), *rows])[-1]

    assert joined["provenance"] == str(least_trusted(marks))
    assert least_trusted(marks) in ("web", "mail")


@pytest.mark.parametrize(
    "row",
    [
        user([{"type": "text", "text": "hello", "id": HALF}]),
        user([{"type": "text", "text": "hello", "more": {"deep": [HALF]}, HALF: 1}]),
        user([{"type": "image_url", "image_url": {"url": "https://a.example/b.png", "detail": HALF}}]),
        user([{"type": "text", "text": "hello"}, {"type": "file", "file": {"file_id": HALF}}]),
        {"role": "assistant", "content": "x", "tool_calls": [{**call("a"), "extra": HALF}]},
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [{"id": "a", "type": "function", "function": {**call("a")["function"], "extra": HALF}}],
        },
        says("x", thinking_blocks=[{"type": "thinking", "thinking": HALF}]),
    ],
)
def test_half_a_surrogate_pair_in_a_foreign_field_is_not_sent(row: Row):
    legal = legalise([user("first"), row, user("last")])

    assert_legal(legal)
    json.dumps(legal, ensure_ascii=False).encode()


def test_ids_that_a_server_uses_again_stay_unique_over_the_history():
    step = [says(None, "call_0"), result("call_0")]

    legal = legalise([user(), *step, *step, *step])

    assert_legal(legal)
    assert len({row["tool_call_id"] for row in legal if row["role"] == "tool"}) == 3


@pytest.mark.parametrize(
    ("arguments", "mended"),
    [
        ('{"path":  "a"}', '{"path":  "a"}'),
        ('{"path": "a"', '{"path": "a"}'),
        ({"path": "ä"}, '{"path": "ä"}'),
        ("", "{}"),
        (None, "{}"),
        ("[1]", "{}"),
        ("nonsense", "{}"),
    ],
)
def test_arguments_are_always_the_text_of_an_object(arguments: Any, mended: str):
    asks = says(None)
    asks["tool_calls"] = [call("a", arguments=arguments)]

    legal = legalise([user(), asks])

    assert legal[1]["tool_calls"][0]["function"]["arguments"] == mended


@pytest.mark.parametrize(
    "shape",
    [
        {"id": "a", "function": {"name": "read_file", "arguments": "{}"}},
        {"id": "a", "name": "read_file", "arguments": {}},
        {"id": "a", "type": "tool_use", "function": {"name": "read_file", "arguments": "{}"}},
    ],
)
def test_calls_of_other_shapes_are_mended(shape: Row):
    legal = legalise([user(), {"role": "assistant", "content": "", "tool_calls": [shape]}, result("a")])

    assert_legal(legal)
    assert legal[1]["tool_calls"][0] == call("a", arguments="{}")
    assert legal[2]["content"] == "done"


def test_neighbours_of_one_role_become_one_row_and_no_words_are_lost():
    legal = legalise(
        [user("a", runtime_context="[ctx]"), user("b", provenance="web"), says("c"), says("d", "x"), result("x")]
    )

    assert [row["content"] for row in legal] == ["a\n\n[ctx]\n\nb", "c\n\nd", "done"]
    assert legal[0]["provenance"] == "web"
    assert "runtime_context" not in legal[0]


def test_what_no_model_may_see_is_left_out():
    history = [
        user("/status", _command=True),
        says("v1", _command=True),
        says("hi"),
        user(),
        {"role": "system", "content": "evil"},
    ]

    assert legalise([*history, {"role": "developer", "content": "x"}, says(""), says(None)]) == [user()]


def test_the_last_message_of_the_user_is_kept_even_empty():
    legal = legalise([user("a"), says("b"), user("   ")])

    assert legal[-1] == user(EMPTY_MESSAGE)


def test_half_a_surrogate_pair_does_not_poison_the_history():
    legal = legalise([user("\ud83d oops"), says("ok \udc00", "a"), result("a", "\ud800")])

    assert_legal(legal)


def test_half_a_surrogate_in_a_field_we_do_not_know_is_replaced_too():
    block = {"type": "text", "text": "hello", "id": "\ud800", "more": [{"\udc00": "\ud800"}]}
    asks = says(None)
    asks["tool_calls"] = [{**call("a"), "extra": {"mark": "\ud800"}}]

    legal = legalise([user([block]), asks, result("a")])

    json.dumps(legal, ensure_ascii=False).encode()
    assert_legal(legal)
    assert legal[0]["content"] == [{"type": "text", "text": "hello", "id": "?", "more": [{"?": "?"}]}]


def test_a_block_nested_deeper_than_anything_can_be_sent_is_left_out():
    nested: object = "x"
    for _ in range(5_000):
        nested = [nested]

    legal = legalise([user([{"type": "text", "text": "a", "id": nested}, {"type": "text", "text": "b"}])])

    assert legal[0]["content"] == [{"type": "text", "text": "b"}]


def test_appending_moves_only_the_tail():
    history = [
        user("1"),
        says(None, "a"),
        result("a"),
        says("x"),
        user("2"),
        user("3"),
        says(None, "b", "c"),
        result("c"),
        result("b"),
        user("4"),
    ]

    for end in range(1, len(history)):
        shorter, longer = legalise(history[:end]), legalise(history[: end + 1])
        calls_at = max((at for at, row in enumerate(shorter) if row.get("tool_calls")), default=len(shorter))
        settled = min(calls_at + 1, len(shorter) - 1)
        assert longer[:settled] == shorter[:settled]


# --- any history

texts = st.sampled_from(["hello", "", " ", "你好", "a\nb", "\ud800"]) | st.text(max_size=8)


@st.composite
def turns(draw: st.DrawFn) -> list[Row]:
    rows: list[Row] = [{"role": "system", "content": "s"}] if draw(st.booleans()) else []
    number = 0
    for turn in range(draw(st.integers(1, 5))):
        rows.append(user(f"question {turn}"))
        for _ in range(draw(st.integers(0, 2))):
            ids = [f"c{number + index}" for index in range(draw(st.integers(1, 3)))]
            number += len(ids)
            rows.append(says(draw(st.sampled_from([None, "let me see"])), *ids))
            rows.extend(result(call_id) for call_id in ids)
        rows.append(says(f"answer {turn}"))
    return rows


@st.composite
def damaged(draw: st.DrawFn) -> list[Row]:
    rows = draw(turns())
    for _ in range(draw(st.integers(1, 4))):
        if not rows:
            break
        at, other = draw(st.integers(0, len(rows) - 1)), draw(st.integers(0, len(rows) - 1))
        match draw(st.sampled_from(["head", "tail", "delete", "double", "swap", "span", "shuffle"])):
            case "head":
                rows = rows[at:]
            case "tail":
                rows = rows[: at + 1]
            case "delete":
                del rows[at]
            case "double":
                rows.insert(other, rows[at])
            case "swap":
                rows[at], rows[other] = rows[other], rows[at]
            case "span":
                rows[min(at, other) : max(at, other)] = []
            case _:
                rows = draw(st.permutations(rows))
    return list(rows)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "function", "name", "arguments", "image_url", "url"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
junk = st.dictionaries(
    st.sampled_from(
        [
            "role",
            "content",
            "tool_calls",
            "tool_call_id",
            "name",
            "_command",
            "runtime_context",
            "provenance",
            "origin",
            "media",
            "reasoning_content",
            "thinking_blocks",
            "error",
            "turn_id",
        ]
    ),
    anything | st.sampled_from(["user", "assistant", "tool", "system", "a", "text", "image_url", "function"]),
).flatmap(
    lambda row: st.sampled_from(["user", "assistant", "tool", "system", None]).map(
        lambda role: {**row, "role": role} if role else row
    )
)


def assert_repaired(history: list[Any]) -> None:
    before = copy.deepcopy(history)
    last = next(
        (
            row
            for row in reversed(history)
            if isinstance(row, dict) and row.get("role") == "user" and not row.get("_command")
        ),
        None,
    )

    legal = legalise(history)

    assert_legal(legal)
    assert repr(history) == repr(before)
    assert legalise(legal) == legal
    if (
        last is not None
        and isinstance(last.get("content"), str)
        and last["content"].strip()
        and last["content"].isprintable()
    ):
        kept = [row for row in legal if row["role"] == "user"][-1]["content"]
        assert last["content"] in (
            kept
            if isinstance(kept, str)
            else json.dumps(kept, ensure_ascii=False).replace("\\\\", "\\").replace('\\"', '"')
        )


@given(turns())
def test_any_legal_history_is_left_alone(history: list[Row]):
    assert legalise(history) == history


@given(damaged())
def test_any_damage_comes_out_legal(history: list[Row]):
    assert_repaired(history)


@given(st.lists(junk | anything, max_size=6))
def test_any_junk_comes_out_legal(history: list[Any]):
    assert_repaired(history)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(damaged() | st.lists(junk | anything, max_size=8))
@settings(max_examples=10_000)
def test_ten_thousand_histories_come_out_legal(history: list[Any]):
    assert_repaired(history)


@given(damaged() | st.lists(junk | anything, max_size=6), st.lists(st.integers(0, 12), max_size=4), st.booleans())
def test_a_history_that_grows_is_made_legal_as_the_whole_would_be(history: list[Any], cuts: list[int], other: bool):
    growing = LegalHistory()
    for cut in [*sorted(cuts), len(history)]:
        assert growing.of(history[:cut]) == legalise(history[:cut])
    if other:  # and another one, that has little to do with it
        assert growing.of(history[1:]) == legalise(history[1:])


def test_a_hundred_legal_messages_cost_a_millisecond():
    history = [
        row
        for turn in range(25)
        for row in (user("x" * 500), says(None, f"a{turn}"), result(f"a{turn}", "y" * 2000), says("z" * 300))
    ]

    times = []
    for _ in range(20):
        started = time.perf_counter()
        legalise(history)
        times.append(time.perf_counter() - started)

    assert min(times) < 0.004  # one where nothing else runs


# --- what a person sees


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("hi\n\n[Runtime Context — metadata only, not instructions]\nCurrent Time: x\n[/Runtime Context]", "hi"),
        ("hi\n\n[Runtime Context]\nCurrent Time: now\nChannel: cli\nChat ID: direct", "hi"),
        ("what is\n[Runtime Context]\nfor?", "what is\n[Runtime Context]\nfor?"),
        ("say [Runtime Context] [/Runtime Context]", "say [Runtime Context] [/Runtime Context]"),
        (
            [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                5,
            ],
            "see",
        ),
        (None, ""),
        (7, ""),
    ],
)
def test_a_person_never_sees_the_runtime_context(content: Any, shown: str):
    assert shown_text(cast(ChatMessage, user(content))) == shown


def test_a_person_never_sees_our_own_words_to_the_model():
    assert shown_text(cast(ChatMessage, user("go on", origin="system"))) == ""
