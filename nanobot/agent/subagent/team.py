"""The subagents that work for one goal, and the messages between them.

Members are known from the tasks that the manager adds. Messages are in the mailbox, and who has read them is in the
readers' sessions. They are cached here so that a turn can take its messages without waiting for the disk.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent.scope import Scope
from nanobot.agent.subagent import team_texts
from nanobot.agent.subagent.mailbox import TeamMailbox, TeamMessage
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.tools.access import Access
from nanobot.agent.tools.base import SUBAGENT_SESSION, Effect, Tool, ToolContext, ToolResult, string, takes
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, Provenance, least_trusted
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.secrets import redact_known
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)

MAX_SENT = 20
"""Messages that one subagent may send."""
MAX_UNREAD = 20
"""Unread messages that one subagent may have."""
MAX_READ_PER_TURN = 20
"""Messages that one subagent reads in a turn."""
_ALL = "all"
MAX_TELL_CHARS = 1_000


@dataclass(slots=True)
class _Team:
    members: list[Task] = field(default_factory=list)
    """Workers, ended ones included, in order of arrival."""
    messages: list[TeamMessage] | None = None
    """None until read from disk."""
    read: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the messages read, by task id."""


class TeamService:
    """The teams of all goals of this process."""

    def __init__(self, mailbox: TeamMailbox, clock: Clock) -> None:
        self._mailbox = mailbox
        self._clock = clock
        self._teams: dict[str, _Team] = {}
        self._disk_lock = asyncio.Lock()

    # --- for the manager

    def add(self, task: Task) -> None:
        """Add a task to its goal's team. Tasks without a goal, reviewers and planners are in no team."""
        if not task.goal or task.role is not TaskRole.WORKER:
            return
        for goal in [goal for goal, team in self._teams.items() if goal != task.goal and _is_over(team)]:
            del self._teams[goal]
        self._teams.setdefault(task.goal, _Team()).members.append(task)

    async def unread(self, task: Task) -> list[TeamMessage]:
        """Return the messages that an ended task has not read. Never raises."""
        team = self._teams.get(task.goal)
        if team is None or task not in team.members:
            return []
        await self._load_or_log(task.goal, team)
        return _unread(team, task)

    async def sweep(self, *, before: float) -> None:
        """Delete old messages. Raises StorageError."""
        await self._mailbox.sweep(before=before)

    # --- for its turns

    def has(self, task: Task) -> bool:
        """Whether the task is in a team."""
        team = self._teams.get(task.goal)
        return team is not None and task in team.members

    async def begin_turn(self, task: Task, read: Collection[str]) -> None:
        """Prepare a turn; `read` are the message keys in the session."""
        team = self._teams[task.goal]
        team.read[task.id] = set(read)
        await self._load_or_log(task.goal, team)

    def take(self, task: Task, limit: int) -> Sequence[InboundMessage]:
        """Return up to `limit` unread messages, oldest first, and mark them read."""
        team = self._teams[task.goal]
        messages = _unread(team, task)[: max(limit, 0)]
        team.read.setdefault(task.id, set()).update(item.journal_key for item in messages)
        return [_message(item, task) for item in messages]

    def others(self, task: Task) -> list[Task]:
        """Return the other members that run or wait."""
        team = self._teams.get(task.goal)
        return (
            [item for item in team.members if item is not task and not item.state.is_over] if team is not None else []
        )

    # --- for the tool

    async def tell(self, to: str, text: str, *, ctx: ToolContext) -> str:
        """Send a message. Once it is on disk, each recipient reads it exactly once, across crashes; if one ends first,
        it is added to that result. Raises NanobotError if there is no recipient.
        """
        team, sender = self._team_of(ctx)
        recipients = self._find_recipients(team, sender, to)
        text = redact_known(text.strip())
        async with self._disk_lock:
            messages = await self._load_messages(sender.goal, team)
            sent = [item for item in messages if item.by == sender.id]
            already_sent = {name for item in sent if item.text == text for name in item.to}
            new = [item for item in recipients if item.id not in already_sent]
            full = [item for item in new if len(_unread(team, item)) >= MAX_UNREAD]
            reachable = [item for item in new if item not in full and not item.state.is_over]
            if not new:
                return f"{team_texts.names_of(recipients)} already got exactly this from you; nothing was sent."
            if len(sent) >= MAX_SENT:
                raise NanobotError(
                    f"You have sent {MAX_SENT} messages, which is the limit. Write what others should know into the "
                    "notes folder, and continue with your task."
                )
            if not reachable:
                raise NanobotError(f"Nothing was sent. {_full_text(full)}")
            provenance = least_trusted([Provenance.TOOL, ctx.provenance, ctx.entered])
            to_ids = tuple(item.id for item in reachable)
            message = TeamMessage(secrets.token_hex(6), sender.id, sender.label, to_ids, text, provenance)
            await finish(self._save_message(sender.goal, team, message))
        return team_texts.sent_reply(reachable, full)

    async def _save_message(self, goal: str, team: _Team, message: TeamMessage) -> None:
        try:
            await self._mailbox.add(goal, message, self._clock.now().timestamp())
        except StorageError as error:
            raise StorageError(f"The message cannot be saved, so it was not sent. {error}") from error
        assert team.messages is not None  # noqa: S101 loaded by `tell`
        team.messages.append(message)

    def _team_of(self, ctx: ToolContext) -> tuple[_Team, Task]:
        task_id = ctx.session_key.removeprefix(SUBAGENT_SESSION)
        for team in self._teams.values():
            for task in team.members:
                if task.id == task_id:
                    return team, task
        raise NanobotError("You do not work for a goal, so you have no teammates. Say it in your report.")

    def _find_recipients(self, team: _Team, sender: Task, to: str) -> list[Task]:
        """Return the running members that this name refers to. Raises NanobotError."""
        running = self.others(sender)
        running_text = team_texts.list_working(running)
        name = _normalize(to)
        if name == _ALL:
            if not running:
                raise NanobotError(running_text)
            return running
        matches = [
            item for item in team.members if name in (item.id, _normalize(team_texts.name_of(item.label, item.id)))
        ]
        matches = matches or [item for item in team.members if name == _normalize(item.label)]
        if not matches:
            raise NanobotError(f"There is no teammate {to.strip()[:80]!r}. {running_text}")
        if matches == [sender]:
            raise NanobotError(f"That is you. {running_text}")
        open_matches = [item for item in matches if item in running]
        if not open_matches:
            raise NanobotError(
                f"{team_texts.names_of(matches)} has ended ({matches[-1].state}) and reads no more messages; its "
                f"result went to the agent that asked for it. {running_text}"
            )
        if len(open_matches) > 1:
            raise NanobotError(f"Several match: {team_texts.names_of(open_matches)}. Name one by the id.")
        return open_matches

    # --- the disk

    async def _load_or_log(self, goal: str, team: _Team) -> None:
        try:
            async with self._disk_lock:
                await self._load_messages(goal, team)
        except NanobotError as error:
            log.warning("the team messages of goal %s cannot be read: %s", goal, error)

    async def _load_messages(self, goal: str, team: _Team) -> list[TeamMessage]:
        """Return all messages of the goal. Raises StorageError."""
        if team.messages is None:
            team.messages = await self._mailbox.messages(goal)
        return team.messages


