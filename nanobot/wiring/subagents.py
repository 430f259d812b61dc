"""Subagents, as a runtime has them: for the tool, the loop, commands and screens.

Reading order: subagents -> subagent_turns (where they run), subagent_reports (how their ends are told), surroundings.
Nothing is made before the first task, so that a turn without one does not wait for it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.desk import Asked, CommandEntry
from nanobot.agent.pipeline.work import Parts
from nanobot.agent.run.handing_on import HandingOn
from nanobot.agent.slash_commands import is_from_owner
from nanobot.bus.events import InboundMessage
from nanobot.wiring.surroundings import Surroundings

if TYPE_CHECKING:
    from nanobot.agent.loop import AgentLoop
    from nanobot.agent.subagent import SubagentManager
    from nanobot.agent.tasks import Task

_LOOK_S = 0.02
_SHOWN_S = 5.0


class Subagents:
    """The subagents of one runtime, made when the first one is wanted."""

    def __init__(self, folder: Path, around: Surroundings, handing_on: HandingOn) -> None:
        """`folder` is where their tasks lie."""
        self._folder = folder
        self._around = around
        self._handing_on = handing_on
        self._loop: AgentLoop | None = None
        self._parts: Parts | None = None
        self._goal_of: Callable[[str], Awaitable[str]] | None = None

    def join(self, loop: "AgentLoop", parts: Parts, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """The loop that their reports go to, the parts of its turns, and who knows the id of a session's goal. Said
        once, before the first turn.
        """
        self._loop, self._parts, self._goal_of = loop, parts, goal_of

    @cached_property
    def manager(self) -> "SubagentManager":
        """The manager, with everything it stands on."""
        from nanobot.agent.letters import LetterBox  # most turns need none of it
        from nanobot.agent.subagent import SubagentManager
        from nanobot.agent.subagent_ports import SubagentPolicy
        from nanobot.agent.tasks import TaskStore
        from nanobot.agent.teammates import Teammates
        from nanobot.wiring.subagent_reports import TaskReports
        from nanobot.wiring.subagent_turns import TaskTurns

        loop, parts, around, goal_of = self._loop, self._parts, self._around, self._goal_of
        assert loop is not None and parts is not None and goal_of is not None  # noqa: S101 joined before the first turn
        defaults = around.defaults
        policy = SubagentPolicy(
            defaults.max_concurrent_subagents,
            defaults.subagent_timeout_s,
            defaults.subagent_depth,
            keep_days=defaults.subagent_keep_days,
        )
        team = Teammates(LetterBox(self._folder / "letters"), goal_of)
        turns, reports = TaskTurns(around, parts, self._handing_on, team), TaskReports(around.bus, parts, loop)
        store = TaskStore(self._folder)
        return SubagentManager(store, turns, reports, team, parts.clock, policy, ending=lambda: loop.is_stopping)

    def spawner(self) -> "SubagentManager":
        """The manager, for the tool."""
        return self.manager

    @property
    def is_made(self) -> bool:
        """Whether this process has had any."""
        return "manager" in self.__dict__

    # --- for the loop

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what an earlier life left, of one session or of all. Never raises."""
        if await asyncio.to_thread(self._has_open_tasks):
            await self.manager.take_up(session_key)

    def _has_open_tasks(self) -> bool:
        """Whether anybody's wait on the disk, ended lives' or not."""
        return self._folder.is_dir() and any(self._folder.glob("*.json"))

    async def stop_of(self, said: InboundMessage) -> list[str]:
        """Stop what works for the session of this word, as far as its sender may; what each of it was called."""
        if not self.is_made:
            return []
        return [task.label for task in await self.manager.stop_of(said.session_key, partial(_may_stop, said))]

    async def forget_of(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop what works for this session, and let nothing be told of it: what each was called, and the keys of
        reports that may be on their way. Raises StorageError.
        """
        if not self.is_made and not await asyncio.to_thread(self._folder.is_dir):
            return [], []
        stopped, keys = await self.manager.forget_of(session_key)
        return [task.label for task in stopped], keys

    # --- for screens

    async def all_told(self, session_key: str) -> None:
        """Wait until nothing works for this session any more, and the turns that tell of it have ended."""
        if not self.is_made:
            return
        loop, bus = self._loop, self._around.bus
        assert loop is not None  # noqa: S101 else nothing was made
        await self.manager.all_told(session_key)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._around.defaults.subagent_timeout_s):
                while bus.inbound_size or any(one.session_key == session_key for one in bus.unsettled()):  # noqa: ASYNC110
                    await asyncio.sleep(_LOOK_S)
                async with loop.lane(session_key):
                    pass

    async def all_shown(self, session_key: str) -> None:
        """The same, and until what they said has left for its channel."""
        if not self.is_made:
            return
        await self.all_told(session_key)
        bus = self._around.bus
        with suppress(TimeoutError):
            async with asyncio.timeout(_SHOWN_S):
                while bus.outbound_size:  # noqa: ASYNC110 no queue tells that it is empty
                    await asyncio.sleep(_LOOK_S)
                await asyncio.sleep(_LOOK_S)

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """What works for this session, or for any, and what is about to report; each by what a person calls it."""
        return [task.label for task in self.manager.tasks_of(session_key)] if self.is_made else []

    @property
    def command(self) -> CommandEntry:
        """`/tasks`."""
        return CommandEntry(self._tasks, "what subagents work on: /tasks, /tasks stop ID", "[stop ID]")

    async def _tasks(self, asked: Asked) -> str:
        word, _, name = asked.argument.partition(" ")
        if word.lower() == "stop" and name.strip():
            return await self._stop(asked, name.strip().lower())
        if word and word.lower() != "list":
            return "Say /tasks, or /tasks stop ID."
        return await self._listed(asked)

    async def _listed(self, asked: Asked) -> str:
        from nanobot.agent import task_words

        if not self.is_made and not await asyncio.to_thread(self._folder.is_dir):
            return "No subagent works on anything."
        manager, parts = self.manager, self._parts
        assert parts is not None  # noqa: S101 as above
        everything = is_from_owner(asked.message) and asked.scope.is_owners
        own = asked.session.key
        tasks = [task for task in await manager.all_tasks() if everything or own in (task.parent, task.root)]
        now = parts.clock.now().timestamp()
        lines = [
            task_words.line_of(
                task,
                now,
                cost_usd=None if task.state.is_over else parts.vitals.cost_of(task.session_key) or task.cost_usd,
                doing="" if task.state.is_over else manager.doing(task.id),
                session="" if own in (task.parent, task.root) else task.parent,
            )
            for task in tasks
        ]
        return "\n".join(lines) or "No subagent works on anything."

    async def _stop(self, asked: Asked, name: str) -> str:
        own = asked.session.key
        found = [task for task in await self.manager.all_tasks() if task.id == name]
        if not found or not (_may_stop(asked.message, found[0])):
            return f"There is no task {name!r} that you could stop. /tasks shows them."
        if await self.manager.stop_task(name, own):
            return f"Stopped: {found[0].label}"
        ended = f"It is over already ({found[0].state})." if found[0].state.is_over else "Another nanobot works on it."
        return f"{ended} Nothing was stopped."

    # --- its end

    async def close(self) -> None:
        """nanobot ends: what runs goes on at the next start."""
        if self.is_made:
            await self.manager.close()

    async def let_go(self) -> None:
        """After the last turn."""
        if self.is_made:
            await self.manager.let_go()


def _may_stop(said: InboundMessage, task: "Task") -> bool:
    """Who asked for it and owners may; in a chat of several, nobody else."""
    return is_from_owner(said) or (said.channel, said.sender_id) == (task.address.channel, task.sender_id)
