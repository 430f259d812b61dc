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
        self._texts: list[str] = []
        """By step, as `_calls`."""
        self._calls: list[dict[str, Call]] = []
        self._run = events.RunEnded(steps=0, usage={})
        self._turn = TurnEnded(outcome=TurnOutcome.STOPPED, text="")

    def __call__(self, event: TurnEvent) -> None:
        match event:
            case events.StepStarted():
                self._texts.append("")
                self._calls.append({})
            case events.TextEnded(text=text):
                self._texts[-1] = text
            case events.ToolStarted(call_id=call_id, name=name, arguments=arguments):
                self._calls[-1][call_id] = Call(call_id, name, arguments)
            case events.ToolEnded(call_id=call_id, ok=ok, content=text, seconds=seconds):
                self._calls[-1][call_id] = replace(self._calls[-1][call_id], ok=ok, text=text, seconds=seconds)
            case events.RunEnded():
                self._run = event
            case TurnEnded():
                self._turn = event

    def result(self, stop_reason: str | None = None) -> RunResult[Any]:
        """Return the result so far. `stop_reason` is the error of a turn that was stopped."""
        run, turn = self._run, self._turn
        # a turn that was stopped has the figures of its run only
        cost_usd = run.cost_usd if turn.cost_usd is None else turn.cost_usd
        steps = [Step(text, tuple(calls.values())) for text, calls in zip(self._texts, self._calls, strict=True)]
        written = [call for step in steps for call in step.calls if call.ok and call.name in _FILE_WRITERS]
        paths = [self.workspace / Path(str(call.arguments.get("path"))).expanduser() for call in written]
        return RunResult(
            text=turn.text,
            outcome=turn.outcome,
            session=self._request.session,
            turn_id=turn.turn_id,
            error=turn.error or (stop_reason if turn.outcome is TurnOutcome.STOPPED else None),
            model=turn.model,
            usage=Usage.of(turn.usage or run.usage),
            cost_usd=cost_usd or 0.0,
            has_price=cost_usd is not None,
            steps=tuple(steps),
            files=tuple(dict.fromkeys(paths)),
            message=self._request.message,
        )


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
                timer = None
                if self._request.timeout is not None:
                    loop = asyncio.get_running_loop()
                    timer = loop.call_later(self._request.timeout, self._end, TimeoutError.__name__)
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
        return replace(result, parsed=None) if output is None else output.complete(result)

    async def stop(self) -> RunResult[T]:
        """Stop the turn and return its result. What was done and said so far stays in the session."""
        self._end("Stopped")
        if not self._has_begun:
            self._has_begun = True
            self._ended.set()
        await self._ended.wait()
        return self._recorder.result(self._end_reason)

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
        async def contained() -> None:
            try:
                await work
            except Exception:
                log.exception("a hook of %s failed", self._request.session)

        self._tasks.add(task := asyncio.create_task(contained()))
        task.add_done_callback(self._tasks.discard)

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
