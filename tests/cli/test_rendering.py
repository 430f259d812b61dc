from hypothesis import given
from hypothesis import strategies as st

from nanobot.cli.chat.rendering import BlockSplitter

PIECES = [
    "# Head\n",
    "words ",
    "\n",
    "\n\n",
    "- item\n",
    "  more\n",
    "1. one\n",
    "```py\n",
    "```\n",
    "| a | b |\n",
    "x = 1\n",
]


def cut(*pieces: str) -> list[str]:
    cutter = BlockSplitter()
    return [block for piece in pieces for block in cutter.feed(piece)] + cutter.end()


def test_paragraphs_are_cut_at_empty_lines():
    assert cut("one\ntwo\n\nthree") == ["one\ntwo", "three"]


def test_a_heading_stands_alone_even_without_empty_lines_around_it():
    assert cut("before\n# Head\nafter\n") == ["before", "# Head", "after"]


def test_a_loose_list_with_indented_words_is_one_block():
    text = "1. one\n\n   more of one\n\n2. two\n\nafter"

    assert cut(text) == ["1. one\n\n   more of one\n\n2. two", "after"]


def test_empty_lines_and_headings_inside_code_do_not_cut_it():
    code = "```python\nx = 1\n\n# no heading\n\ny = 2\n```"

    assert cut(f"before\n{code}\nafter") == ["before", code, "after"]


def test_a_longer_fence_holds_a_shorter_one():
    code = "````\n```\ninner\n```\n````"

    assert cut(code + "\nafter") == [code, "after"]


def test_code_that_never_ends_comes_out_at_the_end():
    assert cut("```\nx = 1\n") == ["```\nx = 1"]


def test_a_block_is_given_as_soon_as_it_is_sure():
    cutter = BlockSplitter()

    assert cutter.feed("# Head\nfirst par") == ["# Head"]
    assert cutter.feed("agraph\n\n") == []
    assert cutter.feed("second\n") == ["first paragraph"]
    assert cutter.rest == "second"


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(1, 9))
def test_however_the_text_is_sliced_the_blocks_are_the_same_and_no_word_is_lost(pieces, step):
    text = "".join(pieces)

    sliced = cut(*[text[index : index + step] for index in range(0, len(text), step)])

    assert sliced == cut(text)
    assert "".join("".join(sliced).split()) == "".join(text.split())
