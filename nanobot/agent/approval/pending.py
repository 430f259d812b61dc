"""Approval questions: asked in a turn, answered from wherever the person is who may answer.

At a terminal, the person who watches the turn answers. In a chat an owner does, with the buttons below the question,
with a word (yes, no, always, in several languages) or with `/approve ID` and `/deny ID`. In a group a bare word counts
only if it is addressed to the bot, since the owner may be talking with somebody else. Jobs, the heartbeat and subagents
ask nobody.

The id is derived from turn and call, so that a question asked again after a restart has the same one, and an answer to
the first counts for the second, once.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nanobot.agent.command import TYPED, is_from_owner, parse_command
from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, EventSink, parse_answer
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.hooks import PlannedCall
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.providers.base import ToolCallRequest
from nanobot.security.grants import NO_GRANTS, Grants, describe_forgotten, describe_grant
from nanobot.security.secrets import redact_known
from nanobot.utils.clock import Clock

_MAX_ANSWERS = 256
"""Answers that are remembered; more than a person gives in ten minutes."""
_COMMANDS = {"approve": Answer.ONCE, "yes": Answer.ONCE, "always": Answer.ALWAYS, "deny": Answer.NO, "no": Answer.NO}
_OUTCOMES = {
    Answer.NO: "Not allowed.",
    Answer.ONCE: "Allowed, this once.",
    Answer.ALWAYS: "Allowed, and for 30 days I do not ask about this again.",
    Answer.EXPIRED: "Not allowed, since nobody answered in time.",
}
_BARE_WORD_IN_GROUP = (
    "Others read here, so a word alone is no answer: press a button, mention me, reply to me, or send /approve {name}."
)
_UNATTENDED = {
    Origin.CRON: "a job",
    Origin.HEARTBEAT: "the heartbeat",
    Origin.SUBAGENT: "a subagent",
    Origin.GOAL: "a turn that works on a goal by itself",
}
_NO_TERMINAL = "Nobody is at a terminal who could answer; `nanobot agent` without -m asks there."


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

    expires_s = 600.0
    """How long a question stays open; without an answer by then the call is refused."""

    def __init__(self, clock: Clock) -> None:
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


class ApprovalCommands:
    """`/approvals list | forget RULE`, for an owner in a chat."""

    def __init__(self, grants: Grants, questions: PendingApprovals) -> None:
        self._grants = grants
        self._questions = questions

    def waiting(self, session_key: str) -> list[str]:
        """Describe the open questions of this session, one line each."""
        return [
            f"Waits for your answer: {question.tool} (/approve {question.id}, /deny {question.id})"
            for question in self._questions
            if question.context.session_key == session_key
        ]

    async def answer(self, argument: str) -> str:
        """Run the command and return its text."""
        word, _, rule = (argument.strip() or "list").partition(" ")
        try:
            if word.lower() == "list" and not rule:
                return "\n".join(map(describe_grant, await asyncio.to_thread(self._grants.all))) or NO_GRANTS
            if word.lower() == "forget" and rule.strip():
                return describe_forgotten(rule.strip(), await asyncio.to_thread(self._grants.forget, rule.strip()))
        except StorageError as error:
            return str(error)
        return "Use /approvals list, or /approvals forget RULE."


class ApprovalRouter:
    """Routes answers from chats to the open questions."""

    def __init__(
        self,
        questions: PendingApprovals,
        no_owner_here: Callable[..., str | None],
        is_group: Callable[[Address], bool] = lambda chat: False,
        on_behalf: Callable[[ToolContext], ToolContext] = lambda context: context,
    ) -> None:
        """`no_owner_here(chat, senders, in_group=...)`: why no owner reads in that chat, given who wrote there; None if
        one does. May block. `is_group`: whether several people write in that chat; a bare word there may be meant for
        one of them. `on_behalf`: returns the turn that this one acts for, which decides who may answer.
        """
        self.questions = questions
        self._no_owner_here = no_owner_here
        self._is_group = is_group
        self._on_behalf = on_behalf

    async def unavailable_reason(self, planned: PlannedCall) -> str | None:
        """Return why nobody may answer a question in this turn; None if somebody may."""
        context = self._on_behalf(planned.context)
        if context.attended:
            return None
        if context.origin in _UNATTENDED:
            return f"This is {_UNATTENDED[context.origin]}: nobody is there to answer."
        if context.origin is not Origin.USER or context.quiet:
            return _NO_TERMINAL
        prompts = [row for row in planned.rows if row["role"] == "user" and row.get("origin") in (None, Origin.USER)]
        senders = {str(row["sender_id"]) for row in prompts if row.get("sender_id")} | {context.sender_id or ""}
        in_group = any(row.get("in_group") for row in prompts)
        sender_ids = sorted(filter(None, senders))
        return await asyncio.to_thread(self._no_owner_here, context.address, sender_ids, in_group=in_group)

    async def ask(self, context: ToolContext, emit: EventSink, text: str, *, tool: str = "") -> bool:
        """Ask the person who follows the turn a tool's own question, and return whether they say yes."""
        if not context.attended:
            return False
        question = PendingApproval(secrets.token_hex(4), context, tool, may_always=False)
        text = redact_known(text)
        answer = await self.questions.ask(question, emit, call_id="", name=tool, arguments={}, reaches=[], text=text)
        return answer is Answer.ONCE

    def is_answer(self, message: InboundMessage) -> bool:
        """Return whether a message answers a question rather than being for the model."""
        if message.origin not in TYPED:
            return False
        if (command := parse_command(message.content)) is not None:
            return command.name in _COMMANDS
        is_word = is_from_owner(message) and parse_answer(message.own_words) is not None
        return is_word and bool(self._open_questions(message))

    def handle_answer(self, message: InboundMessage) -> str:
        """Pass the answer to its question and return the text for the person. Only an owner's answer counts."""
        if not is_from_owner(message):
            return "Only an owner may answer that."
        approval_id, answer = "", parse_answer(message.own_words) or Answer.NO
        questions_here = self._open_questions(message)
        if (command := parse_command(message.content)) is not None:
            answer = _COMMANDS[command.name]
            for word in command.argument.split():  # the id of the question, none for the open one, and the answer
                if (parsed := parse_answer(word)) is None:
                    approval_id = word
                elif answer is not Answer.NO:
                    answer = parsed
        elif not message.is_mentioned and (message.in_group or self._is_group(message.address)):
            return _BARE_WORD_IN_GROUP.format(name=questions_here[0].id)
        if not approval_id and not questions_here:
            return "No question waits for an answer here."
        approval_id = approval_id or questions_here[0].id
        question = self.questions.get(approval_id)
        if not self.questions.answer(approval_id, answer):
            if (settled := self.questions.settled_answer(approval_id)) is not None:
                return f"That was answered before: {_OUTCOMES[settled]}"
            self.questions.save_early(approval_id, answer)
            return "That question is not open. If it is asked again soon, this answer counts."
        if answer is Answer.ALWAYS and question is not None and not question.may_always:
            return "Allowed, this once: for this I ask each time."
        return _OUTCOMES[answer]

    def _open_questions(self, message: InboundMessage) -> list[PendingApproval]:
        return [question for question in self.questions if question.context.address == message.address]
