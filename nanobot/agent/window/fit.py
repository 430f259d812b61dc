"""The requests of a run: the history fitted into the model's window, repaired, sized by what responses report.

While it fits nothing changes, so that each request is a byte-for-byte prefix of the next and the provider's cache
holds. When it no longer fits, one event makes room, and the resulting window stays until the next event:

1. Old results shrink: those before the last six turns. Then whole turns before these are dropped, then results within
   the last six turns shrink, then those of the running turn except its last step; always the oldest first, until 60 %
   of the budget are left.
2. If that is not enough for 85 %, results of the last step shrink, then the last six turns are dropped, then steps of
   the running turn.
3. The request to answer is never cut: if it alone is too long, nothing is sent.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nanobot.agent.window.shrink import RowCache
from nanobot.agent.window.state import MAX_ROWS, Calibration, Window
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import LegalHistory
from nanobot.messages.tokens import TOKENS_PER_MESSAGE, estimate_tokens
from nanobot.messages.types import ChatMessage, is_synthetic

_REPLY_STEP = 256
"""The reply's budget is rounded down to a multiple: it is sent with each request and should not change."""
SHRUNK_CHARS = 700
"""Length of a shrunk result."""
KEPT_TURNS = 6
"""Turns before the running one that are dropped only if shrinking is not enough."""
KEPT_STEPS = 4
"""Last steps of the running turn; their results shrink one step after the other."""
_LAST_STEP_CHARS = (8_000, 4_000, 2_000, SHRUNK_CHARS)
_LAST_RESORT_CHARS = 300
_TARGET_SHARE = 0.6
_TIGHT_SHARE = 0.85
"""Targets of an event: shares of the budget that the request to answer leaves."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Limits for the rows of a request: their size in estimated tokens, and their number."""

    tokens: int
    rows: int = MAX_ROWS
    reply: int = 8192
    """The `max_tokens` of the request, in tokens of the model."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The rows of a request, their window, and their size in tokens."""

    rows: list[ChatMessage]
    window: Window
    tokens: int


class History:
    """The rows of a history without system rows. They must not change while this is in use."""

    def __init__(self, rows: Sequence[ChatMessage], cache: RowCache | None = None) -> None:
        """With the same `cache`, each row is weighed and shrunk only once."""
        self.rows = rows
        self.cache = cache or RowCache()
        self.turns = _turn_starts(rows)

    def show(self, window: Window) -> list[ChatMessage]:
        """The rows that a window shows. Do not modify them."""
        window = self.normalize(window)
        rows, shrink = list(self.rows), self.cache.shrink
        for index in range(window.start, min(window.shrunk, len(rows))):
            rows[index] = shrink(rows[index], SHRUNK_CHARS, is_over=index < window.condensed)
        for index in range(window.shrunk, min(window.clipped, len(rows))):
            rows[index] = shrink(rows[index], window.clipped_chars, is_over=False)
        begin = max(window.start, window.resumed)
        shown = [row for row in rows[begin:] if "_command" not in row]
        if begin > window.start:
            requests = [row for row in rows[window.start : begin] if _is_request(row)]
            shown[:0] = [*requests, self.cache.note(self.rows[window.start : begin])]
        return shown

    def normalize(self, window: Window) -> Window:
        """The window with its start at the start of a turn, also if it belongs to another history."""
        start = self.turns[max(bisect_right(self.turns, window.start) - 1, 0)]
        resumed = window.resumed if start < window.resumed <= len(self.rows) else 0
        condensed = min(window.condensed, self.turns[-1])  # the request to answer is never shrunk
        return replace(window, start=start, resumed=resumed, condensed=condensed)

    def requests(self) -> list[ChatMessage]:
        """The user messages of the running turn."""
        return [row for row in self.rows[self.turns[-1] :] if _is_request(row)]


