"""Markdown and what each platform gets for it: corpus.txt.

`@@@ NAME (LIMIT)` begins a case, `@@ DIALECT` what is sent there, `@---` a next message, `@ as plain` the text of that
message as plain text. Behind a message stand its entities (`@ TYPE TEXT`) or its HTML (`@ html`).
"""

import re
from itertools import zip_longest
from pathlib import Path

import pytest

from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import DISCORD, EMAIL, FEISHU, PLAIN, SLACK, TELEGRAM

DIALECTS = {dialect.name: dialect for dialect in (PLAIN, TELEGRAM, SLACK, DISCORD, FEISHU, EMAIL)}
CORPUS = (Path(__file__).parent / "corpus.txt").read_text(encoding="utf-8")
CASES = [
    pytest.param(markdown, int(limit) if limit else None, dialect, expected, id=f"{name}-{dialect}")
    for name, limit, body in re.findall(
        r"^@@@ ([^\n]+?)(?: \((\d+)\))?\n(.*?)(?=^@@@ |\Z)", CORPUS, re.MULTILINE | re.DOTALL
    )
    for markdown, *outputs in [re.split(r"^@@ (\w+)\n", body, flags=re.MULTILINE)]
    for dialect, expected in zip(outputs[::2], outputs[1::2], strict=True)
]


def show(chunk: Chunk, plain: Chunk | None) -> str:
    units = chunk.text.encode("utf-16-le")
    entities = [
        f"@ {entity.type} {entity.url or entity.language or ''}".strip()
        + f": {units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode('utf-16-le')!r}\n"
        for entity in chunk.entities
    ]
    body = re.search(r"<body[^>]*>\n(.*)</body>", chunk.html or "", re.DOTALL)
    text = "@ as plain" if plain is not None and plain.text == chunk.text else chunk.text
    return f"{text}\n" + "".join(entities) + (f"@ html\n{body[1]}" if body else "")


@pytest.mark.parametrize(("markdown", "limit", "dialect", "expected"), CASES)
def test_each_platform_gets_what_the_corpus_says(markdown, limit, dialect, expected):
    chunks = split_message(markdown, DIALECTS[dialect], limit)

    plain = split_message(markdown, PLAIN, limit) if dialect != "plain" else []
    assert "@---\n".join(show(*pair) for pair in zip_longest(chunks, plain[: len(chunks)])) == expected
