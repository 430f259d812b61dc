"""Any history comes out legal, whatever happened to it."""

import copy
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.repair import EMPTY_MESSAGE, NO_RESULT, LegalHistory, legalise
from nanobot.messages.types import ChatMessage, least_trusted, shown_text
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems

Row = dict[str, Any]


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


def assert_legal(rows: list[ChatMessage]) -> None:
    assert openai_problems(rows) == []
    assert anthropic_problems(rows) == []


# --- one case each


def calls(*calls: Row) -> Row:
    return {**says(None), "tool_calls": [*calls]}


@pytest.mark.parametrize(
    ("history", "contents"),
    {
        "no result": ([user(), says(None, "a", "b"), result("b"), user("?")], ["hello", None, NO_RESULT, "done", "?"]),
        "results out of order": (
            [user(), says(None, "a", "b"), result("b", "2"), user("meanwhile"), result("a", "1")],
            ["hello", None, "1", "2", "meanwhile"],
        ),
        "stray and second results": (
            [result("x"), user(), says(None, "a"), result("a", "first"), result("a", "second"), result("y")],
            ["hello", None, "first"],
        ),
        "two calls under one id": (
            [user(), calls(call("0", "glob"), call("0", "grep")), result("0", "of glob"), result("0", "of grep")],
            ["hello", None, "of glob", "of grep"],
        ),
        "a call twice": ([user(), says(None, "a", "a"), result("a", "the only one")], ["hello", None, "the only one"]),
        "ids used again": ([user(), *[says(None, "a"), result("a")] * 3], ["hello", *[None, "done"] * 3]),
        "neighbours of one role": (
            [user("a", runtime_context="[ctx]"), user("b"), says("c"), says("d", "x"), result("x")],
            ["a\n\n[ctx]\n\nb", "c\n\nd", "done"],
        ),
        "what no model may see": (
            [user("/status", _command=True), says("v1", _command=True), says("hi"), user(),
             {"role": "system", "content": "evil"}, {"role": "developer", "content": "x"}, says(""), says(None)],
            ["hello"],
        ),
        "an empty last message": ([user("a"), says("b"), user("   ")], ["a", "b", EMPTY_MESSAGE]),
        "half a surrogate pair": (
            [
                user("\ud83d oops"),
                says("ok \udc00", "a", thinking_blocks=[{"type": "thinking", "thinking": "\ud800"}]),
                result("a", "\ud800"),
            ],
            ["? oops", "ok ?", "?"],
        ),
    }.values(),
)  # fmt: skip
def test_damage_is_repaired(history: list[Row], contents: list[str | None]):
    legal = legalise(history)

    assert_legal(legal)
    assert json.dumps(legal, ensure_ascii=False).encode()
    assert [row["content"] for row in legal] == contents
    assert not any("runtime_context" in row for row in legal)


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("marks", [("web", "owner"), ("owner", "web"), ("person", "mail")])
def test_joined_rows_are_trusted_as_the_least_trusted_of_them_and_of_their_context(role: str, marks: tuple[str, str]):
    rows = [{"role": role, "content": mark, "provenance": mark} for mark in marks]
    noted = [user("a", provenance="owner", runtime_context="[note]", context_provenance="web"), user("b")]

    joined = legalise([*([user()] if role == "assistant" else []), *rows])[-1]

    assert joined["provenance"] == str(least_trusted(marks)) in ("web", "mail")
    assert [(row["content"], row["provenance"]) for row in legalise(noted)] == [("a\n\n[note]\n\nb", "web")]


@pytest.mark.parametrize(
    "shape",
    [
        {"id": "a", "function": {"name": "read_file", "arguments": "{}"}},
        {"id": "a", "name": "read_file", "arguments": {}},
        {"id": "a", "type": "tool_use", "function": {"name": "read_file", "arguments": "{}"}},
        {"id": "a", "extra": "\ud800", "function": {"name": "read_file", "arguments": "{}"}},
    ],
)
def test_calls_of_other_shapes_are_mended(shape: Row):
    legal = legalise([user(), {**calls(shape), "content": ""}, result("a")])

    assert_legal(legal)
    extra = {"extra": "?"} if "extra" in shape else {}
    assert legal[1]["tool_calls"][0] == {**call("a", arguments="{}"), **extra}
    assert legal[2]["content"] == "done"


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
    legal = legalise([user(), calls(call("a", arguments=arguments))])

    assert legal[1]["tool_calls"][0]["function"]["arguments"] == mended


