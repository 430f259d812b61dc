"""The goals of a bot: set, driven turn by turn, and ended here; they survive restarts.

A session has one goal at a time. The process that drives it holds its lock, so that two processes never work on the
same goal. The goal is saved before its first turn and after each turn. Steps are counted as they end, including those
of its subagents, and limits are checked before each model call.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from nanobot.agent.events import StepEnded
from nanobot.agent.goals import texts
from nanobot.agent.goals.driver import GoalDriver
from nanobot.agent.goals.goal import Goal, GoalLimits, GoalState, check_length
from nanobot.agent.goals.store import GoalStore
from nanobot.agent.goals.turns import GoalTeam, GoalTurns
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Origin, is_outside
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

NO_GOAL = "This session has no open goal. Start one with action begin."
_ENDING = "The goal of this session has just ended. Wait until its turn ends before you start another."
_ELSEWHERE = "Another nanobot process works on the goal of this session. Use that one, or end it first."
_PERSON_ORIGINS = (Origin.USER, Origin.CLI, Origin.API)
_STOP_TIMEOUT_S = 2.0
_MAX_SAVE_ATTEMPTS = 60
_MAX_CHARS = 8_000
"""Length of a goal: it is part of every turn's message."""


@dataclass(frozen=True, slots=True)
class GoalPolicy:
    """Defaults for new goals."""

    limits: GoalLimits = field(default_factory=GoalLimits)
    review: bool = False
    save_retry_s: float = 5.0
    """Delay before retrying to save the end of a goal."""


@dataclass(slots=True, eq=False)
class _OwnedGoal:
    """A goal that this process owns."""

    driver: GoalDriver
    lock: ProcessLock
    task: "asyncio.Task[None] | None" = None

    @property
    def goal(self) -> Goal:
        return self.driver.goal


