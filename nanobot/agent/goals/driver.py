"""Drives a goal: runs turn after turn in its session until it ends, waits for a person, or nanobot shuts down.

It keeps no state: the result of each turn is in the goal, saved before the next turn starts.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.agent.goals import texts
from nanobot.agent.goals.goal import Goal, GoalState
from nanobot.agent.goals.turns import GoalTeam, GoalTurns
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin, least_trusted
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

RETRY_DELAYS_S = (5.0, 30.0, 120.0, 600.0)
"""Delays before retrying a turn that failed because of the model or the connection."""
MAX_IDLE_TURNS = 2
"""Idle turns in a row after which the goal waits for a person."""
MAX_NOTE_ONLY_TURNS = 4
"""Turns in a row that only wrote the note, after which it waits too."""
MAX_TURNS_WITHOUT_NOTE = 8
"""Turns in a row without a change of the note, after which it waits too."""
MAX_REJECTIONS = 2
"""Rejections by the reviewer before the result is accepted anyway."""


class GoalDriver:
    """Drives one goal in this process."""

    def __init__(
        self,
        goal: Goal,
        turns: GoalTurns,
        team: GoalTeam,
        save: Callable[[Goal], Awaitable[None]],
        is_stopping: Callable[[], bool],
        now: Callable[[], float],
    ) -> None:
        """`is_stopping`: whether nanobot is shutting down; `now` in seconds since the epoch."""
        self.goal = goal
        self.used_goal_tool = False
        """Whether the running turn used the `goal` tool."""
        self.failed_check = ""
        """Output of the last check that failed."""
        self._turns = turns
        self._team = team
        self._save = save
        self._is_stopping = is_stopping
        self._now = now
        self._wake_event = asyncio.Event()
        self._last_text = ""
        """Reply of the last turn, not sent to anybody yet."""

    async def run(self, *, resumed: bool = False) -> None:
        """Run turns until the goal ends, waits, or nanobot shuts down. `resumed`: a previous process may have died
        during a turn.
        """
        goal = self.goal
        await self._turns.wait_for_lane(goal.session_key)
        if resumed and goal.state is GoalState.ACTIVE and not await self._resume():
            return
        while goal.state is GoalState.ACTIVE and not self._is_stopping():
            if goal.spent:
                await self.end(GoalState.LIMIT, goal.spent, self._last_text)
                break
            if goal.plan and not goal.planned:
                await self._run_planner()
                continue
            if not await self._run_turn():
                return
        self._send_report()
        await self._save(goal)

    def wake(self) -> None:
        """End a retry delay early, because the person wrote something."""
        self._wake_event.set()

    async def end(self, state: GoalState, why: str, text: str = "", *, report_stop: bool = False) -> None:
        """End the goal or let it wait, and prepare the report. A stop is reported only with `report_stop`: a stop
        command gets a direct answer, and a key press needs none.
        """
        goal = self.goal
        goal.state, goal.why = state, why
        goal.ended_at = self._now() if state.is_over else None
        if report_stop or state is not GoalState.STOPPED:
            goal.report, goal.is_reported = texts.end_report(goal, text), False
        await self._save(goal)

    async def fail(self, error: Exception) -> None:
        """Let the goal wait after an internal error, and report it."""
        await self.end(GoalState.WAITING, f"an internal error occurred ({type(error).__name__}); see nanobot's log")
        self._send_report()
        await self._save(self.goal)

    async def _run_planner(self) -> None:
        goal = self.goal
        plan = await self._team.plan(goal)
        if self._is_stopping() or goal.state is not GoalState.ACTIVE:
            return
        goal.planned = True
        if plan.steps:
            goal.note.following = texts.format_plan(plan.steps)
            goal.noted = least_trusted([goal.noted, plan.provenance])
        else:
            log.warning("goal %s goes on without a plan: %s", goal.id, plan.problem)
        await self._save(goal)

    async def _resume(self) -> bool:
        """Continue where a previous process stopped. Return False if nanobot is shutting down."""
        goal, steps = self.goal, self.goal.steps
        result = await self._turns.resume(goal.session_key)
        if result is not None and result.text:
            return await self._process_result(result, steps)
        if goal.claim is not None:  # the turn that claimed it has ended
            await self._finish(await self._turns.last_reply(goal.session_key))
        return not self._is_stopping()

    async def _run_turn(self) -> bool:
        """Run one turn and process its result. Return False if nanobot is shutting down."""
        self.used_goal_tool, steps = False, self.goal.steps
        return await self._process_result(await self._turns.run(goal_message(self.goal)), steps)

    async def _process_result(self, result: TurnResult, steps: int) -> bool:
        """Apply a turn's result to the goal; `steps` is the count before the turn. Return False if nanobot is shutting
        down.
        """
        goal = self.goal
        if result.later or (result.outcome is TurnOutcome.STOPPED and self._is_stopping()):
            return False
        goal.turns += 1
        self._last_text = "" if result.joined else result.text  # a person whose message joined has seen the reply
        if goal.state is not GoalState.ACTIVE:
            await self._handle_state_change()
        elif result.outcome is TurnOutcome.STOPPED:
            await self.end(GoalState.STOPPED, "its turn was stopped", report_stop=True)
        elif goal.claim is not None:
            await self._finish(result.text, was_sent=bool(result.joined))
        elif result.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED) or not result.retryable:
            await self._handle_failure(result)
        else:
            goal.failures = 0
            goal.idle = 0 if await self._made_progress(result, steps) else goal.idle + 1
            goal.unnoted = 0 if self.used_goal_tool else goal.unnoted + 1
            if goal.idle >= (MAX_NOTE_ONLY_TURNS if self.used_goal_tool else MAX_IDLE_TURNS):
                activity = "only updated my notes" if self.used_goal_tool else "did nothing"
                await self.end(
                    GoalState.WAITING, self._with_failed_check(f"I {activity} for {goal.idle} turns"), self._last_text
                )
            elif goal.unnoted >= MAX_TURNS_WITHOUT_NOTE:
                why = f"my notes have not changed for {MAX_TURNS_WITHOUT_NOTE} turns"
                await self.end(GoalState.WAITING, self._with_failed_check(why), self._last_text)
            await self._save(goal)
        return True

    async def _made_progress(self, result: TurnResult, steps: int) -> bool:
        """Whether the turn called a tool other than `goal`."""
        if self.goal.steps - steps <= 1:
            return False
        return not self.used_goal_tool or await self._turns.called_tools(self.goal.session_key, result.turn_id) != {
            "goal"
        }

    def _with_failed_check(self, why: str) -> str:
        """Append the output of the last failed check to the reason."""
        return f"{why}, and {clip_line(self.failed_check, 300)}" if self.failed_check else why

    async def _handle_state_change(self) -> None:
        """Handle a state change made by the agent or a person during the turn."""
        goal = self.goal
        if goal.state is GoalState.ASKING:
            goal.report, goal.is_reported = texts.question_message(goal.why), False
        elif goal.state is GoalState.DROPPED:
            goal.ended_at = self._now()
            goal.report, goal.is_reported = texts.end_report(goal, self._last_text), False
        await self._save(goal)

    async def _finish(self, text: str, *, was_sent: bool = False) -> None:
        """Finish a goal whose check passed, after a review if wanted. `was_sent`: the person has seen this reply."""
        goal = self.goal
        if goal.review:
            review = await self._team.review(goal, text)
            if self._is_stopping() or goal.state is not GoalState.ACTIVE:
                return
            goal.objections = "" if review.passed else review.reasons
            goal.noted = least_trusted([goal.noted, review.provenance])
            if review.passed is False and goal.sent_back < MAX_REJECTIONS:
                goal.sent_back += 1
                goal.claim = None
                await self._save(goal)
                return
        goal.state, goal.why, goal.ended_at = GoalState.DONE, "", self._now()
        goal.report, goal.is_reported = texts.done_report(goal, "" if was_sent else text), False
        await self._save(goal)

    async def _handle_failure(self, result: TurnResult) -> None:
        goal = self.goal
        goal.failures += 1
        if not result.retryable or goal.failures > len(RETRY_DELAYS_S):
            await self.end(GoalState.WAITING, clip_line(result.text, 400) or "its turns failed")
            return
        await self._save(goal)
        self._wake_event.clear()
        try:
            async with asyncio.timeout(RETRY_DELAYS_S[goal.failures - 1]):
                await self._wake_event.wait()
        except TimeoutError:
            pass

    def _send_report(self) -> None:
        goal = self.goal
        if not goal.is_reported and not self._is_stopping():
            self._turns.send_report(goal)
            goal.is_reported = True


def goal_message(goal: Goal) -> InboundMessage:
    """Return the message that starts the goal's next turn, in the session and chat where it was set."""
    return InboundMessage.at(
        goal.address,
        goal.sender_id,
        texts.turn_message(goal),
        session_key=goal.session_key,
        origin=Origin.GOAL,
        provenance=goal.asker,
        scope=goal.scope.chat,
    )
