"""Bodies of the web become text, however they are written."""

import pytest

from nanobot.agent.tools.web.fetch import Page, read_body

WORDS = "A sentence of the article, with words in it that people want to read. " * 8
ARTICLE = f"""<!doctype html><html><head><title>News of the day</title><style>p {{color: red}}</style></head>
<body><nav><a href="/a">Home</a> <a href="/b">About</a></nav>
<article><h1>A headline</h1><p>{WORDS}</p><p>And a <a href="/next">link</a>, and <b>bold</b> words.</p>
<ul><li>the first of the things</li><li>the second of them</li></ul><pre>code = 1\n  indented</pre></article>
<script>alert("gone")</script><footer>Terms</footer></body></html>"""


def page(body: bytes | str, kind: str = "text/html", header: str = "", *, markdown: bool = True) -> Page:
    data = body.encode() if isinstance(body, str) else body
    found = read_body(data, kind, header or kind, url="https://x.test/news/", markdown=markdown, limit=50_000)
    assert found is not None
    return found


def test_an_article_is_read_as_markdown_without_what_stands_around_it():
    read = page(ARTICLE)

    assert read.extractor == "readability"
    assert read.text.startswith("# News of the day\n\n# A headline")
    assert "[link](https://x.test/next), and **bold** words." in read.text
    assert "- the first of the things\n- the second of them" in read.text
    assert "```\ncode = 1\n  indented\n```" in read.text
    assert not any(gone in read.text for gone in ("alert", "color", "Home", "Terms"))


@pytest.mark.parametrize(
    ("title", "head"),
    [
        ("Cats", "# Cats\n\nCats purr."),
        ("Cats purr.", "Cats purr."),
        (" A\n B ", "# A B\n\nCats purr."),
        ("", "Cats purr."),
    ],
)
def test_a_page_begins_with_its_title_unless_it_does_so_by_itself(title, head):
    assert page(f"<title>{title}</title><p>Cats purr.</p>").text == head


def test_an_article_is_read_as_plain_text_a_line_a_block():
    read = page(ARTICLE, markdown=False)

    assert read.text.startswith("News of the day\n\nA headline")
    assert "And a link, and bold words.\n" in read.text
    assert "**" not in read.text


def test_a_page_of_links_alone_is_read_whole():
    links = "".join(f"<tr><td><a href='/item{number}'>Title {number}</a></td></tr>" for number in range(30))

    read = page(f"<title>Front</title><table>{links}</table>")

    assert read.extractor == "page"
    assert "[Title 29](https://x.test/item29)" in read.text


@pytest.mark.parametrize("body", ["", "   ", "<", "<!-- only a comment", "<script>", "\0\0", "<html></html>", "]]>"])
def test_a_page_of_nothing_is_nothing(body):
    assert len(page(body).text) < 10


ENCODED = {
    "utf-8, unsaid": ("<p>Grüße, 日本</p>".encode(), "text/html", "Grüße, 日本"),
    "a header": ("<p>日本</p>".encode("shift_jis"), "text/html; charset=Shift_JIS", "日本"),
    "a header in quotes": ("<p>Grüße – €</p>".encode("cp1252"), 'text/html; charset="ISO-8859-1"', "Grüße – €"),
    "its own head": ("<meta charset=windows-1252><p>Grüße</p>".encode("cp1252"), "text/html", "Grüße"),
    "its own head, in the old way": (
        '<meta http-equiv="Content-Type" content="text/html; charset=gb2312"><p>日本</p>'.encode("gbk"),
        "text/html",
        "日本",
    ),
    "a byte order mark": ("\ufeff<p>日本</p>".encode("utf-16-le"), "text/html; charset=utf-8", "日本"),
    "nothing said, and not UTF-8": ("<p>Grüße</p>".encode("cp1252"), "text/html", "Grüße"),
    "a lie": ("<p>Grüße</p>".encode("cp1252"), "text/html; charset=utf-8", "Gr\ufffd\ufffde"),
    "nonsense": ("<p>Grüße, 日本</p>".encode(), "text/html; charset=rot13", "Grüße, 日本"),
    "cut in the middle of a letter": ("<p>Grüße, 日本".encode()[:-1], "text/html", "Grüße, 日"),
}


@pytest.mark.parametrize(("body", "header", "text"), ENCODED.values(), ids=ENCODED.keys())
def test_letters_are_read_as_they_were_written(body, header, text):
    assert text in page(body, "text/html", header).text


@pytest.mark.parametrize(
    ("body", "kind", "extractor", "text"),
    [
        ('{"b":[1,2],"ü":null}', "application/json", "json", '{\n  "b": [\n    1,\n    2\n  ],\n  "ü": null\n}'),
        ("{broken", "application/json", "json", "{broken"),
        ("a  b\n\n<c>", "text/plain", "text", "a  b\n\n<c>"),
        ("<rss/>", "application/rss+xml", "text", "<rss/>"),
        ("<meta charset=latin1> says ü", "text/plain", "text", "<meta charset=latin1> says ü"),  # not of itself
        ("\n<!DOCTYPE html><p>Hello there</p>", "", "page", "Hello there"),  # known by how it begins
        ("just words", "", "text", "just words"),
    ],
)
def test_other_text_is_known_by_its_type_or_how_it_begins(body: str, kind: str, extractor: str, text: str):
    read = page(body, kind)

    assert (read.extractor, read.text) == (extractor, text)


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "application/octet-stream", "", "text/plain"])
def test_what_is_no_text_is_not_read(kind):
    assert read_body(b"\x89PNG\0\0\1", kind, kind, url="https://x.test/", markdown=True, limit=100) is None


HOSTILE = {
    "never closed": "<div>" * 20_000,
    "deep": ("<div>" * 200 + "x, y" + "</div>" * 200) * 500,
    "scripts never closed": "<script" * 100_000,
    "half comments": "<!--" * 100_000,
    "less than": "<" * 300_000,
    "an attribute": f"<a class='{'x' * 1_000_000}'>y</a>",
    "tables in tables": "<table><tr><td>" * 5000,
    "stars": "<p>" + "*_`[" * 50_000,
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_page_that_is_made_to_take_long_does_not(body):
    assert isinstance(page(body).text, str)


def test_json_of_many_brackets_is_set_out_no_further_than_is_wanted():
    read = page("[" * 500 + "1," * 100_000 + "1" + "]" * 500, "application/json")

    assert (read.extractor, read.cut) == ("json", True)
    assert len(read.text) < 60_000
    assert page("[" * 5000, "application/ld+json").extractor == "json"


@pytest.mark.parametrize(
    ("body", "has"),
    [
        (f"<table><tr>{'<td colspan=1000>x</td>' * 900}</tr></table>", "| x | x |"),  # no more room than words
        (f"<ol>{'<li>a thing</li>' * 1000}</ol>", "2. a thing"),
        (f"<ol>{'<li>a thing</li>' * 1001}</ol>", "- a thing"),  # nobody counts that far
    ],
)
def test_a_table_or_a_list_takes_no_more_room_than_its_words(body: str, has: str):
    read = page(f"<p>{WORDS}</p>{body}")

    assert has in read.text
    assert len(read.text) < 20_000
