import re
import time

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from nanobot.markdown.layout import parse_layout
from nanobot.markdown.measures import Measure, code_points, utf16_units
from nanobot.markdown.split import next_part
from tests.markdown.free_text import BAD, repeated, texts


def split(markdown: str, limit: int, measure: Measure = code_points) -> list[str]:
    layout, start, before, parts = parse_layout(markdown), 0, "", []
    while start < len(markdown):
        part = next_part(layout, start, before, limit, measure)
        start, before = start + len(part.source), part.before_next
        parts.append(part.markdown)
    return parts


def test_a_short_text_is_one_piece():
    assert split("Hello *world*", 100) == ["Hello *world*"]


def test_an_empty_text_is_no_piece():
    assert split("", 100) == []


def test_a_cut_prefers_the_end_of_a_paragraph():
    text = "One two three four.\nfive six.\n\nSeven eight nine. Ten eleven twelve thirteen."

    assert split(text, 60) == ["One two three four.\nfive six.\n\n", "Seven eight nine. Ten eleven twelve thirteen."]


def test_then_the_end_of_a_sentence():
    assert split("One two three four five. Six seven eight nine ten", 40) == [
        "One two three four five. ", "Six seven eight nine ten",
    ]  # fmt: skip


def test_then_the_end_of_a_word():
    assert split("one two three four five six seven eight nine", 32) == [
        "one two three four five six ",
        "seven eight nine",
    ]


def test_a_fence_that_is_cut_is_closed_and_opened_again_with_its_language():
    code = "".join(f"print({number})\n" for number in range(20))

    pieces = split(f"```python\n{code}```\n", 100)

    assert len(pieces) > 2
    assert all(piece.startswith("```python\n") and piece.rstrip().endswith("\n```") for piece in pieces)
    assert "".join(re.findall(r"print\(\d+\)\n", "".join(pieces))) == code


def test_a_fence_in_a_quote_is_opened_again_in_a_quote():
    pieces = split("> ```py\n" + "> a = 1\n" * 12 + "> ```\n", 60)

    assert all(piece.startswith("> ```py\n") and piece.rstrip().endswith("> ```") for piece in pieces)


def test_a_table_that_is_cut_gets_its_head_again_and_no_row_is_torn():
    rows = "".join(f"| {number} | some words |\n" for number in range(20))

    pieces = split(f"| n | words |\n|---|---|\n{rows}", 120)

    assert len(pieces) > 3
    assert all(piece.startswith("| n | words |\n|---|---|\n") for piece in pieces)
    assert all(line.startswith(("| ", "|-")) for piece in pieces for line in piece.splitlines())


@pytest.mark.parametrize(
    "whole",
    ["[the text of a link](https://example.org/a/way/there)", "`a little code here`", "**three bold words**",
     "https://example.org/one/two/three", "<https://example.org/one/two>", "![a picture](https://example.org/p.png)"],
)  # fmt: skip
@pytest.mark.parametrize("words", range(3, 9))
def test_what_hangs_together_stays_whole(whole, words):
    pieces = split("word " * words + whole + " more words to come here", 60)

    assert sum(whole in piece for piece in pieces) == 1


def test_a_head_that_would_fill_each_piece_is_not_said_again():
    table = f"| {'a long head ' * 8}| b |\n|---|---|\n" + "| some words | more |\n" * 20

    assert len(split(table, 120)) < 8


def test_emphasis_longer_than_a_piece_is_closed_and_opened_again():
    pieces = split("**" + "bold words " * 20 + "end**", 80)

    assert len(pieces) > 2
    assert all(piece.startswith("**") and piece.rstrip().endswith("**") for piece in pieces)


def test_what_stood_in_the_middle_of_a_line_is_not_taken_for_a_heading_or_a_list():
    text = "a " * 20 + "# 1 of them - and 2. of those " * 5

    starts = [piece[:2] for piece in split(text, 42)]

    assert not {"# ", "- ", "2."} & set(starts)


def test_a_heading_goes_with_what_it_heads():
    pieces = split("Some words to begin with.\n\n# A heading\n\nWhat it heads is this here.", 60)

    assert pieces == ["Some words to begin with.\n\n", "# A heading\n\nWhat it heads is this here."]


@pytest.mark.parametrize("whole", ["👨‍👩‍👧‍👦", "🇩🇪", "e\u0301\u0323", "👍🏽", "각", "नि"])
@pytest.mark.parametrize("shift", range(4))
def test_no_grapheme_is_torn(whole, shift):
    pieces = split("x" * shift + whole * 60, 40, utf16_units)

    assert "".join(pieces) == "x" * shift + whole * 60
    assert all(set(regex.findall(r"\X", piece)) <= {"x", whole} for piece in pieces)


@pytest.mark.parametrize("measure", [code_points, utf16_units])
@given(text=texts, limit=st.integers(32, 200))
def test_no_piece_is_too_long_and_no_character_is_lost(measure, text, limit):
    layout, start, before, sources = parse_layout(text), 0, "", []
    while start < len(text):
        part = next_part(layout, start, before, limit, measure)
        sources.append(part.source)
        start, before = start + len(part.source), part.before_next
        assert measure(part.markdown) <= limit

    assert "".join(sources) == text
    assert all(sources)


@given(st.lists(st.sampled_from(["words here\n\n", "```py\ncode = 1\nmore = 2\n```\n", "- item\n", "~~~\nx\n~~~\n\n"])))
def test_fences_are_balanced_in_each_piece(blocks):
    for piece in split("".join(blocks), 40):
        assert len(re.findall("^```", piece, re.MULTILINE)) % 2 == 0
        assert len(re.findall("^~~~", piece, re.MULTILINE)) % 2 == 0


def test_a_limit_that_nothing_fits_in_is_refused():
    with pytest.raises(ValueError, match="too short"):
        split("a text", 5)


@pytest.mark.slow
@pytest.mark.parametrize("bit", BAD.values(), ids=BAD.keys())
def test_a_megabyte_of_anything_takes_seconds(bit):
    began = time.process_time()

    split(repeated(bit, 1_000_000), 4096, utf16_units)

    assert time.process_time() - began < 20
