"""The goals of a bot: set, driven turn by turn, and ended here; they survive restarts.

A session has one goal at a time, and one process works on it. A goal is saved before its first turn and after each
turn. Steps are counted as they end, including those of its subagents, and limits are checked before each model call.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from weakref import WeakValueDictionary

from nanobot.agent.command import is_from_owner
from nanobot.agent.events import StepEnded
from nanobot.agent.goals import texts
from nanobot.agent.goals.check import GoalCheck
from nanobot.agent.goals.driver import DriverDeps, GoalDriver
from nanobot.agent.goals.goal import ELSEWHERE, Goal, GoalLimits, GoalState, GoalStore, check_length
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.scope import Scope
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.team import goal_notes
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage, Origin, Provenance, is_outside, least_trusted
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.aio import finish
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

NO_GOAL = "This session has no open goal. Start one with action begin."
_ENDING = "The goal of this session has just ended. Wait until its turn ends before you start another."
_PERSON_ORIGINS = (Origin.USER, Origin.CLI, Origin.API)
_STOP_TIMEOUT_S = 2.0
_SAVE_RETRY_S = (1.0, 60.0)
"""First and longest delay before retrying to save the end of a goal."""
_MAX_CHARS = 8_000
"""Length of a goal: it is part of every turn's message."""
_MAX_NOTE_CHARS = 4_000
"""Length of a note field or question: they are added to every message."""


