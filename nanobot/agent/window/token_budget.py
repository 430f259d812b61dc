"""The token budget for the rows of a request: the model's window minus the fixed parts and the reply.

Sizes are in our own estimated tokens. Models count differently, and some accept less than documented; a calibration
learned from responses and refusals is stored with the session.
"""

from dataclasses import dataclass, replace

MAX_ROWS = 400
"""Less than the number of messages a session loads when it is opened, so that the window is in memory."""
_AFTER_OVERFLOW = 0.6
"""Size of the next request after a refusal that names no limit, as a share of the refused one."""
_MIN_ROWS_TOKENS = 512
"""Tokens for the rows that are always left."""
_SAFETY_SHARE = 0.95
"""Share of a reported limit that is used, since our token counts differ."""
_RATIO_MARGIN = 1.1
_MAX_RATIO = 4.0
_MIN_RATIO = 0.75
"""Lower bound of the ratio: some providers do not count cached tokens."""
_MIN_CALIBRATION_WEIGHT = 500
"""Smaller requests are ignored: the fixed overhead of the server distorts them."""
_REPLY_STEP = 256
"""The reply's budget is rounded down to a multiple: it is sent with each request and should not change."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was learned about a model: its tokens per estimated token, and sizes that it refused."""

    ratio: float = 1.0
    max_weight: int | None = None
    """Maximum size of a request, in estimated tokens."""
    window: int | None = None
    """The window that the model reported in a refusal, minus a safety margin."""

    def after_response(self, weight: int, model_tokens: int) -> "Calibration":
        """The calibration after a response that reported the tokens of a request of this weight.

        It changes in steps, so that the session is not written for every request. Implausible figures are ignored.
        """
        if weight < _MIN_CALIBRATION_WEIGHT or not 0.5 <= model_tokens / weight <= _MAX_RATIO:
            return self
        ratio = max(-(-model_tokens * 20 // weight) / 20, _MIN_RATIO)
        if self.ratio - 0.1 < ratio <= self.ratio:
            return self
        max_weight = None if self.max_weight is None else int(self.max_weight * self.ratio / ratio)
        return replace(self, ratio=ratio, max_weight=max_weight)

    def after_refusal(
        self, weight: int, fixed: int = 0, *, limit_tokens: int | None = None, reply: int = 0
    ) -> "Calibration":
        """The calibration after a request of this weight was refused as too long: the next ones are limited to 60 %.

        The fixed part and _MIN_ROWS_TOKENS always fit. `limit_tokens` is the window that the model reported, if any:
        the first time, that is used instead. `reply` is the `max_tokens` of the refused request.
        """
        if limit_tokens is not None and self.window is None:
            ratio = min(_RATIO_MARGIN * (limit_tokens - reply) / max(weight, 1), _MAX_RATIO)
            return replace(self, ratio=max(self.ratio, ratio), window=int(limit_tokens * _SAFETY_SHARE))
        max_weight = max(int(weight * _AFTER_OVERFLOW), fixed + _MIN_ROWS_TOKENS)
        return replace(self, max_weight=max_weight if self.max_weight is None else min(max_weight, self.max_weight))


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Limits for the rows of a request: their size in estimated tokens, and their number."""

    tokens: int
    rows: int = MAX_ROWS
    reply: int = 8192
    """The `max_tokens` of the request, in tokens of the model."""


def token_budget(
    window_tokens: int, max_tokens: int, fixed: int, learned: Calibration | None = None, rows: int = MAX_ROWS
) -> TokenBudget:
    """Compute the budget for the rows beside the fixed part (system prompt and tools) and the reply.

    The reply gets at most half of what the fixed part leaves.
    """
    learned = learned or Calibration()
    window_tokens = min(window_tokens, learned.window or window_tokens)
    reply = max(min(max_tokens, (window_tokens - fixed) // 2 // _REPLY_STEP * _REPLY_STEP), 1)
    room = int((window_tokens - reply) / learned.ratio)
    if learned.max_weight is not None:
        reply = max(min(reply, learned.max_weight // 2), 1)
        room = min(room, learned.max_weight)
    return TokenBudget(room - fixed, rows, reply)
