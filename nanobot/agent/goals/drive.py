"""How a goal is driven: turn after turn in its session, until it is over, waits for somebody, or nanobot ends.

Nothing is kept here: what every turn brought is in the goal, on the disk before the next one begins.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from nanobot.agent.goals import words
from nanobot.agent.goals.goal import Goal, GoalState
from nanobot.agent.turn import TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin, Provenance, least_trusted
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

PAUSES_S = (5.0, 30.0, 120.0, 600.0)
"""Before a turn is tried again that a model or its line has failed."""
MOST_IDLE = 2
"""Turns in a row in which nothing was done; then a person has to look."""
MOST_NOTING = 4
"""Turns in a row in which nothing was done but to write down how far it is."""
MOST_UNNOTED = 8
"""Turns in a row without a word in the note; then too."""
MOST_SENT_BACK = 2
"""How often a reviewer may send a result back."""
_FOR_GOOD = frozenset(
    {
        "AuthenticationError",
        "QuotaExceededError",
        "ModelNotFoundError",
        "InvalidRequestError",
        "BudgetExceededError",
        "RequestTooLongError",
        "HookDenied",
        "TurnKeepsDyingError",
    }
)
"""What a second try does not mend."""


class Turns(Protocol):
    """Where a goal's turns run, and where its people are told."""

    async def run(self, message: InboundMessage) -> TurnResult:
        """Run it in its session's lane; nothing of its reply is sent. Never raises for a failure."""
        ...

    async def resume(self, session_key: str) -> TurnResult | None:
        """Take up the goal's turn that was cut off, as `run` would; None where none was."""
        ...

    async def quiet(self, session_key: str) -> None:
        """Wait until no turn of this session runs."""
        ...

    def tell(self, goal: Goal) -> None:
        """Send its report to its people, once, also where a crash comes between."""
        ...

    async def called(self, session_key: str, turn_id: str) -> set[str]:
        """The names of the tools that this turn has called."""
        ...

    async def last_words(self, session_key: str) -> str:
        """What the last turn of this session said."""
        ...


class Review(Protocol):
    """What a reviewer said."""

    @property
    def passed(self) -> bool | None:
        """Whether they are content; None where they gave no verdict."""
        ...

    @property
    def reasons(self) -> str:
        """Why not; or why there is no verdict."""
        ...

    @property
    def provenance(self) -> Provenance:
        """The least trusted words that they have seen."""
        ...


class Plan(Protocol):
    """What a planner said."""

    @property
    def steps(self) -> Sequence[str]:
        """What is to be done, in order; empty where there is no plan."""
        ...

    @property
    def provenance(self) -> Provenance:
        """As of a review."""
        ...


class Team(Protocol):
    """Who helps with a goal."""

    async def plan(self, goal: Goal) -> Plan:
        """A list of tasks. Never raises."""
        ...

    async def review(self, goal: Goal, result: str) -> Review:
        """Read the result with fresh eyes. Never raises."""
        ...


