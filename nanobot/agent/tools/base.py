"""The base class of tools: name, JSON schema, what may be repeated after a crash, and `execute`.

Tools keep no state of a turn. What they need from it comes as `ctx`, passed only if `execute` declares it; services are
passed to the constructor.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.validation import Schema, find_problems
from nanobot.bus.events import Address
from nanobot.messages.types import Origin, Provenance, ToolFailure, ToolSchema
from nanobot.security.files.open import WrittenFile
from nanobot.utils.clock import Clock

SUBAGENT_SESSION = "subagent:"
"""Prefix of the session keys of subagents."""


class AccessKind(StrEnum):
    COMMAND = "command"
    """A shell command. The target is the command as written."""
    FOLDER = "folder"
    """Writing in a folder outside of the workspace. The target is its real path."""
    SECRETS = "secrets"
    """nanobot's own state, or a place where keys are kept. The target is the file or folder."""
    DEVICE = "device"
    """A device, for a command. The target is its path."""
    SERVICE = "service"
    """A Unix socket of this host, for a command. The target is its path."""
    NETWORK = "network"
    """The network, for a command that has none by config. The target is the command."""
    RECIPIENT = "recipient"
    """A chat other than the turn's own. The target is channel:chat."""
    HOST = "host"
    """A request that carries data to a host. The target is the host name, with a non-default port."""
    JOB = "job"
    """A job that is created or changed and acts later. The target is what it is to do."""
    MEMORY = "memory"
    """What every later prompt contains: memory and bootstrap files. The target is the file."""
    SKILL = "skill"
    """Instructions and tools of later turns. The target is the file."""
    AUTORUN = "autorun"
    """What programs of this host run unasked: hooks, editor tasks, build files, and existing programs. The target is
    the file."""
    TOOL = "tool"
    """A tool that does not declare its accesses. The target is its name."""


@dataclass(frozen=True, slots=True)
class Access:
    """One thing a call accesses.

    `needs_approval`: the sandbox does not give it by itself, so the owner is asked in any case. Other accesses are
    asked about only while untrusted content is in play. `detail` is for the person who is asked. `is_plain_url`:
    `detail` is a URL that carries little data; asked about only if the model may have composed it for a third party.
    """

    kind: AccessKind
    target: str
    needs_approval: bool = False
    detail: str = ""
    is_plain_url: bool = False

    @property
    def rule(self) -> str:
        """What a grant allows: `kind:target`."""
        return f"{self.kind}:{self.target}"


class Effect(StrEnum):
    """What may be done about a call that was running when the process ended."""

    READ = "read"
    """It only reads: run it again."""
    REPEATABLE = "repeatable"
    """Running it twice has the effect of running it once."""
    ONCE = "once"
    """It must not run twice: report that its outcome is unknown."""


async def _nobody_answers(text: str, *, tool: str = "") -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The turn a call belongs to."""

    session_key: str
    address: Address
    turn_id: str
    workspace: Path
    clock: Clock
    provenance: Provenance = Provenance.OWNER
    """The least trusted provenance in the window when the call was made."""
    entered: Provenance = Provenance.OWNER
    """The least trusted provenance that entered this very turn: its prompt, and results of its tools."""
    granted: frozenset[str] = frozenset()
    """Rules (`Access.rule`) of the accesses of this call that are approved or need no approval."""
    asker: Provenance = Provenance.OWNER
    """The provenance of the prompt, whatever was read since."""
    origin: Origin = Origin.USER
    """Why the turn exists. For example, a job's turn may not create jobs."""
    sender_id: str | None = None
    """The sender of the turn's message, as the channel reports it."""
    attended: bool = False
    """Whether somebody watches the turn's events and can answer questions, as at a terminal."""
    quiet: bool = False
    """Whether nothing of the turn is sent to anybody."""
    answers: str | None = None
    """The journal key of the turn's message: the same text is sent once for it."""
    scope: Scope = OWNERS
    """Whose memory the call may read and write."""
    emit: Callable[[str], None] = field(default=lambda _: None)
    """Report progress. Neither blocks nor raises."""
    is_stopped: Callable[[], bool] = field(default=lambda: False)
    """Whether the turn was stopped, for a function in a thread: its result is dropped then."""

    ask: Callable[..., Any] = field(default=_nobody_answers)
    """Ask the person who follows the turn a yes-or-no question. False if nobody does, or nobody answers in time.

    `await ctx.ask("...")` in an async function; in one that runs in a thread, it returns the answer.
    """

    @property
    def is_subagent(self) -> bool:
        return self.session_key.startswith(SUBAGENT_SESSION)

    @property
    def answers_report(self) -> bool:
        """Whether the turn answers a subagent's report, whose actions it did not do itself."""
        return self.origin is Origin.SUBAGENT and not self.is_subagent


