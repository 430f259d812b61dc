"""Subagents: tasks that run beside the conversation, each in a turn of its own, each reported exactly once.

A task is saved before it starts and until its end was reported, so that after a crash another process continues it. Its
turn runs through the agent loop, in a session of its own, with the profile of its role. Stopping cancels that turn.
"""

import asyncio
import logging
import secrets
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from nanobot.agent.context import ContextBuilder
from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.events import (
    ApprovalAnswered,
    ApprovalAsked,
    EventSink,
    ToolStarted,
    TurnEnded,
    TurnEvent,
    TurnOutcome,
    TurnResult,
)
from nanobot.agent.lanes import Slots
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import TurnDeps, TurnProfile
from nanobot.agent.recovery import is_accepted
from nanobot.agent.requester import Requester
from nanobot.agent.subagent import texts
from nanobot.agent.subagent.profiles import TaskProfiles
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.sessions import load_result, prepare_session, provenance_in, row_of_stop
from nanobot.agent.subagent.tasks import Task, TaskOrder, TaskState, TaskStore
from nanobot.agent.subagent.team import TeamService
from nanobot.agent.tools.base import SUBAGENT_SESSION, ToolContext
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.bus.events import Address, InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import BACKGROUND_ORIGINS, Origin, Provenance, least_trusted
from nanobot.utils.aio import finish
from nanobot.utils.database import Database
from nanobot.utils.lease import ProcessLease
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import clip_line, duration

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
MAX_OPEN = 64
"""Running and waiting tasks together."""
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