class GoalService:
    """The goals of one bot."""

    def __init__(
        self,
        store: GoalStore,
        defaults: AgentDefaults,
        bus: MessageBus,
        paths: Callable[[], PathPolicy],
        subagents: SubagentManager,
    ) -> None:
        """`paths` returns the current file access."""
        self._bus = bus
        self._subagents = subagents
        self._store = store
        self._defaults = defaults
        self._paths = paths
        self._closed = False
        self._owned: dict[str, GoalDriver] = {}
        """The goals that this process owns, by session."""
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Per-session locks for loading or starting a goal; unused ones are garbage-collected."""
        self._save_lock = asyncio.Lock()
        self._unsaved: set[str] = set()
        """Ids of goals whose row is outdated."""

    def join(self, loop: AgentLoop, deps: TurnDeps) -> None:
        """Set the loop that runs goal turns, once, before the first turn."""
        self._clock, self._loop = deps.clock, loop
        self._driver_deps = DriverDeps(
            loop, deps, self._bus, self._subagents, self.save, lambda: self._is_stopping, self.now
        )

    @property
    def _is_stopping(self) -> bool:
        return self._closed or self._loop.is_stopping

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._clock.now().timestamp()

    def _lock_for(self, session_key: str) -> asyncio.Lock:
        return self._locks.setdefault(session_key, asyncio.Lock())

    # --- for people

    @property
    def default_limits(self) -> GoalLimits:
        return GoalLimits(self._defaults.goal_steps, self._defaults.goal_usd)

    @property
    def is_reviewed(self) -> bool:
        """Whether results are reviewed by default."""
        return self._defaults.review

    async def set(self, goal: Goal) -> Goal:
        """Start this goal. Raises NanobotError if the session has an open one or the goal cannot be saved."""
        check_length(_MAX_CHARS, goal.text, "the goal")
        async with self._lock_for(goal.session_key):
            if self._is_stopping:
                raise NanobotError("nanobot is shutting down; no goal was started.")
            existing = await self.last(goal.session_key)
            if existing is not None and existing.state.is_over and goal.session_key in self._owned:
                raise NanobotError(_ENDING)
            if existing is not None and not existing.state.is_over:
                raise NanobotError(
                    f"This session already has a goal: {texts.title(existing)} ({texts.format_usage(existing)}). "
                    "A session has one at a time: /stop ends it, and a note can add work to it."
                )
            goal.id, goal.created_at = secrets.token_hex(4), self.now()
            try:
                await finish(self._store.put(goal))
            except StorageError as error:
                raise StorageError(f"The goal cannot be saved, so it was not started. {error}") from error
            self._start(self._own(goal))
            return goal

    async def adopt(self, message: InboundMessage, text: str, scope: Scope) -> str:
        """Save the active goal of an earlier release as a waiting goal. Return a notice for the person."""
        key = message.session_key
        asker = Provenance.OWNER if key.startswith("cli:") else Provenance.PERSON
        goal = Goal("", text[:_MAX_CHARS], key, message.address, asker, Origin.USER, scope=scope)
        goal.limits, goal.review = self.default_limits, self.is_reviewed
        goal.state, goal.why = GoalState.WAITING, texts.ADOPTED
        try:
            async with self._lock_for(key):
                existing = await self.last(key)
                if existing is None or existing.state.is_over:
                    goal.id, goal.created_at = secrets.token_hex(4), self.now()
                    await finish(self._store.put(goal, is_owned=False))
                elif existing.text != goal.text:  # else it was saved before a crash
                    return ""
        except NanobotError as error:
            return f"The goal of an earlier release could not be saved ({texts.title(goal)}): {error}"
        return texts.adopted_notice(goal)

    async def resume(self, session_key: str, limits: Callable[[Goal], GoalLimits]) -> Goal:
        """Continue the session's last goal; `limits` computes its new limits. Raises NanobotError."""
        async with self._lock_for(session_key):
            owned = await self._take(session_key)
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
        return self.goal_of(session_key) or await self._store.load(session_key)

    def goal_of(self, session_key: str) -> Goal | None:
        """Return the session's goal if this process owns it."""
        owned = self._owned.get(session_key)
        return owned.goal if owned is not None else None

    def lines(self, session_key: str) -> list[str]:
        """Return the goal's line for `/status`."""
        goal = self.goal_of(session_key)
        return [texts.status_line(goal)] if goal is not None else []

    def notes_of(self, goal: Goal) -> str:
        """Return a line with the folder of the notes of its subagents, if there are any. Costs a stat."""
        notes = goal_notes(self._paths(), goal.scope, goal.id)
        return f"Notes of the goal's subagents: {notes}" if notes else ""

    # --- for turns

    async def recall(self, session_key: str) -> None:
        """Load and own the session's goal if it waits for a person, since the next message may be the answer. Active
        goals are recovered elsewhere. Never raises.
        """
        if session_key in self._owned or self._is_stopping:
            return
        with suppress(NanobotError):  # owned by another process
            if not self._store.has_unfinished(session_key):
                return
            async with self._lock_for(session_key):
                goal = await self.last(session_key)
                if goal is None or goal.state not in (GoalState.ASKING, GoalState.WAITING) or not goal.is_reported:
                    return
                owned = await self._take(session_key)
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
            return f"{texts.runtime_note(goal)}\n\n{self.notes_of(goal)}".strip()
        text = texts.runtime_context(goal)
        if message.origin in _PERSON_ORIGINS and goal.state is GoalState.ASKING:
            if goal.is_theirs(message):
                self._reactivate(owned)
        elif message.origin in _PERSON_ORIGINS:
            owned.wake()
        return text

    def untrusted_rows(self, message: InboundMessage) -> Sequence[ChatMessage]:
        """Return the untrusted content of an open goal, its note and its question, as rows of no turn."""
        goal = self.goal_of(message.session_key)
        if goal is None or goal.state.is_over:
            return ()
        goal_content = (goal.asker, f"{goal.text}\n{goal.check or ''}")
        note_content = (goal.noted, f"{texts.runtime_note(goal)}\n{goal.why}")
        return [
            {"role": "tool", "name": "goal", "content": text, "provenance": provenance}
            for provenance, text in (goal_content, note_content)
            if is_outside(provenance) and text.strip()
        ]

    def is_wanted(self, session_key: str) -> bool:
        """Whether the turn that the session's goal requested should still run; earlier turns may have made it
        obsolete.
        """
        goal = self.goal_of(session_key)
        return goal is None or (goal.state is GoalState.ACTIVE and goal.claim is None)

    def record_usage(self, session_key: str, step: StepEnded) -> None:
        """Count a model call of the session's goal."""
        goal = self.goal_of(session_key)
        if goal is None:
            return
        goal.steps += 1
        goal.tokens += step.usage.get("prompt_tokens", 0) + step.usage.get("completion_tokens", 0)
        if step.cost_usd is not None:
            goal.cost_usd = (goal.cost_usd or 0.0) + step.cost_usd

    def stop_reason(self, session_key: str) -> str:
        """Return why no further model call is allowed for the session's goal; empty if one is."""
        goal = self.goal_of(session_key)
        if goal is None:
            return ""
        if goal.state is GoalState.STOPPED:
            return "The goal was stopped."
        return f"The goal ends here: {goal.spent}." if goal.spent else ""

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """Return the context of a goal's turn as that of the turn that set it, to find who may answer its questions."""
        goal = self.goal_of(context.session_key) if context.origin is Origin.GOAL else None
        return context if goal is None else replace(context, origin=goal.origin, attended=goal.attended)

    async def id_of(self, session_key: str) -> str:
        """Return the id of the session's goal, also before it is resumed after a crash; empty if there is none."""
        with suppress(StorageError):
            goal = await self.last(session_key)
            return goal.id if goal is not None else ""
        return ""

    # --- for the tool. All raise NanobotError.

    async def begin(self, text: str, check: GoalCheck | None, ctx: ToolContext) -> str:
        """Start a goal in the session of this turn."""
        asker = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
        goal = Goal("", text, ctx.session_key, ctx.address, asker, ctx.origin, ctx.sender_id, ctx.attended, ctx.scope)
        goal.limits, goal.check, goal.review = self.default_limits, check, self.is_reviewed
        return texts.started_tool_result(await self.set(goal))

    async def note(self, ctx: ToolContext, *, done: str = "", doing: str = "", following: str = "") -> str:
        """Update the note; empty values stay as they were."""
        goal = await self._open_goal(ctx)
        if not (done or doing or following):
            raise NanobotError("The note is empty. Pass done, doing or next.")
        for name, text in (("done", done), ("doing", doing), ("next", following)):
            check_length(_MAX_NOTE_CHARS, text, name)
        note = goal.note
        note.done, note.doing, note.following = done or note.done, doing or note.doing, following or note.following
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self.save(goal)
        return "Noted."

    def checks(self, ctx: ToolContext) -> Sequence[GoalCheck]:
        """Return the checks that the goal's author demands."""
        goal = self.goal_of(ctx.session_key)
        if goal is None or goal.state.is_over:
            raise NanobotError(NO_GOAL)
        return [goal.check] if goal.check is not None else []

    def record_failed_check(self, output: str, ctx: ToolContext) -> None:
        """Record the output of a check that failed when the goal was claimed."""
        if (owned := self._owned.get(ctx.session_key)) is not None:
            owned.failed_check, owned.goal.claim = output, None  # the last claim counts

    async def finish(self, check: GoalCheck, ctx: ToolContext) -> str:
        """Finish the goal: the check passed."""
        goal = await self._open_goal(ctx)
        goal.state, goal.claim = GoalState.ACTIVE, check
        await self.save(goal)
        owned = self._owned.get(ctx.session_key)
        if owned is not None and owned.task is None:  # it was claimed while it waited
            self._start(owned)
        review_note = " A reviewer reads it first." if goal.review else ""
        return f"The check passed ({check}). Give your final answer now: it is the report to the person.{review_note}"

    async def ask(self, question: str, ctx: ToolContext) -> str:
        """Let the goal wait for the person's answer."""
        if not question.strip():
            raise NanobotError("The question is missing. Pass it in text.")
        check_length(_MAX_NOTE_CHARS, question, "text")
        goal = await self._open_goal(ctx)
        goal.state, goal.why = GoalState.ASKING, question.strip()
        goal.noted = least_trusted([goal.noted, ctx.entered])
        await self.save(goal)
        return "The question is sent when this turn ends; the goal continues with the answer. End the turn now."

    async def drop(self, why: str, ctx: ToolContext) -> str:
        """Give the goal up."""
        if not why.strip():
            raise NanobotError("Pass the reason in text.")
        goal = await self._open_goal(ctx)
        goal.state, goal.why = GoalState.DROPPED, clip_line(" ".join(why.split()), 400).rstrip(".")
        await self.save(goal)
        return "The goal is given up. Say in your answer what was done and what is missing."

    async def _open_goal(self, ctx: ToolContext) -> Goal:
        owned = self._owned.get(ctx.session_key)
        if owned is not None and not owned.goal.state.is_over:
            owned.used_goal_tool = True
            return owned.goal
        existing = await self.last(ctx.session_key)
        raise NanobotError(NO_GOAL if existing is None or existing.state.is_over else ELSEWHERE)

    # --- for the loop and commands

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished goals of previous processes, of one session or all. Never raises."""
        try:
            sessions = await self._store.unfinished(session_key)
        except StorageError as error:
            log.warning("unfinished goals cannot be resumed: %s", error)
            return
        for key in sessions:
            async with self._lock_for(key):
                if self._is_stopping or key in self._owned:
                    continue
                with suppress(NanobotError):  # owned by another process
                    owned = await self._take(key)
                    if owned is not None and (owned.goal.state is GoalState.ACTIVE or not owned.goal.is_reported):
                        self._start(owned, resumed=True)
                    self._release_if_over(owned)

    async def stop_for(self, message: InboundMessage) -> str:
        """Stop the session's goal if the sender may. Return its title, or an empty string."""
        with suppress(NanobotError):  # owned by another process
            goal = await self._stop(message.session_key, lambda goal: may_stop(message, goal))
            return texts.title(goal) if goal is not None else ""
        return ""

    async def _stop(self, session_key: str, may: Callable[[Goal], bool]) -> Goal | None:
        """Stop the session's open goal if `may` allows it, and return it. Raises NanobotError."""
        async with self._lock_for(session_key):
            goal = await self.last(session_key)
            if goal is None or goal.state.is_over:
                return None
            owned = await self._take(session_key)
        if owned is None or owned.goal.state.is_over or not may(owned.goal):
            self._release_if_over(owned)
            return None
        await owned.end(GoalState.STOPPED, "the person stopped it")
        owned.wake()
        self._release_if_idle(owned)
        return owned.goal

    async def forget_session(self, session_key: str) -> str:
        """Stop and delete the session's goal. Return its title. Raises NanobotError."""
        goal = await self._stop(session_key, lambda goal: True) or await self.last(session_key)
        if goal is None:
            return ""
        async with self._save_lock:
            await finish(self._store.delete(session_key))
        return texts.title(goal)

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string. Never raises."""
        try:
            goal = await self.last(session_key)
            if goal is not None and not goal.state.is_over and session_key not in self._owned:
                async with self._lock_for(session_key):
                    self._release_if_idle(await self._take(session_key))
        except StorageError:
            return ""
        except NanobotError as error:
            return str(error)
        return ""

    # --- for user interfaces

    def titles(self, session_key: str | None = None) -> list[str]:
        """Return the titles of the goals that run for this session, or for any."""
        running = [owned.goal for owned in self._owned.values() if owned.task is not None]
        open_goals = [goal for goal in running if goal.state is not GoalState.STOPPED or not goal.is_reported]
        return [texts.title(goal) for goal in open_goals if session_key in (None, goal.session_key)]

    async def wait_ended(self, session_key: str) -> None:
        """Wait until no goal of this session runs."""
        while (owned := self._owned.get(session_key)) is not None and owned.task is not None:
            await asyncio.wait([owned.task])

    # --- shutdown

    def close(self) -> None:
        """Stop driving goals. They continue at the next start."""
        self._closed = True
        for owned in self._owned.values():
            owned.wake()

    async def wait_closed(self) -> None:
        """Wait for the drivers and release the goals, after the last turn."""
        running = [owned.task for owned in self._owned.values() if owned.task is not None]
        if running:
            _, unfinished = await asyncio.wait(running, timeout=_STOP_TIMEOUT_S)
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished)
        for owned in [*self._owned.values()]:
            self._release(owned)

    # --- ownership

    async def save(self, goal: Goal) -> None:
        """Save the goal. On a storage failure the goal goes on and is saved later."""
        async with self._save_lock:  # in order
            try:
                await finish(self._store.save(goal))
                self._unsaved.discard(goal.id)
            except StorageError as error:
                self._unsaved.add(goal.id)
                log.warning("the progress of goal %s cannot be saved: %s", goal.id, error)

    def _own(self, goal: Goal) -> GoalDriver:
        owned = self._owned[goal.session_key] = GoalDriver(goal, self._driver_deps)
        return owned

    async def _take(self, session_key: str) -> GoalDriver | None:
        """Own the session's last goal; None if there is none. Raises NanobotError if another process works on it."""
        if (owned := self._owned.get(session_key)) is not None:
            return owned
        goal = await self._store.take(session_key)
        return self._own(goal) if goal is not None else None

    def _reactivate(self, owned: GoalDriver) -> None:
        goal = owned.goal
        goal.state, goal.why, goal.ended_at = GoalState.ACTIVE, "", None
        goal.failures = goal.idle = goal.unnoted = 0
        goal.claim, goal.is_reported = None, True
        owned.wake()
        if owned.task is None:
            self._start(owned)

    def _start(self, owned: GoalDriver, *, resumed: bool = False) -> None:
        owned.task = asyncio.create_task(self._drive(owned, resumed), name=f"goal {owned.goal.id}")

    async def _drive(self, owned: GoalDriver, resumed: bool) -> None:
        """Drive the goal to its end. Never raises."""
        try:
            await owned.run(resumed=resumed)
            delay, longest = _SAVE_RETRY_S
            while owned.goal.id in self._unsaved and not self._is_stopping:  # else the next start would resume it
                await asyncio.sleep(delay)
                delay = min(delay * 2, longest)
                await self.save(owned.goal)
        except Exception as error:  # isolate failures of one goal; its row is intact
            log.exception("goal %s failed with an internal error", owned.goal.id)
            await owned.fail(error)
        finally:
            owned.task = None
            self._release_if_over(owned)

    def _release_if_over(self, owned: GoalDriver | None) -> None:
        if owned is not None and owned.goal.state.is_over:
            self._release_if_idle(owned)

    def _release_if_idle(self, owned: GoalDriver | None) -> None:
        if owned is not None and owned.task is None:
            self._release(owned)

    def _release(self, owned: GoalDriver) -> None:
        if self._owned.get(owned.goal.session_key) is owned:
            del self._owned[owned.goal.session_key]
            self._store.release(owned.goal)


def may_stop(message: InboundMessage, goal: Goal) -> bool:
    """Whether the sender may stop the goal: its author and owners may."""
    return is_from_owner(message) or goal.is_theirs(message)
