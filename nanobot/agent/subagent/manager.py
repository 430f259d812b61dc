"""Subagents: tasks that run beside the conversation, each in a turn of its own, each reported exactly once.

A task is saved before it starts and until its end was reported, so that after a crash another process continues it.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from nanobot.agent.events import ToolStarted, TurnEvent, TurnOutcome, TurnResult
from nanobot.agent.subagent import team_texts, texts
from nanobot.agent.subagent.reports import TaskReports
from nanobot.agent.subagent.roles import ROLES, TaskRole
from nanobot.agent.subagent.task_run import TaskRequest, TaskRun
from nanobot.agent.subagent.tasks import ProcessLease, Task, TaskState, TaskStore
from nanobot.agent.subagent.team import TeamService
from nanobot.agent.subagent.turns import TaskTurns
from nanobot.agent.tools.base import SUBAGENT_SESSION, ToolContext, ToolResult
from nanobot.bus.events import Address
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.storage_error import error_text, storage_error
from nanobot.utils.text import clip_line, duration

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
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


@dataclass(frozen=True, slots=True)
class SubagentPolicy:
    """Limits of subagents."""

    max_concurrent: int = 4
    timeout_s: float = 1800.0
    depth: int = 1
    """2 if subagents may start subagents, else 1."""
    retry_delay_s: float = 1.0
    """Delay before retrying a task whose model failed."""
    max_open: int = 64
    """Running and waiting tasks together."""
    keep_days: int = 30


class SubagentManager:
    """The subagents of one bot."""

    def __init__(
        self,
        store: TaskStore,
        turns: TaskTurns,
        reports: TaskReports,
        team: TeamService,
        clock: Clock,
        policy: SubagentPolicy,
        is_stopping: Callable[[], bool],
    ) -> None:
        """`is_stopping`: whether nanobot is shutting down; interrupted tasks then continue at the next start."""
        self._store = store
        self._turns = turns
        self._reports = reports
        self._team = team
        self._clock = clock
        self._policy = policy
        self._is_shutting_down = is_stopping
        self._closed = False
        self._lease = ProcessLease(store)
        self._slots = asyncio.Semaphore(self._policy.max_concurrent)
        self._recover_lock = asyncio.Lock()
        self._open_lock = asyncio.Lock()
        """Keeps tasks in the order in which they were requested."""
        self._runs: dict[str, TaskRun] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._swept = False

    # --- the tool

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
        wanted_task.role = role
        wanted_task.waited = True
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

    # --- for the loop, commands and user interfaces

    async def recover(self, session_key: str | None = None) -> None:
        """Resume the unfinished tasks of previous processes, of one session or all. Never raises."""
        async with self._recover_lock:  # a second caller must see what the first one resumed
            await finish(self._recover(session_key))
        self._sweep_once()

    async def _recover(self, session_key: str | None) -> None:
        try:
            if self._closed or not await asyncio.to_thread(lambda: self._store.exists):
                return
            tasks = await asyncio.to_thread(self._lease.inherit, session_key)
        except OSError as error:
            log.warning("unfinished tasks cannot be resumed: %s", error)
            return
        for task in tasks:
            self._run_in_background(TaskRun(task, resumed=True))

    def tasks_of(self, session_key: str | None = None) -> list[Task]:
        """Return what runs, waits or is about to report for this session, or any, oldest first."""
        tasks = [run.task for run in self._runs.values() if not run.result_taken]
        return tasks if session_key is None else [task for task in tasks if _belongs_to(task, session_key)]

    def last_action_of(self, task_id: str) -> str:
        """Return the last tool call of a running task; empty if there is none."""
        run = self._runs.get(task_id)
        return run.last_action if run is not None else ""

    async def all_tasks(self) -> list[Task]:
        """Return open and recently ended tasks, oldest first. Raises StorageError."""
        since = self._clock.now().timestamp() - _LIST_ENDED_S
        try:
            open_tasks = await asyncio.to_thread(self._store.open_tasks)  # first: one that moves is in both
            done = await asyncio.to_thread(lambda: self._store.done_tasks(since=since))
        except OSError as error:
            raise storage_error("The tasks cannot be read", error) from error
        running = {run.task.id: run.task for run in self._runs.values()}
        listed = {task.id: task for task in (*open_tasks, *done[-_MAX_ENDED_LISTED:])} | running
        return sorted(listed.values(), key=lambda task: task.created_at)

    async def stop_for(self, session_key: str, may: Callable[[Task], bool]) -> list[Task]:
        """Stop the tasks of this session that `may` allows, and return them. The caller reports it."""
        runs = [run for run in self._runs.values() if _belongs_to(run.task, session_key) and may(run.task)]
        runs = [run for run in runs if not run.task.state.is_over]
        for run in runs:
            run.answered_directly = True
        await self._stop_runs(runs)
        return [run.task for run in runs]

    async def forget_session(self, session_key: str) -> tuple[list[Task], list[str]]:
        """Stop all tasks of this session without reports, including ended ones. Return the stopped tasks and the keys
        of reports that may still arrive. Raises StorageError.
        """
        await self.recover(session_key)
        runs = [run for run in self._runs.values() if _belongs_to(run.task, session_key)]
        stopped = [run for run in runs if not run.task.state.is_over]
        for run in runs:
            run.answered_directly = run.forgotten = True
        await self._stop_runs(stopped)
        since = self._clock.now().timestamp() - _LIST_ENDED_S
        try:
            done = await asyncio.to_thread(lambda: self._store.done_tasks(since=since))
        except OSError as error:
            raise storage_error("The tasks cannot be read", error) from error
        keys = [task.journal_key for task in (*done, *(run.task for run in runs)) if _belongs_to(task, session_key)]
        return [run.task for run in stopped], list(dict.fromkeys(keys))

    async def stop_task(self, task_id: str, session_key: str) -> bool:
        """Stop this task; False if it does not run here. If another session started it, that one gets a report."""
        run = self._runs.get(task_id)
        if run is None or run.task.state.is_over:
            return False
        run.answered_directly = _belongs_to(run.task, session_key)
        await self._stop_runs([run])
        return True

    async def wait_reported(self, session_key: str) -> None:
        """Wait until nothing of this session runs, waits or is about to report."""
        while runs := [run for run in self._runs.values() if _belongs_to(run.task, session_key)]:
            await asyncio.wait([asyncio.ensure_future(run.reported.wait()) for run in runs])

    async def close(self) -> None:
        """Interrupt what runs. It continues at the next start."""
        self._closed = True
        working = [run for run in self._runs.values() if not run.ended.is_set()]
        for run in working:
            run.end(TaskRequest.LATER)
        if working:
            await asyncio.wait([asyncio.ensure_future(run.reported.wait()) for run in working], timeout=_STOP_TIMEOUT_S)

    async def release(self) -> None:
        """Mark results that waiting turns stored as reported, and release the tasks, once no turn runs."""
        result_taken = [run.task for run in self._runs.values() if run.result_taken]
        for job in self._background:
            job.cancel()
        if self._background:
            await asyncio.wait([*self._background])
        for task in result_taken:
            if not task.reported and await self._reports.is_result_stored(task):
                await self._mark_reported(task)
        await asyncio.to_thread(self._lease.end)

    # --- a run, from its start to its report

    async def _find_or_open(self, wanted_task: Task) -> tuple[TaskRun, int]:
        """Return an equal task or start a new one, with the number of unfinished tasks before it. Raises
        NanobotError.
        """
        async with self._open_lock:
            await self.recover(wanted_task.parent)  # a previous process may have left an equal task
            before = sum(not run.task.state.is_over for run in self._runs.values())
            return self._find_equal(wanted_task) or await self._start(wanted_task), before

    async def _start(self, task: Task) -> TaskRun:
        """Save the task and start it. Raises NanobotError."""
        if self._is_stopping():
            raise NanobotError("nanobot is shutting down; no subagent was started.")
        if task.depth > self._policy.depth:
            raise NanobotError("Subagents may not start subagents here. Do the work yourself.")
        if sum(not run.task.state.is_over for run in self._runs.values()) >= self._policy.max_open:
            raise NanobotError(
                f"{self._policy.max_open} subagents already run or wait. Do it yourself, or wait until some ended."
            )
        task.id, task.life = secrets.token_hex(4), self._lease.name
        task.created_at = self._clock.now().timestamp()
        if task.origin is Origin.GOAL:
            task.goal = task.goal or await self._team.goal_of(task.root)
        run = TaskRun(task)
        self._runs[task.id] = run  # before it is saved: an equal request must find it
        try:
            await finish(asyncio.to_thread(self._save_new, task))
        except OSError as error:
            del self._runs[task.id]
            raise storage_error("The subagent's task cannot be saved, so it was not started", error) from error
        except asyncio.CancelledError:  # the turn was stopped, or nanobot shuts down
            run.end(TaskRequest.LATER if self._is_stopping() else TaskRequest.STOP)
            run.answered_directly = True
            self._run_in_background(run)
            raise
        self._run_in_background(run)
        self._sweep_once()
        return run

    def _save_new(self, task: Task) -> None:
        self._lease.begin()
        self._store.save(task)

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
        except Exception:  # the task stays on disk, and the next start reports it
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
        if run.request is not TaskRequest.LATER:
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
        deadline = asyncio.get_running_loop().time() + self._policy.timeout_s
        while True:
            result = await self._run_attempt(run, prompt, deadline)
            task.tokens += result.usage.get("prompt_tokens", 0) + result.usage.get("completion_tokens", 0)
            if result.cost_usd is not None:
                task.cost_usd = (task.cost_usd or 0.0) + result.cost_usd
            if run.request is not None or run.timed_out or not _is_retryable(result) or task.tries >= MAX_ATTEMPTS:
                return result
            task.tries += 1
            await self._save(task)
            if not await run.wait_unless_ended(asyncio.sleep(self._policy.retry_delay_s)):
                return result
            prompt = texts.retry_prompt(task, result.text)

    async def _run_attempt(self, run: TaskRun, prompt: str, deadline: float) -> TurnResult:
        def watch(event: TurnEvent) -> None:
            if isinstance(event, ToolStarted):
                first = next((str(value) for value in event.arguments.values()), "")
                run.last_action = clip_line(" ".join(f"{event.name} {first}".split()), 80)
                for report_progress in run.watchers:
                    report_progress(f"{run.task.label}: {run.last_action}")

        attempt = run.attempt = await self._turns.begin(run.task, prompt, watch)
        if run.request is not None:
            attempt.end(later=run.request is TaskRequest.LATER)
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        await asyncio.wait([attempt.done], timeout=left)
        if not attempt.done.done():
            run.timed_out = True
            attempt.end(later=False)
            await asyncio.wait([attempt.done])
        run.attempt = None
        if attempt.done.cancelled():
            return TurnResult(TurnOutcome.STOPPED, "")
        return attempt.done.result()

    async def _finish(self, run: TaskRun, result: TurnResult) -> None:
        task = run.task
        task.state, task.result = _STATES[result.outcome], result.text
        if run.timed_out and task.state is TaskState.STOPPED:
            task.state = TaskState.LIMIT
            limit = duration(self._policy.timeout_s)
            task.result = f"{result.text}\n\n(Stopped at its time limit of {limit}.)".strip()
        task.ended_at = self._clock.now().timestamp()
        unread = await self._team.unread(task)
        task.result = team_texts.add_unread(task.result, unread)
        task.seen = least_trusted(
            [task.seen, await self._turns.read_provenance(task), *(message.provenance for message in unread)]
        )
        await self._save(task)

    async def _report(self, run: TaskRun) -> None:
        """Report the end once, unless somebody has it already."""
        task = run.task
        if run.waiters or (run.resumed and task.waited):
            await self._wait_for_result_taken(run)
        if task.reported:
            return
        if run.result_taken or run.forgotten or not ROLES[task.role].reports:
            await self._mark_reported(task)
            return
        if run.answered_directly:
            await self._mark_reported(task)
            self._in_background(self._reports.note_stop(task), f"note of {task.id}")
            return
        if not (run.resumed and await self._reports.is_delivered(task)):
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
            await self._reports.wait_for_lane(run.task.parent)
        while run.waiters:
            await run.waiters_served.wait()
            await self._reports.wait_idle(run.task.parent)
        if not run.result_taken and run.resumed:
            run.result_taken = await self._reports.is_result_stored(run.task)

    async def _deliver(self, task: Task) -> bool:
        if self._is_stopping():
            return False
        try:
            return await self._reports.deliver(task)
        except StorageError as error:
            log.warning("the report of subagent %s is delayed: %s", task.id, error)
            return False

    # --- helpers

    def _is_stopping(self) -> bool:
        return self._closed or self._is_shutting_down()

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
            run.end(TaskRequest.STOP)
        if runs:
            events = [run.reported if run.answered_directly and not run.waiters else run.ended for run in runs]
            await asyncio.wait([asyncio.ensure_future(event.wait()) for event in events], timeout=_STOP_TIMEOUT_S)

    async def _mark_reported(self, task: Task) -> None:
        """Mark the end as reported."""
        task.reported = task.state.is_over
        await self._save(task)

    async def _save(self, task: Task) -> None:
        """Save the task. On a storage failure it goes on."""
        try:
            await finish(asyncio.to_thread(self._store.save, task))
        except OSError as error:
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

    def _parent_of(self, ctx: ToolContext | None) -> Task | None:
        """Return the task of the calling subagent, if one calls."""
        if ctx is None or not ctx.is_subagent:
            return None
        run = self._runs.get(ctx.session_key.removeprefix(SUBAGENT_SESSION))
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
        before = self._clock.now().timestamp() - self._policy.keep_days * 86_400
        try:
            deleted = await asyncio.to_thread(lambda: self._store.sweep(before=before))
        except OSError as error:
            log.warning("old tasks cannot be deleted: %s", error)
            return
        if deleted:
            await self._turns.forget(deleted)
        await self._team.sweep(before=before)


def _is_retryable(result: TurnResult) -> bool:
    return result.outcome is TurnOutcome.FAILED and result.retryable


def _belongs_to(task: Task, session_key: str) -> bool:
    return session_key in (task.parent, task.root)


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
    new_task = Task(
        "",
        task,
        label,
        ctx.session_key,
        ctx.address,
        provenance,
        ctx.origin,
        ctx.sender_id,
        ctx.attended,
        ctx.scope,
        ctx.turn_id,
        ctx.session_key,
        quiet=ctx.quiet,
    )
    if parent_task is not None:
        new_task.origin, new_task.sender_id, new_task.attended = (
            parent_task.origin,
            parent_task.sender_id,
            parent_task.attended,
        )
        new_task.root, new_task.depth, new_task.goal = parent_task.root, parent_task.depth + 1, parent_task.goal
    return new_task
