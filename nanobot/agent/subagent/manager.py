"""Subagents: tasks that run beside the conversation, each in a turn of its own, each reported exactly once.

A task is saved before it starts and until its end was reported, so that after a crash another process continues it. Its
turn runs through the agent loop, in a session of its own, with the profile of its role. Stopping cancels that turn.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from nanobot.agent.approval.taint import provenance_of
from nanobot.agent.context import ContextBuilder
from nanobot.agent.delivery import Delivery, DeliveryPolicy
from nanobot.agent.engine.transcript import outcome_of
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
from nanobot.agent.recovery import find_outcomes, is_accepted
from nanobot.agent.subagent.tasks import (
    ROLES,
    SubagentPrompt,
    Task,
    TaskOrder,
    TaskRole,
    format_plain_report,
    format_report,
    task_label,
)
from nanobot.agent.subagent.team import MAX_READ_PER_TURN, Team, TellTool, notes_folder
from nanobot.agent.tools.base import SUBAGENT_SESSION, Effect, ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.work import Requester, WorkState, WorkStore
from nanobot.bus.events import Address, InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import AgentDefaults
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import (
    BACKGROUND_ORIGINS,
    ChatMessage,
    Origin,
    Provenance,
    least_trusted,
    text_of,
)
from nanobot.security.files.paths import PathPolicy
from nanobot.session.manager import SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import timestamp
from nanobot.utils.database import Database
from nanobot.utils.locks import ProcessLease
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import clip_line, duration

log = logging.getLogger(__name__)

MAX_OPEN = 64
"""Running and waiting tasks together."""
EXCLUDED_TOOLS = frozenset({"message", "spawn", "cron", "goal"})
"""Tools that subagents do not have: they talk to nobody and create no work that outlives them."""
_STATES = {
    TurnOutcome.ANSWERED: WorkState.DONE,
    TurnOutcome.PARTIAL: WorkState.LIMIT,
    TurnOutcome.STOPPED: WorkState.STOPPED,
    TurnOutcome.REFUSED: WorkState.FAILED,
    TurnOutcome.FAILED: WorkState.FAILED,
}
_FINAL_ORIGINS = (Origin.CRON, Origin.HEARTBEAT, Origin.API, Origin.GOAL)
"""Origins of turns without a later conversation: subagent results must be part of their answer."""
_PROGRESS_S = 60.0
"""Interval of progress events from a waiting turn, so that the watchdog does not treat it as hung."""
_STOP_TIMEOUT_S = 2.0
_DELIVERY_RETRY_S = 30.0
_LIST_ENDED_S = 86_400.0
_MAX_ENDED_LISTED = 10

Report = Literal["message", "note", "none"]
"""Who learns of an end that no turn waits for: the session that asked, in a turn of its own; only the model, at its
next turn, since the person who stopped the task knows it from the reply; nobody.
"""


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task that this process works on."""

    task: Task
    resumed: bool = False
    """Whether a previous process started it."""
    profile: TurnProfile | None = None
    work: asyncio.Task[TurnResult] | None = None
    """The wait for a slot, and its turn; cancelled to stop it."""
    job: asyncio.Task[None] | None = None
    """The work, the report, and the turn that reports it."""
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once the end is saved."""
    report: Report = "message"
    waiters: list[Callable[[str], None]] = field(default_factory=list)
    """Get the progress, for each call that waits for the result."""
    last_action: str = ""
    last_text: str = ""
    """The reply of its turn, once that has ended."""

    def emit_progress(self, text: str) -> None:
        for emit in self.waiters:
            emit(f"{self.task.order.label}: {text}")


class SubagentManager:
    """The subagents of one bot."""

    def __init__(
        self,
        database: Database,
        lease: ProcessLease,
        defaults: AgentDefaults,
        bus: MessageBus,
        context: ContextBuilder,
        paths: Callable[[], PathPolicy],
    ) -> None:
        """The database has the tables of work and team messages; `paths` returns the current file access."""
        self._database = database
        self._store = WorkStore(Task, database, lease)
        self._defaults = defaults
        self._bus = bus
        self._context = context
        self._paths = paths
        self._closed = False
        self._slots: defaultdict[int, Slots] = defaultdict(lambda: Slots(defaults.max_concurrent_subagents))
        """By depth: a subagent that waits for its own subagents must not hold the slots they need."""
        self._open_lock = asyncio.Lock()
        """Keeps tasks in the order in which they were requested, and those of previous processes before them."""
        self._runs: dict[str, TaskRun] = {}
        self._swept = False

    def join(self, loop: AgentLoop, deps: TurnDeps, goal_of: Callable[[str], Awaitable[str]]) -> None:
        """Set the loop that runs their turns, and the lookup of a session's goal id; once, before the first turn."""
        self._loop, self._deps, self._goal_of = loop, deps, goal_of
        self._team = Team(self._database, deps.sessions, deps.clock, lambda: [run.task for run in self._open_runs()])

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
            order = await self.order(task, label, ctx)
        else:
            provenance = Provenance.OWNER if origin_channel == "cli" else Provenance.PERSON
            key = f"{origin_channel}:{origin_chat_id}"
            requester = Requester(key, Address(origin_channel, origin_chat_id), provenance)
            order = TaskOrder(task, task_label(task, label), requester, root=key)
        task_run = await self._find_or_start(order)
        name = task_run.task.id
        if task_run.task.order is not order:
            return (
                f"A subagent already works on exactly this ({name}: {task_run.task.order.label}), so none was started. "
                "Its result arrives by itself."
            )
        return (
            f"Started a subagent: {order.label} ({name}). Its result arrives by itself as a message in this "
            "conversation, also after your answer. Do not wait for it, look for it or start it again; tell the person "
            "briefly that you are working on it."
        )

    async def order(self, task: str, label: str | None, ctx: ToolContext) -> TaskOrder:
        """Return the order of a call. A subagent's own tasks have the requester of its task."""
        requester, parent = Requester.of(ctx), self._run_in(ctx.session_key)
        order = TaskOrder(task, task_label(task, label), requester, turn_id=ctx.turn_id, quiet=ctx.quiet)
        if parent is not None:
            above = parent.task.order
            requester = replace(above.requester, session_key=ctx.session_key, provenance=requester.provenance)
            return replace(order, requester=requester, root=above.root, depth=above.depth + 1, goal=above.goal)
        goal = await self._goal_of(ctx.session_key) if ctx.origin is Origin.GOAL else ""
        return replace(order, root=ctx.session_key, goal=goal)

    async def run_to_end(self, order: TaskOrder, emit: Callable[[str], None] = lambda text: None) -> Task:
        """Run a task while the caller waits, and return it ended. Joins an equal task of the session that runs, or that
        this very turn asked for before a crash. `emit` gets its progress. Raises NanobotError if it cannot start.

        Cancelling stops the subagent. On shutdown it continues at the next start.
        """
        run = await self._find_or_start(replace(order, waited=True))
        run.waiters.append(emit)
        try:
            while not (await asyncio.wait([run.ended], timeout=_PROGRESS_S))[0]:
                run.emit_progress("still running")
        except asyncio.CancelledError:
            if run.task.order.waited and len(run.waiters) == 1 and not self._is_stopping():
                await finish(self._stop_runs([run], "none"))
            raise
        finally:
            run.waiters.remove(emit)
        await self._mark_reported(run.task)
        return run.task

    def must_wait(self, ctx: ToolContext) -> bool:
        """Whether subagent results must be part of this turn's answer."""
        return ctx.origin in _FINAL_ORIGINS or ctx.quiet or ctx.is_subagent

    # --- for turns and the loop

    def profile_of(self, message: InboundMessage) -> TurnProfile | None:
        """Return the profile of a subagent's turn; None for any other turn."""
        run = self._run_in(message.session_key)
        return run.profile if run is not None else None

    def on_behalf(self, context: ToolContext) -> ToolContext:
        """Return the context of a subagent's turn as that of the turn that started it, to find who may answer its
        questions.
        """
        run = self._run_in(context.session_key)
        return context if run is None else run.task.order.requester.stand_in(context)

    async def recover(self, session_key: str | None = None) -> None:
        """Resume what a previous process left, of one session or of all. Never raises."""
        async with self._open_lock:
            await finish(self._recover(session_key))

    async def _recover(self, session_key: str | None) -> None:
        try:
            for task in [] if self._closed else await self._store.take(session_key):
                self._launch(TaskRun(task, resumed=True))
        except StorageError as error:
            log.warning("unfinished tasks cannot be resumed: %s", error)

    async def stop_for(self, message: InboundMessage) -> list[str]:
        """Stop the subagents of this message's session that its sender may stop. Return their labels."""
        runs = self._open_runs(message.session_key)
        runs = [run for run in runs if run.task.order.requester.is_controlled_by(message)]
        await self._stop_runs(runs, "note")
        return [run.task.order.label for run in runs]

    async def forget_session(self, session_key: str) -> tuple[list[str], list[str]]:
        """Stop all tasks of this session without reports, including ended ones. Return the labels of the stopped tasks
        and the keys of reports that may still arrive. Raises StorageError.
        """
        await self.recover(session_key)
        runs, stopped = self._runs_of(session_key), self._open_runs(session_key)
        for run in runs:
            run.report = "none"
        await self._stop_runs(stopped, "none")
        tasks = await self._recent()
        reports = [task.journal_key for task in tasks if task.order.belongs_to(session_key)]
        return [run.task.order.label for run in stopped], reports

    # --- for people and user interfaces

    async def all_tasks(self) -> list[Task]:
        """Return open and recently ended tasks, oldest first. Raises StorageError."""
        tasks = {task.id: task for task in await self._recent()}
        tasks |= {run.task.id: run.task for run in self._runs.values()}
        older = [task.id for task in tasks.values() if not task.is_open][:-_MAX_ENDED_LISTED]
        return [task for task in tasks.values() if task.id not in older]

    def last_action_of(self, task_id: str) -> str:
        """Return the last tool call of a running task; empty if there is none."""
        return self._runs[task_id].last_action if task_id in self._runs else ""

    async def stop_task(self, task_id: str, session_key: str) -> bool:
        """Stop this task; False if it does not run here. If another session started it, that one gets a report."""
        run = self._runs.get(task_id)
        if run is None or run.task.state.is_over:
            return False
        await self._stop_runs([run], "note" if run.task.order.belongs_to(session_key) else "message")
        return True

    def labels_of(self, session_key: str | None = None) -> list[str]:
        """Return the labels of what runs, waits or is being reported, for this session or any, oldest first."""
        runs = self._runs_of(session_key)
        return [run.task.order.label for run in runs if run.task.is_open or run.report == "message"]

    async def wait_reported(self, session_key: str) -> None:
        """Wait until nothing runs for this session and the turns that report it have ended."""
        while jobs := [run.job for run in self._runs_of(session_key) if run.job is not None]:
            await asyncio.wait(jobs)

    # --- shutdown

    def close(self) -> None:
        """Start nothing more; call before the loop stops. What has not ended continues at the next start."""
        self._closed = True

    async def release(self) -> None:
        """End what is left, once no turn runs."""
        jobs = [run.job for run in self._runs.values() if run.job is not None]
        for job in jobs:
            job.cancel()
        if jobs:
            await asyncio.wait(jobs)

    # --- a run, from its start to its report

    async def _find_or_start(self, order: TaskOrder) -> TaskRun:
        """Return an equal task or start a new one. Raises NanobotError."""
        async with self._open_lock:
            await finish(self._recover(order.root))  # a previous process may have left an equal task
            return await self._find_equal(order) or await self._start(order)

    async def _find_equal(self, order: TaskOrder) -> TaskRun | None:
        """Return an equal task of the same session that runs, or that is done and was asked for by this very turn."""

        def is_equal(task: Task) -> bool:
            is_result = task.state is WorkState.DONE and task.order.turn_id == order.turn_id
            return task.order.key == order.key and (is_result or not task.state.is_over)

        if (run := next((run for run in self._runs.values() if is_equal(run.task)), None)) is not None:
            return run
        tasks = await self._store.find("turn = ?", order.turn_id) if order.turn_id else []
        if (task := next(filter(is_equal, tasks), None)) is None:
            return None
        run = TaskRun(task)
        run.ended.set_result(None)
        return run

    async def _start(self, order: TaskOrder) -> TaskRun:
        """Save the task and start it. Raises NanobotError."""
        if self._is_stopping():
            raise NanobotError("nanobot is shutting down; no subagent was started.")
        if order.depth > self._defaults.subagent_depth:
            raise NanobotError("Subagents may not start subagents here. Do the work yourself.")
        if len(self._open_runs()) >= MAX_OPEN:
            raise NanobotError(f"{MAX_OPEN} subagents already run or wait. Do it yourself, or wait until some ended.")
        run = TaskRun(Task(order=order, created_at=self._deps.clock.now().timestamp()))
        job = self._launch(run)  # before it is saved: a stop must find it; its work waits for the lock
        try:
            await finish(self._store.add(run.task))
        except StorageError as error:
            job.cancel()
            raise StorageError(f"The subagent's task cannot be saved, so it was not started. {error}") from error
        except asyncio.CancelledError:  # the turn was stopped, or nanobot shuts down
            if not self._is_stopping():
                await self._stop_runs([run], "none")
            raise
        return run

    def _launch(self, run: TaskRun) -> asyncio.Task[None]:
        self._runs[run.task.id] = run
        if not run.task.state.is_over:
            run.work = asyncio.create_task(self._work(run), name=f"work of subagent {run.task.id}")
        run.job = asyncio.create_task(self._run_to_report(run), name=f"subagent {run.task.id}")
        return run.job

    async def _run_to_report(self, run: TaskRun) -> None:
        """Run the task from start to report. Never raises."""
        task = run.task
        try:
            if run.work is not None:
                await asyncio.wait((run.work,))
                text = run.last_text if task.began_at else "It had not started."
                is_stopped = run.work.cancelled()
                result = TurnResult(TurnOutcome.STOPPED, text) if is_stopped else run.work.result()
                if result.later:
                    return
                await self._save_end(run, result)
            run.ended.set_result(None)
            await self._report(run)
            await self._sweep()
            await self._bus.wait_settled(task.journal_key)
        except Exception:  # the task stays open, and the next start reports it
            log.exception("the end of subagent %s could not be reported", task.id)
        finally:
            if run.work is not None and not run.work.done():  # nanobot shuts down
                run.work.cancel()
                await asyncio.wait((run.work,))
            self._runs.pop(task.id, None)

    async def _work(self, run: TaskRun) -> TurnResult:
        """Wait for a slot and run the turn, within the time limit. Cancelling keeps the text of the turn."""
        task, limit_s = run.task, self._defaults.subagent_timeout_s
        is_background = task.order.requester.origin in BACKGROUND_ORIGINS
        try:
            async with self._open_lock:  # it is saved then, and its team includes all tasks of the same step
                pass
            async with self._slots[task.order.depth].hold(background=is_background), asyncio.timeout(limit_s):
                if task.state is WorkState.WAITING:
                    task.state, task.began_at = WorkState.RUNNING, self._deps.clock.now().timestamp()
                    await self._save(task)
                run.profile = await self._make_profile(task)
                return await self._run_turn(run)
        except TimeoutError:
            text = f"{run.last_text}\n\n(Stopped at its time limit of {duration(limit_s)}.)"
            return TurnResult(TurnOutcome.PARTIAL, text.strip())
        except NanobotError as error:
            return TurnResult(TurnOutcome.FAILED, str(error))
        except Exception as error:  # isolate failures of one subagent
            log.exception("subagent %s failed with an internal error", task.id)
            reason = f"Internal error in nanobot: {type(error).__name__}: {error_text(error)}."
            return TurnResult(TurnOutcome.FAILED, reason)

    async def _run_turn(self, run: TaskRun) -> TurnResult:
        """Run the task's turn through the loop, or what a previous process left of it."""
        task, requester, sessions, sink = run.task, run.task.order.requester, self._deps.sessions, self._sink(run)
        if run.resumed:
            result = await self._loop.resume(task.session_key, sink, attended=requester.attended)
            if result := result or await asyncio.to_thread(_load_result, sessions, task):
                return result
        await asyncio.to_thread(_prepare_session, sessions, task)
        prompt, key = f"Your task:\n{task.order.text}", task.request_key
        message = requester.message(prompt, session_key=task.session_key, origin=Origin.SUBAGENT, journal_key=key)
        return await self._loop.run_turn(message, sink, attended=requester.attended)

    async def _make_profile(self, task: Task) -> TurnProfile:
        """Return what the loop uses in the task's turn. Raises StorageError."""
        order, scope, notes = task.order, task.order.requester.scope, ""
        steps = min(ROLES[order.role].steps, self._defaults.max_tool_iterations)
        if order.goal:
            notes = await asyncio.to_thread(notes_folder, self._paths(), scope, order.goal, create=True)
        profile = TurnProfile(
            prompt=SubagentPrompt(self._context, self._deps.workspace, order.role, steps, order.in_team),
            tools=await self._tools_of(order),
            max_steps=steps,
            scope=scope,
            is_subagent=True,
            goal_session=order.root if order.requester.origin is Origin.GOAL else "",
            note=lambda message: self._team.note(task, message, notes) if order.goal else "",
            untrusted_rows=lambda: self._team.untrusted_rows(task),
        )
        if order.in_team:
            await asyncio.to_thread(self._team.begin_turn, task)
            profile.waiting = partial(self._team.take, task)
            profile.max_joining, profile.joins_at_start = MAX_READ_PER_TURN, True
        return profile

    async def _tools_of(self, order: TaskOrder) -> ToolRegistry:
        """Return the main agent's present tools, as far as this role may use them."""
        main, may_spawn = self._deps.tools, order.depth < self._defaults.subagent_depth
        await main.refresh()
        tools, names = ToolRegistry(), ROLES[order.role].tools
        tools.reads_back = main.reads_back
        for tool in main:
            if names is not None:
                is_allowed = tool.name in names and tool.effect is Effect.READ
            else:
                is_allowed = tool.name not in EXCLUDED_TOOLS or (tool.name == "spawn" and may_spawn)
            if is_allowed:
                tools.register(tool)
        if order.in_team:
            tools.register(TellTool(self._team))
        return tools

    def _sink(self, run: TaskRun) -> EventSink:
        """Return the event sink of its turn. Approval questions go to the sink of the waiting turn, else to the chat
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

    async def _save_end(self, run: TaskRun, result: TurnResult) -> None:
        """Save the end. It counts as reported if a turn waits for it, or if nobody is to get a report."""
        task = run.task
        task.state, task.result = _STATES[result.outcome], result.text
        task.ended_at = self._deps.clock.now().timestamp()
        task.seen = least_trusted([task.seen, await asyncio.to_thread(_provenance_in, self._deps.sessions, task)])
        await self._team.add_unread(task)
        task.reported = bool(run.waiters) or run.report != "message"
        await self._save(task)

    # --- the report

    async def _report(self, run: TaskRun) -> None:
        """Report the end once, unless somebody has it already."""
        task, order = run.task, run.task.order
        if run.resumed and order.waited:  # the turn that waited for it is resumed too, and may ask for it again
            async with self._loop.lane(order.parent):
                pass
        if run.report == "note" and not run.waiters:
            await self._note_stop(task)
        # a goal's turn asks for the result again, as planner and reviewer are asked again
        if not task.reported and order.role is TaskRole.WORKER and not order.goal:
            while run.report == "message" and not await self._deliver(task, is_repeated=run.resumed):
                if self._is_stopping():
                    return
                await asyncio.sleep(_DELIVERY_RETRY_S)
        await self._mark_reported(task)

    async def _deliver(self, task: Task, *, is_repeated: bool) -> bool:
        """Publish the report on the bus; without a serving loop, run its turn now and wait for its end. Return False if
        that has to be repeated. The journal key makes the report unique; `is_repeated`: a turn may have accepted it.
        """
        order, requester, deps = task.order, task.order.requester, self._deps
        message = requester.message(
            format_report(task),
            origin=Origin.SUBAGENT,
            provenance=task.seen,
            quiet=order.quiet,
            journal_key=task.journal_key,
            fallback_text=format_plain_report(task),
            scope=requester.scope.chat,
        )
        try:
            if is_repeated and await asyncio.to_thread(
                is_accepted, deps.turns_folder, deps.sessions, order.parent, task.journal_key
            ):
                return True
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
        text = f"[The person stopped the subagent that worked on: {task.order.label}. It will not report.]"
        row: ChatMessage = {
            "role": "user",
            "content": text,
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(self._deps.clock),
        }
        key = task.order.parent
        try:
            async with self._loop.lane(key), self._deps.sessions.hold(key) as session:
                if session.last_message is not None and text_of(session.last_message["content"]) != text:
                    await self._deps.sessions.append(session, row)
        except NanobotError as error:
            log.warning("cannot tell the agent that subagent %s was stopped: %s", task.id, error)

    # --- helpers

    def _is_stopping(self) -> bool:
        return self._closed or self._loop.is_stopping

    async def _stop_runs(self, runs: Sequence[TaskRun], report: Report) -> None:
        """Stop them and wait until their end is saved."""
        for run in runs:
            run.report = report
            if run.work is not None:
                run.work.cancel()
        if runs:
            await asyncio.wait([run.ended for run in runs], timeout=_STOP_TIMEOUT_S)

    async def _mark_reported(self, task: Task) -> None:
        if not task.reported:
            task.reported = True
            await self._save(task)

    async def _save(self, task: Task) -> None:
        """Save the task. On a storage failure it goes on."""
        try:
            await finish(self._store.save(task))
        except StorageError as error:
            log.warning("the progress of subagent %s cannot be saved: %s", task.id, error)

    async def _recent(self) -> list[Task]:
        """Return the open tasks of all processes and those that ended in the last day, oldest first."""
        since = self._deps.clock.now().timestamp() - _LIST_ENDED_S
        return await self._store.find("is_open OR ended_at > ?", since)

    def _run_in(self, session_key: str) -> TaskRun | None:
        """Return the run whose turns are in this session."""
        is_subagent = session_key.startswith(SUBAGENT_SESSION)
        return self._runs.get(session_key.removeprefix(SUBAGENT_SESSION)) if is_subagent else None

    def _runs_of(self, session_key: str | None) -> list[TaskRun]:
        """Return the runs that this session started, or all."""
        runs = self._runs.values()
        return [run for run in runs if session_key is None or run.task.order.belongs_to(session_key)]

    def _open_runs(self, session_key: str | None = None) -> list[TaskRun]:
        """Return the runs of this session, or all, that have not ended."""
        return [run for run in self._runs_of(session_key) if not run.task.state.is_over]

    async def _sweep(self) -> None:
        """Delete old tasks, with their sessions and messages; once in each process."""
        if self._swept:
            return
        self._swept = True
        before = self._deps.clock.now().timestamp() - self._defaults.subagent_keep_days * 86_400
        try:
            for task in await self._store.delete("NOT is_open AND ended_at < ?", before):
                await asyncio.to_thread(self._deps.sessions.delete, task.session_key)
            await self._team.sweep(before=before)
        except StorageError as error:
            log.warning("old tasks cannot be deleted: %s", error)


def _prepare_session(sessions: SessionManager, task: Task) -> None:
    """Create the subagent's session with the parent's model. Blocks; raises StorageError."""
    session, order = sessions.get_or_create(task.session_key), task.order
    if "subagent" in session.metadata:
        return
    parent_model = sessions.get_or_create(order.parent).metadata.get("model")
    scope = order.requester.scope.chat
    session.metadata["subagent"] = {"label": order.label, "parent": order.parent, "scope": scope}
    if parent_model is not None:
        session.metadata["model"] = parent_model
    sessions.save(session)


def _load_result(sessions: SessionManager, task: Task) -> TurnResult | None:
    """Return the result of the turn if a crash came before the task had it. Blocks; raises StorageError."""
    rows = sessions.get_or_create(task.session_key).since(0)
    ended = find_outcomes(rows, {task.request_key}).get(task.request_key)
    if ended is None or not ended.answer:
        return None
    row = [row for row in rows if row.get("turn_id") == ended.turn_id and row["role"] == "assistant"][-1]
    retryable = row.get("retryable", True)
    return TurnResult(outcome_of(row), ended.answer, row.get("error"), ended.turn_id, retryable=retryable)


def _provenance_in(sessions: SessionManager, task: Task) -> Provenance:
    """Return the least trusted provenance in the subagent's session. Blocks; never raises."""
    try:
        rows = sessions.get_or_create(task.session_key).since(0)
    except StorageError:
        return Provenance.WEB  # unknown, so the least trusted
    return least_trusted(provenance_of(row, task.session_key) for row in rows)
