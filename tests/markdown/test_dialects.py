import html.parser
import re

import pytest

from nanobot.markdown.chunks import split_message
from nanobot.markdown.dialects import DISCORD, EMAIL, PLAIN, SLACK, TELEGRAM

TABLE = "| Fruit | 数量 |\n|---|---:|\n| 苹果 | 12 |\n| pear | 3 |\n"
DRAWN = "Fruit | 数量\n------+-----\n苹果  |   12\npear  |    3"

WRITTEN = [
    ("**bold**", "bold", "*bold*", "**bold**"),
    ("__bold__", "bold", "*bold*", "**bold**"),
    ("*it* and _it_", "it and it", "_it_ and _it_", "*it* and *it*"),
    ("~~gone~~", "gone", "~gone~", "~~gone~~"),
    ("`a < b`", "a < b", "`a &lt; b`", "`a < b`"),
    ("# Title", "Title", "*Title*", "# Title"),
    ("#### Small **title**", "Small title", "*Small title*", "**Small title**"),
    ("[text](https://a.b/c)", "text (https://a.b/c)", "<https://a.b/c|text>", "[text](https://a.b/c)"),
    ("[text](./notes.md)", "text (./notes.md)", "text (./notes.md)", "text (./notes.md)"),
    ("<https://a.b/c_d_e>", "https://a.b/c_d_e", "https://a.b/c_d_e", "https://a.b/c_d_e"),
    ("![a cat](https://a.b/c.png)", "🖼 a cat (https://a.b/c.png)", "🖼 <https://a.b/c.png|a cat>",
     "🖼 [a cat](https://a.b/c.png)"),
    ("- one\n- two\n  - three", "• one\n• two\n  ◦ three", "• one\n• two\n  ◦ three", "- one\n- two\n  - three"),
    ("3. three\n4. four", "3. three\n4. four", "3. three\n4. four", "3. three\n4. four"),
    ("- [ ] to do\n- [x] done", "• ☐ to do\n• ☑ done", "• ☐ to do\n• ☑ done", "- ☐ to do\n- ☑ done"),
    ("- - deep", "• ◦ deep", "• ◦ deep", "- - deep"),
    ("> - one\n> - two", "> • one\n> • two", "> • one\n> • two", "> - one\n> - two"),
    ("[](https://a.b)", "https://a.b", "<https://a.b|https://a.b>", "[https://a.b](https://a.b)"),
    ("> said\n> again", "> said\n> again", "> said\n> again", "> said\n> again"),
    ("```py\nx = 1\n```", "x = 1", "```\nx = 1\n```", "```py\nx = 1\n```"),
    (TABLE, DRAWN, f"```\n{DRAWN}\n```", f"```\n{DRAWN}\n```"),
    ("one<br>two <b>three</b>", "one\ntwo three", "one\ntwo *three*", "one\ntwo **three**"),
    ("<Widget a='1'> & co", "<Widget a='1'> & co", "&lt;Widget a='1'&gt; &amp; co", "<Widget a='1'> & co"),
    ("two lines\nstay two", "two lines\nstay two", "two lines\nstay two", "two lines\nstay two"),
    ("2 \\* 3 * 4", "2 * 3 * 4", "2 * 3 * 4", "2 \\* 3 \\* 4"),
    ("snake_case_name", "snake_case_name", "snake_case_name", "snake_case_name"),
    ("这是**重点**内容", "这是重点内容", "这是\u200b*重点*\u200b内容", "这是**重点**内容"),
    ("这是**「重点」**内容", "这是「重点」内容", "这是\u200b*「重点」*\u200b内容", "这是**「重点」**内容"),
    ("2 ** 3 ** 4", "2 ** 3 ** 4", "2 ** 3 ** 4", "2 \\*\\* 3 \\*\\* 4"),
    ("[two\nlines](https://a.b)", "two\nlines (https://a.b)", "<https://a.b|two lines>", "[two lines](https://a.b)"),
    ("مرحبا **عالم**", "مرحبا عالم", "مرحبا *عالم*", "مرحبا **عالم**"),
    ("**two\nlines**", "two\nlines", "*two*\n*lines*", "**two\nlines**"),
    ("a\n\n---\n\nb", "a\n\n———\n\nb", "a\n\n———\n\nb", "a\n\n———\n\nb"),
]  # fmt: skip


