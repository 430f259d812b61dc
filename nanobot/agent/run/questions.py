"""Questions that wait for a person: asked in a turn, answered from wherever that person is.

A question is named by its turn and its call, so that one asked again after a restart is the same one: an answer to the
first counts for the second, once.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import Answer
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.clock import Clock

_MOST_EARLY = 64
"""Answers that came before their question; more than a person presses in ten minutes."""
_MOST_SETTLED = 256
"""Questions of which it is remembered how they ended."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question: whose turn waits, what for, and whether the answer may be kept."""

    id: str
    context: ToolContext
    """The turn that asks."""
    tool: str
    may_always: bool = True


def question_id(turn_id: str, call: ToolCallRequest) -> str:
    """The name of the question about this call, the same after a restart; short enough to be typed."""
    arguments = json.dumps(call.arguments, sort_keys=True, default=str)
    told = f"{turn_id}\n{call.id}\n{call.name}\n{arguments}"
    return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:8]


class Questions:
    """Those that are open."""

    def __init__(self, clock: Clock, *, expires_s: float = 600.0) -> None:
        self.expires_s = expires_s
        """How long a question waits; then it counts as a no."""
        self._clock = clock
        self._open: dict[str, tuple[Question, asyncio.Future[Answer]]] = {}
        self._early: dict[str, tuple[Answer, float]] = {}
        self._settled: dict[str, Answer] = {}

    def __iter__(self) -> Iterator[Question]:
        """The oldest first."""
        return iter([question for question, _ in self._open.values()])

    async def answer_to(self, question: Question) -> Answer:
        """Wait for the answer; EXPIRED where none comes in time. Cancelling takes the question back."""
        early = self._early[question.id][0] if self._waits_early(question.id) else None
        self._early.pop(question.id, None)
        if early is not None:
            early = _offered(question, early)
            self._settle(question.id, early)
            return early
        self._settled.pop(question.id, None)
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = (question, waiting)
        try:
            async with asyncio.timeout(self.expires_s):
                return await waiting
        except TimeoutError:
            self._settle(question.id, Answer.EXPIRED)
            return Answer.EXPIRED
        finally:
            del self._open[question.id]

    def get(self, name: str) -> Question | None:
        """The open question of this name."""
        return self._open[name][0] if name in self._open else None

    def settled(self, name: str) -> Answer | None:
        """The answer that stands of a question; None where it waits for one, or nobody knows of it."""
        return self._settled.get(name)

    def answer(self, name: str, answer: Answer) -> bool:
        """Answer an open question; False where none of this name waits for one. The first answer stands.

        Whoever calls this has seen to it that an owner answers.
        """
        if name not in self._open:
            return False
        question, waiting = self._open[name]
        if waiting.done():
            return False
        answer = _offered(question, answer)
        waiting.set_result(answer)
        self._settle(name, answer)
        return True

    def keep(self, name: str, answer: Answer) -> None:
        """An answer to a question that is not open: a turn that is taken up may be about to ask it again. To one that
        has been answered it is none: a yes that lost against a no must not count for the next such call.
        """
        if name in self._settled or self._waits_early(name):
            return
        while len(self._early) >= _MOST_EARLY:
            del self._early[next(iter(self._early))]
        self._early[name] = (answer, self._clock.monotonic())

    def _waits_early(self, name: str) -> bool:
        """Whether an answer is kept that still counts."""
        return name in self._early and self._clock.monotonic() - self._early[name][1] <= self.expires_s

    def _settle(self, name: str, answer: Answer) -> None:
        while len(self._settled) >= _MOST_SETTLED:
            del self._settled[next(iter(self._settled))]
        self._settled[name] = answer


def _offered(question: Question, answer: Answer) -> Answer:
    """The answer, as far as the question offers it."""
    return Answer.ONCE if answer is Answer.ALWAYS and not question.may_always else answer
