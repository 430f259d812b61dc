"""A history laid out: where its turns and steps begin, what a window shows of it, and what that weighs."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from nanobot.agent.run.shrink import Shrinker
from nanobot.agent.run.window import SHRUNK_CHARS, Span, Window
from nanobot.messages.repair import NO_RESULT
from nanobot.messages.tokens import TOKENS_PER_MESSAGE, Scale, estimate_tokens
from nanobot.messages.types import ChatMessage, is_our_word

KEPT_TURNS = 6
"""Turns before the running one that stay as long as they fit."""
_NO_RESULT_TOKENS = estimate_tokens(NO_RESULT) + 4 * TOKENS_PER_MESSAGE


class Sheet:
    """The rows of a history (without system rows), which must stay as they are as long as this is in use.

    `scale` and `shrinker` only remember: hand in the same ones to weigh and shrink each row once.
    """

    def __init__(
        self, rows: Sequence[ChatMessage], scale: Scale | None = None, shrinker: Shrinker | None = None
    ) -> None:
        self._rows = rows
        self._scale = scale or Scale()
        self._shrinker = shrinker or Shrinker()
        self._shown: tuple[Window, list[ChatMessage]] | None = None
        self.end = len(rows)

    # --- its parts

    @cached_property
    def turns(self) -> list[int]:
        """Where turns begin: at a person's or a job's words, unless these joined a running turn. Never empty."""
        begins = [0]
        turn_id: str | None = None
        for at, row in enumerate(self._rows):
            if row["role"] == "user" and _is_persons(row):
                words_of = row.get("turn_id")
                if at and (words_of is None or words_of != turn_id):
                    begins.append(at)
                turn_id = words_of
        return begins

    def steps(self, window: Window) -> list[int]:
        """Where the steps of the running turn begin that the window shows."""
        begin = max(self.turns[-1], window.resumed)
        return [at for at in range(begin, self.end) if self._rows[at]["role"] == "assistant"]

    def asked(self) -> list[ChatMessage]:
        """The words that are to be answered."""
        return [row for row in self._rows[self.turns[-1] :] if _is_persons(row)]

    # --- what a window shows

    def sound(self, window: Window) -> Window:
        """The window with positions that make sense here: its start at the beginning of a turn."""
        if not window.start and not window.resumed:
            return window
        turn = bisect_right(self.turns, window.start)
        start = self.turns[turn - 1] if turn else 0
        resumed = window.resumed if start < window.resumed <= self.end else 0
        return replace(window, start=start, resumed=resumed)

    def show(self, window: Window) -> list[ChatMessage]:
        """The rows as a sound window leaves them; not to be changed."""
        if self._shown is None or self._shown[0] != window:
            self._shown = window, self._left_by(window)
        return self._shown[1]

    def standing(self, window: Window) -> list[ChatMessage]:
        """What any window leaves as it stands, whatever that weighs."""
        return self.show(self.sound(window))

    def weigh(self, shown: Sequence[ChatMessage]) -> int:
        """What rows weigh together, with the words that stand in for results nobody recorded."""
        asked = [call.get("id") for row in shown if "tool_calls" in row for call in _calls(row)]
        answered = {row.get("tool_call_id") for row in shown if row["role"] == "tool"} if asked else ()
        missing = sum(1 for call_id in asked if call_id not in answered)
        return self._scale.weigh_all(shown) + missing * _NO_RESULT_TOKENS

    def has_too_many(self, shown: Sequence[ChatMessage], window: Window, most: int) -> bool:
        """Whether there are too many rows, and old turns that could leave."""
        return len(shown) > most and len(self.turns) > KEPT_TURNS + 1 and window.start < self.turns[-1 - KEPT_TURNS]

    # --- other windows

    def closed(self, window: Window) -> Window:
        """The window without spans over what is yet to come."""
        return replace(window, shrunk=tuple(replace(span, end=self._end_of(span)) for span in window.shrunk))

    def shrinking(self, window: Window, *spans: Span) -> Window:
        """The window with these spans too; those that say nothing any more go."""
        clipped = (replace(span, begin=max(span.begin, window.start)) for span in (*window.shrunk, *spans))
        kept: list[Span] = []
        for span in clipped:
            if span.begin < self._end_of(span) and not any(other.covers(span) for other in kept):
                kept = [*(other for other in kept if not span.covers(other)), span]
        return replace(window, shrunk=tuple(kept))

    def tightened(self, window: Window, room: int) -> Window:
        """The window in which what comes is made small before it is first sent, so that many steps find room."""
        return replace(window, shrunk=(*window.shrunk, Span(self.end, None, max(SHRUNK_CHARS, room // 2))))

    def _end_of(self, span: Span) -> int:
        return self.end if span.end is None else min(span.end, self.end)

    def _left_by(self, window: Window) -> list[ChatMessage]:
        rows, begin = self._small_rows(window), max(window.start, window.resumed)
        shown = [row for row in rows[begin:] if "_command" not in row]
        if begin > window.start:
            words = [rows[at] for at in range(window.start, begin) if _is_persons(self._rows[at])]
            shown[:0] = [*words, self._shrinker.note(self._rows[window.start : begin])]
        return shown

    def _small_rows(self, window: Window) -> Sequence[ChatMessage]:
        """All rows, small where the window wants them so. What people say in the running turn is never touched."""
        if not window.shrunk:
            return self._rows
        rows, shrink, running = list(self._rows), self._shrinker.shrink, self.turns[-1]
        edges = {at for span in window.shrunk for at in (max(span.begin, window.start), self._end_of(span))}
        for begin, end in pairwise(sorted(edges)):
            spans = [span for span in window.shrunk if span.begin <= begin and end <= self._end_of(span)]
            if spans:
                chars, depth = min(span.chars for span in spans), max(span.depth for span in spans)
                for at in range(begin, end):
                    if at < running or rows[at]["role"] != "user":
                        rows[at] = shrink(rows[at], chars, depth)
        return rows


def _is_persons(row: ChatMessage) -> bool:
    """Whether these are somebody's words, not ours to the model."""
    return row["role"] == "user" and not is_our_word(row) and not row.get("_command")


def _calls(row: ChatMessage) -> list[Any]:
    found: object = row.get("tool_calls")
    return [call for call in found if isinstance(call, dict)] if isinstance(found, list) else []
