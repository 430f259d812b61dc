"""Approvals that wait for a person: asked in a turn, answered from wherever that person is.

The id is derived from turn and call, so that a question asked again after a restart has the same one, and an answer to
the first counts for the second, once.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.agent.events import Answer
from nanobot.agent.tools.base import ToolContext
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.clock import Clock

_MAX_EARLY = 64
"""Answers that came before their question; more than a person presses in ten minutes."""
_MAX_SETTLED = 256


@dataclass(frozen=True, slots=True)
class PendingApproval:
    id: str
    context: ToolContext
    """The turn that asks."""
    tool: str
    may_always: bool = True
    """Whether the answer "always" is offered."""


def make_approval_id(turn_id: str, call: ToolCallRequest) -> str:
    """Return the id of the question about this call: the same after a restart, and short enough to be typed."""
    arguments = json.dumps(call.arguments, sort_keys=True, default=str)
    key = f"{turn_id}\n{call.id}\n{call.name}\n{arguments}"
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:8]


class PendingApprovals:
    """The open questions, and how the recent ones were answered. Iterating gives the open ones, oldest first."""

    def __init__(self, clock: Clock, *, expires_s: float = 600.0) -> None:
        self.expires_s = expires_s
        """How long a question stays open; without an answer by then the call is refused."""
        self._clock = clock
        self._open: dict[str, tuple[PendingApproval, asyncio.Future[Answer]]] = {}
        self._early: dict[str, tuple[Answer, float]] = {}
        self._settled: dict[str, Answer] = {}

    def __iter__(self) -> Iterator[PendingApproval]:
        return iter([question for question, _ in self._open.values()])

    async def wait_for_answer(self, question: PendingApproval) -> Answer:
        """Wait for the answer; EXPIRED if none comes in time. Cancelling withdraws the question."""
        early = self._early[question.id][0] if self._has_early_answer(question.id) else None
        self._early.pop(question.id, None)
        if early is not None:
            early = _limit_to_offered(question, early)
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

    def get(self, approval_id: str) -> PendingApproval | None:
        """Return the open question with this id."""
        return self._open[approval_id][0] if approval_id in self._open else None

    def settled_answer(self, approval_id: str) -> Answer | None:
        """Return the answer a question got; None if it is open or unknown."""
        return self._settled.get(approval_id)

    def answer(self, approval_id: str, answer: Answer) -> bool:
        """Answer an open question; False if there is none with this id. The first answer counts.

        The caller has checked that an owner answers.
        """
        if approval_id not in self._open:
            return False
        question, waiting = self._open[approval_id]
        if waiting.done():
            return False
        answer = _limit_to_offered(question, answer)
        waiting.set_result(answer)
        self._settle(approval_id, answer)
        return True

    def save_early(self, approval_id: str, answer: Answer) -> None:
        """Save an answer to a question that is not open: a resumed turn may be about to ask it again.

        Ignored if the question was answered already: a late yes to a refused call must not allow the next such call.
        """
        if approval_id in self._settled or self._has_early_answer(approval_id):
            return
        while len(self._early) >= _MAX_EARLY:
            del self._early[next(iter(self._early))]
        self._early[approval_id] = (answer, self._clock.monotonic())

    def _has_early_answer(self, approval_id: str) -> bool:
        return approval_id in self._early and self._clock.monotonic() - self._early[approval_id][1] <= self.expires_s

    def _settle(self, approval_id: str, answer: Answer) -> None:
        while len(self._settled) >= _MAX_SETTLED:
            del self._settled[next(iter(self._settled))]
        self._settled[approval_id] = answer


def _limit_to_offered(question: PendingApproval, answer: Answer) -> Answer:
    return Answer.ONCE if answer is Answer.ALWAYS and not question.may_always else answer