class _Report(Enum):
    """Who learns of the end, unless a turn waits for it."""

    MESSAGE = "message"
    """The session that asked, in a turn of its own."""
    NOTE = "note"
    """The model, at its next turn: the person stopped the task and knows it from the reply."""
    NONE = "none"


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task that runs in this process."""

    task: Task
    resumed: bool = False
    """Whether a previous process started it."""
    profile: TurnProfile | None = None
    """The profile of its latest turn."""
    work: asyncio.Task[TurnResult] | None = None
    """The wait for a slot, and all its attempts."""
    is_stopped: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the end is saved."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the report was delivered or nanobot shuts down."""
    report: _Report = _Report.MESSAGE
    waiters: list[ToolContext] = field(default_factory=list)
    """The calls that wait for the result."""
    last_action: str = ""
    """The last tool call."""
    last_text: str = ""
    """The reply of the last turn that ended."""

    def emit_progress(self, text: str) -> None:
        """Report progress to the turns that wait."""
        for ctx in self.waiters:
            ctx.emit(f"{self.task.order.label}: {text}")


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
    ) -> None:
        """The database has the tables of tasks and team messages."""
        self._database = database
        self._store = TaskStore(database, lease)
        self._defaults = defaults
        self._bus = bus
        self._context = context
        self._policies = policies
        self._closed = False
        self._slots: defaultdict[int, Slots] = defaultdict(lambda: Slots(defaults.max_concurrent_subagents))
        """By depth: a subagent that waits for its own subagents must not hold the slots they need."""
        self._open_lock = asyncio.Lock()
        """Keeps tasks in the order in which they were requested, and those of previous processes before them."""
        self._runs: dict[str, TaskRun] = {}
        self._jobs: set[asyncio.Task[None]] = set()
        self._swept = False

    def join(self, loop: AgentLoop, deps: TurnDeps, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """Set the loop that runs their turns, and the lookup of a session's goal id; once, before the first turn."""
        self._loop, self._deps, self._clock, self._goal_of = loop, deps, deps.clock, goal_of
        self._team = TeamService(self._database, deps.clock)
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
        if ctx is not None:
            order = await self._order(task, label, ctx)
        else:
            provenance = Provenance.OWNER if origin_channel == "cli" else Provenance.PERSON
            key = f"{origin_channel}:{origin_chat_id}"
            requester = Requester(key, Address(origin_channel, origin_chat_id), provenance)
            order = TaskOrder(task, texts.task_label(task, label), requester, root=key)
        run, before = await self._find_or_open(order)
        if run.task.order is not order:
            return texts.already_running_reply(run.task)
        waits = self._slots[order.depth].is_full(background=order.requester.origin in BACKGROUND_ORIGINS)
        return texts.started_reply(run.task, before if waits else 0)

    async def run_to_end(
        self, task: str, label: str | None = None, *, role: TaskRole = TaskRole.WORKER, ctx: ToolContext
    ) -> Task:
        """Run a task while the caller waits, and return it ended. Joins an equal task of the session that runs, or that
        this very turn asked for before a crash. Raises NanobotError if it cannot start.

        Cancelling stops the subagent. On shutdown it continues at the next start.
        """
        run, _ = await self._find_or_open(replace(await self._order(task, label, ctx), role=role, waited=True))
        run.waiters.append(ctx)
        try:
            while not run.ended.is_set():
                try:
                    async with asyncio.timeout(_PROGRESS_S):
                        await run.ended.wait()
                except TimeoutError:
                    run.emit_progress("still running")
        except asyncio.CancelledError:
            if run.task.order.waited and len(run.waiters) == 1 and not self._is_stopping():
                run.report = _Report.NONE
                await finish(self._stop_runs([run]))
            raise
        finally:
            run.waiters.remove(ctx)
        await self._mark_reported(run.task)
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
        return context if run is None else run.task.order.requester.stand_in(context)

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished tasks of previous processes, of one session or all. Never raises."""
        async with self._open_lock:
            await finish(self._recover(session_key))

    async def _recover(self, session_key: str | None) -> None:
        try:
            tasks = [] if self._closed else await self._store.inherit(session_key)
        except StorageError as error:
            log.warning("unfinished tasks cannot be resumed: %s", error)
            return
        for task in tasks:
            self._launch(TaskRun(task, resumed=True))

    async def stop_for(self, message: InboundMessage) -> list[str]:
        """Stop the subagents of the message's session that the sender may stop. Return their labels; the caller
        reports them.
        """
        runs = [
            run for run in self._open_runs(message.session_key) if run.task.order.requester.is_controlled_by(message)
        ]
        for run in runs:
            run.report = _Report.NOTE
        await self._stop_runs(runs)
        return [run.task.order.label for run in runs]

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop all tasks of this session without reports, including ended ones. Return the labels of the stopped tasks
        and the keys of reports that may still arrive. Raises StorageError.
        """
        await self.recover(session_key)
        runs, stopped = self._runs_of(session_key), self._open_runs(session_key)
        for run in runs:
            run.report = _Report.NONE
        await self._stop_runs(stopped)
        done = await self._store.recent(since=self._clock.now().timestamp() - _LIST_ENDED_S)
        tasks = [task for task in (*done, *(run.task for run in runs)) if task.order.belongs_to(session_key)]
        return [run.task.order.label for run in stopped], list(dict.fromkeys(task.journal_key for task in tasks))

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
        run.report = _Report.NOTE if run.task.order.belongs_to(session_key) else _Report.MESSAGE
        await self._stop_runs([run])
        return True

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """Return the labels of what runs, waits or is about to report, for this session or any, oldest first."""
        runs = self._runs.values() if session_key is None else self._runs_of(session_key)
        return [run.task.order.label for run in runs if not run.task.reported]

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
                async with self._loop.lane(session_key):
                    pass
        except TimeoutError:
            pass

    # --- shutdown

    def close(self) -> None:
        """Start nothing more; call before the loop stops. What has not ended continues at the next start."""
        self._closed = True

    async def release(self) -> None:
        """End what is left, once no turn runs."""
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait([*self._jobs])

    # --- a run, from its start to its report

    async def _order(self, task: str, label: str | None, ctx: ToolContext) -> TaskOrder:
        """Return the order of a call. A subagent's own tasks have the requester of its task."""
        requester, parent = Requester.of(ctx), self._run_of(ctx.session_key)
        order = TaskOrder(task, texts.task_label(task, label), requester, turn_id=ctx.turn_id, quiet=ctx.quiet)
        if parent is not None:
            above = parent.task.order
            asked = replace(above.requester, session_key=ctx.session_key, provenance=requester.provenance)
            return replace(order, requester=asked, root=above.root, depth=above.depth + 1, goal=above.goal)
        goal = await self._goal_of(ctx.session_key) if ctx.origin is Origin.GOAL else ""
        return replace(order, root=ctx.session_key, goal=goal)

    async def _find_or_open(self, order: TaskOrder) -> tuple[TaskRun, int]:
        """Return an equal task or start a new one, with the number of unfinished tasks before it. Raises
        NanobotError.
        """
        async with self._open_lock:
            await finish(self._recover(order.parent))  # a previous process may have left an equal task
            before = len(self._open_runs())
            return await self._find_equal(order) or await self._start(order, before), before

    async def _find_equal(self, order: TaskOrder) -> TaskRun | None:
        """Return an equal task of the same session that runs, or that is done and was asked for by this very turn.
        Reviews that were reported are made again.
        """

        def is_equal(task: Task) -> bool:
            is_valid = task.order.role is TaskRole.WORKER or not task.reported
            is_of_turn = task.state is TaskState.DONE and task.order.turn_id == order.turn_id and is_valid
            return task.order.key == order.key and (not task.state.is_over or is_of_turn)

        if (run := next((run for run in self._runs.values() if is_equal(run.task)), None)) is not None:
            return run
        tasks = await self._store.of_turn(order.turn_id) if order.turn_id else []
        if (task := next(filter(is_equal, tasks), None)) is None:
            return None
        run = TaskRun(task)
        run.ended.set()
        return run

    async def _start(self, order: TaskOrder, unfinished: int) -> TaskRun:
        """Save the task and start it. Raises NanobotError."""
        if self._is_stopping():
            raise NanobotError("nanobot is shutting down; no subagent was started.")
        if order.depth > self._defaults.subagent_depth:
            raise NanobotError("Subagents may not start subagents here. Do the work yourself.")
        if unfinished >= MAX_OPEN:
            raise NanobotError(f"{MAX_OPEN} subagents already run or wait. Do it yourself, or wait until some ended.")
        run = TaskRun(Task(secrets.token_hex(4), order, created_at=self._clock.now().timestamp()))
        self._runs[run.task.id] = run  # before it is saved: a stop must find it
        try:
            await finish(self._store.save(run.task))
        except StorageError as error:
            del self._runs[run.task.id]
            raise StorageError(f"The subagent's task cannot be saved, so it was not started. {error}") from error
        except asyncio.CancelledError:  # the turn was stopped, or nanobot shuts down
            run.is_stopped, run.report = not self._is_stopping(), _Report.NONE
            self._launch(run)
            raise
        self._launch(run)
        return run

    def _launch(self, run: TaskRun) -> None:
        self._runs[run.task.id] = run
        self._team.add(run.task)
        self._in_background(self._run_to_report(run), f"subagent {run.task.id}")
        if not self._swept:
            self._swept = True
            self._in_background(self._sweep(), "old subagents")

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        job = asyncio.create_task(work, name=name)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _run_to_report(self, run: TaskRun) -> None:
        """Run the task from start to report. Never raises."""
        try:
            if not run.task.state.is_over:
                result = await self._work_until_stopped(run)
                if result.later:
                    return
                await self._finish(run, result)
            run.ended.set()
            await self._report(run)
        except Exception:  # the task stays open, and the next start reports it
            log.exception("the end of subagent %s could not be reported", run.task.id)
        finally:
            self._runs.pop(run.task.id, None)
            run.reported.set()

    async def _work_until_stopped(self, run: TaskRun) -> TurnResult:
        run.work = asyncio.create_task(self._work(run), name=f"work of subagent {run.task.id}")
        if run.is_stopped:
            run.work.cancel()
        try:
            await asyncio.wait((run.work,))
        finally:
            if not run.work.done():  # nanobot shuts down
                run.work.cancel()
                await asyncio.wait((run.work,))
        if not run.work.cancelled():
            return run.work.result()
        return TurnResult(TurnOutcome.STOPPED, run.last_text if run.task.began_at else "It had not started.")

    async def _work(self, run: TaskRun) -> TurnResult:
        """Wait for a slot and run the attempts, within the time limit. Cancelling keeps the text of the turn."""
        if run.task.order.goal:
            async with self._open_lock:  # the team then includes all tasks of the same step
                pass
        limit_s = self._defaults.subagent_timeout_s
        is_background = run.task.order.requester.origin in BACKGROUND_ORIGINS
        try:
            async with self._slots[run.task.order.depth].hold(background=is_background), asyncio.timeout(limit_s):
                return await self._run_attempts(run)
        except TimeoutError:
            text = f"{run.last_text}\n\n(Stopped at its time limit of {duration(limit_s)}.)"
            return TurnResult(TurnOutcome.PARTIAL, text.strip())
        except NanobotError as error:
            return TurnResult(TurnOutcome.FAILED, str(error))
        except Exception as error:  # isolate failures of one subagent
            log.exception("subagent %s failed with an internal error", run.task.id)
            return TurnResult(
                TurnOutcome.FAILED, f"Internal error in nanobot: {type(error).__name__}: {error_text(error)}."
            )

    async def _run_attempts(self, run: TaskRun) -> TurnResult:
        """Run attempts, with one retry if the model failed; return the last result."""
        task = run.task
        prompt = texts.task_prompt(task)
        if task.tries >= MAX_ATTEMPTS:
            prompt = texts.retry_prompt(task, "nanobot was interrupted.")
        if task.state is TaskState.WAITING:
            task.state, task.tries, task.began_at = TaskState.RUNNING, 1, self._clock.now().timestamp()
            await self._save(task)
        while True:
            run.profile = await self._profiles.make(task)
            result = await self._run_turn(run, prompt)
            if result.outcome is not TurnOutcome.FAILED or not result.retryable or task.tries >= MAX_ATTEMPTS:
                return result
            task.tries += 1
            await self._save(task)
            prompt = texts.retry_prompt(task, result.text)

    async def _run_turn(self, run: TaskRun, prompt: str) -> TurnResult:
        """Run the turn of an attempt through the loop, or what a previous process left of it."""
        task, requester, sessions, sink = run.task, run.task.order.requester, self._deps.sessions, self._sink(run)
        if run.resumed:
            result = await self._loop.resume(task.session_key, sink, attended=requester.attended)
            max_steps = self._profiles.max_steps(task.order.role)
            result = result or await asyncio.to_thread(load_result, sessions, task, max_steps)
            if result is not None:
                return result
        await asyncio.to_thread(prepare_session, sessions, task)
        message = requester.message(
            prompt, session_key=task.session_key, origin=Origin.SUBAGENT, journal_key=task.attempt_key
        )
        return await self._loop.run_turn(message, sink, attended=requester.attended)

    def _sink(self, run: TaskRun) -> EventSink:
        """Return the event sink of its turns. Approval questions go to the sink of the waiting turn, else to the chat
        of the report.
        """
        task, order = run.task, run.task.order
        to_chat = order.requester.message("", session_key=task.session_key)
        chat = Delivery(self._bus, to_chat, DeliveryPolicy(progress=False))

        def sink(event: TurnEvent) -> None:
            match event:
                case ToolStarted():
                    first = next((str(value) for value in event.arguments.values()), "")
                    run.last_action = clip_line(" ".join(f"{event.name} {first}".split()), 80)
                    run.emit_progress(run.last_action)
                case ApprovalAsked() | ApprovalAnswered():
                    if isinstance(event, ApprovalAsked):
                        event = replace(event, text=f"For my background task ({order.label}):\n{event.text}")
                    waiting_sink = self._loop.sink_of(order.parent, order.turn_id) if order.waited else None
                    (waiting_sink or chat)(event)
                case TurnEnded():
                    run.last_text = event.text
                    if event.cost_usd is not None:
                        task.cost_usd = (task.cost_usd or 0.0) + event.cost_usd

        return sink

    async def _finish(self, run: TaskRun, result: TurnResult) -> None:
        """Save the end. It counts as reported if a turn waits for it, or if nobody is to get a report."""
        task = run.task
        task.state, task.result, task.ended_at = _STATES[result.outcome], result.text, self._clock.now().timestamp()
        task.seen = least_trusted([task.seen, await asyncio.to_thread(provenance_in, self._deps.sessions, task)])
        await self._team.add_unread(task)
        task.reported = bool(run.waiters) or run.report is not _Report.MESSAGE
        await self._save(task)

    # --- the report

    async def _report(self, run: TaskRun) -> None:
        """Report the end once, unless somebody has it already."""
        task = run.task
        if run.resumed and task.order.waited:  # the turn that waited for it is resumed too, and may ask for it again
            async with self._loop.lane(task.order.parent):
                pass
        if task.reported:
            if run.report is _Report.NOTE and not run.waiters:
                await self._note_stop(task)
            return
        is_wanted = ROLES[task.order.role].reports and not task.order.goal  # a goal's turn asks for it again
        if is_wanted and not (run.resumed and await self._is_delivered(task)):
            while run.report is _Report.MESSAGE and not await self._deliver(task):
                if self._is_stopping():
                    return
                await asyncio.sleep(_DELIVERY_RETRY_S)
        await self._mark_reported(task)

    async def _is_delivered(self, task: Task) -> bool:
        """Whether a turn accepted the report, perhaps in a previous process. Never raises."""
        folder, sessions = self._deps.turns_folder, self._deps.sessions
        try:
            return await asyncio.to_thread(is_accepted, folder, sessions, task.order.parent, task.journal_key)
        except StorageError as error:
            log.warning("cannot check whether the report of %s was delivered: %s", task.id, error)
            return False

    async def _deliver(self, task: Task) -> bool:
        """Publish the report on the bus; without a serving loop, run its turn now and wait for its end. Return False if
        that has to be repeated. The journal key makes the report unique.
        """
        message = task.order.requester.message(
            texts.report(task),
            origin=Origin.SUBAGENT,
            provenance=task.seen,
            quiet=task.order.quiet,
            journal_key=task.journal_key,
            fallback_text=texts.plain_report(task),
            scope=task.order.requester.scope.chat,
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
        key = task.order.parent
        try:
            async with self._loop.lane(key), self._deps.sessions.hold(key) as session:
                if (row := row_of_stop(task, session, self._clock)) is not None:
                    await self._deps.sessions.append(session, row)
        except NanobotError as error:
            log.warning("cannot tell the agent that subagent %s was stopped: %s", task.id, error)

    # --- helpers

    def _is_stopping(self) -> bool:
        return self._closed or self._loop.is_stopping

    async def _stop_runs(self, runs: Sequence[TaskRun]) -> None:
        """Stop them and wait until their end is saved."""
        for run in runs:
            run.is_stopped = True
            if run.work is not None:
                run.work.cancel()
        if runs:
            await asyncio.wait([asyncio.ensure_future(run.ended.wait()) for run in runs], timeout=_STOP_TIMEOUT_S)

    async def _mark_reported(self, task: Task) -> None:
        if task.state.is_over and not task.reported:
            task.reported = True
            await self._save(task)

    async def _save(self, task: Task) -> None:
        """Save the task. On a storage failure it goes on."""
        try:
            await finish(self._store.save(task))
        except StorageError as error:
            log.warning("the progress of subagent %s cannot be saved: %s", task.id, error)

    def _run_of(self, session_key: str) -> TaskRun | None:
        """Return the run whose turns are in this session."""
        is_subagent = session_key.startswith(SUBAGENT_SESSION)
        return self._runs.get(session_key.removeprefix(SUBAGENT_SESSION)) if is_subagent else None

    def _runs_of(self, session_key: str) -> list[TaskRun]:
        """Return the runs that this session started."""
        return [run for run in self._runs.values() if run.task.order.belongs_to(session_key)]

    def _open_runs(self, session_key: str | None = None) -> list[TaskRun]:
        """Return the runs that have not ended, of this session or any."""
        runs = self._runs.values() if session_key is None else self._runs_of(session_key)
        return [run for run in runs if not run.task.state.is_over]

    async def _sweep(self) -> None:
        """Delete old tasks, with their sessions and messages."""
        before = self._clock.now().timestamp() - self._defaults.subagent_keep_days * 86_400
        try:
            for session_key in await self._store.sweep(before=before):
                await asyncio.to_thread(self._deps.sessions.delete, session_key)
            await self._team.sweep(before=before)
        except StorageError as error:
            log.warning("old tasks cannot be deleted: %s", error)
