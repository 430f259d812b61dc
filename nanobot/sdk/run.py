"""A run: what it is asked for, its events while it happens, and the stream of the original design's SDK."""

import asyncio
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar

from nanobot.agent import events
from nanobot.agent.events import Answer, ApprovalAsked, EventSink, TurnEnded, TurnEvent, TurnOutcome
from nanobot.agent.hooks import Hook
from nanobot.sdk.result import ApprovalRequest, Call, RunResult, Step, Usage

if TYPE_CHECKING:
    from nanobot.agent.tools.base import Tool
    from nanobot.sdk.output import OutputFormat

DEFAULT_SESSION = "sdk:default"

Approval = bool | Literal["always"]
Approve = Callable[[ApprovalRequest], Approval | Awaitable[Approval]]
Watcher = Callable[[TurnEvent], object]
"""Sees each event of a run. What it returns is awaited if it can be, and dropped."""


class RunOptions(TypedDict, total=False):
    """The options of `run` and `stream`."""

    session: str
    """The conversation. Runs of one session take turns."""
    media: Sequence[str | Path]
    """Files that come with the message."""
    tools: "Sequence[Tool | Callable[..., Any]]"
    """More tools: functions, or objects of the class Tool."""
    hooks: Sequence[Hook | Watcher]
    """More hooks: objects of the class Hook, or functions that see the events."""
    instructions: str
    """Added to the system prompt."""
    model: str | None
    """A model or a preset of the config."""
    approve: Approve | None
    """Decides about calls that need the owner's approval. Without it they are refused."""
    attended: bool
    """Whether the caller answers each ApprovalAsked with `Nanobot.answer`."""
    timeout: float | None
    """Seconds after which the run is stopped; its result says so."""
    budget_usd: float | None
    """What the model calls may cost. Needs a model with a known price."""
    ephemeral: bool
    """Whether nothing is kept of it but its cost and its trace."""
    session_key: str
    """The original's name for `session`."""
    channel: str
    chat_id: str
    sender_id: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A message with its options, checked."""

    message: str
    session: str = DEFAULT_SESSION
    media: Sequence[str | Path] = ()
    tools: "Sequence[Tool | Callable[..., Any]]" = ()
    hooks: Sequence[Hook] = ()
    watchers: Sequence[Watcher] = ()
    instructions: str = ""
    model: str | None = None
    approve: Approve | None = None
    attended: bool = False
    timeout: float | None = None
    budget_usd: float | None = None
    ephemeral: bool = False
    output: "OutputFormat | None" = None
    channel: str = "sdk"
    chat_id: str = "direct"
    sender_id: str = "owner"
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, message: str, output: object, options: RunOptions) -> "RunRequest":
        """Check the options. Raises TypeError for an unknown one, and for an `output` that has no schema.

        Raises FileNotFoundError if a file of `media` does not exist.
        """
        fields: dict[str, Any] = {**options}
        if "session_key" in fields:
            fields["session"] = fields.pop("session_key")
        if fields.get("ephemeral"):
            fields["session"] = f"sdk:ephemeral-{secrets.token_hex(8)}"
        if output is not None:
            from nanobot.sdk.output import OutputFormat  # brings pydantic

            fields["output"] = OutputFormat(output)
        fields["hooks"], fields["watchers"] = split_hooks(fields.get("hooks", ()))
        request = cls(message=message, **fields)
        if (missing := next((path for path in request.paths if not Path(path).is_file()), None)) is not None:
            raise FileNotFoundError(f"There is no file {missing}, which media= names.")
        return request

    @property
    def is_attended(self) -> bool:
        """Whether somebody answers approval questions."""
        return self.attended or self.approve is not None

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answer; None for text."""
        return self.output.schema if self.output is not None else None

    @property
    def paths(self) -> list[str]:
        """The absolute paths of the files. Relative ones start in the current folder."""
        return [str(Path(path).expanduser().absolute()) for path in self.media]


def split_hooks(hooks: Sequence[Hook | Watcher]) -> tuple[list[Hook], list[Watcher]]:
    """Return the objects and the functions among hooks. Raises TypeError for what is neither."""
    turn_hooks = [hook for hook in hooks if isinstance(hook, Hook)]
    watchers = [hook for hook in hooks if not isinstance(hook, Hook)]
    for watcher in watchers:
        if not callable(watcher):
            raise TypeError(f"{watcher!r} is no hook: pass an object of a class that derives from Hook, or a function.")
    return turn_hooks, watchers


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


_TYPES = {
    "run_started": "run.started", "text_delta": "text.delta", "text_ended": "text.completed",
    "reasoning_delta": "reasoning.delta", "reasoning_ended": "reasoning.completed", "tool_started": "tool.started",
    "tool_ended": "tool.completed", "turn_ended": "run.completed",
}  # fmt: skip
"""The original's types of events, by ours. Others are left out."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of `run_streamed`. Fields that its type does not have are empty."""

    type: str
    delta: str = ""
    content: str = ""
    name: str = ""
    tool_call_id: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: RunResult[Any] | None = None
    """In the last event."""


class OriginalStream:
    """What `run_streamed` returns."""

    def __init__(self, stream: RunStream[Any]) -> None:
        self._stream = stream
        self.wait = stream.result

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the run; `run.completed` or `run.failed`, with the result, is the last one."""
        async for event in self._stream:
            if (kind := _TYPES.get(event.type)) is None:
                continue
            result = await self._stream.result() if event.type == "turn_ended" else None
            has_failed = not result.ok if result is not None else not getattr(event, "ok", True)
            text, is_delta = str(getattr(event, "content", "") or getattr(event, "text", "")), kind.endswith(".delta")
            yield StreamEvent(
                kind.replace("completed", "failed") if has_failed else kind,
                delta=text if is_delta else "",
                content="" if is_delta else text,
                name=getattr(event, "name", ""),
                tool_call_id=getattr(event, "call_id", ""),
                arguments=getattr(event, "arguments", {}),
                error=(result.error if result is not None else text) if has_failed else None,
                result=result,
            )