class GoalManager:
    """The goals of one bot."""

    def __init__(
        self,
        store: GoalStore,
        turns: GoalTurns,
        team: GoalTeam,
        clock: Clock,
        policy: GoalPolicy | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_stopping`: whether nanobot is shutting down; interrupted turns then continue at the next start."""
        self._store = store
        self._turns = turns
        self._team = team
        self._clock = clock
        self.policy = policy or GoalPolicy()
        self._is_shutting_down = is_stopping
        self._closed = False
        self._owned: dict[str, _OwnedGoal] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Per-session locks for loading or starting a goal; unused ones are garbage-collected."""
        self._save_lock = asyncio.Lock()
        self._forgotten: set[str] = set()
        """Ids of deleted goals: a turn that still ends must not save them again."""
        self._unsaved: set[str] = set()
        """Ids of goals whose file is outdated."""

    def _lock_for(self, session_key: str) -> asyncio.Lock:
        return self._locks.setdefault(session_key, asyncio.Lock())

    # --- for people

    async def set(self, goal: Goal) -> Goal:
        """Start this goal. Raises NanobotError if the session has an open one or the goal cannot be saved."""
        check_length(_MAX_CHARS, goal.text, "the goal")
        async with self._lock_for(goal.session_key):
            if self._is_stopping():
                raise NanobotError("nanobot is shutting down; no goal was started.")
            existing = await self._load_last(goal.session_key)
            if existing is not None and existing.state.is_over and goal.session_key in self._owned:
                raise NanobotError(_ENDING)
            if existing is not None and not existing.state.is_over:
                raise NanobotError(
                    f"This session already has a goal: {texts.title(existing)} ({texts.format_usage(existing)}). "
                    "A session has one at a time: /stop ends it, and a note can add work to it."
                )
            goal.id, goal.created_at = secrets.token_hex(4), self._clock.now().timestamp()
            owned = await self._acquire(goal)
            try:
                await finish(asyncio.to_thread(self._store.save, goal))
            except OSError as error:
                self._release(owned)
                raise storage_error("The goal cannot be saved, so it was not started", error) from error
            self._start(owned)
            return goal

    async def adopt(self, goal: Goal) -> bool:
        """Save a waiting goal of an earlier release. Return False if the session has another open goal. Raises
        NanobotError.
        """
        goal.text = goal.text[:_MAX_CHARS]
        async with self._lock_for(goal.session_key):
            existing = await self._load_last(goal.session_key)
            if existing is not None and not existing.state.is_over:
                return existing.text == goal.text  # saved before a crash
            goal.id, goal.created_at = secrets.token_hex(4), self._clock.now().timestamp()
            try:
                await finish(asyncio.to_thread(self._store.save, goal))
            except OSError as error:
                raise storage_error("The goal cannot be saved", error) from error
            return True

    async def resume(self, session_key: str, limits: Callable[[Goal], GoalLimits]) -> Goal:
        """Continue the session's last goal; `limits` computes its new limits. Raises NanobotError."""
        async with self._lock_for(session_key):
            owned = await self._acquire_last(session_key)
            if owned is None or owned.goal.state is GoalState.DONE:
                self._release_if_over(owned)
                raise NanobotError("There is no goal to resume here. /goal TEXT starts one.")
            goal = owned.goal
            if goal.state is GoalState.ACTIVE and owned.task is not None:
                return goal
            goal.limits = limits(goal)
            self._reactivate(owned)
            await self.save(goal)
            return goal

    async def last(self, session_key: str) -> Goal | None:
        """Return the session's current or last goal. Raises StorageError."""
        return await self._load_last(session_key)

    # --- for turns

    async def recall(self, session_key: str) -> None:
        """Load and own the session's goal if it waits for a person, since the next message may be the answer. Active
        goals are recovered elsewhere. Never raises.
        """
        if session_key in self._owned or self._is_stopping():
            return
        async with self._lock_for(session_key):
            try:
                goal = await self._load_last(session_key)
                if goal is None or goal.state not in (GoalState.ASKING, GoalState.WAITING) or not goal.is_reported:
                    return
                owned = await self._acquire_last(session_key)
            except NanobotError:  # owned by another process
                return
            if owned is not None and owned.goal.state not in (GoalState.ASKING, GoalState.WAITING):
                self._release_if_idle(owned)

    def note_for(self, message: InboundMessage) -> str:
        """Return the goal's note for the runtime context of a message. A person's message resumes a goal that waits for
        an answer.
        """
        owned = self._owned.get(message.session_key)
        if owned is None or owned.goal.state.is_over:
            return ""
        goal = owned.goal
        if message.origin is Origin.GOAL:
            return texts.runtime_note(goal)
        text = texts.runtime_context(goal)
        if message.origin in _PERSON_ORIGINS and goal.state is GoalState.ASKING:
            if goal.is_theirs(message):
                self._reactivate(owned)
        elif message.origin in _PERSON_ORIGINS:
            owned.driver.wake()
        return text

    def untrusted_rows(self, session_key: str) -> list[ChatMessage]:
        """Return the untrusted content of an open goal, its note and its question, as rows of no turn."""
        owned = self._owned.get(session_key)
        goal = owned.goal if owned is not None else None
        if goal is None or goal.state.is_over:
            return []
        goal_content = (goal.asker, f"{goal.text}\n{goal.check or ''}")
        note_content = (goal.noted, f"{texts.runtime_note(goal)}\n{goal.why}")
        return [
            {"role": "tool", "name": "goal", "content": text, "provenance": provenance}
            for provenance, text in (goal_content, note_content)
            if is_outside(provenance) and text.strip()
        ]

    def wants_turn(self, session_key: str) -> bool:
        """Whether the next turn of the session's goal should still run."""
        owned = self._owned.get(session_key)
        return owned is None or (owned.goal.state is GoalState.ACTIVE and owned.goal.claim is None)

    def record_usage(self, session_key: str, step: StepEnded) -> None:
        """Count a model call of the session's goal."""
        owned = self._owned.get(session_key)
        if owned is None:
            return
        goal = owned.goal
        goal.steps += 1
        goal.tokens += step.usage.get("prompt_tokens", 0) + step.usage.get("completion_tokens", 0)
        if step.cost_usd is not None:
            goal.cost_usd = (goal.cost_usd or 0.0) + step.cost_usd

    def stop_reason(self, session_key: str) -> str:
        """Return why no further model call is allowed for the goal; empty if one is."""
        owned = self._owned.get(session_key)
        if owned is None:
            return ""
        goal = owned.goal
        if goal.state is GoalState.STOPPED:
            return "The goal was stopped."
        return f"The goal ends here: {goal.spent}." if goal.spent else ""

    def goal_of(self, session_key: str) -> Goal | None:
        """Return the session's goal if this process owns it."""
        owned = self._owned.get(session_key)
        return owned.goal if owned is not None else None

    # --- for the tool

    async def open_goal(self, session_key: str) -> Goal:
        """Return the session's open goal for the `goal` tool. Raises NanobotError if there is none in this process."""
        owned = self._owned.get(session_key)
        if owned is None:
            existing = await self._load_last(session_key)
            if existing is not None and not existing.state.is_over:
                raise NanobotError(_ELSEWHERE)
            raise NanobotError(NO_GOAL)
        if owned.goal.state.is_over:
            raise NanobotError(NO_GOAL)
        owned.driver.used_goal_tool = True
        return owned.goal

    def record_failed_check(self, session_key: str, output: str) -> None:
        """Record the output of a check that failed when the goal was claimed."""
        if (owned := self._owned.get(session_key)) is not None:
            owned.driver.failed_check, owned.goal.claim = output, None  # the last claim counts

    def ensure_running(self, session_key: str) -> None:
        """Start driving the goal if it was claimed while it waited."""
        owned = self._owned.get(session_key)
        if owned is not None and owned.task is None:
            self._start(owned)

    async def save(self, goal: Goal) -> None:
        """Save the goal. On a storage failure the goal goes on and is saved later."""
        async with self._save_lock:  # in order
            if goal.id in self._forgotten:
                return
            try:
                await finish(asyncio.to_thread(self._store.save, replace(goal, note=replace(goal.note))))
                self._unsaved.discard(goal.id)
            except OSError as error:
                self._unsaved.add(goal.id)
                log.warning("the progress of goal %s cannot be saved: %s", goal.id, error)

    # --- recovery and shutdown

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished goals of previous processes, of one session or all. Never raises."""
        try:
            goals = await asyncio.to_thread(self._load_unfinished, session_key)
        except OSError as error:
            log.warning("unfinished goals cannot be resumed: %s", error)
            return
        for goal in goals:
            async with self._lock_for(goal.session_key):
                if self._is_stopping() or goal.session_key in self._owned:
                    continue
                try:
                    owned = await self._acquire_last(goal.session_key)
                except NanobotError:  # owned by another process
                    continue
                if owned is not None and (owned.goal.state is GoalState.ACTIVE or not owned.goal.is_reported):
                    self._start(owned, resumed=True)
                else:
                    self._release_if_over(owned)

    def _load_unfinished(self, session_key: str | None) -> list[Goal]:
        if session_key is not None:
            goal = self._store.load(session_key)
            goals = [goal] if goal is not None else []
        else:
            goals = self._store.all()
        return [goal for goal in goals if not goal.state.is_over or not goal.is_reported]

    async def stop(self, session_key: str, may: Callable[[Goal], bool]) -> Goal | None:
        """Stop the session's open goal if `may` allows it, and return it."""
        owned = self._owned.get(session_key)
        if owned is None:
            async with self._lock_for(session_key):
                goal = await self._load_last(session_key)
                if goal is None or goal.state.is_over:
                    return None
                owned = await self._acquire_last(session_key)
                if owned is None:
                    return None
        goal = owned.goal
        if goal.state.is_over or not may(goal):
            self._release_if_over(owned)
            return None
        await owned.driver.end(GoalState.STOPPED, "the person stopped it")
        owned.driver.wake()
        if owned.task is None:
            self._release(owned)
        return goal

    async def forget(self, session_key: str) -> Goal | None:
        """Stop and delete the session's goal, and return it. Raises StorageError."""
        goal = await self.stop(session_key, lambda goal: True) or await self._load_last(session_key)
        async with self._save_lock:
            try:
                await finish(asyncio.to_thread(self._store.forget, session_key))
            except OSError as error:
                raise storage_error("The goal cannot be deleted", error) from error
            if goal is not None:
                self._forgotten.add(goal.id)
        return goal

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string."""
        if session_key in self._owned:
            return ""
        goal = await self._load_last(session_key)
        if goal is None or goal.state.is_over:
            return ""
        async with self._lock_for(session_key):
            try:
                self._release_if_idle(await self._acquire_last(session_key))
            except NanobotError as error:
                return str(error)
        return ""

    async def wait_ended(self, session_key: str) -> None:
        """Wait until no goal of this session is driven."""
        while (owned := self._owned.get(session_key)) is not None and owned.task is not None:
            await asyncio.wait([owned.task])

    def titles(self, session_key: str | None = None) -> list[str]:
        """Return the titles of the goals driven for this session, or for any."""
        running = [owned.goal for owned in self._owned.values() if owned.task is not None]
        open_goal = [goal for goal in running if goal.state is not GoalState.STOPPED or not goal.is_reported]
        return [texts.title(goal) for goal in open_goal if session_key in (None, goal.session_key)]

    def close(self) -> None:
        """Stop driving. Goals continue at the next start."""
        self._closed = True
        for owned in self._owned.values():
            owned.driver.wake()

    async def wait_closed(self) -> None:
        """Wait for the drivers and release the locks, after the last turn."""
        running = [owned.task for owned in self._owned.values() if owned.task is not None]
        if running:
            _, unfinished = await asyncio.wait(running, timeout=_STOP_TIMEOUT_S)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        for owned in [*self._owned.values()]:
            self._release(owned)

    # --- helpers

    async def _load_last(self, session_key: str) -> Goal | None:
        owned = self._owned.get(session_key)
        if owned is not None:
            return owned.goal
        try:
            return await asyncio.to_thread(self._store.load, session_key)
        except OSError as error:
            raise storage_error("The goal cannot be read", error) from error

    async def _acquire(self, goal: Goal) -> _OwnedGoal:
        """Acquire the goal's lock. Raises NanobotError if another process has it."""
        lock = self._store.lock_of(goal.session_key)
        try:
            is_acquired = await asyncio.to_thread(lock.try_acquire)
        except OSError as error:
            raise storage_error("The goal cannot be saved, so it was not started", error) from error
        if not is_acquired:
            raise NanobotError(_ELSEWHERE)
        driver = GoalDriver(
            goal, self._turns, self._team, self.save, self._is_stopping, now=lambda: self._clock.now().timestamp()
        )
        owned = self._owned[goal.session_key] = _OwnedGoal(driver, lock)
        return owned

    async def _acquire_last(self, session_key: str) -> _OwnedGoal | None:
        """Own the session's last goal, reread after acquiring its lock; None if there is none.

        Raises NanobotError if another process works on it, or on a storage failure.
        """
        goal = await self._load_last(session_key)
        owned = self._owned.get(session_key)
        if owned is not None or goal is None:
            return owned
        owned = await self._acquire(goal)
        try:
            goal = await asyncio.to_thread(self._store.load, session_key)
        except OSError as error:
            self._release(owned)
            raise storage_error("The goal cannot be read", error) from error
        if goal is None:
            self._release(owned)
            return None
        owned.driver.goal = goal  # it may have changed before the other process released it
        return owned

    def _reactivate(self, owned: _OwnedGoal) -> None:
        goal = owned.goal
        goal.state, goal.why, goal.ended_at = GoalState.ACTIVE, "", None
        goal.failures = goal.idle = goal.unnoted = 0
        goal.claim, goal.is_reported = None, True
        owned.driver.wake()
        if owned.task is None:
            self._start(owned)

    def _start(self, owned: _OwnedGoal, *, resumed: bool = False) -> None:
        owned.task = asyncio.create_task(self._run_driver(owned, resumed), name=f"goal {owned.goal.id}")

    async def _run_driver(self, owned: _OwnedGoal, resumed: bool) -> None:
        """Drive the goal to its end. Never raises."""
        try:
            await owned.driver.run(resumed=resumed)
            for _ in range(_MAX_SAVE_ATTEMPTS):  # else the next start would resume it
                if owned.goal.id not in self._unsaved or self._is_stopping():
                    break
                await asyncio.sleep(self.policy.save_retry_s)
                await self.save(owned.goal)
        except Exception as error:  # isolate failures of one goal; its file is intact
            log.exception("goal %s failed with an internal error", owned.goal.id)
            await owned.driver.fail(error)
        finally:
            owned.task = None
            self._release_if_over(owned)

    def _release_if_over(self, owned: _OwnedGoal | None) -> None:
        if owned is not None and owned.goal.state.is_over:
            self._release_if_idle(owned)

    def _release_if_idle(self, owned: _OwnedGoal | None) -> None:
        if owned is not None and owned.task is None:
            self._release(owned)

    def _release(self, owned: _OwnedGoal) -> None:
        if self._owned.get(owned.goal.session_key) is owned:
            del self._owned[owned.goal.session_key]
        owned.lock.release()

    def _is_stopping(self) -> bool:
        return self._closed or self._is_shutting_down()
