"""Drives a goal: runs turn after turn in its session until it ends, waits for a person, or nanobot shuts down.

It keeps no state: the result of each turn is in the goal, saved before the next turn starts.
"""

import asyncio
import logging
import re
from contextlib import suppress
from dataclasses import dataclass, replace

from nanobot.agent.delivery import GOAL_DELIVERY, Delivery
from nanobot.agent.engine.answer_review import parse_verdict
from nanobot.agent.engine.transcript import outcome_text
from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.agent.goals.goal import Goal
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import TurnDeps
from nanobot.agent.recovery import find_interrupted_turn
from nanobot.agent.subagent.manager import SubagentManager
from nanobot.agent.subagent.tasks import TaskOrder, TaskRole, describe_failure, task_label
from nanobot.agent.work import WorkState, WorkStore
from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import GOAL_CHECK, GOAL_RULES, Origin, Provenance, is_outside, least_trusted
from nanobot.utils.aio import finish
from nanobot.utils.text import clip_line, quote_lines

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
_SAVE_RETRY_S, _MAX_SAVE_RETRY_S = 1.0, 60.0
"""First and longest delay before retrying to save the end of a goal."""
REMIND_OF_NOTE_AFTER = 3
"""Turns without a change of the note after which the model is reminded of it."""
_MAX_PLAN_STEPS = 20
_MAX_PLAN_STEP_CHARS = 300
_PLAN_STEP = re.compile(r"^[^\S\n]*(?:[-*+]|\d+[.)])[^\S\n]+\[ ?\][^\S\n]+(\S.*)$", re.MULTILINE)

_RULES = f"""\
{GOAL_RULES} nobody waits for your reply, and your text is not sent. Take the next step
with your tools. Keep the note up to date with `goal` (note: done, doing, next): it is all you will remember of this
later. When the goal is reached, call `goal` (finish) with a check that proves it; your answer after that is sent to the
person. Ask what only the person can answer with `goal` (ask). If it cannot be reached, call `goal` (drop) with the
reason."""
_WAS_IDLE = (
    "You did nothing in your last turn. Take the next step now, ask the person (ask), finish with a check (finish), "
    "or say why it cannot be done (drop)."
)


@dataclass(slots=True)
class GoalDeps:
    """What the goals of a bot share."""

    store: WorkStore[Goal]
    bus: MessageBus
    subagents: SubagentManager
    loop: AgentLoop
    turns: TurnDeps
    closed: bool = False

    @property
    def is_stopping(self) -> bool:
        return self.closed or self.loop.is_stopping