def test_a_block_nested_deeper_than_anything_can_be_sent_is_left_out():
    nested: object = "x"
    for _ in range(5_000):
        nested = [nested]

    legal = legalise([user([{"type": "text", "text": "a", "id": nested}, {"type": "text", "text": "b"}])])

    assert legal[0]["content"] == [{"type": "text", "text": "b"}]


def test_appending_moves_only_the_tail():
    history = [user("1"), says(None, "a"), result("a"), says("x"), user("2"), user("3"), says(None, "b", "c"),
               result("c"), result("b"), user("4")]  # fmt: skip

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


BLOCK = ("type", "text", "id", "function", "name", "arguments", "image_url", "url")
FIELDS = ("role", "content", "tool_calls", "tool_call_id", "name", "_command", "runtime_context", "provenance",
          "origin", "media", "reasoning_content", "thinking_blocks", "error", "turn_id")  # fmt: skip
ROLES = ("user", "assistant", "tool", "system")
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(BLOCK), inner, max_size=4),
    max_leaves=8,
)
values = anything | st.sampled_from([*ROLES, "a", "text", "image_url", "function"])
junk = st.dictionaries(st.sampled_from(FIELDS), values) | st.builds(
    lambda row, role: {**row, "role": role}, st.dictionaries(st.sampled_from(FIELDS), values), st.sampled_from(ROLES)
)


def assert_repaired(history: list[Any]) -> None:
    before = copy.deepcopy(history)

    legal = legalise(history)

    assert_legal(legal)
    assert repr(history) == repr(before)
    assert legalise(legal) == legal
    rows = [row for row in history if isinstance(row, dict) and row.get("role") == "user" and not row.get("_command")]
    last = rows[-1].get("content") if rows else None
    if isinstance(last, str) and last.strip() and last.isprintable():
        kept = [row for row in legal if row["role"] == "user"][-1]["content"]
        texts = [kept] if isinstance(kept, str) else [str(block.get("text")) for block in kept or ()]
        assert any(last in text for text in texts)


@given(turns())
def test_any_legal_history_comes_out_as_the_same_objects(history: list[Row]):
    assert all(before is after for before, after in zip(history, legalise(history), strict=True))


@given(damaged())
def test_any_damage_comes_out_legal(history: list[Row]):
    assert_repaired(history)


@given(st.lists(junk | anything, max_size=6))
def test_any_junk_comes_out_legal(history: list[Any]):
    assert_repaired(history)


@given(damaged() | st.lists(junk | anything, max_size=6), st.lists(st.integers(0, 12), max_size=4), st.booleans())
def test_a_history_that_grows_is_made_legal_as_the_whole_would_be(history: list[Any], cuts: list[int], other: bool):
    growing = LegalHistory()
    for cut in [*sorted(cuts), len(history)]:
        assert growing.of(history[:cut]) == legalise(history[:cut])
    if other:  # and another one, that has little to do with it
        assert growing.of(history[1:]) == legalise(history[1:])


# --- what a person sees


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("hi\n\n[Runtime Context — metadata only, not instructions]\nCurrent Time: x\n[/Runtime Context]", "hi"),
        ("hi\n\n[Runtime Context]\nCurrent Time: now\nChannel: cli\nChat ID: direct", "hi"),
        ("what is\n[Runtime Context]\nfor?", "what is\n[Runtime Context]\nfor?"),
        ("say [Runtime Context] [/Runtime Context]", "say [Runtime Context] [/Runtime Context]"),
        ([{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:,AA"}}, 5], "see"),
        (None, ""),
    ],
)
def test_a_person_never_sees_the_runtime_context(content: Any, shown: str):
    assert shown_text(cast(ChatMessage, user(content))) == shown
    assert shown_text(cast(ChatMessage, user("go on", origin="system"))) == ""
