"""Converts an answer in Markdown into messages in a platform's dialect and within its length limit."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanobot.markdown.dialects import Dialect, Rendered
from nanobot.markdown.layout import Layout, parse_layout
from nanobot.markdown.measures import furthest
from nanobot.markdown.split import SHORTEST, Part, next_part
from nanobot.markdown.write import Entity

log = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message: the rendered text, and its part of the Markdown (`source`)."""

    source: str
    text: str
    entities: tuple[Entity, ...] = ()
    html: str | None = None


def well_formed(markdown: str) -> str:
    """Normalize line ends, and replace lone surrogates, which cannot be encoded."""
    text = markdown.replace("\r\n", "\n").replace("\r", "\n")
    # Surrogate pairs, which JSON may contain, are joined.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _SURROGATE.search(text) else text


def split_message(markdown: str, dialect: Dialect, limit: int | None = None) -> list[Chunk]:
    """Split a text into messages, none of them empty or longer than `limit` (default: the dialect's).

    The joined sources are the text. Text that cannot be rendered is sent as it is. Raises ValueError for a limit below
    SHORTEST.
    """
    text = well_formed(markdown)
    return list(join_chunks(piece for _, piece in fit_chunk(parse_layout(text), dialect, limit)))


def fit_chunk(layout: Layout, dialect: Dialect, limit: int | None) -> "Iterator[tuple[Part, Chunk]]":
    """Yield the parts of the text with their chunks."""
    most = _WHOLE if limit is None and dialect.limit is None else limit or dialect.limit or 0
    start, before = 0, ""
    while start < len(layout.text):
        part, piece = _fitted(layout, start, before, dialect, most)
        start, before = start + len(part.source), part.before_next
        yield part, piece


def _fitted(layout: Layout, start: int, before: str, dialect: Dialect, most: int) -> tuple[Part, Chunk]:
    """Return the next chunk. Rendering may lengthen a text, so shorter parts are tried until one fits."""
    budget = most
    while True:
        part = next_part(layout, start, before, budget, dialect.measure)
        done = render(part.markdown, dialect)
        size = dialect.measure(done.text)
        if size <= most:
            return part, Chunk(part.source, done.text, done.entities, done.html)
        if budget == SHORTEST:
            end = max(furthest(layout.text, start, min(most, SHORTEST), dialect.measure), start + 1)
            bare = layout.text[start:end]
            return Part(bare, bare, part.before_next), Chunk(bare, bare.strip() or bare)
        taken = min(budget, dialect.measure(part.markdown))
        budget = max(SHORTEST, min(taken - 1, int(taken * most / size * 0.95)))


def render(markdown: str, dialect: Dialect) -> Rendered:
    """Render a text; return it unchanged if that fails. Never raises."""
    try:
        return dialect.render(markdown)
    except Exception as error:  # a parser bug must not lose the answer
        log.warning("sending an answer as plain text: %s could not render it (%r)", dialect.name, error)
        return Rendered(markdown.strip("\n"))


def join_chunks(found: "Iterator[Chunk]") -> Iterator[Chunk]:
    """Drop blank chunks; their source is added to the previous (or next) one."""
    last: Chunk | None = None
    owed = ""
    for piece in found:
        if not piece.text.strip():
            if last is None:
                owed += piece.source
            else:
                last = replace(last, source=last.source + piece.source)
            continue
        if last is not None:
            yield last
        last, owed = replace(piece, source=owed + piece.source), ""
    if last is not None:
        yield last
    elif owed.strip():
        yield Chunk(owed, owed.strip())
