"""Who may answer a question that a turn asks, and which message is such an answer.

At a terminal it is who sees the turn. In a chat it is an owner, by the buttons below the question, by a word (yes, no,
always, in the languages of the table) or by `/approve ID` and `/deny ID`; in a group a word counts only where it is
plainly said to the bot, since the owner may be talking with somebody else there. Jobs, the heartbeat and subagents ask
nobody.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from nanobot.agent.answers import answer_in
from nanobot.agent.run.hooks import PlannedCall
from nanobot.agent.run.questions import Question, Questions
from nanobot.agent.slash_commands import TYPED, Command, is_from_owner, parse_command
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import Answer
from nanobot.bus.events import Address, InboundMessage
from nanobot.errors import StorageError
from nanobot.messages.types import Origin
from nanobot.security.grants import NOTHING_ALWAYS, Grants, forgotten, told


class NoOwnerHere(Protocol):
    """Who knows the owners of channels."""

    def __call__(self, chat: Address, senders: Sequence[str], *, in_group: bool) -> str | None:
        """Why no owner reads in that chat, where these have written; None where one does. May block."""
        ...


_COMMANDS = {"approve": Answer.ONCE, "yes": Answer.ONCE, "always": Answer.ALWAYS, "deny": Answer.NO, "no": Answer.NO}
_TOLD = {
    Answer.NO: "Not allowed.",
    Answer.ONCE: "Allowed, this once.",
    Answer.ALWAYS: "Allowed, and for 30 days I do not ask about this again.",
}
_STANDS = {
    Answer.NO: "not allowed",
    Answer.ONCE: "allowed, once",
    Answer.ALWAYS: "allowed, for 30 days",
    Answer.EXPIRED: "not allowed, since nobody answered in time",
}
_NOT_BY_A_WORD = (
    "Others read here, so a word alone is no answer: press a button, say it to me by my name or as a reply, or say "
    "/approve {name}."
)
_UNATTENDED = {
    Origin.CRON: "This is a job: nobody sits there to answer.",
    Origin.HEARTBEAT: "This is the heartbeat: nobody sits there to answer.",
    Origin.SUBAGENT: "This is a subagent: nobody sits there to answer.",
    Origin.GOAL: "This works at a goal by itself: nobody sits there to answer.",
}
_NO_TERMINAL = "Nobody sits at a terminal who could answer; `nanobot agent` without -m asks there."


class ApprovalWords:
    """What an owner says about approvals in a chat: `/approvals list | forget RULE`."""

    def __init__(self, grants: Grants, questions: Questions) -> None:
        self._grants = grants
        self._questions = questions

    def waiting(self, session_key: str) -> list[str]:
        """The questions that are open in this session."""
        return [
            f"Waits for your answer: {one.tool} (/approve {one.id}, /deny {one.id})"
            for one in self._questions
            if one.context.session_key == session_key
        ]

    async def answer(self, argument: str) -> str:
        """Do what an owner asks."""
        word, _, rule = (argument.strip() or "list").partition(" ")
        try:
            if word.lower() == "list" and not rule:
                return "\n".join(map(told, await asyncio.to_thread(self._grants.all))) or NOTHING_ALWAYS
            if word.lower() == "forget" and rule.strip():
                return forgotten(rule.strip(), await asyncio.to_thread(self._grants.forget, rule.strip()))
        except StorageError as error:
            return str(error)
        return "Say /approvals list, or /approvals forget RULE."


class Answering:
    """The questions that are open, and the chats they can be answered in."""

    def __init__(
        self,
        questions: Questions,
        no_owner_here: NoOwnerHere,
        is_group: Callable[[Address], bool] = lambda chat: False,
        on_behalf: Callable[[ToolContext], ToolContext] = lambda context: context,
    ) -> None:
        """`is_group`: whether several people write in that chat. There a word may be meant for one of them.
        `on_behalf`: the turn that another one stands for, as to who may answer.
        """
        self.questions = questions
        self._no_owner_here = no_owner_here
        self._is_group = is_group
        self._on_behalf = on_behalf

    async def why_not(self, planned: PlannedCall) -> str | None:
        """Why nobody may answer a question in this turn; None where one may."""
        context = self._on_behalf(planned.context)
        if context.attended:
            return None
        if context.origin in _UNATTENDED:
            return _UNATTENDED[context.origin]
        if context.origin is not Origin.USER or context.quiet:
            return _NO_TERMINAL
        here = [row for row in planned.rows if row["role"] == "user" and row.get("origin") in (None, Origin.USER)]
        senders = {str(row["sender_id"]) for row in here if row.get("sender_id")} | {context.sender_id or ""}
        in_group = any(row.get("in_group") for row in here)
        known = sorted(filter(None, senders))
        return await asyncio.to_thread(self._no_owner_here, context.address, known, in_group=in_group)

    def is_answer(self, message: InboundMessage) -> bool:
        """Whether a message is for a question and not for the model."""
        if message.origin not in TYPED:
            return False
        command = parse_command(message.content)
        if command is not None:
            return command.name in _COMMANDS
        return is_from_owner(message) and answer_in(_own_words(message)) is not None and bool(self._asked_in(message))

    def take(self, message: InboundMessage) -> str:
        """Hand the answer on; what the person is told. Only an owner's counts."""
        if not is_from_owner(message):
            return "Only an owner may answer that."
        command = parse_command(message.content)
        if command is None and not message.is_mentioned and (message.in_group or self._is_group(message.address)):
            return _NOT_BY_A_WORD.format(name=self._asked_in(message)[0].id)
        if command is None:
            name, answer = "", answer_in(_own_words(message)) or Answer.NO
        else:
            name, answer = _said_in(command)
        asked = self._asked_in(message)
        if not name and not asked:
            return "No question waits for an answer here."
        name = name or asked[0].id
        question = self.questions.get(name)
        if not self.questions.answer(name, answer):
            if (stands := self.questions.settled(name)) is not None:
                return f"That was answered before: {_STANDS[stands]}."
            self.questions.keep(name, answer)
            return "That question is not open. Should it be asked again soon, this answer counts."
        if answer is Answer.ALWAYS and question is not None and not question.may_always:
            return "Allowed, this once: about this I ask each time."
        return _TOLD[answer]

    def _asked_in(self, message: InboundMessage) -> list[Question]:
        return [one for one in self.questions if one.context.address == message.address]


def _own_words(message: InboundMessage) -> str:
    """What was said, without what it replies to, as channels write that above it."""
    first, *rest = message.content.split("\n")
    if not (rest and first.startswith("[in reply to ")):
        return message.content
    return "\n".join(line for line in rest if not line.startswith("> "))


def _said_in(command: Command) -> tuple[str, Answer]:
    """The name of the question that a command answers, empty for the one that is open; and the answer."""
    answer, name = _COMMANDS[command.name], ""
    for word in command.argument.split():
        said = answer_in(word)
        if said is not None and answer is not Answer.NO:
            answer = said
        elif said is None:
            name = word
    return name, answer