class GoalDriver:
    """A goal that this process owns, and what drives it."""

    def __init__(self, goal: Goal, deps: GoalDeps) -> None:
        self.goal = goal
        self.task: asyncio.Task[None] | None = None
        self.used_goal_tool = False
        self.failed_check = ""
        self._deps = deps
        self._loop, self._turns = deps.loop, deps.turns
        self._wake_event = asyncio.Event()
        self._last_text = ""
        """Reply of the last turn, not sent to anybody yet."""

    async def run(self, *, resumed: bool = False) -> None:
        """Run turns until the goal ends, waits, or nanobot shuts down, and report. Never raises. `resumed`: a previous
        process may have died during a turn.
        """
        try:
            await self._run_turns(resumed=resumed)
        except Exception as error:  # isolate failures of one goal; its row is intact
            log.exception("goal %s failed with an internal error", self.goal.id)
            await self.end(WorkState.WAITING, f"an internal error occurred ({type(error).__name__}); see nanobot's log")
        await self._send_report()
        delay = _SAVE_RETRY_S
        while not await self.save() and not self._deps.is_stopping:  # else the next start would resume it
            await asyncio.sleep(delay)
            delay = min(delay * 2, _MAX_SAVE_RETRY_S)

    async def _run_turns(self, *, resumed: bool) -> None:
        goal = self.goal
        async with self._loop.lane(goal.session_key):
            pass  # the turn that set it has ended
        if resumed and goal.state is WorkState.ACTIVE:
            await self._resume()
        while goal.state is WorkState.ACTIVE and not self._deps.is_stopping:
            if goal.spent:
                await self.end(WorkState.LIMIT, goal.spent, self._last_text)
            elif goal.order.plan and not goal.progress.planned:
                await self._make_plan()
            else:
                await self._run_turn()

    async def end(self, state: WorkState, why: str, text: str | None = "") -> None:
        """End the goal or let it wait, and prepare the report with the last reply; None if nobody needs a report, such
        as a person whose command stopped it.
        """
        goal = self.goal
        goal.state, goal.why = state, why
        goal.ended_at = self._turns.clock.now().timestamp() if state.is_over else None
        if text is not None:
            goal.report, goal.reported = _format_report(goal, text), False
        await self.save()

    async def save(self) -> bool:
        """Save the goal. On a storage failure return False: the goal goes on, and is saved with its next change."""
        try:
            await finish(self._deps.store.save(self.goal))
            return True
        except StorageError as error:
            log.warning("the progress of goal %s cannot be saved: %s", self.goal.id, error)
            return False

    def wake(self) -> None:
        """End a retry delay early, because the person wrote something or nanobot shuts down."""
        self._wake_event.set()

    # --- a turn

    async def _run_turn(self) -> None:
        goal, requester = self.goal, self.goal.order.requester
        self.used_goal_tool = False
        message = requester.message(_turn_message(goal), origin=Origin.GOAL, scope=requester.scope.chat)
        await self._turns.sessions.yield_to_waiters(goal.session_key)  # other processes
        await self._process_result(await self._loop.serve(message))

    async def _resume(self) -> None:
        """Continue where a previous process stopped."""
        goal = self.goal
        interrupted = await asyncio.to_thread(find_interrupted_turn, self._turns.turns_folder, goal.session_key)
        if interrupted is not None and interrupted.message.origin is Origin.GOAL:  # others wait for their person
            sink = Delivery(self._deps.bus, interrupted.message, GOAL_DELIVERY)
            result = await self._loop.resume(goal.session_key, sink)
            if result is not None and result.text:
                await self._process_result(result)
                return
        if goal.progress.claim is not None and not self._deps.is_stopping:  # the turn that claimed it has ended
            await self._finish(await asyncio.to_thread(self._last_reply))

    def _last_reply(self) -> str:
        """Return the session's last answer. Blocks."""
        try:
            rows = self._turns.sessions.get_or_create(self.goal.session_key).since(0)
        except StorageError:
            return ""
        answers = [at for at, row in enumerate(rows) if row["role"] == "assistant" and not row.get("tool_calls")]
        return outcome_text(rows[: answers[-1] + 1]) if answers else ""

    async def _process_result(self, result: TurnResult) -> None:
        goal = self.goal
        if result.later or (result.outcome is TurnOutcome.STOPPED and self._deps.is_stopping):
            return
        has_acted = await self._acted(result.turn_id)  # first: a person may stop the goal meanwhile
        goal.usage.turns += 1
        self._last_text = "" if result.joined else result.text  # a person whose message joined has seen the reply
        if goal.state in (WorkState.ASKING, WorkState.DROPPED):  # set by the `goal` tool
            await self.end(goal.state, goal.why, self._last_text)
        elif goal.state is not WorkState.ACTIVE:
            await self.save()
        elif result.outcome is TurnOutcome.STOPPED:
            await self.end(WorkState.STOPPED, "its turn was stopped")
        elif goal.progress.claim is not None:
            await self._finish(result.text, was_sent=bool(result.joined))
        elif result.outcome in (TurnOutcome.FAILED, TurnOutcome.REFUSED) or not result.retryable:
            await self._handle_failure(result)
        else:
            await self._count_progress(has_acted=has_acted)

    async def _acted(self, turn_id: str) -> bool:
        """Whether the turn called a tool other than `goal`."""
        try:
            session = await asyncio.to_thread(self._turns.sessions.get_or_create, self.goal.session_key)
        except StorageError:
            return True
        rows = session.get_history()  # includes the newest turn, however long it is
        names = {row.get("name") for row in rows if row["role"] == "tool" and row.get("turn_id") == turn_id}
        return not names <= {"goal"}

    async def _count_progress(self, *, has_acted: bool) -> None:
        """Let the goal wait for a person if its turns lead nowhere."""
        progress, used_note = self.goal.progress, self.used_goal_tool
        progress.failures = 0
        progress.idle = 0 if has_acted else progress.idle + 1
        progress.unnoted = 0 if used_note else progress.unnoted + 1
        if progress.idle >= (MAX_NOTE_ONLY_TURNS if used_note else MAX_IDLE_TURNS):
            why = f"I {'only updated my notes' if used_note else 'did nothing'} for {progress.idle} turns"
        elif progress.unnoted >= MAX_TURNS_WITHOUT_NOTE:
            why = f"my notes have not changed for {MAX_TURNS_WITHOUT_NOTE} turns"
        else:
            await self.save()
            return
        if self.failed_check:
            why += f", and {clip_line(self.failed_check, 300)}"
        await self.end(WorkState.WAITING, why, self._last_text)

    async def _handle_failure(self, result: TurnResult) -> None:
        progress = self.goal.progress
        progress.failures += 1
        if not result.retryable or progress.failures > len(RETRY_DELAYS_S):
            await self.end(WorkState.WAITING, clip_line(result.text, 400) or "its turns failed")
            return
        await self.save()
        self._wake_event.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(RETRY_DELAYS_S[progress.failures - 1]):
                await self._wake_event.wait()

    # --- planner and reviewer

    async def _make_plan(self) -> None:
        goal, progress = self.goal, self.goal.progress
        answer, problem, provenance = await self._ask(
            TaskRole.PLANNER, "planning", f"Plan this:\n\n{quote_lines(goal.order.text)}"
        )
        if self._deps.is_stopping or goal.state is not WorkState.ACTIVE:
            return
        progress.planned = True
        if steps := _PLAN_STEP.findall(answer)[:_MAX_PLAN_STEPS]:
            plan = "".join(f"\n- [ ] {clip_line(step.strip(), _MAX_PLAN_STEP_CHARS)}" for step in steps)
            progress.note = replace(progress.note, following=plan)
            progress.noted = least_trusted([progress.noted, provenance])
        else:
            log.warning("goal %s goes on without a plan: %s", goal.id, problem or "the answer has no task list")
        await self.save()

    async def _finish(self, text: str, *, was_sent: bool = False) -> None:
        """Finish a goal whose check passed, after a review if wanted. `was_sent`: the person has seen this reply."""
        goal, progress = self.goal, self.goal.progress
        if goal.order.review:
            prompt = f"Review this. The request:\n\n{quote_lines(goal.order.text)}\n\nThe reported result:\n\n"
            prompt += f"{quote_lines(text)}\n"
            if progress.claim is not None:
                prompt += f"\nThe check that passed:\n\n{quote_lines(str(progress.claim))}\n"
            answer, problem, provenance = await self._ask(TaskRole.REVIEWER, "review", prompt)
            if self._deps.is_stopping or goal.state is not WorkState.ACTIVE:
                return
            passed, reasons = (None, problem) if problem else parse_verdict(answer)
            progress.objections = "" if passed else reasons
            progress.noted = least_trusted([progress.noted, provenance])
            if passed is False and progress.sent_back < MAX_REJECTIONS:
                progress.sent_back, progress.claim = progress.sent_back + 1, None
                await self.save()
                return
        await self.end(WorkState.DONE, "", "" if was_sent else text)

    async def _ask(self, role: TaskRole, noun: str, prompt: str) -> tuple[str, str, Provenance]:
        """Return the answer of a read-only subagent, or why there is none, and the least trusted content it read."""
        goal, noted = self.goal, self.goal.progress.noted
        asked = goal.order.requester
        provenance = least_trusted([asked.provenance, noted]) if is_outside(noted) else asked.provenance
        order = TaskOrder(
            prompt,
            task_label(f"{noun}: {goal.order.text}", None),
            replace(asked, origin=Origin.GOAL, provenance=provenance),
            role,
            turn_id=f"goal-{goal.id}-{goal.usage.turns}",
            root=goal.session_key,
            goal=goal.id,
        )
        try:
            task = await self._deps.subagents.run_to_end(order)
        except NanobotError as error:
            return "", f"There was no {noun}: {error}", Provenance.TOOL
        if task.state is WorkState.DONE:
            return task.result, "", task.seen
        return "", f"The {noun} {describe_failure(task)}", task.seen

    # --- the report

    async def _send_report(self) -> None:
        """Send the report through the journal, which sends it once even if a crash comes before the goal is saved."""
        goal, address = self.goal, self.goal.order.requester.address
        if not goal.reported and not self._deps.is_stopping:
            message = OutboundMessage(address.channel, address.chat_id, goal.report, kind=OutboundKind.REPLY)
            message.thread_id, message.answers = address.thread_id, f"goal:{goal.id}:{goal.usage.turns}"
            self._deps.bus.post_outbound(message)
            await self._deps.bus.flush()  # the journal has it before the goal counts as reported
            goal.reported = True