@dataclass(frozen=True, slots=True)
class ToolResult:
    """`content` goes to the model; `display`, if it differs, to the person's screen.

    `error` marks a failure and `failure` says of what kind; the text says what to do differently. `provenance` is set
    if the text is not the tool's own.
    """

    content: str | list[dict[str, Any]]
    error: bool = False
    provenance: Provenance | None = None
    display: str | None = None
    failure: ToolFailure = ToolFailure.ENDED_BADLY
    written: WrittenFile | None = None
    """The file that the call wrote, to be read back."""

    @classmethod
    def failed(cls, text: str, failure: ToolFailure = ToolFailure.NOT_DONE) -> "ToolResult":
        """Make a failure the model can act on."""
        return cls(f"Error: {text}" if not text.startswith("Error") else text, error=True, failure=failure)


class Tool(ABC):
    name: str
    description: str
    parameters: dict[str, Any]
    """A JSON schema of type object."""

    aliases: ClassVar[tuple[str, ...]] = ()
    """Other accepted names; models do not see them."""
    effect: Effect = Effect.ONCE
    acts: bool = True
    """Whether a call that does not only read leaves something for a person to look for."""
    alone: bool = False
    """Whether no other call of the same step may run at the same time."""
    polls: bool = False
    """Whether repeating the same call is normal use, which the loop guard then ignores."""
    provenance: Provenance = Provenance.TOOL
    derives: bool = False
    """Whether the result may derive from anything in the window: it is trusted as little as that."""
    source: str = ""
    """Who wrote name and description, if not nanobot: they are in each request and are not the owner's words."""

    @abstractmethod
    async def execute(self, *args: Any, **kwargs: Any) -> str | ToolResult:  # any signature of named arguments fits
        """Run the tool. Cancelling must be safe: nothing half-written, no child process left.

        Return failures as `ToolResult.failed`; the registry turns raised exceptions into such results. Declare a
        keyword-only `ctx: ToolContext` to get the turn's context.
        """

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return what this call would access, before it runs; without side effects. `arguments` fit the schema.

        By default nothing for tools that only read, and the tool as a whole for all others. An exception counts as the
        tool as a whole.
        """
        return () if self.effect is Effect.READ else (Access(AccessKind.TOOL, self.name),)

    def translate(self, params: dict[str, Any]) -> dict[str, Any]:
        """Convert arguments that earlier releases took into those that `parameters` describes. Never raises."""
        return params

    def validate_params(self, params: dict[str, Any]) -> list[str]:
        """Return what is wrong with these arguments, each as a sentence for the model; empty if they fit."""
        return find_problems(params, self.parameters)

    def to_schema(self) -> ToolSchema:
        """Return the tool's definition in OpenAI format."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    @cached_property
    def wants_context(self) -> bool:
        return "ctx" in inspect.signature(self.execute).parameters


def call_arguments(tool: Tool, arguments: dict[str, Any], ctx: ToolContext | None) -> dict[str, Any]:
    """Return the arguments of `execute`: with the turn's context, if the tool wants it."""
    return {**arguments, "ctx": ctx} if ctx is not None and tool.wants_context else arguments


async def delegate_call(tool: Tool, arguments: dict[str, Any], ctx: ToolContext | None) -> ToolResult:
    """Run another tool and return its result. `arguments` fit its schema."""
    result: str | ToolResult = await tool.execute(**call_arguments(tool, arguments, ctx))
    return result if isinstance(result, ToolResult) else ToolResult(result)


def texts_in(value: object) -> Iterator[str]:
    """Yield all texts in JSON, without names."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)


# -- JSON schemas of arguments: `takes("path", path=string("File to read"), limit=integer("Lines"))` ---------------
# Every request carries them, so a parameter whose name says everything has no description.


def takes(*required: str, **properties: Schema) -> Schema:
    """Return the schema of a tool's arguments; `required` names those that must be given."""
    return {"type": "object", "properties": properties, "required": list(required)}


def string(description: str = "", **more: Any) -> Schema:
    return {"type": "string"} | _description(description) | more


def integer(description: str = "", **more: Any) -> Schema:
    return {"type": "integer"} | _description(description) | more


def number(description: str = "", **more: Any) -> Schema:
    return {"type": "number"} | _description(description) | more


def boolean(description: str = "", **more: Any) -> Schema:
    return {"type": "boolean"} | _description(description) | more


def array(description: str, **more: Any) -> Schema:
    """An array of strings."""
    return {"type": "array", "items": {"type": "string"}, "description": description, **more}


def _description(description: str) -> Schema:
    return {"description": description} if description else {}