def fit(history: History, window: Window, budget: TokenBudget) -> Fitted:
    """Select the rows of a request within the budget.

    With the same window and more rows appended, the result begins with the same rows as before until the budget is
    used up. Raises RequestTooLongError if the request to answer does not fit by itself.
    """
    window, weigh = history.normalize(window), history.cache.weigh
    shown = history.show(window)
    if len(shown) > budget.rows:
        for turn in history.turns[:-KEPT_TURNS]:
            if turn > window.start and len(shown) > budget.rows * _TARGET_SHARE:
                window = replace(window, start=turn, resumed=0)
                shown = history.show(window)
    tokens = weigh(shown)
    if tokens <= budget.tokens:
        return Fitted(shown, window, tokens)
    needed = weigh(history.requests())
    free = budget.tokens - needed
    for share, smaller, _ in _smaller_windows(history, window) if free >= 0 else ():
        shown = history.show(smaller)
        tokens = weigh(shown)
        if tokens <= needed + int(free * share):
            return Fitted(shown, smaller, tokens)
    raise RequestTooLongError(needed, budget.tokens)


@dataclass(frozen=True, slots=True)
class NextEviction:
    """What would be shrunk or dropped next, described for a person, and how many tokens that frees."""

    what: str
    tokens: int


def next_eviction(history: History, window: Window) -> NextEviction | None:
    """What the next event would do first; None if nothing can be freed."""
    window, weigh = history.normalize(window), history.cache.weigh
    before = weigh(history.show(window))
    evictions = (
        NextEviction(what, before - weigh(history.show(w))) for _, w, what in _smaller_windows(history, window)
    )
    return next((eviction for eviction in evictions if eviction.tokens > 0), None)


def _smaller_windows(history: History, window: Window) -> Iterator[tuple[float, Window, str]]:
    """Yield ever smaller windows in the order of the module docstring, each with the target share it must reach, and
    what it frees.
    """
    turns, end = history.turns, len(history.rows)
    running, kept = turns[-1], turns[max(len(turns) - 1 - KEPT_TURNS, 0)]
    first_step = max(running, window.resumed)
    steps = [index for index in range(first_step, end) if history.rows[index]["role"] == "assistant"]
    old, last = [turn for turn in turns if turn <= kept], [turn for turn in turns if turn > kept]
    sizes = (*_LAST_STEP_CHARS, _LAST_RESORT_CHARS) if steps else ()
    clips: list[dict[str, int]] = [{"clipped": end, "clipped_chars": chars} for chars in sizes]
    stages: list[tuple[float, str, Sequence[dict[str, int]]]] = [
        (_TARGET_SHARE, "results and pictures of old turns", [{"condensed": kept, "shrunk": kept}]),
        (_TARGET_SHARE, "the oldest turn", [{"start": turn} for turn in old]),
        (_TARGET_SHARE, "results and pictures of old turns", [{"condensed": turn, "shrunk": turn} for turn in last]),
        (_TARGET_SHARE, "results of old steps", [{"shrunk": step} for step in steps[-KEPT_STEPS:]]),
        (_TIGHT_SHARE, "most of the last step", [{}, *clips[:-1]]),
        (_TIGHT_SHARE, "the oldest turn", [{"start": turn} for turn in last]),
        (_TIGHT_SHARE, "the oldest step", [{"resumed": step} for step in steps[1:]]),
        (1.0, "most of the last step", [*clips[-1:], {"resumed": end if steps else 0}]),
    ]
    for share, what, moves in stages:
        for move in moves:  # indexes only grow
            window = replace(window, **{name: max(value, getattr(window, name)) for name, value in move.items()})
            if "clipped_chars" in move:
                window = replace(window, clipped_chars=move["clipped_chars"])
            yield share, window, what


def _turn_starts(rows: Sequence[ChatMessage]) -> list[int]:
    """Start indexes of turns: user messages, unless they joined a running turn. Never empty."""
    starts = [0]
    turn_id: str | None = None
    for index, row in enumerate(rows):
        if _is_request(row):
            row_turn = row.get("turn_id")
            if index and (row_turn is None or row_turn != turn_id):
                starts.append(index)
            turn_id = row_turn
    return starts


def _is_request(row: ChatMessage) -> bool:
    """Whether this is a person's or a job's message, not a generated one."""
    return row["role"] == "user" and not is_synthetic(row) and not row.get("_command")


_system_tokens = lru_cache(maxsize=16)(estimate_tokens)
"""A system prompt stays the same for many turns."""


