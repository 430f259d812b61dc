"""A view of a history: where its turns and steps begin, which rows a window shows, and their size in tokens."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from nanobot.agent.window.shrink import Shrinker
from nanobot.agent.window.state import SHRUNK_CHARS, ShrunkSpan, Window
from nanobot.messages.repair import NO_RESULT
from nanobot.messages.tokens import TOKENS_PER_MESSAGE, Scale, estimate_tokens
from nanobot.messages.types import ChatMessage, is_synthetic

KEPT_TURNS = 6
"""Turns before the running one that are dropped only if nothing else helps."""
_NO_RESULT_TOKENS = estimate_tokens(NO_RESULT) + 4 * TOKENS_PER_MESSAGE


class HistoryView:
    """The rows of a history without system rows. They must not change while this is in use.

    `scale` and `shrinker` are caches: pass the same ones to weigh and shrink each row only once.
    """

    def __init__(
        self, rows: Sequence[ChatMessage], scale: Scale | None = None, shrinker: Shrinker | None = None
    ) -> None:
        self._rows = rows
        self._scale = scale or Scale()
        self._shrinker = shrinker or Shrinker()
        self._shown: tuple[Window, list[ChatMessage]] | None = None
        self.end = len(rows)

    @cached_property
    def turns(self) -> list[int]:
        """Start indexes of turns: user messages, unless they joined a running turn. Never empty."""
        starts = [0]
        turn_id: str | None = None
        for index, row in enumerate(self._rows):
            if row["role"] == "user" and _is_from_person(row):
                row_turn = row.get("turn_id")
                if index and (row_turn is None or row_turn != turn_id):
                    starts.append(index)
                turn_id = row_turn
        return starts

    def steps(self, window: Window) -> list[int]:
        """Start indexes of the running turn's steps that the window shows."""
        begin = max(self.turns[-1], window.resumed)
        return [index for index in range(begin, self.end) if self._rows[index]["role"] == "assistant"]

    def requests(self) -> list[ChatMessage]:
        """The user messages of the running turn."""
        return [row for row in self._rows[self.turns[-1] :] if _is_from_person(row)]

    def normalize(self, window: Window) -> Window:
        """The window with valid positions: its start at the start of a turn."""
        if not window.start and not window.resumed:
            return window
        turn = bisect_right(self.turns, window.start)
        start = self.turns[turn - 1] if turn else 0
        resumed = window.resumed if start < window.resumed <= self.end else 0
        return replace(window, start=start, resumed=resumed)

    def show(self, window: Window) -> list[ChatMessage]:
        """The rows that a normalized window shows. Do not modify them."""
        if self._shown is None or self._shown[0] != window:
            self._shown = window, self._visible_rows(window)
        return self._shown[1]

    def visible_rows(self, window: Window) -> list[ChatMessage]:
        """The rows that a window shows, whatever their size."""
        return self.show(self.normalize(window))

    def weigh(self, shown: Sequence[ChatMessage]) -> int:
        """Size of the rows in tokens, including the placeholders for missing results."""
        call_ids = [call.get("id") for row in shown if "tool_calls" in row for call in _calls(row)]
        answered = {row.get("tool_call_id") for row in shown if row["role"] == "tool"} if call_ids else ()
        missing = sum(1 for call_id in call_ids if call_id not in answered)
        return self._scale.weigh_all(shown) + missing * _NO_RESULT_TOKENS

    def has_too_many_rows(self, shown: Sequence[ChatMessage], window: Window, limit: int) -> bool:
        """Whether there are more than `limit` rows and old turns that can be dropped."""
        return len(shown) > limit and len(self.turns) > KEPT_TURNS + 1 and window.start < self.turns[-1 - KEPT_TURNS]

    def close_spans(self, window: Window) -> Window:
        """The window with open-ended spans closed at the current end."""
        return replace(window, shrunk=tuple(replace(span, end=self._end_of(span)) for span in window.shrunk))

    def with_spans(self, window: Window, *spans: ShrunkSpan) -> Window:
        """The window with these spans added and redundant ones removed."""
        clipped = (replace(span, begin=max(span.begin, window.start)) for span in (*window.shrunk, *spans))
        kept: list[ShrunkSpan] = []
        for span in clipped:
            if span.begin < self._end_of(span) and not any(other.covers(span) for other in kept):
                kept = [*(other for other in kept if not span.covers(other)), span]
        return replace(window, shrunk=tuple(kept))

    def pre_shrink(self, window: Window, room: int) -> Window:
        """The window with an open span at the end: new rows are shrunk before they are first sent."""
        return replace(window, shrunk=(*window.shrunk, ShrunkSpan(self.end, None, max(SHRUNK_CHARS, room // 2))))

    def _end_of(self, span: ShrunkSpan) -> int:
        return self.end if span.end is None else min(span.end, self.end)

    def _visible_rows(self, window: Window) -> list[ChatMessage]:
        rows, begin = self._shrunk_rows(window), max(window.start, window.resumed)
        shown = [row for row in rows[begin:] if "_command" not in row]
        if begin > window.start:
            words = [rows[index] for index in range(window.start, begin) if _is_from_person(self._rows[index])]
            shown[:0] = [*words, self._shrinker.note(self._rows[window.start : begin])]
        return shown

    def _shrunk_rows(self, window: Window) -> Sequence[ChatMessage]:
        """All rows, shrunk where the window says so. User messages of the running turn are never shrunk."""
        if not window.shrunk:
            return self._rows
        rows, shrink, running = list(self._rows), self._shrinker.shrink, self.turns[-1]
        edges = {index for span in window.shrunk for index in (max(span.begin, window.start), self._end_of(span))}
        for begin, end in pairwise(sorted(edges)):
            spans = [span for span in window.shrunk if span.begin <= begin and end <= self._end_of(span)]
            if spans:
                chars, depth = min(span.chars for span in spans), max(span.depth for span in spans)
                for index in range(begin, end):
                    if index < running or rows[index]["role"] != "user":
                        rows[index] = shrink(rows[index], chars, depth)
        return rows


def _is_from_person(row: ChatMessage) -> bool:
    """Whether this is a person's or a job's message, not a generated one."""
    return row["role"] == "user" and not is_synthetic(row) and not row.get("_command")


def _calls(row: ChatMessage) -> list[Any]:
    calls: object = row.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
