"""Rows made smaller, and words in place of what can be read above."""

from typing import Any

import pytest

from nanobot.agent.window.shrink import RowCache, shrink_row, stub_for
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import ToolCallRequest
from tests.support.histories import Rows, asks, step, words

TEXT = words(3_000)


def read(path: str = "a", **more: Any) -> ToolCallRequest:
    return ToolCallRequest("new", "read_file", {"path": path, **more})


def shown(content: Any = TEXT, arguments: str = '{"path": "a"}', tool: str = "read_file") -> Rows:
    rows = [asks("read it", "t"), *step("one", "t", 0, arguments=arguments, tool=tool)]
    rows[-1] = {**rows[-1], "content": content}
    return rows


def test_what_was_read_and_still_stands_above_is_answered_with_a_short_word():
    stub = stub_for(read(), TEXT, shown())

    assert stub is not None
    assert "nchanged" in stub
    assert "read_file" in stub
    assert len(stub) < 100


def test_arguments_are_the_same_however_they_are_written():
    assert stub_for(read(limit=5), TEXT, shown(arguments='{"limit":5,\n "path": "a"}')) is not None


@pytest.mark.parametrize(
    "above",
    [
        shown(TEXT + "changed"),
        shown(arguments='{"path": "b"}'),
        shown(tool="grep"),
        shown("Unchanged since read_file returned it above; read it there."),
        shown([{"type": "text", "text": TEXT}]),
        [],
    ],
    ids=["changed", "other arguments", "other tool", "only a stub", "blocks", "left the window"],
)
def test_anything_else_is_shown_whole(above: Rows):
    assert stub_for(read(), TEXT, above) is None


def test_a_result_that_has_shrunk_meanwhile_is_shown_whole_again():
    row = shown()[-1]

    small = shrink_row(row, 700, is_over=False)

    assert stub_for(read(), TEXT, [*shown()[:-1], small]) is None


def test_a_short_result_is_left_alone():
    assert stub_for(read(), "short", shown("short")) is None


def test_a_row_with_nothing_to_shrink_stays_the_same_object():
    rows: Rows = [*shown("short"), {"role": "assistant", "content": "x" * 7_000}, asks("y" * 7_000, "t")]

    assert all(shrink_row(row, 700, is_over=True) is row for row in rows)


def test_what_a_model_thought_goes_with_the_turns_that_are_over_and_stays_while_one_runs():
    row: ChatMessage = {**step("a", "t", 0)[0], "reasoning_content": "hm", "thinking_blocks": [{"thinking": "hm"}]}

    over = shrink_row(row, 700, is_over=True)
    running = shrink_row(row, 700, is_over=False)

    assert over == step("a", "t", 0)[0]
    assert running is row


def test_the_row_that_was_handed_in_is_never_touched():
    row = shown()[-1]

    small = shrink_row(row, 700, is_over=False)

    assert row["content"] == TEXT
    assert len(str(small["content"])) <= 700
    assert {**small, "content": TEXT} == row


@pytest.mark.parametrize("tool", ["exec", "write_file"])
def test_the_model_is_not_told_to_repeat_what_does_something(tool: str):
    small = shrink_row(shown(tool=tool)[-1], 700, is_over=False)

    assert "changes nothing" in str(small["content"])


@pytest.mark.parametrize(
    "row",
    [
        {"role": "tool"},
        {"role": "tool", "content": 5, "name": None},
        {"role": "tool", "content": [3, {"type": "image_url"}, {"type": "text"}]},
        {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [1, {"function": 2}, {"function": {"arguments": "{" * 2_000}}]},
        {"role": "user", "content": None, "media": 7},
        {"role": "user", "content": [{}], "media": [None]},
        {"role": "odd"},
    ],
)
def test_odd_rows_raise_nothing(row: Any):
    for is_over in (False, True):
        small: ChatMessage = shrink_row(row, 700, is_over=is_over)
        assert small["role"] == row["role"]


def test_rows_that_are_gone_are_not_held_for_ever():
    cache = RowCache()
    row = step("s", "t", 3_000)[1]
    small = cache.shrink(row, 700, is_over=False)

    assert cache.shrink(row, 700, is_over=False) is small
    for number in range(100):
        cache.weigh(step(f"s{number}", "t", 30))
        cache.trim(2)
    assert cache.shrink(row, 700, is_over=False) is not small
