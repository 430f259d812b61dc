"""The requests of one run: each within the model's window, made legal, and weighed by what the last answer taught.

`fit` is the arithmetic; here is its memory over a run: what rows weigh, the state, when to count and not estimate.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from nanobot.agent.run.allowance import MOST_ROWS, Allowance, Learned, allowance_for
from nanobot.agent.run.fit import Stage, fit
from nanobot.agent.run.sheet import Sheet
from nanobot.agent.run.shrink import Shrinker
from nanobot.agent.run.window import Window
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
        self.estimating = Scale()
        """What a run begins with."""
        self.counting = Scale()
        """For where a window is nearly full; to be sharpened first."""
        self._shrinkers: dict[frozenset[str], Shrinker] = {}

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
        self._scale = self.remembered.estimating
        self._shrinker = self.remembered.shrinker(self.room.rereadable)
        self._system = {"role": "system", "content": self.room.system}
        self._weigh_fixed()

    async def build(self, rows: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The request for this history: legal, and within the window. Raises RequestTooLongError: then send nothing."""
        sheet = self._sheet(rows)
        standing = sheet.standing(self.window)
        if self._scale.exact:
            await asyncio.to_thread(self._scale.sharpen, standing)
        elif self._is_near(standing) and await self._count(standing):
            sheet = self._sheet(rows)
        allowance = self._allowance()
        try:
            fitted = fit(sheet, self.window, allowance)
        except RequestTooLongError:  # by what was refused once; before the words are refused, too, the model is asked
            allowance = self._allowance(replace(self._learned, most=None))
            fitted = fit(sheet, self.window, allowance)
        self._learn(fitted.window)
        self.tokens, self.reply, self.happened = fitted.tokens + self._fixed, allowance.reply, fitted.happened
        self.shown = self.remembered.legal.of(fitted.rows)
        self._scale.forget_others(fitted.rows)
        self._shrinker.forget_others(rows)
        return [self._system, *self.shown]

    def answered(self, prompt_tokens: int) -> None:
        """A model said what the last request was, in its own tokens; 0 where it did not say."""
        self._overflowed = False
        known = self._learned
        learned = known.answered(self.tokens, prompt_tokens)
        if self._counted is not None:
            self._counted = learned
        elif learned is not known:
            self._learn(self.window.taught(self.room.model, learned))

    def overflowed(self, rows: Sequence[ChatMessage], said: int | None = None) -> bool:
        """A model refused the last request, of these rows, as too long. Whether a smaller one is worth a try: not a
        second time, and not where nothing can be left out; then the error goes up.

        `said` is what the model takes, where it told: then a shorter reply may be enough. What was learned stays: the
        next turn begins with a smaller request.
        """
        again, self._overflowed = not self._overflowed, True

        def taught(known: Learned) -> Learned:
            return known.refused(self.tokens, self._fixed, said=said, reply=self.reply)

        learned, counted = taught(self.window.model(self.room.model)), self._counted
        if counted is not None:
            counted = taught(counted)
        window = self.window.taught(self.room.model, learned)
        allowance = self._allowance(counted or learned)
        try:
            fitted = fit(self._sheet(rows), window, allowance)
        except RequestTooLongError:
            return False
        if fitted.tokens + self._fixed >= self.tokens and (said is None or allowance.reply >= self.reply):
            return False
        self._counted = counted
        self._learn(window)
        return again

    def _sheet(self, rows: Sequence[ChatMessage]) -> Sheet:
        return Sheet(rows, self._scale, self._shrinker)

    def _allowance(self, learned: Learned | None = None) -> Allowance:
        room = self.room
        learned = learned or self._learned
        return allowance_for(room.window_tokens, room.max_tokens, self._fixed, learned, room.most_rows)

    @property
    def _learned(self) -> Learned:
        return self._counted or self.window.model(self.room.model)

    def _is_near(self, standing: Sequence[ChatMessage]) -> bool:
        """Whether the rows, as they stand, come near what may be sent."""
        weight = self._scale.weigh_all(standing) + self._fixed
        return weight > (self._allowance().tokens + self._fixed) * COUNT_FROM

    async def _count(self, standing: Sequence[ChatMessage]) -> bool:
        """Count from now on, where there is a tokenizer; what was learned of the model is put in counted tokens."""
        estimated = self._scale.weigh_all(standing) + self._fixed
        counting = self.remembered.counting
        if not await asyncio.to_thread(counting.sharpen, standing):
            return False
        self._scale = counting
        self._weigh_fixed()
        counted = self._scale.weigh_all(standing) + self._fixed
        known = self.window.learned.get(self.room.model)
        if known is None or known.ratio == 1.0:
            self._counted = replace(known or Learned(), ratio=_UNKNOWN_MODEL)
        else:
            ratio = min(max(known.ratio * estimated / max(counted, 1), 0.8), 4.0)
            self._counted = replace(known, ratio=ratio)
        return True

    def _weigh_fixed(self) -> None:
        self._fixed = self._scale.weigh_text(self.room.system) + self.room.tools_tokens

    def _learn(self, window: Window) -> None:
        if window != self.window:
            self.window = window
            self.keep(window)