class Drive:
    """The driving of one goal in this process."""

    def __init__(
        self,
        goal: Goal,
        turns: Turns,
        team: Team,
        save: Callable[[Goal], Awaitable[None]],
        ends: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`ends`: whether nanobot is about to end; `now` in seconds since the epoch."""
        self.goal = goal
        self.touched = False
        """Whether the running turn has used the `goal` tool."""
        self.refuted = ""
        """What the check showed that did not hold when its end was claimed last."""
        self._turns = turns
        self._team = team
        self._save = save
        self._ends = ends
        self._now = now
        self._woken = asyncio.Event()
        self._said = ""
        """What its last turn said, and nobody was told."""

    async def run(self, *, taken_up: bool = False) -> None:
        """Until it is over, waits, or nanobot ends. `taken_up`: an earlier life may have died in one of its turns."""
        goal = self.goal
        await self._turns.quiet(goal.session_key)
        if taken_up and goal.state is GoalState.ACTIVE and not await self._taken_up():
            return
        while goal.state is GoalState.ACTIVE and not self._ends():
            if goal.spent:
                await self.end(GoalState.LIMIT, goal.spent, self._said)
                break
            if goal.plan and not goal.planned:
                await self._plan()
                continue
            if not await self._turn():
                return
        self._tell()
        await self._save(goal)

    def wake(self) -> None:
        """A pause is over: the person has said something."""
        self._woken.set()

    async def end(self, state: GoalState, why: str, said: str = "", *, tells: bool = False) -> None:
        """It is over, or waits; the person is told. A stop is told only if it `tells`: who says so by a command is
        answered there, who presses a key is not.
        """
        goal = self.goal
        goal.state, goal.why = state, why
        goal.ended_at = self._now() if state.is_over else None
        if tells or state is not GoalState.STOPPED:
            goal.report, goal.told = words.ended(goal, said), False
        await self._save(goal)

    async def broke(self, error: Exception) -> None:
        """Something of ours has failed, so nothing goes on by itself; the person is told."""
        await self.end(GoalState.WAITING, f"something broke in nanobot ({type(error).__name__}); its log says more")
        self._tell()
        await self._save(self.goal)

    async def _plan(self) -> None:
        goal = self.goal
        found = await self._team.plan(goal)
        if self._ends() or goal.state is not GoalState.ACTIVE:
            return
        goal.planned = True
        if found.steps:
            goal.note.following = words.listed(found.steps)
            goal.noted = least_trusted([goal.noted, found.provenance])
        await self._save(goal)

    async def _taken_up(self) -> bool:
        """What an earlier life was at; False where nanobot ends."""
        goal, steps = self.goal, self.goal.steps
        result = await self._turns.resume(goal.session_key)
        if result is not None and result.text:
            return await self._after(result, steps)
        if goal.claim is not None:  # the turn that claimed it has ended, here or before
            await self._claimed(await self._turns.last_words(goal.session_key))
        return not self._ends()

    async def _turn(self) -> bool:
        """One turn, and what it means for the goal; False where nanobot ends."""
        self.touched, steps = False, self.goal.steps
        return await self._after(await self._turns.run(message_of(self.goal)), steps)

    async def _after(self, result: TurnResult, steps: int) -> bool:
        """What a turn means for the goal, before which it had made so many steps; False where nanobot ends."""
        goal = self.goal
        if result.later or (result.outcome is TurnOutcome.STOPPED and self._ends()):
            return False
        goal.turns += 1
        self._said = "" if result.joined else result.text  # who has joined has it already
        if goal.state is not GoalState.ACTIVE:
            await self._ended_within()
        elif result.outcome is TurnOutcome.STOPPED:
            await self.end(GoalState.STOPPED, "its turn was stopped", tells=True)
        elif goal.claim is not None:
            await self._claimed(result.text, told=bool(result.joined))
        elif result.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED) or result.error in _FOR_GOOD:
            await self._failed(result)
        else:
            goal.failures = 0
            goal.idle = 0 if await self._did_something(result, steps) else goal.idle + 1
            goal.unnoted = 0 if self.touched else goal.unnoted + 1
            if goal.idle >= (MOST_NOTING if self.touched else MOST_IDLE):
                what = "nothing but to take notes" if self.touched else "nothing"
                await self.end(GoalState.WAITING, self._vainly(f"I did {what} for {goal.idle} turns"), self._said)
            elif goal.unnoted >= MOST_UNNOTED:
                why = f"for {MOST_UNNOTED} turns I could not say how far it is"
                await self.end(GoalState.WAITING, self._vainly(why), self._said)
            await self._save(goal)
        return True

    async def _did_something(self, result: TurnResult, steps: int) -> bool:
        """Whether a turn has called a tool, and another one than `goal`."""
        if self.goal.steps - steps <= 1:
            return False
        return not self.touched or await self._turns.called(self.goal.session_key, result.turn_id) != {"goal"}

    def _vainly(self, why: str) -> str:
        """The reason, with the check that its last claim came to grief on."""
        return f"{why}, and {clip_line(self.refuted, 300)}" if self.refuted else why

    async def _ended_within(self) -> None:
        """The agent, or a person, has changed its state while the turn ran."""
        goal = self.goal
        if goal.state is GoalState.ASKING:
            goal.report, goal.told = words.asks(goal.why), False
        elif goal.state is GoalState.DROPPED:
            goal.ended_at = self._now()
            goal.report, goal.told = words.ended(goal, self._said), False
        await self._save(goal)

    async def _claimed(self, said: str, *, told: bool = False) -> None:
        """It was proved; a reviewer may have a look first. `told`: its people have these words already."""
        goal = self.goal
        if goal.review:
            review = await self._team.review(goal, said)
            if self._ends() or goal.state is not GoalState.ACTIVE:
                return
            goal.objections = "" if review.passed else review.reasons
            goal.noted = least_trusted([goal.noted, review.provenance])
            if review.passed is False and goal.sent_back < MOST_SENT_BACK:
                goal.sent_back += 1
                goal.claim = None
                await self._save(goal)
                return
        goal.state, goal.why, goal.ended_at = GoalState.DONE, "", self._now()
        goal.report, goal.told = words.done(goal, "" if told else said), False
        await self._save(goal)

    async def _failed(self, result: TurnResult) -> None:
        goal = self.goal
        goal.failures += 1
        if result.error in _FOR_GOOD or goal.failures > len(PAUSES_S):
            await self.end(GoalState.WAITING, clip_line(result.text, 400) or "its turns fail")
            return
        await self._save(goal)
        self._woken.clear()
        try:
            async with asyncio.timeout(PAUSES_S[goal.failures - 1]):
                await self._woken.wait()
        except TimeoutError:
            pass

    def _tell(self) -> None:
        goal = self.goal
        if not goal.told and not self._ends():
            self._turns.tell(goal)
            goal.told = True


def message_of(goal: Goal) -> InboundMessage:
    """The message of its next turn: in the session and the chat that set it."""
    here = goal.address
    return InboundMessage(
        here.channel,
        goal.sender_id or "owner",
        here.chat_id,
        words.turn(goal),
        session_key_override=goal.session_key,
        thread_id=here.thread_id,
        origin=Origin.GOAL,
        provenance=goal.asker,
        scope=goal.scope.chat,
    )
