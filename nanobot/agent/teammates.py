"""Teammates: the subagents that work for one goal, and what they tell each other.

Who is there is known by the tasks that their manager brings; what was said lies in the letter box, and who has read it
stands in the rows of the readers. In between each letter is here, so that a turn can ask for its letters without
waiting for the disk.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

from nanobot.agent import team_words
from nanobot.agent.letters import Letter, LetterBox
from nanobot.agent.roles import Role
from nanobot.agent.tasks import Task
from nanobot.agent.tools.base import SUBAGENT_SESSION, ToolContext
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance, least_trusted
from nanobot.security.vault import masked
from nanobot.utils.aio import finish
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

MOST_SENT = 20
"""Letters that one may write."""
MOST_WAITING = 20
"""Letters that one may have unread."""
MOST_READ = 20
"""Letters that one reads in a turn."""
_ALL = "all"


@dataclass(slots=True)
class _Team:
    """Who works for a goal, and what was said."""

    members: list[Task] = field(default_factory=list)
    """Workers, those that have ended too, in the order in which they came."""
    letters: list[Letter] | None = None
    """None as long as nobody has looked on the disk."""
    read: dict[str, set[str]] = field(default_factory=dict)
    """By task, the keys of the letters that its subagent has read."""


class Teammates:
    """The teams of all goals of this process."""

    def __init__(self, box: LetterBox, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """`goal_of` knows the id of the goal that a session works at; empty for none. It never raises."""
        self._box = box
        self._goal_of = goal_of
        self._teams: dict[str, _Team] = {}
        self._at_disk = asyncio.Lock()

    # --- for who manages the tasks

    async def goal_of(self, session_key: str) -> str:
        """The goal that this session works at; empty for none. Never raises."""
        return await self._goal_of(session_key)

    def joins(self, task: Task) -> None:
        """This one works, or waits to. What it is for no goal, or only looks, is in no team."""
        if not task.goal or task.role is not Role.WORKER:
            return
        for goal in [goal for goal, team in self._teams.items() if goal != task.goal and _is_over(team)]:
            del self._teams[goal]
        self._teams.setdefault(task.goal, _Team()).members.append(task)

    async def unread(self, task: Task) -> list[Letter]:
        """What one that is over was told and has not read."""
        team = self._teams.get(task.goal)
        if team is None or task not in team.members:
            return []
        await self._looked(task.goal, team)
        return _unread(team, task)

    async def sweep(self, *, before: float) -> None:
        """Let go of what was said long ago. Never raises."""
        await asyncio.to_thread(self._box.sweep, before=before, but_for=frozenset(self._teams))

    # --- for its turns

    def has(self, task: Task) -> bool:
        """Whether it is in a team."""
        team = self._teams.get(task.goal)
        return team is not None and task in team.members

    async def begins(self, task: Task, read: Collection[str]) -> None:
        """A turn of it begins; `read` are the keys in its rows."""
        team = self._teams[task.goal]
        team.read[task.id] = set(read)
        await self._looked(task.goal, team)

    def take(self, task: Task, most: int) -> Sequence[InboundMessage]:
        """Its letters that are not read yet, at most so many, oldest first: they are now, if their rows are kept."""
        team = self._teams[task.goal]
        letters = _unread(team, task)[: max(most, 0)]
        team.read.setdefault(task.id, set()).update(one.journal_key for one in letters)
        return [_message(one, task) for one in letters]

    def others(self, task: Task) -> list[Task]:
        """Who else is at work, or about to be."""
        team = self._teams.get(task.goal)
        return [one for one in team.members if one is not task and not one.state.is_over] if team is not None else []

    # --- for the tool

    async def tell(self, to: str, text: str, *, ctx: ToolContext) -> str:
        """Send them this. Once it is on the disk each of them reads it once, however often nanobot is killed; who ends
        before leaves it to who gets their result. Raises NanobotError where nobody gets it.
        """
        team, sender = self._team_of(ctx)
        meant = self._meant(team, sender, to)
        text = masked(text.strip())
        async with self._at_disk:
            letters = await self._letters(sender.goal, team)
            mine = [one for one in letters if one.by == sender.id]
            told = {name for one in mine if one.text == text for name in one.to}
            new = [one for one in meant if one.id not in told]
            full = [one for one in new if len(_unread(team, one)) >= MOST_WAITING]
            reached = [one for one in new if one not in full and not one.state.is_over]
            if not new:
                return f"{team_words.names_of(meant)} had exactly that from you already; nothing was sent again."
            if len(mine) >= MOST_SENT:
                raise NanobotError(
                    f"You have sent {MOST_SENT} messages, which are the most. Write into the notes folder what others "
                    "should know, and go on with your task."
                )
            if not reached:
                raise NanobotError(f"Nothing was sent. {_too_full(full)}")
            words = least_trusted([Provenance.TOOL, ctx.provenance, ctx.entered])
            to_ids = tuple(one.id for one in reached)
            letter = Letter(secrets.token_hex(6), sender.id, sender.label, to_ids, text, words)
            await finish(self._sent(sender.goal, team, letter))
        return team_words.sent(reached, full)

    async def _sent(self, goal: str, team: _Team, letter: Letter) -> None:
        try:
            await asyncio.to_thread(self._box.add, goal, letter)
        except OSError as error:
            raise refusal("The message cannot be written down, so it was not sent", error) from error
        assert team.letters is not None  # noqa: S101 looked at before
        team.letters.append(letter)

    def _team_of(self, ctx: ToolContext) -> tuple[_Team, Task]:
        task_id = ctx.session_key.removeprefix(SUBAGENT_SESSION)
        for team in self._teams.values():
            for task in team.members:
                if task.id == task_id:
                    return team, task
        raise NanobotError("You work for no goal, so there is nobody to tell. Say it in your report.")

    def _meant(self, team: _Team, sender: Task, to: str) -> list[Task]:
        """Whom these words name, at work all of them. Raises NanobotError."""
        at_work = self.others(sender)
        there = team_words.at_work(at_work)
        name = _plain(to)
        if name == _ALL:
            if not at_work:
                raise NanobotError(there)
            return at_work
        named = [one for one in team.members if name in (one.id, _plain(team_words.name_of(one.label, one.id)))]
        named = named or [one for one in team.members if name == _plain(one.label)]
        if not named:
            raise NanobotError(f"There is no teammate {to.strip()[:80]!r}. {there}")
        if named == [sender]:
            raise NanobotError(f"That is you. {there}")
        open_ones = [one for one in named if one in at_work]
        if not open_ones:
            raise NanobotError(
                f"{team_words.names_of(named)} has ended ({named[-1].state}) and reads nothing more; what came of it "
                f"is with who asked for it. {there}"
            )
        if len(open_ones) > 1:
            raise NanobotError(f"Several are called so: {team_words.names_of(open_ones)}. Name one by the id.")
        return open_ones

    # --- the disk

    async def _looked(self, goal: str, team: _Team) -> None:
        try:
            async with self._at_disk:
                await self._letters(goal, team)
        except NanobotError as error:
            log.warning("what subagents of goal %s have told each other cannot be read: %s", goal, error)

    async def _letters(self, goal: str, team: _Team) -> list[Letter]:
        """All letters of the goal. Raises StorageError."""
        if team.letters is None:
            try:
                team.letters = await asyncio.to_thread(self._box.letters, goal)
            except OSError as error:
                raise refusal("What was told before cannot be read, so nothing was sent", error) from error
        return team.letters


def _is_over(team: _Team) -> bool:
    return all(task.reported for task in team.members)


def _unread(team: _Team, task: Task) -> list[Letter]:
    read = team.read.get(task.id, ())
    return [one for one in team.letters or () if task.id in one.to and one.journal_key not in read]


def _plain(name: str) -> str:
    return " ".join(name.split()).strip("@'\"`").casefold()


def _too_full(full: Sequence[Task]) -> str:
    if not full:
        return "They have ended meanwhile."
    return f"{team_words.names_of(full)} has {MOST_WAITING} unread messages already. Write it into the notes folder."


def _message(letter: Letter, to: Task) -> InboundMessage:
    """A letter, as it joins the turn of who is told."""
    here = to.address
    return InboundMessage(
        here.channel,
        f"{SUBAGENT_SESSION}{letter.by}",
        here.chat_id,
        team_words.letter(letter),
        session_key_override=to.session_key,
        thread_id=here.thread_id,
        origin=Origin.SUBAGENT,
        provenance=letter.provenance,
        journal_key=letter.journal_key,
    )
