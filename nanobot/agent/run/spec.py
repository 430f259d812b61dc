"""What goes into a run and what comes out of it: plain data."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from nanobot.agent.hook_wall import HookWall
from nanobot.agent.run.allowance import MOST_ROWS
from nanobot.agent.run.cut import Cut
from nanobot.agent.run.hooks import ToolHook
from nanobot.agent.run.requests import Remembered
from nanobot.agent.run.tool_calls import CallsStart, Record, nobody_asks
from nanobot.agent.run.window import Window
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.turn import Emitter, TurnOutcome
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import LLMProvider


@dataclass(frozen=True, slots=True)
class RunLimits:
    """How far a run may go. Tokens are the model's, messages are rows of the history."""

    max_steps: int = 40
    max_tokens: int = 8192
    temperature: float = 0.1
    window_tokens: int = 65_536
    window_messages: int = MOST_ROWS
    max_result_chars: int = 16_000


@dataclass(frozen=True, slots=True)
class Model:
    """A model ready to be asked."""

    provider: LLMProvider
    provider_name: str
    name: str
    reason: str = ""
    """Why it was chosen, in a few words."""
    limits: RunLimits = RunLimits()


@dataclass(frozen=True, slots=True)
class RunSpec:
    """All a run needs. `history` ends with the row to be answered and holds no system row."""

    model: Model
    system: str
    history: list[ChatMessage]
    tools: ToolRegistry
    context: ToolContext
    emit: Emitter
    record: Record
    partial: Callable[[str], None] = field(default=lambda text: None)
    """Told of the text of the running step as it streams, so that a crash loses none of it."""
    calls_start: CallsStart = nobody_asks
    """Told of calls before they begin to run."""
    joining: "Joining" = field(default_factory=lambda: _nobody_joins)
    """Asked at each tool boundary for what the person has said meanwhile: user rows, kept already."""
    cut: Cut | None = None
    """Set where `history` is that of a run that was cut off and is taken up here."""
    window: Window = field(default_factory=Window)
    """What is left of the history."""
    keep_window: Callable[[Window], None] = field(default=lambda window: None)
    """Told of each change of it."""
    remembered: Remembered = field(default_factory=Remembered)
    """What earlier runs of the session found out about its rows."""
    hooks: Sequence[ToolHook] = ()
    """Asked about each tool call before it begins."""
    hook_wall: HookWall = field(default_factory=HookWall)
    """Behind it, the hooks of plugins and programs."""
    told: Sequence[ChatMessage] = ()
    """What `system` holds of others' words, as rows of no turn."""

    enough: Callable[[], str] = field(default_factory=lambda: never_enough)
    """Asked before each model call but the first: why no further one may be made; empty where one may."""


Joining = Callable[[], Awaitable[list[ChatMessage]]]


def never_enough() -> str:
    """Only the limits of the run itself hold."""
    return ""


async def _nobody_joins() -> list[ChatMessage]:
    return []


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended: ANSWERED, or PARTIAL where a limit ended it."""

    outcome: TurnOutcome
    text: str
    usage: dict[str, int]
    steps: int
    cost_usd: float | None = None
    error: str | None = None
    """What ended it early, where that was an error."""