def _turn_message(goal: Goal) -> str:
    order, progress = goal.order, goal.progress
    parts = [f"[Goal, turn {goal.usage.turns + 1}: {goal.usage_text}]", order.text]
    if order.check is not None:
        parts.append(f"{GOAL_CHECK} {order.check}")
    if goal.usage.turns == 0:
        parts.append(_RULES)
    elif progress.objections:
        parts.append("A reviewer rejected your result. Fix what they object to, then finish again.")
    elif progress.idle:
        parts.append(_WAS_IDLE)
    elif progress.unnoted >= REMIND_OF_NOTE_AFTER:
        unchanged = f"Your note has not changed for {progress.unnoted} turns."
        parts.append(f"{unchanged} Update it, then continue with the next step.")
    else:
        parts.append("Continue with the next step.")
    return "\n\n".join(parts)


def _format_report(goal: Goal, text: str) -> str:
    """Return what is sent when the goal ends or waits. `text` is the last reply, unless it was sent."""
    text = text.strip()
    if goal.state is WorkState.ASKING:
        return f"{goal.why}\n\n(I will continue with the goal after your answer.)"
    if goal.state is WorkState.DONE:
        objections = goal.progress.objections
        more = f"\n(The reviewer still objects: {objections})" if objections else ""
        proof = f"(Goal reached, checked by {goal.progress.claim}; {goal.usage_text}.)"
        return f"{text or goal.title}\n\n{proof}{more}"
    headline = {
        WorkState.STOPPED: "This goal was stopped",
        WorkState.DROPPED: "I gave up this goal",
        WorkState.LIMIT: "I stopped working on this goal",
        WorkState.WAITING: "I cannot continue this goal by myself",
    }[goal.state]
    parts = [f"{headline} ({goal.title}): {goal.why}.", text or goal.note_text]
    if goal.state is not WorkState.DROPPED:
        more = " (with --steps N or --usd N for more)" if goal.state is WorkState.LIMIT else ""
        parts.append(f"/goal resume continues it{more}.")
    return "\n\n".join(filter(None, parts))
