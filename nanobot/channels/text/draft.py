"""An answer that still grows: what to show of it now, and what is settled and never changes again.

A look costs what the open message holds, not what was said before it.
"""

import re
from dataclasses import dataclass

from nanobot.channels.text.dialects import Dialect
from nanobot.channels.text.layout import Kind, lay_out
from nanobot.channels.text.pieces import Piece, fitting, joined, rendered, sound
from nanobot.channels.text.splitting import as_prose, closing

_HALF = re.compile("[\r\ud800-\udbff]")
"""What may be the first half of a line end, or of a character."""
_UNFINISHED_LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*(?:[>#*+\-=_~`|:. \t]+|\d{1,9}[.)]?)[ \t]*\Z")
"""A last line of marks alone: nobody knows yet what they are, and a line of dashes makes a heading of what is above."""
_UNFINISHED_LINK = re.compile(r"!?\[([^\[\]\n]*)(?:\]\([^()\s]*)?\Z")
_UNFINISHED_MARK = re.compile(r"(?:\*+|_+|~+|`+|\\|<[^<>\s]{0,20})\Z")


@dataclass(frozen=True, slots=True)
class Look:
    """What became full since the last look, in order, and what the message that is still open shows."""

    full: tuple[Piece, ...]
    open: Piece | None


class Draft:
    """A text in the making, in one dialect.

    The channel sends `open` of the first look, edits it at each further one, and when there are full pieces settles the
    message with the first of them and sends the others. A piece that was handed out as full is never changed.
    """

    def __init__(self, dialect: Dialect, limit: int | None = None) -> None:
        self._dialect = dialect
        self._limit = limit
        self._new: list[str] = []
        self._before = ""
        self._tail = ""
        self._inside = False

    def add(self, delta: str) -> None:
        """The text goes on. Costs next to nothing."""
        self._new.append(delta)

    def look(self) -> Look:
        """What to show now. Emphasis, code and links that are open are shown closed."""
        self._take_in()
        if self._fits(self._before + self._tail) and self._fits((piece := self._shown()).text):
            return Look((), piece if piece.text.strip() else None)
        layout = lay_out(self._tail, before=self._before, inside=self._inside, growing=True)
        found = [*fitting(layout, self._dialect, self._limit)]
        for part, _ in found[:-1]:
            self._tail = self._tail[len(part.source) :]
            self._before, self._inside = part.before_next, part.ends_inside
        piece = self._shown()
        if not self._fits(piece.text):
            piece = found[-1][1]  # what closes it is too much: it is shown open
        return Look(tuple(joined(one for _, one in found[:-1])), piece if piece.text.strip() else None)

    def end(self) -> tuple[Piece, ...]:
        """The text has ended: what is left of it, the first for the message that is open. Empty if nothing is."""
        self._take_in(last=True)
        layout = lay_out(self._tail, before=self._before, inside=self._inside)
        left = tuple(joined(piece for _, piece in fitting(layout, self._dialect, self._limit)))
        self._before = self._tail = ""
        return left

    def _take_in(self, *, last: bool = False) -> None:
        """The new text, but half of a line end or of a character, which waits for its other half."""
        text = "".join(self._new)
        kept = text[-1:] if not last and _HALF.match(text[-1:]) else ""
        self._new = [kept] if kept else []
        self._tail += sound(text[: len(text) - len(kept)])

    def _fits(self, text: str) -> bool:
        limit = self._limit or self._dialect.limit
        return limit is None or self._dialect.measure(text) <= limit

    def _shown(self) -> Piece:
        """The open message, closed; its text is empty where there is nothing to show yet."""
        is_prose = self._inside and not self._before.endswith("\n")
        text = self._before + (as_prose(self._tail) if is_prose else self._tail)
        layout = lay_out(text, growing=True)
        if not self._tail.strip() or not layout.lines:
            return Piece(self._tail, "")
        last = layout.lines[-1]
        is_code = last.fence is not None and (last.opens or last.kind is not Kind.MARK)
        done = rendered(text + closing(layout) if is_code else self._closed(text), self._dialect)
        return Piece(self._tail, done.text, done.entities, done.html)

    def _closed(self, text: str) -> str:
        """The text with what is open at its end closed, and what is only begun left out."""
        text = _UNFINISHED_LINE.sub("", text)
        text = _UNFINISHED_LINK.sub(r"\1", text)
        text = _UNFINISHED_MARK.sub("", text).rstrip()
        layout = lay_out(text, growing=True)
        markers = "".join(reversed(layout.spans.around(len(text))))
        return text + markers
