"""An agent with a scripted model, and a sink that records the events of its turns."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.agent.events import Answer, EventSink, TurnEvent, TurnResult
from nanobot.agent.hooks import Hook
from nanobot.agent.pipeline.turn import TurnTimeouts
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.bus.events import InboundMessage, MenuEntry
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, ReasoningDelta, TextDelta, ToolCallRequest
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.session.types import Session
from nanobot.utils.clock import Clock


@dataclass(slots=True)
class Pause:
    """Streams `text`, then sets `reached` and waits for `resume` before the next line of the script."""

    text: str = ""
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)


Line = str | LLMResponse | Exception | Pause


def calls(*requested: tuple[str, dict[str, Any]], text: str | None = None) -> LLMResponse:
    """A response that asks for tools: `calls(("list_dir", {"path": "."}))`."""
    requests = [ToolCallRequest(f"call_{index}", name, arguments) for index, (name, arguments) in enumerate(requested)]
    return LLMResponse(text, requests, "tool_calls")


class ScriptedProvider(LLMProvider):
    """A model that answers from a script, one line per request, and records the requests.

    A line is a text, a whole LLMResponse, an exception to raise, or a Pause. Without a line left, a request fails.
    """

    def __init__(self, *lines: Line, model: str = "scripted") -> None:
        super().__init__()
        self._lines: deque[Line] = deque(lines)
        self._model = model
        self.requests: list[list[ChatMessage]] = []
        self.tools: list[Sequence[ToolSchema]] = []

    def script(self, *lines: Line) -> None:
        """Add lines."""
        self._lines.extend(lines)

    def clear(self) -> None:
        """Remove the remaining lines."""
        self._lines.clear()

    def get_default_model(self) -> str:
        return self._model

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Stream the next line of the script."""
        self.requests.append([{**row} for row in messages])
        self.tools.append(tools or [])
        line = self._next()
        while isinstance(line, Pause):
            if line.text:
                yield TextDelta(line.text)
            line.reached.set()
            await line.resume.wait()
            line = self._next()
        if isinstance(line, Exception):
            raise line
        response = LLMResponse(line) if isinstance(line, str) else line
        if response.reasoning_content:
            yield ReasoningDelta(response.reasoning_content)
        for piece in (response.content or "").splitlines(keepends=True):
            yield TextDelta(piece)
        yield Finished(response)

    def _next(self) -> Line:
        if not self._lines:
            raise AssertionError("the script has no more lines; the model was asked once too often")
        return self._lines.popleft()


