"""Who may answer an approval question, and which messages are answers.

At a terminal, the person who watches the turn answers. In a chat an owner does, with the buttons below the question,
with a word (yes, no, always, in several languages) or with `/approve ID` and `/deny ID`. In a group a bare word counts
only if it is addressed to the bot, since the owner may be talking with somebody else. Jobs, the heartbeat and subagents
ask nobody.
"""

import asyncio
import secrets
from collections.abc import Callable

from nanobot.agent.approval.pending import PendingApproval, PendingApprovals
from nanobot.agent.command import TYPED, Command, is_from_owner, parse_command
from nanobot.agent.events import Answer, EventSink, parse_answer
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.hooks import PlannedCall
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.security.grants import NO_GRANTS, Grants, describe_forgotten, describe_grant
from nanobot.security.secrets import redact_known

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
            approval_id, answer = _parse_answer_command(command)
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


def _parse_answer_command(command: Command) -> tuple[str, Answer]:
    """Return the id of the question a command answers (empty for the open one) and the answer."""
    answer, approval_id = _COMMANDS[command.name], ""
    for word in command.argument.split():
        parsed = parse_answer(word)
        if parsed is not None and answer is not Answer.NO:
            answer = parsed
        elif parsed is None:
            approval_id = word
    return approval_id, answer
