"""A run as it happens: its events, and its result."""

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from nanobot.agent import events
from nanobot.agent.events import Answer, ApprovalAsked, EventSink, TurnEnded, TurnEvent, TurnOutcome
from nanobot.sdk.request import Approve, RunRequest
from nanobot.sdk.result import ApprovalRequest, Call, RunResult, Step, Usage

log = logging.getLogger(__name__)

T = TypeVar("T")

_FILE_WRITERS = frozenset({"write_file", "edit_file", "notebook_edit"})


class Backend(Protocol):
    """A bot that runs turns: in this process, or in a gateway."""

    workspace: Path

    async def run_turn(self, request: RunRequest, sink: EventSink) -> None:
        """Run the turn. TurnEnded is its last event, also when cancelling stops it."""
        ...

    async def stop(self, session: str) -> bool:
        """Stop the session's running turn. Return False if none runs."""
        ...

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer an approval question. Return False if it is not open."""
        ...


class RunRecorder:
    """Collects the events of a turn."""

    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self.workspace = Path()
        self._steps: list[Step] = []
        self._run_ended = events.RunEnded(steps=0, usage={})
        self._ended: TurnEnded | None = None

    def __call__(self, event: TurnEvent) -> None:
        match event:
            case events.StepStarted():
                self._steps.append(Step())
            case events.TextEnded(text=text):
                self._steps[-1] = replace(self._steps[-1], text=text)
            case events.ToolStarted(call_id=call_id, name=name, arguments=arguments):
                self._steps[-1] = replace(
                    self._steps[-1], calls=(*self._steps[-1].calls, Call(call_id, name, arguments))
                )
            case events.ToolEnded():
                calls = tuple(
                    replace(call, ok=event.ok, text=event.content, seconds=event.seconds)
                    if call.id == event.call_id
                    else call
                    for call in self._steps[-1].calls
                )
                self._steps[-1] = replace(self._steps[-1], calls=calls)
            case events.RunEnded():
                self._run_ended = event
            case TurnEnded():
                self._ended = event

    def result(self, error: str | None = None) -> RunResult[Any]:
        """Return the result so far. `error` replaces the error of a turn that was stopped."""
        ended = self._ended or TurnEnded(outcome=TurnOutcome.STOPPED, text="")
        cost_usd = self._run_ended.cost_usd if ended.cost_usd is None else ended.cost_usd
        return RunResult(
            text=ended.text,
            outcome=ended.outcome,
            session=self._request.session,
            turn_id=ended.turn_id,
            error=error if error and ended.outcome is TurnOutcome.STOPPED else ended.error,
            model=ended.model,
            usage=Usage.of(ended.usage or self._run_ended.usage),  # a turn that was stopped has that of its run
            cost_usd=cost_usd or 0.0,
            has_price=cost_usd is not None,
            steps=tuple(self._steps),
            files=self._files(),
            message=self._request.message,
        )

    def _files(self) -> tuple[Path, ...]:
        calls = [call for step in self._steps for call in step.calls if call.ok and call.name in _FILE_WRITERS]
        paths = (self.workspace / Path(str(call.arguments.get("path", ""))).expanduser() for call in calls)
        return tuple(dict.fromkeys(paths))


class RunStream(Generic[T]):
    """The events of a run, to be iterated once; TurnEnded is the last. Leaving the loop stops the turn.

    Nothing runs before it is iterated, or its `result` is awaited.
    """

    def __init__(self, request: RunRequest, use: Callable[[], AbstractAsyncContextManager[Backend]]) -> None:
        """`use` opens the bot for the time of the run."""
        self._request = request
        self._use = use
        self._recorder = RunRecorder(request)
        self._turn: asyncio.Task[None] | None = None
        self._end_reason: str | None = None
        self._has_begun = False
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Future[Any]] = set()
        """Hooks and approvals that have not returned."""

    async def __aiter__(self) -> AsyncGenerator[TurnEvent, None]:
        if self._has_begun:
            raise RuntimeError("a run has its events only once; await `result()` for its end")
        self._has_begun = True
        queue: asyncio.Queue[TurnEvent | None] = asyncio.Queue()
        try:
            async with self._use() as backend:
                self._recorder.workspace = backend.workspace

                def sink(event: TurnEvent) -> None:
                    self._recorder(event)
                    self._watch(event)
                    if isinstance(event, ApprovalAsked) and self._request.approve is not None:
                        self._start(self._decide(self._request.approve, event, backend))
                    queue.put_nowait(event)

                turn = self._turn = asyncio.create_task(backend.run_turn(self._request, sink), name="sdk run")
                turn.add_done_callback(lambda _: queue.put_nowait(None))
                turn.add_done_callback(lambda _: self._ended.set())
                timer = self._start_timer()
                try:
                    while (event := await queue.get()) is not None:
                        yield event
                    if self._tasks:
                        await asyncio.wait(self._tasks)
                    if not turn.cancelled():
                        turn.result()  # raises if the bot, not the turn, failed
                finally:
                    if timer is not None:
                        timer.cancel()
                    for task in (turn, *self._tasks):
                        task.cancel()
                    await asyncio.wait([turn, *self._tasks])
        finally:
            self._ended.set()

    async def result(self) -> RunResult[T]:
        """Wait for the end. Cancelling stops the turn, unless somebody else iterates the events.

        Never raises for a failure of a model or a tool. Raises OutputInvalid if the answer does not have the form of
        the `output` that was asked for.
        """
        if not self._has_begun:
            async with aclosing(aiter(self)) as stream:
                async for _ in stream:
                    pass
        await self._ended.wait()
        result = self._recorder.result(self._end_reason)
        output = self._request.output
        return result.with_output(None) if output is None else output.complete(result)

    async def stop(self) -> RunResult[T]:
        """Stop the turn and return its result. What was done and said so far stays in the session."""
        self._end("Stopped")
        if not self._has_begun:
            self._has_begun = True
            self._ended.set()
        await self._ended.wait()
        return self._recorder.result(self._end_reason)

    def _start_timer(self) -> asyncio.TimerHandle | None:
        seconds = self._request.timeout
        if seconds is None:
            return None
        return asyncio.get_running_loop().call_later(seconds, self._end, TimeoutError.__name__)

    def _end(self, reason: str) -> None:
        self._end_reason = self._end_reason or reason
        if self._turn is not None:
            self._turn.cancel()

    def _watch(self, event: TurnEvent) -> None:
        """Pass an event to the hooks that are functions."""
        for watcher in self._request.watchers:
            try:
                returned = watcher(event)
            except Exception:  # a failure of a hook ends no turn
                log.exception("a hook of %s failed", self._request.session)
            else:
                if inspect.isawaitable(returned):
                    self._start(returned)

    def _start(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a hook of %s failed", self._request.session, exc_info=error)

    async def _decide(self, approve: Approve, event: ApprovalAsked, backend: Backend) -> None:
        request = ApprovalRequest.of(event, self._request.session)
        answer: Any = False
        try:
            if inspect.iscoroutinefunction(approve):
                answer = await approve(request)
            else:  # it may wait for a person
                answer = await asyncio.to_thread(approve, request)
                if inspect.isawaitable(answer):
                    answer = await answer
        finally:  # if it failed, nobody said yes
            yes = Answer.ALWAYS if answer == "always" else Answer.ONCE
            backend.answer(event.question, yes if answer else Answer.NO)
