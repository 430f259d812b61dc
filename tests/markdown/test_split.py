"""What holds for the messages that a text is split into."""

import html.parser
import re
import time
from itertools import combinations

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import DINGTALK, DISCORD, EMAIL, FEISHU, PLAIN, SLACK, TELEGRAM
from tests.markdown.free_text import BAD, repeated, texts

OTHERS = (SLACK, DISCORD, FEISHU, DINGTALK, EMAIL, PLAIN)
ALL = pytest.mark.parametrize("dialect", (TELEGRAM, *OTHERS), ids=lambda dialect: dialect.name)

FORMS = [
    "{}", "**{}**", "*{}*", "***{}***", "~~{}~~", "`{}`", "[{}](http://a.b)", "![{}](http://a.b)", "- {}\n", "  - {}\n",
    "1. {}\n", "> {}\n", "# {}\n", "\n\n```py\n{}\n```\n\n", "\n\n|{}|b|\n|-|-|\n|c|{}|{}|{}|\n\n", "<b>{}</b>",
    "<div>{}</div>", "<details><summary>{}</summary>", "<!-- {} -->", "<br>{}", "[{}]: http://a.b\n", "[^{}]: note\n",
    "$${}$$", "\\({}\\)", "    {}\n", "\n===\n{}\n---\n", "- [ ] {}\n", "*{}", "**{}", "`{}", "[{}", "[{}](http",
    "&{};", "{} ", "{}\n", "{}\n\n", "{}. ", ">>> {}\n", "- - - {}\n", "||{}||", "(漢字**「{}」**漢字)",
]  # fmt: skip


SLACK_TEXT = re.compile(r"(?:[^<>&]|&(?:amp|lt|gt);|<(?:https?://|mailto:)[^<>|]+\|[^<>]+>|^(?:> ?)+)*", re.MULTILINE)


def messages(markdown: str, limit: int, dialect=PLAIN) -> list[str]:
    return [chunk.text for chunk in split_message(markdown, dialect, limit)]


@ALL
@given(forms=st.lists(st.sampled_from(FORMS), max_size=25), limit=st.integers(60, 300))
def test_no_word_is_lost_and_their_order_stays(dialect, forms, limit):
    count = iter(range(1_000))
    text = "".join(re.sub(r"\{\}", lambda _: f"w{next(count)}w", form) for form in forms)

    said = "\n".join(messages(text, limit, dialect))

    places = [said.find(word) for word in re.findall(r"w\d+w", text)]
    joined = re.sub(r"[\W_]", "", said)  # where there is no blank far and wide, a word may go on in the next message
    assert [word for word in re.findall(r"w\d+w", text) if word not in said and word not in joined] == []
    assert (found := [place for place in places if place >= 0]) == sorted(found)


@ALL
@given(text=texts, limit=st.integers(40, 200))
def test_each_message_fits_and_is_legal_by_itself(dialect, text, limit):
    for chunk in split_message(text, dialect, limit):
        assert chunk.text.strip()
        assert dialect.measure(chunk.text) <= limit
        LEGAL[dialect.name](chunk)


def check_telegram(chunk: Chunk) -> None:
    units = chunk.text.encode("utf-16-le")
    spans = [(one.offset, one.offset + one.length, one.type) for one in chunk.entities]
    for start, end, kind in spans:
        assert 0 <= start < end <= len(units) // 2
        assert units[2 * start : 2 * end].decode("utf-16-le").strip()
        assert kind in {"bold", "italic", "underline", "strikethrough", "code", "pre", "text_link", "blockquote"}
    for (start, end, _), (start2, end2, _) in combinations(spans, 2):
        assert end2 <= start or end <= start2 or start <= start2 < end2 <= end or start2 <= start < end <= end2


def check_slack(chunk: Chunk) -> None:
    assert chunk.text.count("```") % 2 == 0
    assert SLACK_TEXT.fullmatch(chunk.text)


def check_discord(chunk: Chunk) -> None:
    assert len(re.findall("^(?:> )*```", chunk.text, re.MULTILINE)) % 2 == 0


