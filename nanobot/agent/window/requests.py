"""The requests of a run: fitted to the model's window, repaired, sized by the tokens that responses report."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from nanobot.agent.window.fit import fit
from nanobot.agent.window.history_view import HistoryView
from nanobot.agent.window.shrink import Shrinker
from nanobot.agent.window.state import Window
from nanobot.agent.window.token_budget import MAX_ROWS, Calibration, TokenBudget, token_budget
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import LegalHistory
from nanobot.messages.tokens import Scale
from nanobot.messages.types import ChatMessage


@dataclass(frozen=True, slots=True)
class RequestRoom:
    """The limits of a request, and its parts that are the same in every step."""

    model: str
    window_tokens: int
    max_tokens: int
    system: str = ""
    tools_tokens: int = 0
    max_rows: int = MAX_ROWS
    rereadable: Collection[str] = ()
    """Names of read-only tools; their results can be fetched again."""


class LastRequest:
    """Caches about the rows of a session, reused by its next run."""

    def __init__(self) -> None:
        self.legal = LegalHistory()
        self.scale = Scale()
        self._shrinkers: dict[frozenset[str], Shrinker] = {}

    def shrinker(self, rereadable: Collection[str]) -> Shrinker:
        """The shrinker for these read-only tools."""
        tools = frozenset(rereadable)
        if tools not in self._shrinkers:
            self._shrinkers = {tools: Shrinker(tools)}
        return self._shrinkers[tools]


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
    """Its size, by our scale."""
    reply: int = 0
    """Its `max_tokens`, in tokens of the model."""
    _scale: Scale = field(init=False)
    _shrinker: Shrinker = field(init=False)
    _system: ChatMessage = field(init=False)
    _fixed: int = field(init=False)
    _has_overflowed: bool = False

    def __post_init__(self) -> None:
        self._scale = self.last_request.scale
        self._shrinker = self.last_request.shrinker(self.room.rereadable)
        self._system = {"role": "system", "content": self.room.system}
        self._fixed = self._scale.weigh_text(self.room.system) + self.room.tools_tokens

    def build(self, rows: Sequence[ChatMessage]) -> list[ChatMessage]:
        """Build the request for this history. Raises RequestTooLongError if it cannot fit: then send nothing."""
        view = self._view(rows)
        budget = self._budget()
        try:
            fitted = fit(view, self.window, budget)
        except RequestTooLongError:  # try without the limit learned from an earlier refusal before giving up
            budget = self._budget(replace(self._calibration, max_weight=None))
            fitted = fit(view, self.window, budget)
        self._set_window(fitted.window)
        self.tokens, self.reply = fitted.tokens + self._fixed, budget.reply
        self.shown = self.last_request.legal.of(fitted.rows)
        self._scale.forget_others(fitted.rows)
        self._shrinker.forget_others(rows)
        return [self._system, *self.shown]

    def record_usage(self, prompt_tokens: int) -> None:
        """Record the size of the last request as the provider reported it; 0 if it did not."""
        self._has_overflowed = False
        learned = self._calibration.after_response(self.tokens, prompt_tokens)
        if learned != self._calibration:
            self._set_window(self.window.with_calibration(self.room.model, learned))

    def handle_overflow(self, rows: Sequence[ChatMessage], limit_tokens: int | None = None) -> bool:
        """Handle a refusal of the last request as too long. Return whether to retry with a smaller one: not a second
        time in a row, and not if nothing can be dropped.

        `limit_tokens` is the model's window if it reported one: then a shorter reply may be enough. What was learned is
        kept for the next turn.
        """
        may_retry, self._has_overflowed = not self._has_overflowed, True
        learned = self._calibration.after_refusal(self.tokens, self._fixed, limit_tokens=limit_tokens, reply=self.reply)
        window = self.window.with_calibration(self.room.model, learned)
        budget = self._budget(learned)
        try:
            fitted = fit(self._view(rows), window, budget)
        except RequestTooLongError:
            return False
        if fitted.tokens + self._fixed >= self.tokens and (limit_tokens is None or budget.reply >= self.reply):
            return False
        self._set_window(window)
        return may_retry

    def _view(self, rows: Sequence[ChatMessage]) -> HistoryView:
        return HistoryView(rows, self._scale, self._shrinker)

    def _budget(self, learned: Calibration | None = None) -> TokenBudget:
        room = self.room
        learned = learned or self._calibration
        return token_budget(room.window_tokens, room.max_tokens, self._fixed, learned, room.max_rows)

    @property
    def _calibration(self) -> Calibration:
        return self.window.model(self.room.model)

    def _set_window(self, window: Window) -> None:
        if window != self.window:
            self.window = window
            self.on_change(window)