class RecordingSink:
    """Collects turn events."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []

    def __call__(self, event: TurnEvent) -> None:
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        """The types of the events, in order."""
        return [event.type for event in self.events]


class Bot:
    """A whole agent with a scripted model: everything but the model is real."""

    def __init__(self, runtime: Runtime, provider: ScriptedProvider) -> None:
        self._runtime = runtime
        self.provider = provider
        self.sink = RecordingSink()

    @property
    def events(self) -> list[TurnEvent]:
        """The events of all turns so far."""
        return self.sink.events

    @property
    def requests(self) -> list[list[ChatMessage]]:
        """The messages of each request to the model."""
        return self.provider.requests

    @property
    def home(self) -> Path:
        """The data folder."""
        return self._runtime.data_dir

    @property
    def workspace(self) -> Path:
        """The folder whose files the agent works on."""
        return self._runtime.workspace

    @property
    def menu(self) -> tuple[MenuEntry, ...]:
        """The commands as platforms show them, for a channel's `commands`."""
        return self._runtime.loop.commands.menu()

    def session(self, key: str = "cli:direct") -> Session:
        """The stored conversation of this key."""
        return self._runtime.sessions.get_or_create(key)

    def register(self, tool: Tool) -> None:
        """Register a tool."""
        self._runtime.tools.register(tool)

    async def say(self, text: str, session: str = "cli:direct") -> str:
        """Send a message as the owner and return the reply."""
        return (await self.turn(text, session)).text

    async def turn(self, text: str, session: str = "cli:direct") -> TurnResult:
        """Send a message as the owner and return the result of its turn. Its events are in `sink`."""
        message = InboundMessage.from_owner("cli", "direct", text, session_key=session, origin=Origin.CLI)
        return await self.run_turn(message, self.sink)

    async def run_turn(self, message: InboundMessage, sink: EventSink | None = None, **options: Any) -> TurnResult:
        """Run the turn of a message. `options` are those of `AgentLoop.run_turn`."""
        return await self._runtime.loop.run_turn(message, sink, **options)

    async def send(self, message: InboundMessage, sink: EventSink | None = None) -> TurnResult:
        """Send a message as a channel does: it may join a turn that already runs in its chat."""
        return await self._runtime.loop.submit(message, sink)

    def answer(self, question: str, answer: Answer) -> bool:
        """Answer an approval question by its id (`ApprovalAsked.question`); False if it is not open."""
        return self._runtime.questions.answer(question, answer)

    async def stop(self, session: str = "cli:direct") -> bool:
        """Stop the running turn of a session. Return False if none runs."""
        return await self._runtime.loop.stop_turn(session)

    async def shut_down(self) -> None:
        """End as a gateway that is restarted: running turns are interrupted and resume at the next start."""
        await self._runtime.loop.stop()

    async def resume(self, session: str = "cli:direct", sink: EventSink | None = None) -> TurnResult | None:
        """Resume the interrupted turn of a session. Return None if there is none."""
        return await self._runtime.loop.resume(session, sink)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[MessageBus]:
        """Serve the bus inside the block, as a gateway does; then shut down. What was sent stays on the bus."""
        serving = asyncio.create_task(self._runtime.loop.run())
        try:
            yield self._runtime.bus
        finally:
            await self.shut_down()
            await serving

    def provenance_of(self, file: Path) -> Provenance | None:
        """Where the content of a file came from; None if it is the owner's."""
        return self._runtime.file_provenance.of(file)

    def consolidate_after(self, pause_s: float) -> None:
        """Consolidate a session that is due after so many seconds without a message, instead of a minute."""
        self._runtime.memory.consolidation.pause_s = pause_s

    async def settled(self) -> None:
        """Wait until nothing runs: no turn, goal, subagent or consolidation, and no message that is served waits."""
        runtime, bus = self._runtime, self._runtime.bus
        await asyncio.sleep(0)
        while (
            runtime.status.running
            or runtime.background.list_running()
            or (runtime.loop.is_serving and (bus.inbound_size or bus.unsettled()))
        ):
            await asyncio.sleep(0.005)
        await runtime.memory.wait_done()


@asynccontextmanager
async def open_bot(
    home: Path,
    *script: Line,
    config: Config | None = None,
    timeouts: TurnTimeouts | None = None,
    environ: Mapping[str, str] | None = None,
    restart: Callable[[], None] | None = None,
    hooks: Sequence[ToolPolicy] = (),
    own_hooks: Sequence[Hook] = (),
    clock: Clock | None = None,
    provider: ScriptedProvider | None = None,
    bus: MessageBus | None = None,
) -> AsyncIterator[Bot]:
    """Open a bot with the data folder `home` and the workspace `home/workspace`, and close it when the block ends.

    Environment variables come from `environ` only. The `script` is appended to that of `provider`, if passed. A `bus`
    with a journal lets messages outlive a crash.
    """
    provider = provider or ScriptedProvider()
    provider.script(*script)
    async with build_runtime(
        config or Config(),
        data_dir=home,
        workspace=home / "workspace",
        provider=provider,
        environ=environ or {},
        timeouts=timeouts,
        restart=restart,
        hooks=hooks,
        own_hooks=own_hooks,
        clock=clock,
        bus=bus,
    ) as runtime:
        runtime.memory.consolidation.pause_s = 60.0  # or, on a slow machine, it takes a line of the script
        yield Bot(runtime, provider)