@dataclass(frozen=True, slots=True)
class RequestRoom:
    """The limits of a request, and its parts that are the same in every step."""

    model: str
    window_tokens: int
    max_tokens: int
    system: str = ""
    tools_tokens: int = 0
    max_rows: int = MAX_ROWS


def token_budget(room: RequestRoom, fixed: int, learned: Calibration) -> TokenBudget:
    """Compute the budget for the rows beside the fixed part (system prompt and tools) and the reply.

    The reply gets at most half of what the fixed part leaves.
    """
    window_tokens = min(room.window_tokens, learned.window or room.window_tokens)
    reply = max(min(room.max_tokens, (window_tokens - fixed) // 2 // _REPLY_STEP * _REPLY_STEP), 1)
    return TokenBudget(int((window_tokens - reply) / learned.ratio) - fixed, room.max_rows, reply)


class LastRequest:
    """Caches about the rows of a session, reused by its next run."""

    def __init__(self) -> None:
        self.legal = LegalHistory()
        self.cache = RowCache()


@dataclass(slots=True)
class RequestBuilder:
    """Builds the requests of a run. `on_change` is called with each new window, which should be stored."""

    room: RequestRoom
    window: Window = field(default_factory=Window)
    on_change: Callable[[Window], None] = lambda window: None
    last_request: LastRequest = field(default_factory=LastRequest)
    shown: Sequence[ChatMessage] = ()
    """Rows of the last request."""
    tokens: int = 0
    """Its size, by our estimate."""
    reply: int = 0
    """Its `max_tokens`, in tokens of the model."""
    _fixed: int = field(init=False)
    _has_overflowed: bool = False

    def __post_init__(self) -> None:
        self._fixed = TOKENS_PER_MESSAGE + _system_tokens(self.room.system) + self.room.tools_tokens

    def build(self, rows: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Build the request for this history. Raises RequestTooLongError if it cannot fit: then send nothing."""
        cache, learned = self.last_request.cache, self._learned
        history = History(rows, cache)
        budget = token_budget(self.room, self._fixed, learned)
        try:
            fitted = fit(history, self.window, budget)
        except RequestTooLongError:  # try without the limit learned from an earlier refusal before giving up
            budget = token_budget(self.room, self._fixed, replace(learned, window=None))
            fitted = fit(history, self.window, budget)
        self._set_window(fitted.window)
        self.tokens, self.reply = fitted.tokens + self._fixed, budget.reply
        self.shown = self.last_request.legal.of(fitted.rows)
        cache.trim(len(rows))
        return [{"role": "system", "content": self.room.system}, *self.shown]

    def record_usage(self, prompt_tokens: int) -> None:
        """Record the size of the last request as the provider reported it; 0 if it did not."""
        self._has_overflowed = False
        learned = self._learned.after_response(self.tokens, prompt_tokens)
        if learned != self._learned:
            self._set_window(self.window.with_calibration(self.room.model, learned))

    def handle_overflow(self, rows: Sequence[ChatMessage], limit_tokens: int | None = None) -> bool:
        """Handle a refusal of the last request as too long. Return whether to retry with a smaller one: not a second
        time in a row, and not if nothing can be dropped.

        `limit_tokens` is the model's window if it reported one: then a shorter reply may be enough. What was learned is
        kept for the next turn.
        """
        may_retry, self._has_overflowed = not self._has_overflowed, True
        learned = self._learned.after_refusal(self.tokens, self._fixed, self.reply, limit_tokens)
        budget = token_budget(self.room, self._fixed, learned)
        try:
            fitted = fit(History(rows, self.last_request.cache), self.window, budget)
        except RequestTooLongError:
            return False
        if fitted.tokens + self._fixed >= self.tokens and (limit_tokens is None or budget.reply >= self.reply):
            return False
        self._set_window(self.window.with_calibration(self.room.model, learned))
        return may_retry

    @property
    def _learned(self) -> Calibration:
        return self.window.model(self.room.model)

    def _set_window(self, window: Window) -> None:
        if window != self.window:
            self.window = window
            self.on_change(window)
