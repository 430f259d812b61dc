"""The requests of one run: each within the model's window, made legal, and weighed by what the last answer taught.

`window` is the arithmetic; here is its memory over a run: what rows weigh, the state, when to count and not estimate.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from nanobot.agent.run.shrink import Shrinker
from nanobot.agent.run.window import (
    MOST_ROWS,
    Budget,
    Learned,
    Stage,
    Window,
    after_answer,
    after_overflow,
    budget_for,
    fit,
    standing,
)
from nanobot.errors import RequestTooLongError
from nanobot.messages.repair import LegalHistory
from nanobot.messages.tokens import Scale
from nanobot.messages.types import ChatMessage

COUNT_FROM = 0.7
"""The share of what may be sent from which on tokens are counted, not estimated."""
_UNKNOWN_MODEL = 1.15
"""What a model that has not answered yet may make of a counted token."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a request must fit into, and what is in it at every step beside the rows."""

    model: str
    window_tokens: int
    max_tokens: int
    system: str = ""
    tools_tokens: int = 0
    most_rows: int = MOST_ROWS
    rereadable: Collection[str] = ()
    """Tools that only read: what they returned can be had again."""


class Remembered:
    """What was found out about the rows of a session: hand the same one to its next run, and it is not done again."""

    def __init__(self) -> None:
        self.legal = LegalHistory()
        self._scale = Scale()
        self._shrinkers: dict[frozenset[str], Shrinker] = {}

    def estimates(self) -> Scale:
        """The scale of the last run; a new one where that one counts by now, for a run begins with estimates."""
        if self._scale.exact:
            self._scale = Scale()
        return self._scale

    def shrinker(self, rereadable: Collection[str]) -> Shrinker:
        """What has made rows small, those tools being such that only read."""
        tools = frozenset(rereadable)
        if tools not in self._shrinkers:
            self._shrinkers = {tools: Shrinker(tools)}
        return self._shrinkers[tools]


@dataclass(slots=True)
class Requests:
    """Makes the requests of a run. `keep` is told of each new state of the window, which is to be stored."""

    room: Room
    window: Window = field(default_factory=Window)
    keep: Callable[[Window], None] = lambda window: None
    remembered: Remembered = field(default_factory=Remembered)
    shown: Sequence[ChatMessage] = ()
    """The last request."""
    tokens: int = 0
    """What it weighs."""
    reply: int = 0
    """What the model may answer to it at most, in its own tokens."""
    happened: Stage = Stage.NOTHING
    """How room was made for it."""
    _scale: Scale = field(init=False)
    _shrinker: Shrinker = field(init=False)
    _system: ChatMessage = field(init=False)
    _fixed: int = field(init=False)
    _counted: Learned | None = None
    """What is known of the model in counted tokens; None while we estimate."""
    _overflowed: bool = False

    def __post_init__(self) -> None:
        self._scale = self.remembered.estimates()
        self._shrinker = self.remembered.shrinker(self.room.rereadable)
        self._system = {"role": "system", "content": self.room.system}
        self._weigh_fixed()

    async def build(self, rows: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The request for this history: legal, and within the window. Raises RequestTooLongError: then send nothing."""
        if self._scale.exact:
            await asyncio.to_thread(self._scale.sharpen, self._standing_rows(rows))
        elif self._is_near(rows):
            await self._count(rows)
        budget = self._budget()
        try:
            fitted = fit(rows, self.window, budget, self._scale, self._shrinker)
        except RequestTooLongError:  # by what was refused once; before the words are refused, too, the model is asked
            budget = self._budget(replace(self._learned, most=None))
            fitted = fit(rows, self.window, budget, self._scale, self._shrinker)
        self._learn(fitted.window)
        self.tokens, self.reply, self.happened = fitted.tokens + self._fixed, budget.reply, fitted.happened
        self.shown = self.remembered.legal.of(fitted.rows)
        self._scale.forget_others(fitted.rows)
        self._shrinker.forget_others(rows)
        return [self._system, *self.shown]

    def answered(self, prompt_tokens: int) -> None:
        """A model said what the last request was, in its own tokens; 0 where it did not say."""
        self._overflowed = False
        if self._counted is None:
            self._learn(after_answer(self.window, self.room.model, self.tokens, prompt_tokens))
        else:
            known = Window(learned={self.room.model: self._counted})
            self._counted = after_answer(known, self.room.model, self.tokens, prompt_tokens).model(self.room.model)

    def overflowed(self, rows: Sequence[ChatMessage], said: int | None = None) -> bool:
        """A model refused the last request, of these rows, as too long. Whether a smaller one is worth a try: not a
        second time, and not where nothing can be left out; then the error goes up.

        `said` is what the model takes, where it told: then a shorter reply may be enough. What was learned stays: the
        next turn begins with a smaller request.
        """
        again, self._overflowed = not self._overflowed, True
        model = self.room.model

        def after(window: Window) -> Window:
            return after_overflow(window, model, self.tokens, self._fixed, said=said, reply=self.reply)

        window, counted = after(self.window), self._counted
        if counted is not None:
            counted = after(Window(learned={model: counted})).model(model)
        budget = self._budget(counted or window.model(model))
        try:
            fitted = fit(rows, window, budget, self._scale, self._shrinker)
        except RequestTooLongError:
            return False
        if fitted.tokens + self._fixed >= self.tokens and (said is None or budget.reply >= self.reply):
            return False
        self._counted = counted
        self._learn(window)
        return again

    def _budget(self, learned: Learned | None = None) -> Budget:
        room = self.room
        learned = learned or self._learned
        return budget_for(room.window_tokens, room.max_tokens, self._fixed, learned, room.most_rows)

    @property
    def _learned(self) -> Learned:
        return self._counted or self.window.model(self.room.model)

    def _is_near(self, rows: Sequence[ChatMessage]) -> bool:
        """Whether the rows, as they stand, come near what may be sent."""
        weight = sum(map(self._scale.weigh, self._standing_rows(rows))) + self._fixed
        return weight > (self._budget().tokens + self._fixed) * COUNT_FROM

    def _standing_rows(self, rows: Sequence[ChatMessage]) -> list[ChatMessage]:
        return standing(rows, self.window, self._shrinker)

    async def _count(self, rows: Sequence[ChatMessage]) -> None:
        """Count from now on, where there is a tokenizer; what was learned of the model is put in counted tokens."""
        shown = self._standing_rows(rows)
        estimated = sum(map(self._scale.weigh, shown)) + self._fixed
        if not await asyncio.to_thread(self._scale.sharpen, shown):
            return
        self._weigh_fixed()
        counted = sum(map(self._scale.weigh, shown)) + self._fixed
        known = self.window.learned.get(self.room.model)
        if known is None or known.ratio == 1.0:
            self._counted = replace(known or Learned(), ratio=_UNKNOWN_MODEL)
        else:
            ratio = min(max(known.ratio * estimated / max(counted, 1), 0.8), 4.0)
            self._counted = replace(known, ratio=ratio)

    def _weigh_fixed(self) -> None:
        self._fixed = self._scale.weigh_text(self.room.system) + self.room.tools_tokens

    def _learn(self, window: Window) -> None:
        if window != self.window:
            self.window = window
            self.keep(window)
