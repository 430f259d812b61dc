"""Subagents: tasks that are worked on beside the conversation, each in a turn of its own, each reported once.

Reading order: tasks (what is on the disk) -> subagent_ports -> courses -> subagent -> task_words. A task is written
down before it begins and until its end was told, so that the process may die anywhere in between: the next one goes on
with it. How its state came about is counted here by code. How a turn runs and how a report reaches a session stand
behind two ports.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from nanobot.agent import task_words, team_words
from nanobot.agent.courses import Course, Wants
from nanobot.agent.roles import SHEETS, Role
from nanobot.agent.subagent_ports import Reports, SubagentPolicy, Team, Turns
from nanobot.agent.tasks import Life, Task, TaskState, TaskStore
from nanobot.agent.tools.base import SUBAGENT_SESSION, ToolContext, ToolResult
from nanobot.agent.turn import ToolStarted, TurnEvent, TurnOutcome, TurnResult
from nanobot.bus.events import Address
from nanobot.errors import BudgetExceededError, NanobotError, StorageError
from nanobot.messages.types import Origin, Provenance, is_outside, least_trusted
from nanobot.providers.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    QuotaExceededError,
)
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.refusals import refusal
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

MOST_TRIES = 2
_FOR_GOOD = frozenset(
    kind.__name__
    for kind in (
        AuthenticationError,
        QuotaExceededError,
        ModelNotFoundError,
        InvalidRequestError,
        BudgetExceededError,
    )
)
"""Failures that a second try does not mend."""
_STATES = {
    TurnOutcome.ANSWERED: TaskState.DONE,
    TurnOutcome.PARTIAL: TaskState.LIMIT,
    TurnOutcome.STOPPED: TaskState.STOPPED,
    TurnOutcome.REFUSED: TaskState.FAILED,
    TurnOutcome.FAILED: TaskState.FAILED,
}
_NOBODY_LATER = (Origin.CRON, Origin.HEARTBEAT, Origin.API, Origin.GOAL)
"""Why turns exist whose end is the last that is heard of them: what their subagents find has to be part of it."""
_SIGN_S = 60.0
"""A turn that waits says at least so often that it does."""
_STOPS_S = 2.0
_DISK_AGAIN_S = 30.0
_LISTED_S = 86_400.0
_MOST_LISTED = 10


class SubagentManager:
    """The subagents of one bot."""

    def __init__(
        self,
        store: TaskStore,
        turns: Turns,
        reports: Reports,
        team: Team,
        clock: Clock,
        policy: SubagentPolicy | None = None,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        """`ending`: whether nanobot is about to end, so that what is cut off goes on at the next start."""
        self._store = store
        self._turns = turns
        self._reports = reports
        self._team = team
        self._clock = clock
        self._policy = policy or SubagentPolicy()
        self._is_ending = ending
        self._closed = False
        self._life = Life(store)
        self._places = asyncio.Semaphore(self._policy.most_at_once)
        self._taking = asyncio.Lock()
        self._opening = asyncio.Lock()
        """So that they come to the line in the order in which they were asked for."""
        self._courses: dict[str, Course] = {}
        self._jobs: set[asyncio.Task[None]] = set()
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
        """Have a task done in the background; what the agent is told. Its report goes to the session of `ctx`, else to
        that of the channel and chat. Raises NanobotError where it cannot begin.
        """
        asked = _task_of(task, label, ctx, Address(origin_channel, origin_chat_id), self._parent_of(ctx))
        course, before = await self._found_or_opened(asked)
        if course.task is not asked:
            return task_words.is_running_already(course.task)
        return task_words.started(asked, before if self._places.locked() else 0)

    async def run(self, task: str, label: str | None = None, *, ctx: ToolContext) -> ToolResult:
        """As `see_through`, for a worker: its result in words."""
        ended = await self.see_through(task, label, ctx=ctx)
        failed = ended.state in (TaskState.FAILED, TaskState.STOPPED)
        return ToolResult(task_words.inline(ended), error=failed, provenance=ended.seen)

    async def see_through(
        self, task: str, label: str | None = None, *, role: Role = Role.WORKER, ctx: ToolContext
    ) -> Task:
        """Have it done while the caller waits; how it ended. One like it that runs is waited for instead. Raises
        NanobotError where it cannot begin.

        Cancelled, it stops the subagent; where nanobot ends, that goes on at the next start.
        """
        asker = self._parent_of(ctx)
        asked = _task_of(task, label, ctx, ctx.address, asker)
        asked.role = role
        asked.waited = True
        course, _ = await self._found_or_opened(asked)
        course.waiters += 1
        course.served.clear()
        course.watchers.append(ctx.emit)
        try:
            await self._without_a_place(asker, self._until_ended(course))
        except asyncio.CancelledError:
            if course.task.waited and course.waiters == 1 and not self._ends():
                course.said_aside = True
                await finish(self._stopped([course]))
                await finish(self._filed(course.task))
            raise
        finally:
            course.waiters -= 1
            course.watchers.remove(ctx.emit)
            if not course.waiters:
                course.served.set()
        course.given = True
        return course.task

    def must_wait(self, ctx: ToolContext) -> bool:
        """Whether this turn's end is the last that anybody hears of it."""
        return ctx.origin in _NOBODY_LATER or ctx.quiet or ctx.is_of_subagent

    # --- for the loop, commands and screens

    async def take_up(self, session_key: str | None = None) -> None:
        """Go on with what lives that ended have left, of one session or of all. Never raises."""
        async with self._taking:  # who asks second must find what the first one has taken
            await finish(self._take_up(session_key))
        self._sweep_once()

    async def _take_up(self, session_key: str | None) -> None:
        try:
            if self._closed or not await asyncio.to_thread(lambda: self._store.is_there):
                return
            tasks = await asyncio.to_thread(self._life.inherit, session_key)
        except OSError as error:
            log.warning("the tasks of an earlier life cannot be taken up: %s", error)
            return
        for task in tasks:
            self._begin(Course(task, taken_up=True))

    def tasks_of(self, session_key: str | None = None) -> list[Task]:
        """What runs and waits for this session, or for any, and what is about to be reported to it, oldest first."""
        tasks = [one.task for one in self._courses.values() if not one.given]
        return tasks if session_key is None else [task for task in tasks if _is_of(task, session_key)]

    def doing(self, task_id: str) -> str:
        """The tool that a subagent used last."""
        course = self._courses.get(task_id)
        return course.doing if course is not None else ""

    async def all_tasks(self) -> list[Task]:
        """The open tasks, and those that ended of late, oldest first. Raises StorageError."""
        since = self._clock.now().timestamp() - _LISTED_S
        try:
            done = await asyncio.to_thread(lambda: self._store.done_tasks(since=since))
            known = await asyncio.to_thread(self._store.open_tasks)
        except OSError as error:
            raise refusal("The tasks cannot be read", error) from error
        here = {one.task.id: one.task for one in self._courses.values()}
        listed = {task.id: task for task in (*done[-_MOST_LISTED:], *known)} | here
        return sorted(listed.values(), key=lambda task: task.created_at)

    async def stop_of(self, session_key: str, may: Callable[[Task], bool]) -> list[Task]:
        """Stop what runs and waits for this session, as far as one may; what was stopped. The caller tells of it."""
        courses = [one for one in self._courses.values() if _is_of(one.task, session_key) and may(one.task)]
        courses = [one for one in courses if not one.task.state.is_over]
        for course in courses:
            course.said_aside = True
        await self._stopped(courses)
        return [one.task for one in courses]

    async def forget_of(self, session_key: str) -> tuple[list[Task], list[str]]:
        """Stop all that works for this session, and tell of none, also of what has ended. Those that were stopped, and
        the keys of reports that may be on their way. Raises StorageError.
        """
        await self.take_up(session_key)
        courses = [one for one in self._courses.values() if _is_of(one.task, session_key)]
        stopped = [one for one in courses if not one.task.state.is_over]
        for course in courses:
            course.said_aside = course.forgotten = True
        await self._stopped(stopped)
        since = self._clock.now().timestamp() - _LISTED_S
        try:
            done = await asyncio.to_thread(lambda: self._store.done_tasks(since=since))
        except OSError as error:
            raise refusal("The tasks cannot be read", error) from error
        keys = [task.journal_key for task in (*done, *(one.task for one in courses)) if _is_of(task, session_key)]
        return [one.task for one in stopped], list(dict.fromkeys(keys))

    async def stop_task(self, task_id: str, session_key: str) -> bool:
        """Stop this one; False where it does not run here. Whoever asked for it in another session gets a report."""
        course = self._courses.get(task_id)
        if course is None or course.task.state.is_over:
            return False
        course.said_aside = _is_of(course.task, session_key)
        await self._stopped([course])
        return True

    async def all_told(self, session_key: str) -> None:
        """Wait until nothing of this session runs, waits, or is about to be reported."""
        while courses := [one for one in self._courses.values() if _is_of(one.task, session_key)]:
            await asyncio.wait([asyncio.ensure_future(one.told.wait()) for one in courses])

    async def close(self) -> None:
        """nanobot ends: what runs is cut off, and goes on at the next start."""
        self._closed = True
        working = [one for one in self._courses.values() if not one.ended.is_set()]
        for course in working:
            course.end(Wants.LATER)
        if working:
            await asyncio.wait([asyncio.ensure_future(one.told.wait()) for one in working], timeout=_STOPS_S)

    async def let_go(self) -> None:
        """The last word, once no turn runs any more: what a turn waited for and has in its rows is told."""
        given = [one.task for one in self._courses.values() if one.given]
        for job in self._jobs:
            job.cancel()
        if self._jobs:
            await asyncio.wait([*self._jobs])
        for task in given:
            if not task.reported and await self._reports.was_given(task):
                await self._filed(task)
        await asyncio.to_thread(self._life.end)

    # --- a course, from its beginning to its report

    async def _found_or_opened(self, asked: Task) -> tuple[Course, int]:
        """One like it, else a new one; and how many were on their way. Raises NanobotError."""
        async with self._opening:
            await self.take_up(asked.parent)  # a life that ended may have left one like it
            before = sum(not one.task.state.is_over for one in self._courses.values())
            return self._like(asked) or await self._open(asked), before

    async def _open(self, task: Task) -> Course:
        """Write it down and let it begin. Raises NanobotError."""
        if self._ends():
            raise NanobotError("nanobot is stopping; no subagent is started any more.")
        if task.depth > self._policy.depth:
            raise NanobotError("A subagent may not start subagents here. Do the work yourself.")
        if sum(not one.task.state.is_over for one in self._courses.values()) >= self._policy.most_open:
            raise NanobotError(
                f"{self._policy.most_open} subagents run or wait already. Do it yourself, or wait for some to end."
            )
        task.id, task.life = secrets.token_hex(4), self._life.name
        task.created_at = self._clock.now().timestamp()
        if task.origin is Origin.GOAL:
            task.goal = task.goal or await self._team.goal_of(task.root)
        course = Course(task)
        self._courses[task.id] = course  # before it is on the disk: a second one like it must find it
        try:
            await finish(asyncio.to_thread(self._written_down, task))
        except OSError as error:
            del self._courses[task.id]
            raise refusal("The task of the subagent cannot be written down, so none was started", error) from error
        except asyncio.CancelledError:  # in this very moment the turn was stopped, or nanobot ends
            course.end(Wants.LATER if self._ends() else Wants.STOP)
            course.said_aside = True
            self._begin(course)
            raise
        self._begin(course)
        self._sweep_once()
        return course

    def _written_down(self, task: Task) -> None:
        self._life.begin()
        self._store.save(task)

    def _begin(self, course: Course) -> None:
        self._courses[course.task.id] = course
        self._team.joins(course.task)
        self._in_background(self._see_through(course), f"subagent {course.task.id}")

    async def _see_through(self, course: Course) -> None:
        """Its whole way. Never raises."""
        try:
            if not course.task.state.is_over:
                await self._work(course)
            if course.task.state.is_over:
                course.ended.set()
                await self._tell(course)
        except Exception:  # the wall of a report: the task stays on the disk, and the next start tells of it
            log.exception("the end of subagent %s could not be told", course.task.id)
        finally:
            self._courses.pop(course.task.id, None)
            course.told.set()

    async def _work(self, course: Course) -> None:
        if course.task.goal:
            async with self._opening:  # those that the same step asks for are there then: it is told of them
                pass
        try:
            if await course.unless_ended(self._places.acquire()):
                try:
                    result = await self._tries(course)
                finally:
                    if not course.lent:
                        self._places.release()
            else:
                result = TurnResult(TurnOutcome.STOPPED, "It had not begun.")
        except NanobotError as error:
            result = TurnResult(TurnOutcome.FAILED, str(error))
        except Exception as error:  # the wall of a subagent
            log.exception("subagent %s broke", course.task.id)
            result = TurnResult(TurnOutcome.FAILED, f"Something broke inside nanobot: {type(error).__name__}: {error}.")
        if course.wants is not Wants.LATER:
            await self._over(course, result)

    async def _tries(self, course: Course) -> TurnResult:
        """Try, and where the model failed once more; how it ended."""
        task = course.task
        words = (
            task_words.asked(task)
            if task.tries < MOST_TRIES
            else task_words.asked_again(task, "nanobot was interrupted.")
        )
        if task.state is TaskState.WAITING:
            task.state, task.tries, task.began_at = TaskState.RUNNING, 1, self._clock.now().timestamp()
            await self._save(task)
        deadline = asyncio.get_running_loop().time() + self._policy.timeout_s
        while True:
            result = await self._one_try(course, words, deadline)
            task.tokens += result.usage.get("prompt_tokens", 0) + result.usage.get("completion_tokens", 0)
            if result.cost_usd is not None:
                task.cost_usd = (task.cost_usd or 0.0) + result.cost_usd
            if course.wants is not None or course.late or not _is_worth_another(result) or task.tries >= MOST_TRIES:
                return result
            task.tries += 1
            await self._save(task)
            if not await course.unless_ended(asyncio.sleep(self._policy.pause_s)):
                return result
            words = task_words.asked_again(task, result.text)

    async def _one_try(self, course: Course, words: str, deadline: float) -> TurnResult:
        def watch(event: TurnEvent) -> None:
            if isinstance(event, ToolStarted):
                first = next((str(value) for value in event.arguments.values()), "")
                course.doing = clip_line(" ".join(f"{event.name} {first}".split()), 80)
                for tell in course.watchers:
                    tell(f"{course.task.label}: {course.doing}")

        trial = course.trial = await self._turns.begin(course.task, words, watch)
        if course.wants is not None:
            trial.end(later=course.wants is Wants.LATER)
        left = max(deadline - asyncio.get_running_loop().time(), 0.0)
        await asyncio.wait([trial.done], timeout=left)
        if not trial.done.done():
            course.late = True
            trial.end(later=False)
            await asyncio.wait([trial.done])
        course.trial = None
        if trial.done.cancelled():
            return TurnResult(TurnOutcome.STOPPED, "")
        return trial.done.result()

    async def _over(self, course: Course, result: TurnResult) -> None:
        task = course.task
        task.state, task.result = _STATES[result.outcome], result.text
        if course.late and task.state is TaskState.STOPPED:
            task.state = TaskState.LIMIT
            minutes = self._policy.timeout_s / 60
            task.result = f"{result.text}\n\n(Stopped at its time limit of {minutes:g} min.)".strip()
        task.ended_at = self._clock.now().timestamp()
        unread = await self._team.unread(task)
        task.result = team_words.with_unread(task.result, unread)
        task.seen = least_trusted([task.seen, await self._turns.seen(task), *(one.provenance for one in unread)])
        await self._save(task)

    async def _tell(self, course: Course) -> None:
        """Have the end told once, unless somebody has it already."""
        task = course.task
        if course.waiters or (course.taken_up and task.waited):
            await self._given(course)
        if task.reported:
            return
        if course.given or course.forgotten or not SHEETS[task.role].reports:
            await self._filed(task)
            return
        if course.said_aside:
            await self._filed(task)
            self._in_background(self._reports.note(task), f"note of {task.id}")
            return
        if not (course.taken_up and await self._reports.was_told(task)):
            while not await self._delivered(task):
                if self._ends():
                    return
                await asyncio.sleep(_DISK_AGAIN_S)
        await self._filed(task)

    async def _given(self, course: Course) -> None:
        """Wait until the turn that waits has ended, with the result in its rows: a kill before would lose it. One that
        goes on after a kill may ask for it again.
        """
        if course.taken_up:
            await self._reports.quiet(course.task.parent)
        while course.waiters:
            await course.served.wait()
            await self._reports.turn_over(course.task.parent)
        if not course.given and course.taken_up:
            course.given = await self._reports.was_given(course.task)

    async def _delivered(self, task: Task) -> bool:
        if self._ends():
            return False
        try:
            return await self._reports.deliver(task)
        except StorageError as error:
            log.warning("the report of subagent %s has to wait: %s", task.id, error)
            return False

    # --- small things

    def _ends(self) -> bool:
        return self._closed or self._is_ending()

    async def _until_ended(self, course: Course) -> None:
        """With a sign of life now and then: a turn in which nothing happens would be taken for one that hangs."""
        while True:
            try:
                async with asyncio.timeout(_SIGN_S):
                    await course.ended.wait()
                    return
            except TimeoutError:
                for tell in course.watchers:
                    tell(f"{course.task.label}: still at work")

    async def _without_a_place(self, asker: Task | None, waiting: Coroutine[Any, Any, None]) -> None:
        """Wait; a subagent that waits for one of its own is not at work, and must not keep that one from it."""
        course = self._courses.get(asker.id) if asker is not None else None
        if course is None:
            await waiting
            return
        course.away += 1
        if not course.lent:
            course.lent = True
            self._places.release()
        try:
            await waiting
        finally:
            course.away -= 1
        if not course.away:
            await self._places.acquire()
            course.lent = False

    async def _stopped(self, courses: Sequence[Course]) -> None:
        """End them, and wait until that is on the disk, of those that nobody waits for also as told."""
        for course in courses:
            course.end(Wants.STOP)
        if courses:
            filed = [one.told if one.said_aside and not one.waiters else one.ended for one in courses]
            await asyncio.wait([asyncio.ensure_future(one.wait()) for one in filed], timeout=_STOPS_S)

    async def _filed(self, task: Task) -> None:
        """Somebody was told of its end."""
        task.reported = task.state.is_over
        await self._save(task)

    async def _save(self, task: Task) -> None:
        """On the disk, if it takes it: here the task goes on in any case."""
        try:
            await finish(asyncio.to_thread(self._store.save, task))
        except OSError as error:
            log.warning("how far subagent %s is cannot be written down: %s", task.id, error)

    def _like(self, asked: Task) -> Course | None:
        """One that does the same for the same session; or did, for this very turn, and nobody was told yet. What was
        judged once is judged again: the same words may tell of other work by now.
        """
        for course in self._courses.values():
            task = course.task
            if (task.parent, task.role) != (asked.parent, asked.role) or _same_words(task) != _same_words(asked):
                continue
            if task.reported or (course.given and task.role is not Role.WORKER):
                continue
            if not task.state.is_over or (task.state is TaskState.DONE and task.turn_id == asked.turn_id):
                return course
        return None

    def _parent_of(self, ctx: ToolContext | None) -> Task | None:
        """The task of the subagent that asks, where one does."""
        if ctx is None or not ctx.is_of_subagent:
            return None
        course = self._courses.get(ctx.session_key.removeprefix(SUBAGENT_SESSION))
        return course.task if course is not None else None

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        job = asyncio.create_task(work, name=name)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    def _sweep_once(self) -> None:
        if not self._swept:
            self._swept = True
            self._in_background(self._sweep(), "old subagents")

    async def _sweep(self) -> None:
        before = self._clock.now().timestamp() - self._policy.keep_days * 86_400
        try:
            gone = await asyncio.to_thread(lambda: self._store.sweep(before=before))
        except OSError as error:
            log.warning("old tasks cannot be looked through: %s", error)
            return
        if gone:
            await self._turns.forget(gone)
        await self._team.sweep(before=before)


