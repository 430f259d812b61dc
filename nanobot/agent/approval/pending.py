"""Approvals that wait for a person: asked in a turn, answered from wherever that person is.

The id is derived from turn and call, so that a question asked again after a restart has the same one, and an answer to
the first counts for the second, once.
"""

import asyncio
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, EventSink
from nanobot.agent.tools.base import ToolContext
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.clock import Clock

_MAX_ANSWERS = 256
"""Answers that are remembered; more than a person gives in ten minutes."""


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
        self._answers: dict[str, tuple[Answer, float | None]] = {}
        """Recent answers; with the time if it came before its question, which it does not belong to yet."""

    def __iter__(self) -> Iterator[PendingApproval]:
        return iter([question for question, _ in self._open.values()])

    async def ask(self, question: PendingApproval, emit: EventSink, **shown: Any) -> Answer:
        """Show the question and wait for the answer. `shown`: what the event ApprovalAsked says about the call."""
        shown |= {"question": question.id, "may_always": question.may_always, "expires_s": self.expires_s}
        emit(ApprovalAsked(**shown))
        answer = Answer.STOPPED
        try:
            answer = await self.wait_for_answer(question)
        finally:
            emit(ApprovalAnswered(question=question.id, answer=answer))
        return answer

    async def wait_for_answer(self, question: PendingApproval) -> Answer:
        """Wait for the answer; EXPIRED if none comes in time. Cancelling withdraws the question."""
        early = self._early_answer(question.id)
        self._answers.pop(question.id, None)  # asked again: what was answered before counts no more
        if early is not None:
            return self._settle(question, early)
        waiting: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[question.id] = (question, waiting)
        try:
            async with asyncio.timeout(self.expires_s):
                return await waiting
        except TimeoutError:
            return self._settle(question, Answer.EXPIRED)
        finally:
            del self._open[question.id]

    def get(self, approval_id: str) -> PendingApproval | None:
        """Return the open question with this id."""
        return self._open[approval_id][0] if approval_id in self._open else None

    def settled_answer(self, approval_id: str) -> Answer | None:
        """Return the answer a question got; None if it is open or unknown."""
        answer, early_at = self._answers.get(approval_id, (None, None))
        return answer if early_at is None else None

    def answer(self, approval_id: str, answer: Answer) -> bool:
        """Answer an open question; False if there is none with this id. The first answer counts.

        The caller has checked that an owner answers.
        """
        question, waiting = self._open.get(approval_id, (None, None))
        if question is None or waiting is None or waiting.done():
            return False
        waiting.set_result(self._settle(question, answer))
        return True

    def save_early(self, approval_id: str, answer: Answer) -> None:
        """Save an answer to a question that is not open: a resumed turn may be about to ask it again.

        Ignored if the question was answered already: a late yes to a refused call must not allow the next such call.
        """
        if self.settled_answer(approval_id) is None and self._early_answer(approval_id) is None:
            self._remember(approval_id, answer, self._clock.monotonic())

    def _early_answer(self, approval_id: str) -> Answer | None:
        answer, at = self._answers.get(approval_id, (None, None))
        return answer if at is not None and self._clock.monotonic() - at <= self.expires_s else None

    def _settle(self, question: PendingApproval, answer: Answer) -> Answer:
        """Remember the answer and return it, limited to what was offered."""
        if answer is Answer.ALWAYS and not question.may_always:
            answer = Answer.ONCE
        self._remember(question.id, answer, None)
        return answer

    def _remember(self, approval_id: str, answer: Answer, early_at: float | None) -> None:
        self._answers[approval_id] = answer, early_at
        while len(self._answers) > _MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
