"""The port of every tool: its name, its JSON schema, what a crash may repeat, and `execute`.

Tools keep no turn in their pockets. What they need from the turn comes in `ctx`, which is handed in only where
`execute` asks for it; services come by constructor.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.validation import problems_with
from nanobot.bus.events import Address
from nanobot.messages.types import Origin, Provenance, ToolFailure, ToolSchema
from nanobot.security.opening import Stamp
from nanobot.utils.clock import Clock

SUBAGENT_SESSION = "subagent:"
"""What the session keys of subagents begin with."""


class Effect(StrEnum):
    """What may be done about a call that was running when the process died."""

    READ = "read"
    """It only reads: run it again."""
    REPEATABLE = "repeatable"
    """Running it twice is the same as running it once."""
    ONCE = "once"
    """It must not run twice: say that its outcome is unknown."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The turn a call belongs to."""

    session_key: str
    address: Address
    turn_id: str
    workspace: Path
    clock: Clock
    provenance: Provenance = Provenance.OWNER
    """The least trusted words in the window when the call was made."""
    entered: Provenance = Provenance.OWNER
    """The least trusted words that came into this very turn: what was asked, and what its tools brought."""
    granted: frozenset[str] = frozenset()
    """The rules of those reaches of the call that the owner said yes to, or need not be asked about."""
    asker: Provenance = Provenance.OWNER
    """Whose words the turn answers, whatever was read since."""
    origin: Origin = Origin.USER
    """Why the turn exists: a job's turn makes no jobs."""
    sender_id: str | None = None
    """Who wrote the message whose turn it is, as their channel says."""
    attended: bool = False
    """Whether somebody sees the events of the turn who may answer what is asked in it, as at a terminal."""
    quiet: bool = False
    """Whether nothing of the turn is sent to anybody."""
    answers: str | None = None
    """The journal key of the message whose turn it is: the same text goes out once for it."""
    scope: Scope = OWNERS
    """Whose memory the call may read and write: it answers nobody else."""
    emit: Callable[[str], None] = field(default=lambda _: None)
    """Say how far the call is. Neither blocks nor raises."""

    @property
    def is_of_subagent(self) -> bool:
        """Whether a subagent works in this turn."""
        return self.session_key.startswith(SUBAGENT_SESSION)

    @property
    def hears_report(self) -> bool:
        """Whether the turn answers a subagent's report: what it tells of was done there."""
        return self.origin is Origin.SUBAGENT and not self.is_of_subagent


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came back. `content` goes to the model; `display`, where it differs, to the person's screen.

    `error` marks a failure, `failure` says how it failed; its text says what to do differently. `provenance` where the
    words are not the tool's own.
    """

    content: str | list[dict[str, Any]]
    error: bool = False
    provenance: Provenance | None = None
    display: str | None = None
    failure: ToolFailure = ToolFailure.ENDED_BADLY
    left: Stamp | None = None
    """How the file stood that the call has written, when it was let go of."""

    @classmethod
    def failed(cls, text: str, failure: ToolFailure = ToolFailure.NOT_DONE) -> "ToolResult":
        """A failure the model can act on."""
        return cls(f"Error: {text}" if not text.startswith("Error") else text, error=True, failure=failure)


class Tool(ABC):
    """An ability of the agent."""

    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names it answers to; models are not told of them."""
    effect: ClassVar[Effect] = Effect.ONCE
    alone: ClassVar[bool] = False
    """Whether no other call of the same step may run beside it."""
    polls: ClassVar[bool] = False
    """Whether asking the same again and again is its use: then no guard against loops minds it."""
    provenance: ClassVar[Provenance] = Provenance.TOOL
    derives: ClassVar[bool] = False
    """Whether what it brings may be made of anything the window holds: then it is trusted as little as that."""
    source: str = ""
    """Who tells of it, where that is not us: each request carries their words, and they are not the owner's."""

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> str | ToolResult:  # any signature of named arguments fits
        """Do it. Cancelling must be safe: nothing half-written, no child process left.

        A failure is a `ToolResult.failed`; what is raised all the same becomes one at the wall of the tool. Declare a
        keyword-only `ctx: ToolContext` to be told of the turn.
        """

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """What this call reaches for, told before it begins. Does nothing else.

        Unless a tool says otherwise, one that only reads reaches for nothing, and any other for itself as a whole. The
        arguments fit the schema. What it raises counts as the tool as a whole.
        """
        return () if self.effect is Effect.READ else (Reach(ReachKind.TOOL, self.name),)

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """What is wrong with these arguments, each in a sentence for the model. Empty where they fit."""
        return problems_with(params, self.parameters)

    def to_schema(self) -> ToolSchema:
        """The tool as a provider is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @property
    def wants_context(self) -> bool:
        """Whether `execute` asks for the turn."""
        return "ctx" in inspect.signature(self.execute).parameters


async def passed_on(tool: Tool, arguments: dict[str, Any], ctx: ToolContext | None) -> ToolResult:
    """What another tool makes of a call that is meant for it. The arguments fit its schema."""
    given = {**arguments, "ctx": ctx} if ctx is not None and tool.wants_context else arguments
    result: str | ToolResult = await tool.execute(**given)
    return result if isinstance(result, ToolResult) else ToolResult(result)