def goal_notes(paths: PathPolicy, scope: Scope, goal: str) -> str:
    """Return the notes folder of a goal, relative to the workspace; empty if there is none."""
    name = f"{scope.notes}/{goal}"
    try:
        return f"{name}/" if paths.resolve_own(name).is_dir() else ""
    except (OSError, PathDeniedError):
        return ""


def make_notes(paths: PathPolicy, scope: Scope, goal: str) -> None:
    """Create the notes folder. On failure subagents work without it. Blocks."""
    try:
        make_private_folder(paths.resolve_own(f"{scope.notes}/{goal}"))
    except (OSError, PathDeniedError) as error:
        log.warning("the notes folder of goal %s cannot be created: %s", goal, error)


def _is_over(team: _Team) -> bool:
    return all(task.reported for task in team.members)


def _unread(team: _Team, task: Task) -> list[TeamMessage]:
    read = team.read.get(task.id, ())
    return [item for item in team.messages or () if task.id in item.to and item.journal_key not in read]


def _normalize(name: str) -> str:
    return " ".join(name.split()).strip("@'\"`").casefold()


def _full_text(full: Sequence[Task]) -> str:
    if not full:
        return "They have ended in the meantime."
    return f"{team_texts.names_of(full)} already has {MAX_UNREAD} unread messages. Write it into the notes folder."


def _message(message: TeamMessage, to: Task) -> InboundMessage:
    """Return a message as it joins the recipient's turn."""
    return InboundMessage.at(
        to.address,
        f"{SUBAGENT_SESSION}{message.by}",
        team_texts.format_message(message),
        session_key=to.session_key,
        origin=Origin.SUBAGENT,
        provenance=message.provenance,
        journal_key=message.journal_key,
    )


class TellTool(Tool):
    """A short message from one subagent of a goal to its teammates. Nobody else has this tool."""

    name = "tell"
    description = (
        "Send a short message to a teammate, read between their steps. Put long texts into the notes folder instead."
    )
    parameters = takes(
        "to",
        "text",
        to=string("Name or id of a teammate, or all"),
        text=string(f"The message, at most {MAX_TELL_CHARS:,} characters"),
    )
    effect = Effect.REPEATABLE  # the same text to the same teammate is sent once

    def __init__(self, team: TeamService) -> None:
        self._team = team

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return nothing: a teammate's calls are judged one by one, and the text keeps its provenance."""
        return ()

    async def execute(self, to: str, text: str, *, ctx: ToolContext) -> ToolResult:
        """Send the text. Cancelling may come too late to keep it from being read."""
        if not text.strip():
            return ToolResult.failed("There is nothing to tell. Say it in `text`.")
        if len(text) > MAX_TELL_CHARS:
            return ToolResult.failed(
                f"That is {len(text):,} characters long; the maximum is {MAX_TELL_CHARS:,}. Write it into a file in "
                "the notes folder, and tell them its name."
            )
        try:
            return ToolResult(await self._team.tell(to, text, ctx=ctx))
        except NanobotError as error:
            return ToolResult.failed(str(error))