class _Nesting(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in {"br", "hr"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in {"br", "hr"}:
            assert self.open.pop() == tag


def check_mail(chunk: Chunk) -> None:
    page = _Nesting()
    page.feed((chunk.html or "").replace("<!doctype html>", ""))
    assert page.open == []


LEGAL = {
    "telegram": check_telegram, "slack": check_slack, "discord": check_discord, "feishu": check_discord,
    "dingtalk": check_discord, "email": check_mail, "plain": lambda chunk: None,
}  # fmt: skip


@pytest.mark.parametrize("dialect", (TELEGRAM, SLACK, PLAIN), ids=lambda dialect: dialect.name)
@given(
    words=st.lists(
        st.one_of(st.text("abcxyz", min_size=1, max_size=50), st.sampled_from(["漢字。", "👨‍👩‍👧", "🇩🇪", "e\u0301"]))
    ),
    gap=st.sampled_from([" ", "", "\n", "\n\n", ". "]),
    limit=st.integers(40, 200),
)
def test_plain_text_arrives_character_by_character(dialect, words, gap, limit):
    text = gap.join(words)

    assert "".join("".join(messages(text, limit, dialect)).split()) == "".join(text.split())


def test_cut_prefers_the_end_of_a_paragraph_then_of_a_sentence_then_of_a_word():
    paragraphs = "One two three four.\nfive six.\n\nSeven eight nine. Ten eleven twelve thirteen."
    sentences = "One two three four five. Six seven eight nine ten"

    assert messages(paragraphs, 60) == [
        "One two three four.\nfive six.", "Seven eight nine. Ten eleven twelve thirteen.",
    ]  # fmt: skip
    assert [text.strip() for text in messages(sentences, 40)] == [
        "One two three four five.",
        "Six seven eight nine ten",
    ]
    assert [text.strip() for text in messages("one two three four five six seven eight nine", 32)] == [
        "one two three four five six", "seven eight nine",
    ]  # fmt: skip


def test_heading_goes_with_what_it_heads():
    found = messages("Some words to begin with.\n\n# A heading\n\nWhat it heads is this here.", 60, DISCORD)

    assert found == ["Some words to begin with.", "# A heading\n\nWhat it heads is this here."]


def test_code_of_many_lines_is_code_in_each_message():
    code = "".join(f"line {number}\n" for number in range(400))

    found = messages(f"Look:\n\n```python\n{code}```", 2000, DISCORD)

    assert len(found) > 1
    assert all(text.count("```") == 2 and "```python\n" in text for text in found)
    assert "".join(re.findall(r"line \d+\n", "".join(found))) == code


def test_code_in_a_quote_stays_in_it():
    found = messages("> ```py\n" + "> a = 1\n" * 12 + "> ```\n", 60, DISCORD)

    assert len(found) > 1
    assert all(text.startswith("> ```py\n> a = 1\n") and text.endswith("\n> ```") for text in found)


def test_table_that_is_cut_gets_its_head_again_and_no_row_is_torn():
    rows = "".join(f"| {number} | some words |\n" for number in range(20))

    found = messages(f"| n | words |\n|---|---|\n{rows}", 120)

    assert len(found) > 3
    assert all(re.fullmatch(r"n +\| words\n-+\+-+(\n\d+ +\| some words)+", text) for text in found)


def test_head_that_would_fill_each_message_is_not_said_again():
    table = f"| {'a long head ' * 8}| b |\n|---|---|\n" + "| some words | more |\n" * 20

    assert len(messages(table, 120)) < 12


@pytest.mark.parametrize(
    ("markdown", "whole"),
    [("[the text of a link](https://example.org/a/way)", "[the text of a link](https://example.org/a/way)"),
     ("`a little code here`", "`a little code here`"), ("**three bold words**", "**three bold words**"),
     ("https://example.org/one/two/three", "https://example.org/one/two/three"),
     ("<https://example.org/one/two>", "https://example.org/one/two"),
     ("![a picture](https://example.org/p.png)", "[a picture](https://example.org/p.png)")],
)  # fmt: skip
@pytest.mark.parametrize("words", range(3, 9))
def test_what_hangs_together_stays_whole(markdown, whole, words):
    found = messages("word " * words + markdown + " more words to come here", 60, DISCORD)

    assert sum(whole in text for text in found) == 1


def test_emphasis_longer_than_a_message_is_closed_and_opened_again():
    found = messages("**" + "bold words " * 20 + "end**", 80, DISCORD)

    assert len(found) > 2
    assert all(re.fullmatch(r"\*\*\w[^*]*\w\*\*", text) for text in found)


def test_what_stood_in_the_middle_of_a_line_is_not_taken_for_a_heading_or_a_list():
    found = messages("a " * 20 + "# 1 of them - and 2. of those " * 5, 42, DISCORD)

    assert not {"# ", "- ", "2."} & {text[:2] for text in found}


@pytest.mark.parametrize("whole", ["👨‍👩‍👧‍👦", "🇩🇪", "e\u0301\u0323", "👍🏽", "각", "नि"])
@pytest.mark.parametrize("shift", range(4))
def test_no_grapheme_is_torn(whole, shift):
    found = messages("x" * shift + whole * 60, 40, TELEGRAM)

    assert "".join(found) == "x" * shift + whole * 60
    assert all(set(regex.findall(r"\X", text)) <= {"x", whole} for text in found)


def test_rendering_that_is_longer_than_its_source_is_cut_until_it_fits():
    found = messages("a < b & c > d " * 40, 100, SLACK)

    assert len(found) > 8
    assert all(len(text) <= 100 for text in found)


def test_nothing_is_sent_for_nothing():
    assert split_message("", TELEGRAM) == split_message(" \n\n ", TELEGRAM) == []
    assert messages(f"```\n{' ' * 300}\nx\n```", 60, SLACK) == ["```\nx\n```"]


def test_text_of_which_nothing_is_left_is_sent_as_it_is():
    assert messages("```py", 60) == ["```py"]
    assert messages("<b></b>", 60, SLACK) == ["&lt;b&gt;&lt;/b&gt;"]


@pytest.mark.parametrize(
    "deep",
    ["> " * 1_200 + "deep", "- " * 1_200 + "deep", "".join(f"{'  ' * n}- x\n" for n in range(200)) + "deep",
     "*a " * 1_200 + "deep" + "*" * 1_200],
    ids=["quotes", "items", "lists", "emphasis"],
)  # fmt: skip
@pytest.mark.parametrize("dialect", [TELEGRAM, *(pytest.param(other, marks=pytest.mark.slow) for other in OTHERS)])
def test_text_nested_beyond_reason_is_said_all_the_same(deep, dialect):
    assert "deep" in "".join(messages(deep, 4000, dialect))


def test_halves_of_characters_are_joined_or_marked_since_no_wire_takes_them():
    assert messages("a \ud83d\ude00 b \ud83d c", 100, TELEGRAM) == ["a 😀 b \ufffd c"]


def test_limit_that_nothing_fits_in_is_refused():
    with pytest.raises(ValueError, match="too short"):
        split_message("a text", PLAIN, 5)


@pytest.mark.parametrize("bit", BAD.values(), ids=BAD.keys())
def test_cost_grows_with_the_length_and_not_with_its_square(bit):
    costs = []
    for size in (1_000, 8_000):
        began = time.process_time()
        found = messages(repeated(bit, size), 4096, TELEGRAM)
        costs.append(time.process_time() - began)
        assert all(TELEGRAM.measure(text) <= 4096 for text in found)

    assert costs[1] < 0.1 + 16 * costs[0]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("dialect", [SLACK, EMAIL], ids=["slack", "email"])
@pytest.mark.parametrize("bit", BAD.values(), ids=BAD.keys())
def test_megabyte_of_anything_is_said(dialect, bit):
    began = time.process_time()

    split_message(repeated(bit, 1_000_000), dialect)

    assert time.process_time() - began < 60
