"""The input of a run, as plain data."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nanobot.agent.events import Emitter
from nanobot.agent.hooks.runner import HookRunner
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.hooks import ToolPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.window.fit import LastRequest
from nanobot.agent.window.state import MAX_ROWS, Window
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import LLMProvider

MAX_CONTINUATIONS = 3

Record = Callable[[ChatMessage], Awaitable[None]]
"""Stores a row. An error it raises ends the run."""


class StartCalls(Protocol):
    """Records that calls start. An error it raises ends the run before they do."""

    async def __call__(self, call_ids: Sequence[str], *, durable: bool) -> None:
        """Return once recorded; with `durable`, once synced to the disk, since one of them must not run twice."""


async def _ignore_calls_start(call_ids: Sequence[str], *, durable: bool) -> None:
    pass


async def _no_joining_rows() -> list[ChatMessage]:
    return []


@dataclass(frozen=True, slots=True)
class RunLimits:
    """Limits of a run. Tokens are counted for the model; messages are rows of the history."""

    max_steps: int = 40
    max_tokens: int = 8192
    temperature: float = 0.1
    window_tokens: int = 65_536
    window_messages: int = MAX_ROWS
    max_result_chars: int = 16_000


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its provider and limits."""

    provider: LLMProvider
    provider_name: str
    name: str
    limits: RunLimits = RunLimits()

    @property
    def is_stand_in(self) -> bool:
        """Whether no model is configured and the offline provider gives fixed answers."""
        return self.provider_name == "offline"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """The input of a run. `history` ends with the row to answer and contains no system row."""

    model: Model
    system: str
    history: list[ChatMessage]
    tools: ToolRegistry
    context: ToolContext
    emit: Emitter
    record: Record
    on_partial_text: Callable[[str], None] = field(default=lambda text: None)
    """Called with the text of the running step as it streams, so that a crash does not lose it."""
    on_calls_start: StartCalls = _ignore_calls_start
    """Called before tool calls start."""
    joining: Callable[[], Awaitable[list[ChatMessage]]] = _no_joining_rows
    """Called at each tool boundary. Returns the stored user rows of messages that arrived meanwhile."""
    resumes: bool = False
    """Whether this run first completes an interrupted one."""
    started_calls: frozenset[str] | None = None
    """Ids of the calls that had started then; None if each of them may have."""
    window: Window = field(default_factory=Window)
    """Which part of the history is sent."""
    save_window_state: Callable[[Window], None] = field(default=lambda window: None)
    """Called with each change of the window."""
    last_request: LastRequest = field(default_factory=LastRequest)
    """Cached data about the rows of the session, from earlier runs."""
    tool_policies: Sequence[ToolPolicy] = ()
    """Each sees every tool call before it starts."""
    hook_runner: HookRunner = field(default_factory=HookRunner)
    """Runs the hooks of plugins and programs."""
    untrusted_rows: Sequence[ChatMessage] = ()
    """Untrusted content in `system`, as rows without a turn."""
    review: bool = False
    """Whether a second model call reviews the answer before it is shown."""
    format_problem: Callable[[str], str] | None = None
    """Returns what is wrong with the form of an answer, as an instruction to the model; empty if it fits."""
    max_continuations: int = MAX_CONTINUATIONS
    """How often an answer is continued that the length limit cut off."""
    stop_reason: Callable[[], str] = field(default=lambda: "")
    """Called before each model call but the first: why no further one may be made; empty if one may."""
