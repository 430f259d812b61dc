"""What is shown of an answer that still grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.markdown import split_message
from nanobot.markdown.dialects import DISCORD, PLAIN, TELEGRAM
from tests.markdown.free_text import texts


@pytest.mark.parametrize(
    ("there", "shown"),
    [
        ("Hello *wor", "Hello \\*wor"),
        ("Hello *wor*", "Hello *wor*"),
        ("see [text](https://exa", "see text"),
        ("see [text](https://a.b)", "see [text](https://a.b)"),
        ("```py\nx = 1", "```py\nx = 1\n```"),
        ("A line\n-", "A line"),
        ("A line\n- b", "A line\n- b"),
        ("A line\n===", "A line"),
        ("```py", ""),
        ("-", ""),
        ("", ""),
    ],
)
def test_what_the_next_characters_will_change_is_left_out(there: str, shown: str):
    assert "".join(chunk.text for chunk in split_message(there, DISCORD, growing=True)) == shown


@given(text=texts, share=st.floats(0, 1))
def test_any_beginning_of_any_answer_can_be_shown(text: str, share: float):
    there = text[: round(len(text) * share)]

    shown = split_message(there, TELEGRAM, 100, growing=True)

    assert all(0 < TELEGRAM.measure(chunk.text) <= 100 for chunk in shown)


@given(st.lists(st.sampled_from(["some words here. ", "on", "\n\n", "- item\n", "漢字。", "**bold** "]), max_size=60))
def test_messages_that_are_full_stay_as_they_are_while_the_answer_grows(bits: list[str]):
    text = "".join(bits)
    final = [chunk.text for chunk in split_message(text, PLAIN, 40)]

    for end in range(0, len(text), 7):
        shown = [chunk.text for chunk in split_message(text[:end], PLAIN, 40, growing=True)]
        assert shown[:-2] == final[: len(shown[:-2])]