@pytest.mark.parametrize(("markdown", "plain", "slack", "discord"), WRITTEN, ids=[row[0][:20] for row in WRITTEN])
def test_each_dialect_writes_it_its_own_way(markdown, plain, slack, discord):
    said = [split_message(markdown, dialect)[0].text for dialect in (PLAIN, SLACK, DISCORD)]

    assert said == [plain, slack, discord]


def stretches(markdown: str) -> list[tuple[str, str, str | None]]:
    (piece,) = split_message(markdown, TELEGRAM)
    units = piece.text.encode("utf-16-le")
    return [
        (one.type, units[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le"), one.url or one.language)
        for one in piece.entities
    ]


@pytest.mark.parametrize(
    ("markdown", "expected"),
    [
        ("😀 **bold**", [("bold", "bold", None)]),
        ("# Title", [("bold", "Title", None)]),
        ("a [link](https://a.b) here", [("text_link", "link", "https://a.b")]),
        ("```python\nx = 1\n```", [("pre", "x = 1", "python")]),
        (TABLE, [("pre", DRAWN, None)]),
        ("> said\n> again", [("blockquote", "said\nagain", None)]),
        ("**a *b* c**", [("bold", "a b c", None), ("italic", "b", None)]),
        ("**a `b` c**", [("bold", "a ", None), ("code", "b", None), ("bold", " c", None)]),
        ("[see `b`](https://a.b)", [("text_link", "see b", "https://a.b")]),
        ("[bad](javascript:x)", []),
        ("**", []),
    ],
)
def test_telegram_gets_entities_over_plain_words(markdown, expected):
    assert stretches(markdown) == expected


def test_telegram_gets_a_hundred_entities_at_most_links_before_looks():
    (piece,) = split_message("**b** " * 120 + "[link](https://a.b)", TELEGRAM)

    assert len(piece.entities) == 100
    assert sum(one.type == "text_link" for one in piece.entities) == 1


@pytest.mark.parametrize(
    "written", ["<!channel> <@U1>", "`<!channel>`", "```\n<!channel>\n```", "[<!here>](https://a.b)"]
)
def test_no_answer_can_call_everybody_in_slack(written):
    (piece,) = split_message(written, SLACK)

    assert "<!" not in piece.text
    assert "<@" not in piece.text


def test_backticks_within_a_fence_do_not_end_it():
    for dialect in (SLACK, DISCORD):
        (piece,) = split_message("````md\n```py\nx\n```\n````", dialect)

        assert piece.text.count("```") == 2


def test_a_table_that_no_screen_holds_becomes_a_list_of_what_each_row_says():
    wide = "a long cell of many words " * 5

    (piece,) = split_message(f"| Name | Says |\n|---|---|\n| Ann | {wide} |\n| Bob | no |", PLAIN)

    assert piece.text == f"Name: Ann\nSays: {wide.strip()}\n\nName: Bob\nSays: no"


def test_a_cell_beyond_the_columns_is_kept():
    assert "| c" in split_message("|a|b|\n|-|-|\n|1|2|c|", PLAIN)[0].text


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src"} or name.startswith("on")]


def test_a_mail_has_plain_words_and_a_page():
    (piece,) = split_message(f"# Hi\n\n**bold** <b>b</b><br>x [l](https://a.b)\n\n{TABLE}", EMAIL)

    assert piece.text.startswith("Hi\n\nbold b\nx l (https://a.b)")
    assert piece.html is not None
    for part in ("<h1>Hi</h1>", "<strong>bold</strong> <b>b</b><br>", '<a href="https://a.b">l</a>', "<td>苹果</td>"):
        assert part in piece.html


@pytest.mark.parametrize(
    "written",
    ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "<b onclick='x'>b</b>",
     "![p](https://spy.example/p.png)", "<iframe src='https://a.b'></iframe>", "[x](data:text/html,x)", "<b><i>",
     "[a](<https://a.b\" onclick=\"x>)", "`<script>`", "```<script>\n<script>\n```"],
)  # fmt: skip
def test_a_mail_holds_nothing_that_runs_or_fetches(written):
    (piece,) = split_message(written, EMAIL)
    page = _Page()
    page.feed(piece.html or "")

    assert set(page.tags) <= {"html", "body", "p", "b", "a", "code", "pre", "br"}
    assert all(link and re.match("https?:|%", link) for link in page.links)


def test_a_mail_without_end_is_plain_words():
    (piece,) = split_message("word " * 30_000, EMAIL)

    assert piece.html is None
    assert piece.text.count("word") == 30_000
