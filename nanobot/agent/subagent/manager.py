"""Subagents: tasks that run beside the conversation, each in a turn of its own, each reported exactly once.

A task is saved before it starts and until its end was reported, so that after a crash another process continues it. Its
turn runs through the agent loop, in a session of its own, with the profile of its role.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any
from weakref import WeakValueDictionary

from nanobot.agent.command import is_from_owner
from nanobot.agent.context import ContextBuilder
from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.events import (
    ApprovalAnswered,
    ApprovalAsked,
    Emitter,
    EventSink,
    ToolStarted,
    TurnEvent,
    TurnOutcome,
    TurnResult,
)
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import TurnDeps, TurnProfile
from nanobot.agent.recovery import is_accepted
from nanobot.agent.subagent import team_texts, texts
from nanobot.agent.subagent.mailbox import TeamMailbox
from nanobot.agent.subagent.profiles import TaskProfiles
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.sessions import load_result, prepare_session, provenance_in, row_of_stop, stores_result
from nanobot.agent.subagent.tasks import Task, TaskState, TaskStore
from nanobot.agent.subagent.team import TeamService
from nanobot.agent.tools.base import SUBAGENT_SESSION, ToolContext, ToolResult
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.bus.events import Address, InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted
from nanobot.utils.aio import finish
from nanobot.utils.database import Database
from nanobot.utils.lease import ProcessLease
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import clip_line, duration

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
MAX_OPEN = 64
"""Running and waiting tasks together."""
RETRY_DELAY_S = 1.0
"""Delay before retrying a task whose model failed."""
_STATES = {
    TurnOutcome.ANSWERED: TaskState.DONE,
    TurnOutcome.PARTIAL: TaskState.LIMIT,
    TurnOutcome.STOPPED: TaskState.STOPPED,
    TurnOutcome.REFUSED: TaskState.FAILED,
    TurnOutcome.FAILED: TaskState.FAILED,
}
_FINAL_ORIGINS = (Origin.CRON, Origin.HEARTBEAT, Origin.API, Origin.GOAL)
"""Origins of turns without a later conversation: subagent results must be part of their answer."""
_PROGRESS_S = 60.0
"""Interval of progress events from a waiting turn, so that the watchdog does not treat it as hung."""
_STOP_TIMEOUT_S = 2.0
_DELIVERY_RETRY_S = 30.0
_LIST_ENDED_S = 86_400.0
_MAX_ENDED_LISTED = 10


class _Request(Enum):
    """Why a run ends early: stopped for good, or continued at the next start."""

    STOP = "stop"
    LATER = "later"


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task that runs in this process."""

    task: Task
    resumed: bool = False
    """Whether a previous process started it."""
    profile: TurnProfile | None = None
    """The profile of its running turn."""
    request: _Request | None = None
    end_requested: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the end is known and saved."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the report was delivered or nanobot shuts down."""
    timed_out: bool = False
    slot_lent: bool = False
    """Whether it gave up its slot while it waits for its own subagents."""
    awaited_subagents: int = 0
    """Number of its own subagents it waits for."""
    waiters: int = 0
    """Number of turns that wait for the result."""
    waiters_served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no turn waits."""
    result_taken: bool = False
    """Whether a waiting turn got the result."""
    watchers: list[Callable[[str], None]] = field(default_factory=list)
    """Progress callbacks of the waiting turns."""
    last_action: str = ""
    """The last tool call."""
    answered_directly: bool = False
    """Whether the person learns of the end from the reply to their own command."""
    forgotten: bool = False
    """Whether the end is not reported at all, not even to the model."""

    def end(self, request: _Request) -> None:
        """End the task early. A stop by a person is final."""
        if self.request is not _Request.STOP:
            self.request = request
        self.end_requested.set()

    async def wait_unless_ended(self, waiting: Coroutine[Any, Any, Any]) -> bool:
        """Wait for the coroutine. Return False if the task is to end first; the coroutine is then cancelled."""
        if self.request is not None:
            waiting.close()
            return False
        waiter, end_requested = asyncio.ensure_future(waiting), asyncio.ensure_future(self.end_requested.wait())
        try:
            await asyncio.wait((waiter, end_requested), return_when=asyncio.FIRST_COMPLETED)
            return waiter.done()
        finally:
            for future in (waiter, end_requested):
                future.cancel()


class SpawningTurns:
    """A tool policy that records the event sinks of turns that spawn a subagent, and refuses nothing."""

    def __init__(self) -> None:
        self._emitters: WeakValueDictionary[str, Emitter] = WeakValueDictionary()

    async def before_call(self, planned: PlannedCall) -> Verdict:
        if planned.call.name == "spawn":
            self._emitters[planned.context.turn_id] = planned.emit
        return Verdict()

    def emitter_of(self, turn_id: str) -> Emitter | None:
        """Return the event sink of that turn; None if it has ended or spawned nothing."""
        return self._emitters.get(turn_id)


class SubagentManager:
    """The subagents of one bot."""

    def __init__(
        self,
        database: Database,
        lease: ProcessLease,
        defaults: AgentDefaults,
        bus: MessageBus,
        context: ContextBuilder,
        policies: ToolPolicies,
        spawning_turns: SpawningTurns,
    ) -> None:
        """The database has the tables of tasks and team messages."""
        self._database = database
        self._store = TaskStore(database, lease)
        self._defaults = defaults
        self._bus = bus
        self._context = context
        self._policies = policies
        self._spawning_turns = spawning_turns
        self._closed = False
        self._slots = asyncio.Semaphore(defaults.max_concurrent_subagents)
        self._recover_lock = asyncio.Lock()
        self._open_lock = asyncio.Lock()
        """Keeps tasks in the order in which they were requested."""
        self._runs: dict[str, TaskRun] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._swept = False

    def join(self, loop: AgentLoop, deps: TurnDeps, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """Set the loop that runs their turns, and the lookup of a session's goal id; once, before the first turn."""
        self._loop, self._deps, self._clock, self._goal_of = loop, deps, deps.clock, goal_of
        self._team = TeamService(TeamMailbox(self._database), deps.clock)
        self._profiles = TaskProfiles(deps, self._defaults, self._context, self._policies, self._team)

    def renew(self, policies: ToolPolicies) -> None:
        """Apply a changed config: subagents that start from now on use these tools."""
        self._profiles.renew(policies)

    # --- for the tool

    async def spawn(
        self,
        task: str,
        label: str | None = None,
        origin_channel: str = "cli",
        origin_chat_id: str = "direct",
        *,
        ctx: ToolContext | None = None,
    ) -> str:
        """Start a task in the background and return the tool result. The report goes to the session of `ctx`, else to
        that of the channel and chat. Raises NanobotError if it cannot start.
        """
        wanted_task = _create_task(task, label, ctx, Address(origin_channel, origin_chat_id), self._parent_of(ctx))
        run, before = await self._find_or_open(wanted_task)
        if run.task is not wanted_task:
            return texts.already_running_reply(run.task)
        return texts.started_reply(wanted_task, before if self._slots.locked() else 0)

    async def run(self, task: str, label: str | None = None, *, ctx: ToolContext) -> ToolResult:
        """Like `run_to_end` for a worker, but return a tool result."""
        ended = await self.run_to_end(task, label, ctx=ctx)
        failed = ended.state in (TaskState.FAILED, TaskState.STOPPED)
        return ToolResult(texts.tool_result(ended), error=failed, provenance=ended.seen)

    async def run_to_end(
        self, task: str, label: str | None = None, *, role: TaskRole = TaskRole.WORKER, ctx: ToolContext
    ) -> Task:
        """Run a task while the caller waits, and return it ended. Joins an equal running task. Raises NanobotError if
        it cannot start.

        Cancelling stops the subagent. On shutdown it continues at the next start.
        """
        parent_task = self._parent_of(ctx)
        wanted_task = _create_task(task, label, ctx, ctx.address, parent_task)
        wanted_task.role, wanted_task.waited = role, True
        run, _ = await self._find_or_open(wanted_task)
        run.waiters += 1
        run.waiters_served.clear()
        run.watchers.append(ctx.emit)
        try:
            await self._wait_without_slot(parent_task, self._wait_for_end(run))
        except asyncio.CancelledError:
            if run.task.waited and run.waiters == 1 and not self._is_stopping():
                run.answered_directly = True
                await finish(self._stop_runs([run]))
                await finish(self._mark_reported(run.task))
            raise
        finally:
            run.waiters -= 1
            run.watchers.remove(ctx.emit)
            if not run.waiters:
                run.waiters_served.set()
        run.result_taken = True
        return run.task

    def must_wait(self, ctx: ToolContext) -> bool:
        """Whether subagent results must be part of this turn's answer."""
        return ctx.origin in _FINAL_ORIGINS or ctx.quiet or ctx.is_subagent

    # --- for the loop

    def profile_of(self, message: InboundMessage) -> TurnProfile | None:
        """Return the profile of a subagent's turn; None for any other turn."""
        run = self._run_of(message.session_key)
        return run.profile if run is not None else None

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """Return the context of a subagent's turn as that of the turn that started it, to find who may answer its
        questions.
        """
        run = self._run_of(context.session_key)
        return context if run is None else replace(context, origin=run.task.origin, attended=run.task.attended)

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished tasks of previous processes, of one session or all. Never raises."""
        if not self._closed:
            async with self._recover_lock:  # a second caller must see what the first one resumed
                await finish(self._recover(session_key))

    async def _recover(self, session_key: str | None) -> None:
        try:
            tasks = await self._store.inherit(session_key)
        except StorageError as error:
            log.warning("unfinished tasks cannot be resumed: %s", error)
            return
        for task in tasks:
            self._run_in_background(TaskRun(task, resumed=True))
        if tasks:
            self._sweep_once()

    async def stop_for(self, message: InboundMessage) -> list[str]:
        """Stop the subagents of the message's session that the sender may stop. Return their labels; the caller
        reports them.
        """
        runs = [run for run in self._runs_of(message.session_key) if may_stop(message, run.task)]
        runs = [run for run in runs if not run.task.state.is_over]
        for run in runs:
            run.answered_directly = True
        await self._stop_runs(runs)
        return [run.task.label for run in runs]

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop all tasks of this session without reports, including ended ones. Return the labels of the stopped tasks
        and the keys of reports that may still arrive. Raises StorageError.
        """
        await self.recover(session_key)
        runs = self._runs_of(session_key)
        stopped = [run for run in runs if not run.task.state.is_over]
        for run in runs:
            run.answered_directly = run.forgotten = True
        await self._stop_runs(stopped)
        done = await self._store.recent(since=self._clock.now().timestamp() - _LIST_ENDED_S)
        tasks = [task for task in (*done, *(run.task for run in runs)) if task.belongs_to(session_key)]
        return [run.task.label for run in stopped], list(dict.fromkeys(task.journal_key for task in tasks))

    # --- for people and user interfaces

    async def all_tasks(self) -> list[Task]:
        """Return open and recently ended tasks, oldest first. Raises StorageError."""
        tasks = await self._store.recent(since=self._clock.now().timestamp() - _LIST_ENDED_S)
        ended = [task for task in tasks if task.reported][-_MAX_ENDED_LISTED:]
        running = {run.task.id: run.task for run in self._runs.values()}
        listed = {task.id: task for task in (*ended, *(task for task in tasks if not task.reported))} | running
        return sorted(listed.values(), key=lambda task: task.created_at)

    def last_action_of(self, task_id: str) -> str:
        """Return the last tool call of a running task; empty if there is none."""
        run = self._runs.get(task_id)
        return run.last_action if run is not None else ""

    async def stop_task(self, task_id: str, session_key: str) -> bool:
        """Stop this task; False if it does not run here. If another session started it, that one gets a report."""
        run = self._runs.get(task_id)
        if run is None or run.task.state.is_over:
            return False
        run.answered_directly = run.task.belongs_to(session_key)
        await self._stop_runs([run])
        return True

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """Return the labels of what runs, waits or is about to report, for this session or any, oldest first."""
        runs = self._runs.values() if session_key is None else self._runs_of(session_key)
        return [run.task.label for run in runs if not run.result_taken]

    async def wait_reported(self, session_key: str) -> None:
        """Wait until nothing runs for this session and the turns that report it have ended."""
        if not (runs := self._runs_of(session_key)):
            return
        while runs:
            await asyncio.wait([asyncio.ensure_future(run.reported.wait()) for run in runs])
            runs = self._runs_of(session_key)
        try:
            async with asyncio.timeout(self._defaults.subagent_timeout_s):
                await self._bus.wait_settled(session_key)
                await self._wait_for_lane(session_key)
        except TimeoutError:
            pass

    # --- shutdown

    def close(self) -> None:
        """Start nothing more; call before the loop stops. What has not ended continues at the next start."""
        self._closed = True
        for run in self._runs.values():
            if not run.ended.is_set():
                run.end(_Request.LATER)

    async def release(self) -> None:
        """Mark results that waiting turns stored as reported, and end what is left, once no turn runs."""
        result_taken = [run.task for run in self._runs.values() if run.result_taken]
        working = [run.reported for run in self._runs.values() if not run.ended.is_set()]
        if working:
            await asyncio.wait([asyncio.ensure_future(event.wait()) for event in working], timeout=_STOP_TIMEOUT_S)
        for job in self._background:
            job.cancel()
        if self._background:
            await asyncio.wait([*self._background])
        for task in result_taken:
            if not task.reported and await asyncio.to_thread(stores_result, self._deps.sessions, task):
                await self._mark_reported(task)

    # --- a run, from its start to its report

    async def _find_or_open(self, wanted_task: Task) -> tuple[TaskRun, int]:
        """Return an equal task or start a new one, with the number of unfinished tasks before it. Raises
        NanobotError.
        """
        async with self._open_lock:
            await self.recover(wanted_task.parent)  # a previous process may have left an equal task
            before = sum(not run.task.state.is_over for run in self._runs.values())
            return self._find_equal(wanted_task) or await self._start(wanted_task, before), before

    async def _start(self, task: Task, unfinished: int) -> TaskRun:
        """Save the task and start it. Raises NanobotError."""
        if self._is_stopping():
            raise NanobotError("nanobot is shutting down; no subagent was started.")
        if task.depth > self._defaults.subagent_depth:
            raise NanobotError("Subagents may not start subagents here. Do the work yourself.")
        if unfinished >= MAX_OPEN:
            raise NanobotError(f"{MAX_OPEN} subagents already run or wait. Do it yourself, or wait until some ended.")
        task.id, task.created_at = secrets.token_hex(4), self._clock.now().timestamp()
        if task.origin is Origin.GOAL:
            task.goal = task.goal or await self._goal_of(task.root)
        run = TaskRun(task)
        self._runs[task.id] = run  # before it is saved: an equal request must find it
        try:
            await finish(self._store.save(task))
        except StorageError as error:
            del self._runs[task.id]
            raise StorageError(f"The subagent's task cannot be saved, so it was not started. {error}") from error
        except asyncio.CancelledError:  # the turn was stopped, or nanobot shuts down
            run.end(_Request.LATER if self._is_stopping() else _Request.STOP)
            run.answered_directly = True
            self._run_in_background(run)
            raise
        self._run_in_background(run)
        self._sweep_once()
        return run

    def _run_in_background(self, run: TaskRun) -> None:
        self._runs[run.task.id] = run
        self._team.add(run.task)
        self._in_background(self._run_to_report(run), f"subagent {run.task.id}")

    async def _run_to_report(self, run: TaskRun) -> None:
        """Run the task from start to report. Never raises."""
        try:
            if not run.task.state.is_over:
                await self._work(run)
            if run.task.state.is_over:
                run.ended.set()
                await self._report(run)
        except Exception:  # the task stays open, and the next start reports it
            log.exception("the end of subagent %s could not be reported", run.task.id)
        finally:
            self._runs.pop(run.task.id, None)
            run.reported.set()

    async def _work(self, run: TaskRun) -> None:
        if run.task.goal:
            async with self._open_lock:  # the team then includes all tasks of the same step
                pass
        try:
            if await run.wait_unless_ended(self._slots.acquire()):
                try:
                    result = await self._run_attempts(run)
                finally:
                    if not run.slot_lent:
                        self._slots.release()
            else:
                result = TurnResult(TurnOutcome.STOPPED, "It had not started.")
        except NanobotError as error:
            result = TurnResult(TurnOutcome.FAILED, str(error), retryable=error.retryable)
        except Exception as error:  # isolate failures of one subagent
            log.exception("subagent %s failed with an internal error", run.task.id)
            result = TurnResult(
                TurnOutcome.FAILED, f"Internal error in nanobot: {type(error).__name__}: {error_text(error)}."
            )
        if run.request is not _Request.LATER and not result.later:
            await self._finish(run, result)

    async def _run_attempts(self, run: TaskRun) -> TurnResult:
        """Run attempts, with one retry if the model failed; return the last result."""
        task = run.task
        prompt = (
            texts.task_prompt(task)
            if task.tries < MAX_ATTEMPTS
            else texts.retry_prompt(task, "nanobot was interrupted.")
        )
        if task.state is TaskState.WAITING:
            task.state, task.tries, task.began_at = TaskState.RUNNING, 1, self._clock.now().timestamp()
            await self._save(task)
        deadline = asyncio.get_running_loop().time() + self._defaults.subagent_timeout_s
        while True:
            result = await self._run_attempt(run, prompt, deadline)
            task.tokens += result.usage.get("prompt_tokens", 0) + result.usage.get("completion_tokens", 0)
            if result.cost_usd is not None:
                task.cost_usd = (task.cost_usd or 0.0) + result.cost_usd
            failed = result.outcome is TurnOutcome.FAILED and result.retryable
            if run.request is not None or run.timed_out or not failed or task.tries >= MAX_ATTEMPTS:
                return result
            task.tries += 1
            await self._save(task)
            if not await run.wait_unless_ended(asyncio.sleep(RETRY_DELAY_S)):
                return result
            prompt = texts.retry_prompt(task, result.text)

    async def _run_attempt(self, run: TaskRun, prompt: str, deadline: float) -> TurnResult:
        """Run one turn; end it at the deadline or when the run is to end."""
        run.profile = await self._profiles.make(run.task)
        turn = asyncio.create_task(self._run_turn(run, prompt), name=f"turn of subagent {run.task.id}")
        end_requested = asyncio.create_task(run.end_requested.wait())
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        try:
            await asyncio.wait((turn, end_requested), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            run.timed_out = not turn.done() and run.request is None
            is_stopped = not turn.done() and run.request is not _Request.LATER  # else the loop interrupts it
            if is_stopped and not await self._loop.stop_turn(run.task.session_key):
                turn.cancel()  # it has not begun
            await asyncio.wait((turn,))
        finally:
            end_requested.cancel()
            turn.cancel()
            run.profile = None
        return TurnResult(TurnOutcome.STOPPED, "") if turn.cancelled() else turn.result()

    async def _run_turn(self, run: TaskRun, prompt: str) -> TurnResult:
        """Run the turn of an attempt through the loop, or what a previous process left of it."""
        task, sink, sessions = run.task, self._sink(run), self._deps.sessions
        if run.resumed:
            result = await self._loop.resume(task.session_key, sink, attended=task.attended)
            result = result or await asyncio.to_thread(load_result, sessions, task, self._profiles.max_steps(task.role))
            if result is not None:
                return result
        await asyncio.to_thread(prepare_session, sessions, task)
        message = InboundMessage.at(
            task.address,
            task.sender_id,
            prompt,
            session_key=task.session_key,
            origin=Origin.SUBAGENT,
            provenance=task.asker,
            journal_key=task.attempt_key,
        )
        return await self._loop.run_turn(message, sink, attended=task.attended)

    def _sink(self, run: TaskRun) -> EventSink:
        """Return the event sink of its turns. Approval questions go to the sink of the waiting turn, else to the chat
        of the report.
        """
        task = run.task
        to_chat = InboundMessage.at(task.address, task.sender_id, "", session_key=task.session_key)
        chat = Delivery(self._bus, to_chat, DeliveryPolicy(progress=False))

        def sink(event: TurnEvent) -> None:
            if isinstance(event, ToolStarted):
                first = next((str(value) for value in event.arguments.values()), "")
                run.last_action = clip_line(" ".join(f"{event.name} {first}".split()), 80)
                for report_progress in run.watchers:
                    report_progress(f"{task.label}: {run.last_action}")
            elif isinstance(event, ApprovalAsked | ApprovalAnswered):
                if isinstance(event, ApprovalAsked):
                    event = replace(event, text=f"For my background task ({task.label}):\n{event.text}")
                waiting_sink = self._spawning_turns.emitter_of(task.turn_id) if task.waited else None
                (waiting_sink or chat)(event)

        return sink

    async def _finish(self, run: TaskRun, result: TurnResult) -> None:
        task = run.task
        task.state, task.result = _STATES[result.outcome], result.text
        if run.timed_out and task.state is TaskState.STOPPED:
            task.state = TaskState.LIMIT
            limit = duration(self._defaults.subagent_timeout_s)
            task.result = f"{result.text}\n\n(Stopped at its time limit of {limit}.)".strip()
        task.ended_at = self._clock.now().timestamp()
        unread = await self._team.unread(task)
        task.result = team_texts.add_unread(task.result, unread)
        read = await asyncio.to_thread(provenance_in, self._deps.sessions, task)
        task.seen = least_trusted([task.seen, read, *(message.provenance for message in unread)])
        await self._save(task)

    # --- the report

    async def _report(self, run: TaskRun) -> None:
        """Report the end once, unless somebody has it already."""
        task = run.task
        if run.waiters or (run.resumed and task.waited):
            await self._wait_for_result_taken(run)
        if task.reported:
            return
        is_wanted = ROLES[task.role].reports and not run.result_taken and not run.forgotten
        if is_wanted and run.answered_directly:
            self._in_background(self._note_stop(task), f"note of {task.id}")
        elif is_wanted and not (run.resumed and await self._is_delivered(task)):
            while not await self._deliver(task):
                if self._is_stopping():
                    return
                await asyncio.sleep(_DELIVERY_RETRY_S)
        await self._mark_reported(task)

    async def _wait_for_result_taken(self, run: TaskRun) -> None:
        """Wait until the waiting turn has ended and stored the result; a kill before that would lose it. A turn resumed
        after a kill may ask for it again.
        """
        if run.resumed:
            await self._wait_for_lane(run.task.parent)
        while run.waiters:
            await run.waiters_served.wait()
            # not in its lane: a waiter there would also wait for queued turns
            await self._deps.status.wait_idle(run.task.parent)
        if not run.result_taken and run.resumed:
            run.result_taken = await asyncio.to_thread(stores_result, self._deps.sessions, run.task)

    async def _is_delivered(self, task: Task) -> bool:
        """Whether a turn accepted the report, perhaps in a previous process. Never raises."""
        folder, sessions = self._deps.turns_folder, self._deps.sessions
        try:
            return await asyncio.to_thread(is_accepted, folder, sessions, task.parent, task.journal_key)
        except StorageError as error:
            log.warning("cannot check whether the report of %s was delivered: %s", task.id, error)
            return False

    async def _deliver(self, task: Task) -> bool:
        """Publish the report on the bus; without a serving loop, run its turn now and wait for its end. Return False if
        that has to be repeated. The journal key makes the report unique.
        """
        message = InboundMessage.at(
            task.address,
            task.sender_id,
            texts.report(task),
            session_key=task.parent,
            origin=Origin.SUBAGENT,
            provenance=task.seen,
            quiet=task.quiet,
            journal_key=task.journal_key,
            fallback_text=texts.plain_report(task),
            scope=task.scope.chat,
        )
        try:
            if self._is_stopping():
                return False
            if not self._loop.is_serving:
                return not (await self._loop.serve(message)).later
            await self._bus.publish_inbound(message)
        except StorageError as error:
            log.warning("the report of subagent %s is delayed: %s", task.id, error)
            return False
        return True

    async def _note_stop(self, task: Task) -> None:
        """Tell the model at its next turn that a person stopped the task. Never raises."""
        try:
            async with self._loop.lane(task.parent), self._deps.sessions.hold(task.parent) as session:
                if (row := row_of_stop(task, session, self._clock)) is not None:
                    await self._deps.sessions.append(session, row)
        except NanobotError as error:
            log.warning("cannot tell the agent that subagent %s was stopped: %s", task.id, error)

    # --- helpers

    def _is_stopping(self) -> bool:
        return self._closed or self._loop.is_stopping

    async def _wait_for_lane(self, session_key: str) -> None:
        """Wait until no turn of this session runs, including those queued now."""
        async with self._loop.lane(session_key):
            pass

    async def _wait_for_end(self, run: TaskRun) -> None:
        """Wait for the end and emit progress periodically, so that the watchdog does not treat the turn as hung."""
        while True:
            try:
                async with asyncio.timeout(_PROGRESS_S):
                    await run.ended.wait()
                    return
            except TimeoutError:
                for report_progress in run.watchers:
                    report_progress(f"{run.task.label}: still running")

    async def _wait_without_slot(self, parent_task: Task | None, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait without occupying a slot: a subagent that waits for its own subagents must not block them."""
        run = self._runs.get(parent_task.id) if parent_task is not None else None
        if run is None:
            await waiting
            return
        run.awaited_subagents += 1
        if not run.slot_lent:
            run.slot_lent = True
            self._slots.release()
        try:
            await waiting
        finally:
            run.awaited_subagents -= 1
        if not run.awaited_subagents:
            await self._slots.acquire()
            run.slot_lent = False

    async def _stop_runs(self, runs: Sequence[TaskRun]) -> None:
        """Stop them and wait until their end is saved, and reported if no turn waits."""
        for run in runs:
            run.end(_Request.STOP)
        if runs:
            events = [run.reported if run.answered_directly and not run.waiters else run.ended for run in runs]
            await asyncio.wait([asyncio.ensure_future(event.wait()) for event in events], timeout=_STOP_TIMEOUT_S)

    async def _mark_reported(self, task: Task) -> None:
        task.reported = task.state.is_over
        await self._save(task)

    async def _save(self, task: Task) -> None:
        """Save the task. On a storage failure it goes on."""
        try:
            await finish(self._store.save(task))
        except StorageError as error:
            log.warning("the progress of subagent %s cannot be saved: %s", task.id, error)

    def _find_equal(self, wanted_task: Task) -> TaskRun | None:
        """Return an equal task of the same session that runs, or ended for this very turn without a report. Reviews are
        always new.
        """
        for run in self._runs.values():
            task = run.task
            if _equality_key(task) != _equality_key(wanted_task):
                continue
            if task.reported or (run.result_taken and task.role is not TaskRole.WORKER):
                continue
            if not task.state.is_over or (task.state is TaskState.DONE and task.turn_id == wanted_task.turn_id):
                return run
        return None

    def _run_of(self, session_key: str) -> TaskRun | None:
        """Return the run whose turns are in this session."""
        is_subagent = session_key.startswith(SUBAGENT_SESSION)
        return self._runs.get(session_key.removeprefix(SUBAGENT_SESSION)) if is_subagent else None

    def _runs_of(self, session_key: str) -> list[TaskRun]:
        """Return the runs that this session started."""
        return [run for run in self._runs.values() if run.task.belongs_to(session_key)]

    def _parent_of(self, ctx: ToolContext | None) -> Task | None:
        """Return the task of the calling subagent, if one calls."""
        run = self._run_of(ctx.session_key) if ctx is not None else None
        return run.task if run is not None else None

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        job = asyncio.create_task(work, name=name)
        self._background.add(job)
        job.add_done_callback(self._background.discard)

    def _sweep_once(self) -> None:
        if not self._swept:
            self._swept = True
            self._in_background(self._sweep(), "old subagents")

    async def _sweep(self) -> None:
        """Delete old tasks, with their sessions and messages."""
        before = self._clock.now().timestamp() - self._defaults.subagent_keep_days * 86_400
        try:
            for session_key in await self._store.sweep(before=before):
                await asyncio.to_thread(self._deps.sessions.delete, session_key)
            await self._team.sweep(before=before)
        except StorageError as error:
            log.warning("old tasks cannot be deleted: %s", error)


def may_stop(message: InboundMessage, task: Task) -> bool:
    """Whether the sender may stop the task: who asked for it and owners may."""
    return is_from_owner(message) or (message.channel, message.sender_id) == (task.address.channel, task.sender_id)


def _equality_key(task: Task) -> tuple[str, TaskRole, str]:
    return task.parent, task.role, " ".join(task.task.split()).casefold()


def _create_task(
    task: str, label: str | None, ctx: ToolContext | None, address: Address, parent_task: Task | None
) -> Task:
    """Create the task, with everything its report and its restrictions need to know about the caller."""
    label = texts.task_label(task, label)
    if ctx is None:
        own = Provenance.OWNER if address.channel == "cli" else Provenance.PERSON
        key = f"{address.channel}:{address.chat_id}"
        return Task("", task, label, key, address, own, root=key)
    provenance = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
    caller = parent_task or ctx
    return Task(
        "",
        task,
        label,
        ctx.session_key,
        ctx.address,
        provenance,
        caller.origin,
        caller.sender_id,
        caller.attended,
        ctx.scope,
        ctx.turn_id,
        parent_task.root if parent_task is not None else ctx.session_key,
        parent_task.depth + 1 if parent_task is not None else 1,
        quiet=ctx.quiet,
        goal=parent_task.goal if parent_task is not None else "",
    )