def _is_worth_another(result: TurnResult) -> bool:
    return result.outcome is TurnOutcome.FAILED and result.error not in _FOR_GOOD


def _is_of(task: Task, session_key: str) -> bool:
    return session_key in (task.parent, task.root)


def _same_words(task: Task) -> str:
    return " ".join(task.task.split()).casefold()


def _task_of(task: str, label: str | None, ctx: ToolContext | None, address: Address, asker: Task | None) -> Task:
    """What is asked, with all that its report and its walls need to know of who asks."""
    label = task_words.label_of(task, label)
    if ctx is None:
        own = Provenance.OWNER if address.channel == "cli" else Provenance.PERSON
        key = f"{address.channel}:{address.chat_id}"
        return Task("", task, label, key, address, own, root=key)
    trust = least_trusted([ctx.asker, ctx.entered]) if is_outside(ctx.entered) else ctx.asker
    found = Task(
        "",
        task,
        label,
        ctx.session_key,
        ctx.address,
        trust,
        ctx.origin,
        ctx.sender_id,
        ctx.attended,
        ctx.scope,
        ctx.turn_id,
        ctx.session_key,
        quiet=ctx.quiet,
    )
    if asker is not None:
        found.origin, found.sender_id, found.attended = asker.origin, asker.sender_id, asker.attended
        found.root, found.depth, found.goal = asker.root, asker.depth + 1, asker.goal
    return found
