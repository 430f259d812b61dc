"""What holds for one dialect. What each makes of Markdown: corpus.txt."""

import html.parser
import re

import pytest
from markdown_it import MarkdownIt

from nanobot.markdown import Dialect, split_message
from nanobot.markdown.dialects import DINGTALK, EMAIL, SLACK, TELEGRAM


def test_telegram_gets_a_hundred_entities_at_most_links_before_looks():
    (chunk,) = split_message("**b** " * 120 + "[link](https://a.b)", TELEGRAM)

    assert len(chunk.entities) == 100
    assert sum(entity.type == "text_link" for entity in chunk.entities) == 1


@pytest.mark.parametrize(
    "written", ["<!channel> <@U1>", "`<!channel>`", "```\n<!channel>\n```", "[<!here>](https://a.b)"]
)
@pytest.mark.parametrize("limit", [40, 4000])
def test_no_answer_can_call_everybody_in_slack(written, limit):
    said = "".join(chunk.text for chunk in split_message("> " * 30 + written, SLACK, limit))

    assert "&lt;" in said
    assert "<!" not in said
    assert "<@" not in said


def test_what_cannot_be_rendered_goes_out_as_it_is_written():
    def breaks(code: str) -> str:
        raise IndexError(code)

    found = split_message("**hello** `code`", Dialect("odd", 100, code=breaks))

    assert [chunk.text for chunk in found] == ["**hello** `code`"]


def test_link_whose_address_no_message_holds_is_written_out():
    url = "https://a.b/" + "c" * 300

    said = "".join(chunk.text for chunk in split_message(f"see [the text]({url}) here", SLACK, 100))

    assert "the text" in said
    assert url in said.replace("\n", "")


def test_dingtalk_which_reads_markdown_shows_each_line_and_mark_as_it_was_meant():
    written = (
        "first\nsecond **bold** snake_case 2 * 3 * 4\n\n"
        "\\!\\[p](https://a.b/?secret) \\<font color=red>\n\n- item\n\n1\\. no list\n\n```py\na = 1\nb = '*'\n```"
    )

    (chunk,) = split_message(written, DINGTALK)

    assert MarkdownIt("commonmark").render(chunk.text) == (
        "<p>first<br />\nsecond <strong>bold</strong> snake_case 2 * 3 * 4</p>\n"
        "<p>![p](https://a.b/?secret) &lt;font color=red&gt;</p>\n"
        "<ul>\n<li>item</li>\n</ul>\n<p>1. no list</p>\n"
        "<pre><code class=\"language-py\">a = 1\nb = '*'\n</code></pre>\n"
    )


class _Page(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str | None] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in {"href", "src"} or name.startswith("on")]


@pytest.mark.parametrize(
    "written",
    ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "<b onclick='x'>b</b>",
     "![p](https://spy.example/p.png)", "<iframe src='https://a.b'></iframe>", "[x](data:text/html,x)", "<b><i>",
     "[a](<https://a.b\" onclick=\"x>)", "`<script>`", "```<script>\n<script>\n```", "[a](file:///etc/passwd)"],
)  # fmt: skip
def test_a_mail_holds_nothing_that_runs_or_fetches(written):
    (chunk,) = split_message(written, EMAIL)
    page = _Page()
    page.feed(chunk.html or "")

    assert set(page.tags) <= {"html", "body", "p", "strong", "a", "code", "pre", "br"}
    assert all(link and re.match("https?:", link) for link in page.links)


def test_a_mail_may_be_long():
    (chunk,) = split_message("**word** " * 5_000, EMAIL)

    assert chunk.text.count("word") == (chunk.html or "").count("<strong>word</strong>") == 5_000
