import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.markdown.chunks import split_message, well_formed
from nanobot.markdown.dialects import DISCORD, EMAIL, PLAIN, SLACK, TELEGRAM, Dialect
from nanobot.markdown.measures import utf16_units
from tests.markdown.free_text import BAD, repeated, texts

ALL = pytest.mark.parametrize("dialect", (TELEGRAM, SLACK, DISCORD, EMAIL, PLAIN), ids=lambda dialect: dialect.name)

FORMS = [
    "{}", "**{}**", "*{}*", "***{}***", "~~{}~~", "`{}`", "[{}](http://a.b)", "![{}](http://a.b)", "- {}\n", "  - {}\n",
    "1. {}\n", "> {}\n", "# {}\n", "\n\n```py\n{}\n```\n\n", "\n\n|{}|b|\n|-|-|\n|c|{}|{}|{}|\n\n", "<b>{}</b>",
    "<div>{}</div>", "<details><summary>{}</summary>", "<!-- {} -->", "<br>{}", "[{}]: http://a.b\n", "[^{}]: note\n",
    "$${}$$", "\\({}\\)", "    {}\n", "\n===\n{}\n---\n", "- [ ] {}\n", "*{}", "**{}", "`{}", "[{}", "[{}](http",
    "&{};", "{} ", "{}\n", "{}\n\n", "{}. ", ">>> {}\n", "- - - {}\n", "||{}||", "(漢字**「{}」**漢字)",
]  # fmt: skip


@ALL
@given(forms=st.lists(st.sampled_from(FORMS), max_size=25), limit=st.integers(60, 300))
def test_no_word_is_lost_whatever_it_stands_in(dialect, forms, limit):
    count = iter(range(1_000))
    text = "".join(re.sub(r"\{\}", lambda _: f"w{next(count)}w", form) for form in forms)

    said = "".join(piece.text for piece in split_message(text, dialect, limit))

    said += re.sub(r"[\W_]", "", said)  # where there is no blank far and wide, a word may go on in the next piece
    assert [word for word in re.findall(r"w\d+w", text) if word not in said] == []


@ALL
@given(text=texts, limit=st.integers(40, 200))
def test_pieces_fit_are_never_empty_and_their_sources_are_the_text(dialect, text, limit):
    found = split_message(text, dialect, limit)

    assert all(dialect.measure(piece.text) <= limit and piece.text.strip() for piece in found)
    assert "".join(piece.source for piece in found) == well_formed(text) or not (found or well_formed(text).strip())


@given(text=texts, limit=st.integers(40, 200))
def test_entities_lie_within_their_piece_and_hold_more_than_blanks(text, limit):
    for piece in split_message(text, TELEGRAM, limit):
        units = piece.text.encode("utf-16-le")
        for one in piece.entities:
            assert 0 <= one.offset < one.offset + one.length <= utf16_units(piece.text)
            assert units[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le").strip()


def test_a_rendering_that_is_longer_than_its_source_is_cut_until_it_fits():
    found = split_message("a < b & c > d " * 40, SLACK, 100)

    assert len(found) > 8
    assert all(len(piece.text) <= 100 for piece in found)


def test_nothing_is_sent_for_nothing():
    assert split_message("", TELEGRAM) == split_message(" \n\n ", TELEGRAM) == []


def test_what_cannot_be_rendered_goes_out_as_it_is_written():
    def breaks(markdown: str):
        raise IndexError(markdown)

    found = split_message("**hello**", Dialect("odd", breaks, limit=100))

    assert [piece.text for piece in found] == ["**hello**"]


@pytest.mark.parametrize(
    "deep",
    ["> " * 3_000 + "deep", "- " * 3_000 + "deep", "".join(f"{'  ' * n}- x\n" for n in range(200)) + "deep"],
    ids=["quotes", "items", "lists"],
)
def test_a_text_nested_beyond_reason_is_said_all_the_same(deep):
    assert "deep" in "".join(piece.text for piece in split_message(deep, PLAIN))


def test_halves_of_characters_are_joined_or_marked_since_no_wire_takes_them():
    found = split_message("a \ud83d\ude00 b \ud83d c", TELEGRAM)

    assert found[0].text == "a 😀 b \ufffd c"


def test_a_code_of_many_lines_is_code_in_each_message():
    code = "".join(f"line {number}\n" for number in range(400))

    found = split_message(f"Look:\n\n```python\n{code}```", DISCORD)

    assert len(found) > 1
    assert all(piece.text.count("```") == 2 and "```python\n" in piece.text for piece in found)
    assert "".join(re.findall(r"line \d+\n", "".join(piece.text for piece in found))) == code


@pytest.mark.parametrize("bit", BAD.values(), ids=BAD.keys())
def test_ten_kilobytes_of_anything_take_no_time(bit):
    began = time.process_time()

    found = split_message(repeated(bit, 10_000), TELEGRAM)

    assert time.process_time() - began < 5
    assert all(utf16_units(piece.text) <= 4096 for piece in found)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("dialect", [SLACK, EMAIL], ids=["slack", "email"])
@pytest.mark.parametrize("bit", BAD.values(), ids=BAD.keys())
def test_a_megabyte_of_anything_is_said(dialect, bit):
    began = time.process_time()

    split_message(repeated(bit, 1_000_000), dialect)

    assert time.process_time() - began < 60
