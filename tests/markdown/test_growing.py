"""What is shown of an answer that still grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.markdown.chunks import split_message
from nanobot.markdown.dialects import DISCORD, TELEGRAM
from nanobot.markdown.split import close_open_markup
from tests.markdown.free_text import texts


@pytest.mark.parametrize(
    ("there", "shown"),
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
        ("12", ""),
    ],
)
def test_what_is_open_is_shown_closed(there: str, shown: str):
    assert "".join(piece.text for piece in split_message(close_open_markup(there), DISCORD)) == shown


def test_bold_that_is_not_whole_yet_is_bold_already():
    (piece,) = split_message(close_open_markup("This is **impor"), TELEGRAM)

    assert piece.text == "This is impor"
    assert [(one.type, one.offset) for one in piece.entities] == [("bold", 8)]


@given(text=texts, share=st.floats(0, 1))
def test_any_beginning_of_any_answer_can_be_shown(text: str, share: float):
    there = text[: round(len(text) * share)]

    shown = split_message(close_open_markup(there), TELEGRAM, 100)

    assert all(0 < TELEGRAM.measure(piece.text) <= 100 for piece in shown)


@given(st.lists(st.text("abc", min_size=1, max_size=5), max_size=9))
def test_plain_words_are_shown_as_they_are(words: list[str]):
    assert close_open_markup(" ".join(words)) == " ".join(words)
