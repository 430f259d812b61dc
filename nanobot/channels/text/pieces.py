"""What a channel calls: an answer in Markdown becomes the messages its platform takes, each whole by itself."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanobot.channels.text.dialects import Dialect, Rendered
from nanobot.channels.text.layout import Layout, lay_out
from nanobot.channels.text.measures import furthest
from nanobot.channels.text.splitting import SHORTEST, Part, next_part
from nanobot.channels.text.writing import Entity

log = logging.getLogger(__name__)

_SURROGATE = re.compile("[\ud800-\udfff]")
_WHOLE = 1 << 62


@dataclass(frozen=True, slots=True)
class Piece:
    """One message: the text as the platform takes it, and the stretch of Markdown it stands for."""

    source: str
    text: str
    entities: tuple[Entity, ...] = ()
    html: str | None = None


def sound(markdown: str) -> str:
    """The text with line ends of one kind, and a mark for halves of characters, which no wire takes."""
    text = markdown.replace("\r\n", "\n").replace("\r", "\n")
    # Two halves of one character, which JSON may carry, are joined on the way.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _SURROGATE.search(text) else text


def pieces(markdown: str, dialect: Dialect, limit: int | None = None) -> list[Piece]:
    """The messages that say it. None is longer than `limit` (the dialect's own where none is given) or empty.

    The sources joined are the text. Never raises for any text; what cannot be rendered goes out as it is written.
    Raises ValueError for a limit below SHORTEST.
    """
    text = sound(markdown)
    return list(joined(piece for _, piece in fitting(lay_out(text), dialect, limit)))


def fitting(layout: Layout, dialect: Dialect, limit: int | None) -> "Iterator[tuple[Part, Piece]]":
    """Part by part with the piece each makes, as they are asked for."""
    most = _WHOLE if limit is None and dialect.limit is None else limit or dialect.limit or 0
    start, before = 0, ""
    while start < len(layout.text):
        part, piece = _fitted(layout, start, before, dialect, most)
        start, before = start + len(part.source), part.before_next
        yield part, piece


def _fitted(layout: Layout, start: int, before: str, dialect: Dialect, most: int) -> tuple[Part, Piece]:
    """The next piece. Rendering may lengthen a text, so less of it is taken until it fits."""
    budget = most
    while True:
        part = next_part(layout, start, before, budget, dialect.measure)
        done = rendered(part.markdown, dialect)
        size = dialect.measure(done.text)
        if size <= most:
            return part, Piece(part.source, done.text, done.entities, done.html)
        if budget == SHORTEST:
            end = max(furthest(layout.text, start, min(most, SHORTEST), dialect.measure), start + 1)
            bare = layout.text[start:end]
            return Part(bare, bare, part.before_next), Piece(bare, bare.strip() or bare)
        taken = min(budget, dialect.measure(part.markdown))
        budget = max(SHORTEST, min(taken - 1, int(taken * most / size * 0.95)))


def rendered(markdown: str, dialect: Dialect) -> Rendered:
    """The text in this dialect; as it is written where it cannot be rendered. Never raises."""
    try:
        return dialect.render(markdown)
    except Exception as error:  # a parser of anything may fail on anything, and the words must go out
        log.warning("an answer goes out as plain text: %s could not render it (%r)", dialect.name, error)
        return Rendered(markdown.strip("\n"))


def joined(found: "Iterator[Piece]") -> Iterator[Piece]:
    """The pieces without those that say nothing, whose source goes to the one before (or the one behind)."""
    last: Piece | None = None
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
        yield Piece(owed, owed.strip())
