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
_UNLIMITED = 1 << 62


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
    layout = parse_layout(well_formed(markdown))
    max_size = _UNLIMITED if limit is None and dialect.limit is None else limit or dialect.limit or 0
    return list(_join_blank(_chunks(layout, dialect, max_size)))


def _chunks(layout: Layout, dialect: Dialect, max_size: int) -> Iterator[Chunk]:
    start, before = 0, ""
    while start < len(layout.text):
        part, chunk = _next_chunk(layout, start, before, dialect, max_size)
        start, before = start + len(part.source), part.before_next
        yield chunk


def _next_chunk(layout: Layout, start: int, before: str, dialect: Dialect, max_size: int) -> tuple[Part, Chunk]:
    """The next part and its chunk. Rendering may lengthen a text, so shorter parts are tried until one fits."""
    budget = max_size
    while True:
        part = next_part(layout, start, before, budget, dialect.measure)
        rendered = _render(part.markdown, dialect)
        size = dialect.measure(rendered.text)
        if size <= max_size:
            return part, Chunk(part.source, rendered.text, rendered.entities, rendered.html)
        if budget == SHORTEST:
            end = max(furthest(layout.text, start, min(max_size, SHORTEST), dialect.measure), start + 1)
            plain = layout.text[start:end]
            return Part(plain, plain, part.before_next), Chunk(plain, plain.strip() or plain)
        used = min(budget, dialect.measure(part.markdown))
        budget = max(SHORTEST, min(used - 1, int(used * max_size / size * 0.95)))


def _render(markdown: str, dialect: Dialect) -> Rendered:
    """Render a text; return it unchanged if that fails. Never raises."""
    try:
        return dialect.render(markdown)
    except Exception as error:  # a parser bug must not lose the answer
        log.warning("sending an answer as plain text: %s could not render it (%r)", dialect.name, error)
        return Rendered(markdown.strip("\n"))


def _join_blank(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Drop blank chunks; their source is added to the previous one, or to the next."""
    last: Chunk | None = None
    pending_source = ""
    for chunk in chunks:
        if not chunk.text.strip():
            if last is None:
                pending_source += chunk.source
            else:
                last = replace(last, source=last.source + chunk.source)
            continue
        if last is not None:
            yield last
        last, pending_source = replace(chunk, source=pending_source + chunk.source), ""
    if last is not None:
        yield last
    elif pending_source.strip():
        yield Chunk(pending_source, pending_source.strip())
