import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.channels.text.dialects import DIALECTS, DISCORD, TELEGRAM
from nanobot.channels.text.draft import Draft
from nanobot.channels.text.pieces import Piece, sound
from tests.channels.text.free_text import texts


def shown(text: str) -> str:
    draft = Draft(DISCORD)
    draft.add(text)
    piece = draft.look().open
    return piece.text if piece is not None else ""


@pytest.mark.parametrize(
    ("so_far", "expected"),
    [
        ("Hello **wor", "Hello **wor**"),
        ("Hello **", "Hello"),
        ("some `co", "some `co`"),
        ("**a *b", "**a *b***"),
        ("see [the text", "see the text"),
        ("see [text](https://exa", "see text"),
        ("see [text](https://a.b)", "see [text](https://a.b)"),
        ("```py\nx = 1", "```py\nx = 1\n```"),
        ("A line\n-", "A line"),
        ("A line\n- b", "A line\n- b"),
        ("A line\n#", "A line"),
        ("", ""),
    ],
)
def test_what_is_open_is_shown_closed(so_far, expected):
    assert shown(so_far) == expected


def test_a_message_that_is_full_is_settled_and_the_rest_goes_on_in_the_next():
    draft = Draft(DISCORD, 60)
    draft.add("First some words. ")
    first = draft.look()
    draft.add("And then some more of them, so that there is no room left.")

    second = draft.look()

    assert first.full == ()
    assert [piece.text for piece in second.full] == ["First some words. And then some more of them, so that there"]
    assert second.open is not None
    assert second.open.text == "is no room left."


def test_a_fence_goes_on_in_the_next_message():
    draft = Draft(TELEGRAM, 60)
    draft.add("```python\n" + "".join(f"x = {number}\n" for number in range(9)))

    look = draft.look()

    kinds = [(one.type, one.language) for piece in (*look.full, look.open) if piece for one in piece.entities]
    assert len(kinds) > 1
    assert set(kinds) == {("pre", "python")}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
@settings(max_examples=25, deadline=None)
@given(text=texts, limit=st.integers(40, 200), step=st.integers(1, 40))
def test_a_stream_in_any_steps_says_all_and_each_look_fits(dialect, text, limit, step):
    draft = Draft(dialect, limit)
    settled: list[Piece] = []
    for start in range(0, len(text), step):
        draft.add(text[start : start + step])
        look = draft.look()
        settled += look.full
        for piece in (*look.full, *([look.open] if look.open else [])):
            assert dialect.measure(piece.text) <= limit
            assert piece.text.strip()

    settled += draft.end()

    assert "".join(piece.source for piece in settled).strip() == sound(text).strip()


def test_what_stood_in_the_middle_of_a_line_is_no_heading_in_the_next_message():
    draft = Draft(DISCORD, 40)
    draft.add("The one that matters most of all is the # 1 of them")

    look = draft.look()

    assert look.open is not None
    assert look.open.text == "\\# 1 of them"
    assert [piece.text for piece in draft.end()] == ["\\# 1 of them"]


def test_halves_of_a_character_that_come_one_by_one_are_one():
    draft = Draft(DISCORD)
    draft.add("a \ud83d")
    first = draft.look().open
    draft.add("\ude00\r")
    draft.add("\nb")

    assert first == Piece("a ", "a")
    assert [piece.text for piece in draft.end()] == ["a 😀\nb"]


def test_a_look_costs_what_the_open_message_holds_not_what_was_said_before():
    draft, paragraph = Draft(TELEGRAM), "Some **words** of a long answer, and [a link](https://a.b).\n\n" * 10
    costs = []
    for _ in range(120):
        draft.add(paragraph)
        began = time.process_time()
        draft.look()
        costs.append(time.process_time() - began)

    assert sum(costs[-20:]) < 4 * sum(costs[20:40]) + 0.1
