"""The goals of a bot: set and ended here, driven one turn after the other, kept through restarts.

A session has one goal at a time. Whoever drives it holds its lock, so that two processes never work at the same one;
the goal is on the disk before its first turn and after each. What it uses is counted as its steps end, its subagents'
too, and looked at before each model call.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from nanobot.agent.goals import words
from nanobot.agent.goals.drive import Drive, Team, Turns
from nanobot.agent.goals.goal import Goal, GoalLimits, GoalState, keeps_to
from nanobot.agent.goals.store import GoalStore
from nanobot.agent.turn import StepEnded
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Origin, is_outside
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.locks import ProcessLock
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

NONE = "There is no goal at work here. Begin one with action begin."
_ENDING = "The goal of this session has ended just now. Its turn has to end before another begins."
_ELSEWHERE = "Another nanobot works at the goal of this session. Say it there, or end that one first."
_PEOPLE = (Origin.USER, Origin.CLI, Origin.API)
_STOPS_S = 2.0
_MOST_SAVES = 60
_MOST_CHARS = 8_000
"""Of a goal: it stands in the message of every turn."""


@dataclass(frozen=True, slots=True)
class GoalPolicy:
    """What goals may do, unless who sets one says otherwise."""

    limits: GoalLimits = field(default_factory=GoalLimits)
    review: bool = False
    again_s: float = 5.0
    """Before an end is written down again that the disk did not take."""


@dataclass(slots=True, eq=False)
class _Held:
    """A goal that this process works at."""

    drive: Drive
    lock: ProcessLock
    task: "asyncio.Task[None] | None" = None

    @property
    def goal(self) -> Goal:
        return self.drive.goal


class GoalManager:
    """The goals of one bot."""

    def __init__(
        self,
        store: GoalStore,
        turns: Turns,
        team: Team,
        clock: Clock,
        policy: GoalPolicy | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ending`: whether nanobot is about to end, so that what is cut off goes on at the next start."""
        self._store = store
        self._turns = turns
        self._team = team
        self._clock = clock
        self.policy = policy or GoalPolicy()
        self._is_ending = ending
        self._closed = False
        self._held: dict[str, _Held] = {}
        self._opening = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._forgotten: set[str] = set()
        """Ids of goals that are not written down any more, though a turn of theirs may still end."""
        self._unsaved: set[str] = set()
        """Ids of those that the disk knows in an older state."""

    # --- for people

    async def set(self, goal: Goal) -> Goal:
        """Take this one on. Raises NanobotError where there is one already, or it cannot be written down."""
        keeps_to(_MOST_CHARS, goal.text, "the goal")
        async with self._opening:
            if self._ends():
                raise NanobotError("nanobot is stopping; no goal is begun any more.")
            there = await self._last(goal.session_key)
            if there is not None and there.state.is_over and goal.session_key in self._held:
                raise NanobotError(_ENDING)
            if there is not None and not there.state.is_over:
                raise NanobotError(
                    f"There is a goal already: {words.title(there)} ({words.used(there)}). One at a time: /stop ends "
                    "it, and a note can say what it has to do besides."
                )
            goal.id, goal.created_at = secrets.token_hex(4), self._clock.now().timestamp()
            held = await self._hold(goal)
            try:
                await finish(asyncio.to_thread(self._store.save, goal))
            except OSError as error:
                self._let_go_of(held)
                raise refusal("The goal cannot be written down, so it was not begun", error) from error
            self._start(held)
            return goal

    async def resume(self, session_key: str, limits: Callable[[Goal], GoalLimits]) -> Goal:
        """Go on with the last one; `limits` of it says what it may use from here on. Raises NanobotError."""
        async with self._opening:
            held = await self._held_last(session_key)
            if held is None or held.goal.state is GoalState.DONE:
                self._let_go_of_ended(held)
                raise NanobotError("There is no goal here to go on with. /goal TEXT begins one.")
            goal = held.goal
            if goal.state is GoalState.ACTIVE and held.task is not None:
                return goal
            goal.limits = limits(goal)
            self._go_on(held)
            await self.save(goal)
            return goal

    async def last(self, session_key: str) -> Goal | None:
        """The goal of this session, or the one it had last. Raises StorageError."""
        return await self._last(session_key)

    # --- for turns

    async def recall(self, session_key: str) -> None:
        """Hold the goal of this session where it waits for somebody: what is said now may be what it waits for. One
        that was at work is taken up by itself. Never raises.
        """
        if session_key in self._held or self._ends():
            return
        async with self._opening:
            try:
                goal = await self._last(session_key)
                if goal is None or goal.state not in (GoalState.ASKING, GoalState.WAITING) or not goal.told:
                    return
                held = await self._held_last(session_key)
            except NanobotError:  # another process has it
                return
            if held is not None and held.goal.state not in (GoalState.ASKING, GoalState.WAITING):
                self._let_go_of_idle(held)

    def note_for(self, message: InboundMessage) -> str:
        """What a message is told with while a goal is open; a person's word is what one that asks has waited for."""
        held = self._held.get(message.session_key)
        if held is None or held.goal.state.is_over:
            return ""
        goal = held.goal
        if message.origin is Origin.GOAL:
            return words.noted(goal)
        text = words.beside(goal)
        if message.origin in _PEOPLE and goal.state is GoalState.ASKING:
            if goal.is_theirs(message):
                self._go_on(held)
        elif message.origin in _PEOPLE:
            held.drive.wake()
        return text

    def told(self, session_key: str) -> list[ChatMessage]:
        """What an open goal, its note or its question hold of others' words, as rows of no turn."""
        held = self._held.get(session_key)
        goal = held.goal if held is not None else None
        if goal is None or goal.state.is_over:
            return []
        asked = (goal.asker, f"{goal.text}\n{goal.check or ''}")
        noted = (goal.noted, f"{words.noted(goal)}\n{goal.why}")
        return [
            {"role": "tool", "name": "goal", "content": text, "provenance": whose}
            for whose, text in (asked, noted)
            if is_outside(whose) and text.strip()
        ]

    def wants_turn(self, session_key: str) -> bool:
        """Whether the turn that is about to begin for its goal is still wanted."""
        held = self._held.get(session_key)
        return held is None or (held.goal.state is GoalState.ACTIVE and held.goal.claim is None)

    def used(self, session_key: str, step: StepEnded) -> None:
        """A model call for the goal of this session has ended."""
        held = self._held.get(session_key)
        if held is None:
            return
        goal = held.goal
        goal.steps += 1
        goal.tokens += step.usage.get("prompt_tokens", 0) + step.usage.get("completion_tokens", 0)
        if step.cost_usd is not None:
            goal.cost_usd = (goal.cost_usd or 0.0) + step.cost_usd

    def why_enough(self, session_key: str) -> str:
        """Why no further model call may be made for it; empty where one may."""
        held = self._held.get(session_key)
        if held is None:
            return ""
        goal = held.goal
        if goal.state is GoalState.STOPPED:
            return "The goal was stopped."
        return f"The goal ends here: {goal.spent}." if goal.spent else ""

    def goal_of(self, session_key: str) -> Goal | None:
        """The goal that this process holds for a session."""
        held = self._held.get(session_key)
        return held.goal if held is not None else None

    # --- for the tool

    async def at_work(self, session_key: str) -> Goal:
        """The open goal of this session, whose turn speaks of it. Raises NanobotError where there is none here."""
        held = self._held.get(session_key)
        if held is None:
            there = await self._last(session_key)
            if there is not None and not there.state.is_over:
                raise NanobotError(_ELSEWHERE)
            raise NanobotError(NONE)
        if held.goal.state.is_over:
            raise NanobotError(NONE)
        held.drive.touched = True
        return held.goal

    def refuted(self, session_key: str, shown: str) -> None:
        """Its end was claimed, and a check did not hold, as is said here."""
        if (held := self._held.get(session_key)) is not None:
            held.drive.refuted, held.goal.claim = shown, None  # of several claims the last one counts

    def see_through(self, session_key: str) -> None:
        """Drive it on where nobody does: its end was claimed while it waited."""
        held = self._held.get(session_key)
        if held is not None and held.task is None:
            self._start(held)

    async def save(self, goal: Goal) -> None:
        """On the disk, if it takes it: here the goal goes on in any case."""
        async with self._writing:  # in the order in which it came about
            if goal.id in self._forgotten:
                return
            try:
                await finish(asyncio.to_thread(self._store.save, replace(goal, note=replace(goal.note))))
                self._unsaved.discard(goal.id)
            except OSError as error:
                self._unsaved.add(goal.id)
                log.warning("how far goal %s is cannot be written down: %s", goal.id, error)

    # --- lives

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what lives that ended have left, of one session or of all. Never raises."""
        async with self._opening:
            try:
                found = await asyncio.to_thread(self._left, session_key)
            except OSError as error:
                log.warning("the goals of an earlier life cannot be taken up: %s", error)
                return
            for goal in found:
                if self._ends() or goal.session_key in self._held:
                    continue
                try:
                    held = await self._held_last(goal.session_key)
                except NanobotError:  # another process works at it
                    continue
                if held is not None and (held.goal.state is GoalState.ACTIVE or not held.goal.told):
                    self._start(held, taken_up=True)
                else:
                    self._let_go_of_ended(held)

    def _left(self, session_key: str | None) -> list[Goal]:
        if session_key is not None:
            one = self._store.load(session_key)
            found = [one] if one is not None else []
        else:
            found = self._store.all()
        return [goal for goal in found if not goal.state.is_over or not goal.told]

    async def stop(self, session_key: str, may: Callable[[Goal], bool]) -> Goal | None:
        """Stop the goal of this session, if one is open and one may; which it was."""
        held = self._held.get(session_key)
        if held is None:
            async with self._opening:
                goal = await self._last(session_key)
                if goal is None or goal.state.is_over:
                    return None
                held = await self._held_last(session_key)
                if held is None:
                    return None
        goal = held.goal
        if goal.state.is_over or not may(goal):
            self._let_go_of_ended(held)
            return None
        await held.drive.end(GoalState.STOPPED, "the person stopped it")
        held.drive.wake()
        if held.task is None:
            self._let_go_of(held)
        return goal

    async def forget(self, session_key: str) -> Goal | None:
        """Stop it, and keep nothing of it; which it was. Raises StorageError."""
        goal = await self.stop(session_key, lambda goal: True) or await self._last(session_key)
        async with self._writing:
            try:
                await finish(asyncio.to_thread(self._store.forget, session_key))
            except OSError as error:
                raise refusal("The goal cannot be deleted", error) from error
            if goal is not None:
                self._forgotten.add(goal.id)
        return goal

    async def elsewhere(self, session_key: str) -> str:
        """That another process works at the goal of this session, in a sentence; empty where none does."""
        if session_key in self._held:
            return ""
        goal = await self._last(session_key)
        if goal is None or goal.state.is_over:
            return ""
        async with self._opening:
            try:
                self._let_go_of_idle(await self._held_last(session_key))
            except NanobotError as error:
                return str(error)
        return ""

    async def all_ended(self, session_key: str) -> None:
        """Wait until none is driven for this session."""
        while (held := self._held.get(session_key)) is not None and held.task is not None:
            await asyncio.wait([held.task])

    def titles(self, session_key: str | None = None) -> list[str]:
        """What is driven for this session, or for any."""
        driven = [held.goal for held in self._held.values() if held.task is not None]
        at_work = [goal for goal in driven if goal.state is not GoalState.STOPPED or not goal.told]
        return [words.title(goal) for goal in at_work if session_key in (None, goal.session_key)]

    def close(self) -> None:
        """nanobot ends: what is driven goes on at the next start."""
        self._closed = True
        for held in self._held.values():
            held.drive.wake()

    async def let_go(self) -> None:
        """The last word, once no turn runs any more."""
        driven = [held.task for held in self._held.values() if held.task is not None]
        if driven:
            _, slow = await asyncio.wait(driven, timeout=_STOPS_S)
            for task in slow:
                task.cancel()
            if slow:
                await asyncio.wait(slow)
        for held in [*self._held.values()]:
            self._let_go_of(held)

    # --- small things

    async def _last(self, session_key: str) -> Goal | None:
        held = self._held.get(session_key)
        if held is not None:
            return held.goal
        try:
            return await asyncio.to_thread(self._store.load, session_key)
        except OSError as error:
            raise refusal("The goal cannot be read", error) from error

    async def _hold(self, goal: Goal) -> _Held:
        """Be the one who works at it. Raises NanobotError where another process does."""
        lock = self._store.lock_of(goal.session_key)
        try:
            got = await asyncio.to_thread(lock.try_acquire)
        except OSError as error:
            raise refusal("The goal cannot be written down, so it was not begun", error) from error
        if not got:
            raise NanobotError(_ELSEWHERE)
        drive = Drive(goal, self._turns, self._team, self.save, self._ends, now=lambda: self._clock.now().timestamp())
        held = self._held[goal.session_key] = _Held(drive, lock)
        return held

    async def _held_last(self, session_key: str) -> _Held | None:
        """The last goal of this session, held here, as the disk has it once nobody else writes to it; None for none.

        Raises NanobotError where another process works at it, or the disk refuses.
        """
        goal = await self._last(session_key)
        held = self._held.get(session_key)
        if held is not None or goal is None:
            return held
        held = await self._hold(goal)
        try:
            goal = await asyncio.to_thread(self._store.load, session_key)
        except OSError as error:
            self._let_go_of(held)
            raise refusal("The goal cannot be read", error) from error
        if goal is None:
            self._let_go_of(held)
            return None
        held.drive.goal = goal  # it may have gone on, or ended, before the other one let go
        return held

    def _go_on(self, held: _Held) -> None:
        goal = held.goal
        goal.state, goal.why, goal.ended_at = GoalState.ACTIVE, "", None
        goal.failures = goal.idle = goal.unnoted = 0
        goal.claim, goal.told = None, True
        held.drive.wake()
        if held.task is None:
            self._start(held)

    def _start(self, held: _Held, *, taken_up: bool = False) -> None:
        held.task = asyncio.create_task(self._drive(held, taken_up), name=f"goal {held.goal.id}")

    async def _drive(self, held: _Held, taken_up: bool) -> None:
        """Its whole way. Never raises."""
        try:
            await held.drive.run(taken_up=taken_up)
            for _ in range(_MOST_SAVES):  # else the next start would work at it again
                if held.goal.id not in self._unsaved or self._ends():
                    break
                await asyncio.sleep(self.policy.again_s)
                await self.save(held.goal)
        except Exception as error:  # the wall of a goal: it lies on the disk, and waits
            log.exception("goal %s broke", held.goal.id)
            await held.drive.broke(error)
        finally:
            held.task = None
            self._let_go_of_ended(held)

    def _let_go_of_ended(self, held: _Held | None) -> None:
        if held is not None and held.goal.state.is_over:
            self._let_go_of_idle(held)

    def _let_go_of_idle(self, held: _Held | None) -> None:
        if held is not None and held.task is None:
            self._let_go_of(held)

    def _let_go_of(self, held: _Held) -> None:
        if self._held.get(held.goal.session_key) is held:
            del self._held[held.goal.session_key]
        held.lock.release()

    def _ends(self) -> bool:
        return self._closed or self._is_ending()
