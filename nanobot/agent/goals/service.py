"""The goals of a bot: set, driven turn by turn, and ended here; they survive restarts.

A session has one goal at a time, and one process works on it. A goal is saved before its first turn and after each
turn. Steps are counted as they end, including those of its subagents, and limits are checked before each model call.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from nanobot.agent.command import TYPED
from nanobot.agent.events import StepEnded
from nanobot.agent.goals.driver import GoalDeps, GoalDriver
from nanobot.agent.goals.goal import (
    Goal,
    GoalCheck,
    GoalLimits,
    GoalOrder,
    check_length,
    format_status_line,
    runtime_context,
    runtime_note,
)
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.scope import Scope
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.team import notes_folder
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.work import Requester, WorkState, WorkStore
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, is_outside
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.aio import finish
from nanobot.utils.database import Database
from nanobot.utils.locks import ProcessLease

log = logging.getLogger(__name__)

_ELSEWHERE = "Another nanobot process works on the goal of this session. Use that one, or end it first."
_ENDING = "The goal of this session has just ended. Wait until its turn ends before you start another."
_STOP_TIMEOUT_S = 2.0
_MAX_CHARS = 8_000
"""Length of a goal: it is part of every turn's message."""


class GoalService:
    """The goals of one bot."""

    def __init__(
        self,
        database: Database,
        lease: ProcessLease,
        defaults: AgentDefaults,
        bus: MessageBus,
        paths: Callable[[], PathPolicy],
        subagents: SubagentManager,
    ) -> None:
        """The database has the table of work; `paths` returns the current file access."""
        self._store = WorkStore(Goal, database, lease)
        self._bus = bus
        self._subagents = subagents
        self._defaults = defaults
        self._paths = paths
        self._drivers: dict[str, GoalDriver] = {}
        """The goals that this process works on, or that wait for a person, by session."""

    def join(self, loop: AgentLoop, deps: TurnDeps) -> None:
        """Set the loop that runs goal turns, once, before the first turn."""
        self._deps = GoalDeps(self._store, self._bus, self._subagents, loop, deps)

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._deps.turns.clock.now().timestamp()

    # --- for people and the tool. All raise NanobotError.

    @property
    def default_limits(self) -> GoalLimits:
        return GoalLimits(self._defaults.goal_steps, self._defaults.goal_usd)

    @property
    def is_reviewed(self) -> bool:
        """Whether results are reviewed by default."""
        return self._defaults.review

    async def set(self, order: GoalOrder, limits: GoalLimits | None = None) -> Goal:
        """Start a goal. Raises NanobotError if the session has an open one or the goal cannot be saved."""
        check_length(_MAX_CHARS, order.text, "the goal")
        if self._deps.is_stopping:
            raise NanobotError("nanobot is shutting down; no goal was started.")
        existing = await self.last(order.requester.session_key)
        if existing is not None and not existing.state.is_over:
            raise NanobotError(
                f"This session already has a goal: {existing.title} ({existing.usage_text}). "
                "A session has one at a time: /stop ends it, and a note can add work to it."
            )
        goal = Goal(order=order, limits=limits or self.default_limits, created_at=self.now())
        await finish(self._add(goal))
        return goal

    async def _add(self, goal: Goal) -> None:
        """Save the goal, and start it unless it waits. Raises NanobotError."""
        if goal.session_key in self._drivers:
            raise NanobotError(_ENDING)
        driver = self._own(goal)  # before it is saved, so that nobody else takes it up
        try:
            if not await self._store.add(goal, is_only=True):
                raise NanobotError(_ENDING)
        except NanobotError:
            del self._drivers[goal.session_key]
            raise
        if goal.state is WorkState.ACTIVE:
            self._start(driver)

    async def resume(self, session_key: str, steps: int | None = None, usd: float | None = None) -> Goal:
        """Continue the session's last goal, with so many more steps and dollars."""
        existing = await self.last(session_key)
        if existing is None or existing.state is WorkState.DONE:
            raise NanobotError("There is no goal to resume here. /goal TEXT starts one.")
        driver = await self._take(session_key, with_ended=True)
        if driver.goal.state is not WorkState.ACTIVE or driver.task is None:
            driver.goal.extend(steps, usd, self.default_limits)
            self._reactivate(driver)
            await driver.save()
        return driver.goal

    async def open_goal(self, session_key: str) -> GoalDriver:
        """Return the session's open goal, to be changed and saved."""
        driver = self._drivers.get(session_key)
        if driver is not None and not driver.goal.state.is_over:
            return driver
        existing = await self.last(session_key)
        is_over = existing is None or existing.state.is_over
        raise NanobotError("This session has no open goal. Start one with action begin." if is_over else _ELSEWHERE)

    async def claim(self, driver: GoalDriver, check: GoalCheck) -> None:
        """Record that the goal is reached: the check passed. It ends with the turn that claims it."""
        driver.goal.state, driver.goal.progress.claim = WorkState.ACTIVE, check
        await driver.save()
        if driver.task is None:  # it was claimed while it waited
            self._start(driver)

    async def last(self, session_key: str) -> Goal | None:
        """Return the session's current or last goal. Raises StorageError."""
        return self.goal_of(session_key) or next(iter(await self._store.find("session = ?", session_key)), None)

    def goal_of(self, session_key: str) -> Goal | None:
        """Return the session's goal if this process works on it."""
        driver = self._drivers.get(session_key)
        return driver.goal if driver is not None else None

    def lines(self, session_key: str) -> list[str]:
        goal = self.goal_of(session_key)
        return [format_status_line(goal)] if goal is not None else []

    def notes_of(self, goal: Goal) -> str:
        """Return a line with the folder of the notes of its subagents, if there are any. Costs a stat."""
        notes = notes_folder(self._paths(), goal.order.requester.scope, goal.id)
        return f"Notes of the goal's subagents: {notes}" if notes else ""

    # --- for turns and the loop: what TurnGoals promises, and the background work

    async def adopt(self, message: InboundMessage, text: str, scope: Scope) -> str:
        key = message.session_key
        asker = Provenance.OWNER if key.startswith("cli:") else Provenance.PERSON
        requester = Requester(key, message.address, asker, Origin.USER, scope=scope)
        order = GoalOrder(text[:_MAX_CHARS], requester, review=self.is_reviewed)
        goal = Goal(order=order, limits=self.default_limits, state=WorkState.WAITING)
        goal.why = "it was started by an earlier release"
        goal.created_at = self.now()
        try:
            existing = await self.last(key)
            if existing is None or existing.state.is_over:
                await finish(self._add(goal))
            elif existing.order.text != order.text:  # else it was saved before a crash
                return ""
        except NanobotError as error:
            return f"The goal of an earlier release could not be saved ({goal.title}): {error}"
        return (
            f"An earlier release was working on a goal here: {goal.title}. It is paused. /goal resume continues it, "
            "/goal stop ends it, /goal shows it."
        )

    async def recall(self, session_key: str) -> None:
        with suppress(NanobotError):  # another process works on it
            if session_key in self._drivers or self._deps.is_stopping or not self._store.has_open(session_key):
                return
            goal = await self.last(session_key)  # the message may be the answer; active goals are recovered elsewhere
            if goal is not None and goal.state in (WorkState.ASKING, WorkState.WAITING) and goal.reported:
                await self._take(session_key)

    def note_for(self, message: InboundMessage) -> str:
        """Return the note. A person's message resumes a goal that waits for an answer."""
        driver = self._drivers.get(message.session_key)
        if driver is None or driver.goal.state.is_over:
            return ""
        goal = driver.goal
        if message.origin is Origin.GOAL:
            return f"{runtime_note(goal)}\n\n{self.notes_of(goal)}".strip()
        text = runtime_context(goal)
        if message.origin in TYPED and goal.state is WorkState.ASKING:
            if goal.order.requester.is_controlled_by(message):
                self._reactivate(driver)
        elif message.origin in TYPED:
            driver.wake()
        return text

    def untrusted_rows(self, message: InboundMessage) -> Sequence[ChatMessage]:
        goal = self.goal_of(message.session_key)
        if goal is None or goal.state.is_over:
            return ()
        goal_content = (goal.order.requester.provenance, f"{goal.order.text}\n{goal.order.check or ''}")
        note_content = (goal.progress.noted, f"{runtime_note(goal)}\n{goal.why}")
        return [
            {"role": "tool", "name": "goal", "content": text, "provenance": provenance}
            for provenance, text in (goal_content, note_content)
            if is_outside(provenance) and text.strip()
        ]

    def is_wanted(self, session_key: str) -> bool:
        goal = self.goal_of(session_key)
        return goal is None or (goal.state is WorkState.ACTIVE and goal.progress.claim is None)

    def record_usage(self, session_key: str, step: StepEnded) -> None:
        goal = self.goal_of(session_key)
        if goal is not None:
            goal.usage.steps += 1
            if step.cost_usd is not None:
                goal.usage.cost_usd = (goal.usage.cost_usd or 0.0) + step.cost_usd

    def stop_reason(self, session_key: str) -> str:
        goal = self.goal_of(session_key)
        if goal is None:
            return ""
        if goal.state is WorkState.STOPPED:
            return "The goal was stopped."
        return f"The goal ends here: {goal.spent}." if goal.spent else ""

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """Return the context of a goal's turn as that of the turn that set it, to find who may answer its questions."""
        goal = self.goal_of(context.session_key) if context.origin is Origin.GOAL else None
        return context if goal is None else goal.order.requester.stand_in(context)

    async def id_of(self, session_key: str) -> str:
        """Return the id of the session's goal, also before it is resumed after a crash; empty if there is none."""
        with suppress(StorageError):
            goal = await self.last(session_key)
            return goal.id if goal is not None else ""
        return ""

    async def recover(self, session_key: str | None = None) -> None:
        """Resume what a previous process left, of one session or of all."""
        try:
            for goal in [] if self._deps.is_stopping else await self._store.take(session_key):
                driver = self._own(goal)
                if goal.state is WorkState.ACTIVE or not goal.reported:
                    self._start(driver, resumed=True)
        except StorageError as error:
            log.warning("unfinished goals cannot be resumed: %s", error)

    async def stop_for(self, message: InboundMessage) -> str:
        """Stop the goal of this message's session if its sender may. Return its title, empty if none was stopped."""
        with suppress(NanobotError):  # another process works on it
            goal = await self.last(message.session_key)
            if goal is not None and goal.order.requester.is_controlled_by(message):
                return await self._stop(goal)
        return ""

    async def forget_session(self, session_key: str) -> str:
        """Stop and delete the session's goal. Return its title. Raises NanobotError."""
        goal = await self.last(session_key)
        if goal is None:
            return ""
        await self._stop(goal)
        await finish(self._store.delete("session = ?", session_key))
        return goal.title

    async def _stop(self, goal: Goal) -> str:
        """Stop a session's goal. Return its title, empty if it has ended. Raises NanobotError if another process works
        on it.
        """
        driver = None if goal.state.is_over else await self._take(goal.session_key)
        if driver is None or driver.goal.state.is_over:
            return ""
        await driver.end(WorkState.STOPPED, "the person stopped it", None)
        driver.wake()
        self._drop_if_over(driver)
        return driver.goal.title

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string."""
        with suppress(StorageError):
            goal = await self.last(session_key)
            is_open = goal is not None and not goal.state.is_over
            return _ELSEWHERE if is_open and await self._store.is_elsewhere(session_key) else ""
        return ""

    # --- for user interfaces

    def titles(self, session_key: str | None = None) -> list[str]:
        """Return the titles of the goals that run for this session, or for any."""
        running = [driver.goal for driver in self._drivers.values() if driver.task is not None]
        open_goals = [goal for goal in running if goal.state is not WorkState.STOPPED or not goal.reported]
        return [goal.title for goal in open_goals if session_key in (None, goal.session_key)]

    async def wait_ended(self, session_key: str) -> None:
        """Wait until no goal of this session runs."""
        while (driver := self._drivers.get(session_key)) is not None and driver.task is not None:
            await asyncio.wait([driver.task])

    # --- shutdown

    def close(self) -> None:
        """Stop driving goals. They continue at the next start."""
        self._deps.closed = True
        for driver in self._drivers.values():
            driver.wake()

    async def wait_closed(self) -> None:
        """Wait for the drivers, after the last turn."""
        running = [driver.task for driver in self._drivers.values() if driver.task is not None]
        if running:
            _, unfinished = await asyncio.wait(running, timeout=_STOP_TIMEOUT_S)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)

    # --- ownership

    def _own(self, goal: Goal) -> GoalDriver:
        """Return the driver of the session's goal, a new one unless there is one."""
        return self._drivers.setdefault(goal.session_key, GoalDriver(goal, self._deps))

    async def _take(self, session_key: str, *, with_ended: bool = False) -> GoalDriver:
        """Own the session's goal. Raises NanobotError if another process works on it."""
        if session_key not in self._drivers:
            for goal in await self._store.take(session_key, with_ended=with_ended):
                self._own(goal)
        if (driver := self._drivers.get(session_key)) is None:
            raise NanobotError(_ELSEWHERE)
        return driver

    def _reactivate(self, driver: GoalDriver) -> None:
        goal, progress = driver.goal, driver.goal.progress
        goal.state, goal.why, goal.ended_at, goal.reported = WorkState.ACTIVE, "", None, True
        progress.failures = progress.idle = progress.unnoted = 0
        progress.claim = None
        driver.wake()
        if driver.task is None:
            self._start(driver)

    def _start(self, driver: GoalDriver, *, resumed: bool = False) -> None:
        async def drive() -> None:
            try:
                await driver.run(resumed=resumed)
            finally:
                driver.task = None
                self._drop_if_over(driver)

        driver.task = asyncio.create_task(drive(), name=f"goal {driver.goal.id}")

    def _drop_if_over(self, driver: GoalDriver) -> None:
        if driver.goal.state.is_over and driver.task is None:
            self._drivers.pop(driver.goal.session_key, None)
