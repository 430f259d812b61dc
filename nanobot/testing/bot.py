"""A whole agent with a scripted model, and a sink that records the events of its turns."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.agent.events import EventSink, TurnEvent, TurnResult
from nanobot.agent.hooks.api import Hook
from nanobot.agent.pipeline.turn import TurnTimeouts
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Origin, ToolSchema
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallRequest,
)
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.session.types import Session
from nanobot.utils.clock import Clock


@dataclass(slots=True)
class Pause:
    """A model that says `text`, then waits for `resume` (or for ever) before it goes on with the script's next line."""

    text: str = ""
    resume: asyncio.Event = field(default_factory=asyncio.Event)
    reached: asyncio.Event = field(default_factory=asyncio.Event)


Line = str | LLMResponse | Exception | Pause


def calls(*wanted: tuple[str, dict[str, Any]], text: str | None = None) -> LLMResponse:
    """A response that asks for tools: `calls(("list_dir", {"path": "."}))`."""
    requests = [ToolCallRequest(f"call_{index}", name, arguments) for index, (name, arguments) in enumerate(wanted)]
    return LLMResponse(text, requests, "tool_calls")


class ScriptedProvider(LLMProvider):
    """A model that says what it was told to, line by line, and remembers what it was asked.

    A line is a text, a whole LLMResponse, an exception to raise, or a Pause. Out of lines, it fails the test.
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
        """Take the lines back that were not said."""
        self._lines.clear()

    def get_default_model(self) -> str:
        """The name it goes by."""
        return self._model

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """The next line of the script, text word by word."""
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
    """Keeps every turn event."""

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []

    def __call__(self, event: TurnEvent) -> None:
        """Keep it."""
        self.events.append(event)

    @property
    def types(self) -> list[str]:
        """What happened, by name."""
        return [event.type for event in self.events]


class Bot:
    """A whole agent with a scripted model: everything but the model is real.

    Use what stands here. `runtime` has the parts inside, which change from release to release.
    """

    def __init__(self, runtime: Runtime, provider: ScriptedProvider) -> None:
        self.runtime = runtime
        self.provider = provider
        self.sink = RecordingSink()

    @property
    def events(self) -> list[TurnEvent]:
        """The events of all turns so far."""
        return self.sink.events

    @property
    def requests(self) -> list[list[ChatMessage]]:
        """What the model was asked, request by request."""
        return self.provider.requests

    @property
    def home(self) -> Path:
        """The data folder."""
        return self.runtime.data_dir

    @property
    def workspace(self) -> Path:
        """The folder whose files the agent works on."""
        return self.runtime.workspace

    def session(self, key: str = "cli:direct") -> Session:
        """The stored conversation of this key."""
        return self.runtime.sessions.get_or_create(key)

    def register(self, tool: Tool) -> None:
        """Offer one more tool to the model."""
        self.runtime.tools.register(tool)

    async def say(self, text: str, session: str = "cli:direct") -> str:
        """Say something, get the reply."""
        return (await self.turn(text, session)).text

    async def turn(self, text: str, session: str = "cli:direct") -> TurnResult:
        """Say something, get the whole result; what happened is in `sink`."""
        message = InboundMessage.from_owner("cli", "direct", text, session_key=session, origin=Origin.CLI)
        return await self.run_turn(message, self.sink)

    async def run_turn(self, message: InboundMessage, sink: EventSink | None = None, **options: Any) -> TurnResult:
        """Run the turn of any message; `options` as of `AgentLoop.run_turn`."""
        return await self.runtime.loop.run_turn(message, sink, **options)

    async def send(self, message: InboundMessage, sink: EventSink | None = None) -> TurnResult:
        """Send a message nobody waits for: while its session works in the same chat, it may join that turn."""
        return await self.runtime.loop.submit(message, sink)

    async def stop(self, session: str = "cli:direct") -> bool:
        """Stop the running turn of a session; False where none runs."""
        return await self.runtime.loop.stop_turn(session)

    async def shut_down(self) -> None:
        """End as a gateway that is restarted: running turns are interrupted and resume at the next start."""
        await self.runtime.loop.stop()

    async def resume(self, session: str = "cli:direct", sink: EventSink | None = None) -> TurnResult | None:
        """Resume the interrupted turn of a session; None where there is none."""
        return await self.runtime.loop.resume(session, sink)


@asynccontextmanager
async def open_bot(
    home: Path,
    *script: Line,
    config: Config | None = None,
    patience: TurnTimeouts | None = None,
    environ: Mapping[str, str] | None = None,
    restart: Callable[[], None] | None = None,
    hooks: Sequence[ToolPolicy] = (),
    own_hooks: Sequence[Hook] = (),
    clock: Clock | None = None,
    provider: ScriptedProvider | None = None,
) -> AsyncIterator[Bot]:
    """A bot that lives in the folder `home`, its workspace at `home/workspace`, until the block ends.

    Of the environment it sees nothing but what is handed in. `provider` is a scripted model of your own, whose script
    is added to.
    """
    provider = provider or ScriptedProvider()
    provider.script(*script)
    async with build_runtime(
        config or Config(),
        data_dir=home,
        workspace=home / "workspace",
        provider=provider,
        environ=environ or {},
        patience=patience,
        restart=restart,
        hooks=hooks,
        own_hooks=own_hooks,
        clock=clock,
    ) as runtime:
        runtime.memory.consolidation.pause_s = 60.0  # or, on a slow machine, it takes a line of the script
        yield Bot(runtime, provider)
