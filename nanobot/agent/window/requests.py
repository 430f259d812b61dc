"""The requests of a run: fitted to the model's window, repaired, sized by the tokens that responses report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from nanobot.agent.window.fit import History, TokenBudget, fit
from nanobot.agent.window.shrink import RowCache
from nanobot.agent.window.state import MAX_ROWS, Calibration, Window
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import LegalHistory
from nanobot.messages.tokens import TOKENS_PER_MESSAGE, estimate_tokens
from nanobot.messages.types import ChatMessage

_REPLY_STEP = 256
"""The reply's budget is rounded down to a multiple: it is sent with each request and should not change."""

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
