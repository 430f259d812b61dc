"""Chat messages: one entry of the conversation a model sees, as it is stored and as it is handed around.

A chat message is a plain dict at run time. Each wire keeps a whitelist of the fields it sends, so the fields that are
ours (provenance, turn_id, runtime_context...) never leave the house.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict


class Origin(StrEnum):
    """Why a message exists."""

    USER = "user"
    CRON = "cron"
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"
    API = "api"
    CLI = "cli"
    GOAL = "goal"
    """A turn that works at a goal by itself: its message is ours, and never shown to a person."""
    SYSTEM = "system"
    """Our own words to the model (go on, a nudge): replayed, never shown to a person."""


class Provenance(StrEnum):
    """Where words came from, in falling trust. It is stored, and it never rises."""

    OWNER = "owner"
    SYSTEM = "system"
    FILE = "file"
    TOOL = "tool"
    MCP = "mcp"
    PERSON = "person"
    MAIL = "mail"
    WEB = "web"


class ToolFailure(StrEnum):
    """How a tool call failed: the `failure` of its row. A row without it went well, or is from before it was kept."""

    NOT_DONE = "not_done"
    """What was asked for was not done; the words say why."""
    ENDED_BADLY = "ended_badly"
    """It ran, to no good end: a command with an exit code, say. What it did is done."""
    NOT_RUN = "not_run"
    """It was answered with advice instead of being run."""
    UNKNOWN = "unknown"
    """nanobot was interrupted while it ran; it may or may not have had its effect."""


_BY_TRUST = list(Provenance)
_TRUST: dict[str, int] = {provenance: rank for rank, provenance in enumerate(_BY_TRUST)}


def least_trusted(provenances: Iterable[str]) -> Provenance:
    """What is derived from several keeps the least trusted; a word we do not know counts as the least trusted of all.

    Of nothing, OWNER.
    """
    ranks = [_TRUST.get(name, _TRUST[Provenance.WEB]) for name in set(provenances)]  # many rows, few words
    return _BY_TRUST[max(ranks, default=0)]


def is_outside(provenance: str) -> bool:
    """Whether these words are neither the owner's nor made on this machine."""
    return least_trusted([provenance, Provenance.TOOL]) is not Provenance.TOOL


class FunctionCall(TypedDict):
    """The name and the arguments, as JSON text, byte for byte as the model wrote them."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A request to use a tool, in OpenAI's shape."""

    id: str
    type: Literal["function"]
    function: FunctionCall
    extra_content: NotRequired[dict[str, Any]]
    """What the model's server wants back with the call, untouched: Gemini signs its calls here."""


Content = str | list[dict[str, Any]] | None
"""Text, or content blocks in OpenAI's shape (`text`, `image_url`; images are stored by path, never inline)."""


class ChatMessage(TypedDict):
    """A row of a session and an entry of a request. Which fields go with which role: docs/formats.md."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Content
    timestamp: NotRequired[str]
    turn_id: NotRequired[str]
    provenance: NotRequired[str]
    # user
    runtime_context: NotRequired[str]
    context_provenance: NotRequired[str]
    media: NotRequired[list[str]]
    sender_id: NotRequired[str]
    origin: NotRequired[str]
    in_group: NotRequired[bool]
    inbound: NotRequired[str]
    scope: NotRequired[str]
    # assistant
    tool_calls: NotRequired[list[ToolCall]]
    reasoning_content: NotRequired[str | None]
    thinking_blocks: NotRequired[list[dict[str, Any]] | None]
    error: NotRequired[str]
    told: NotRequired[str]
    # tool
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    failure: NotRequired[str]
    own_provenance: NotRequired[str]


INTERRUPTED = "interrupted"
"""The `error` of an assistant's row that holds what the model had said when it was cut off."""

ToolSchema = dict[str, Any]
"""A tool as a provider is told of it: `{"type": "function", "function": {name, description, parameters}}`."""


def is_our_word(message: ChatMessage) -> bool:
    """Whether this is a word of ours to the model, put where a person's would stand: replayed, never shown."""
    return message["role"] == "user" and message.get("origin") == Origin.SYSTEM


def did_nothing(result: ChatMessage) -> bool:
    """Whether this is the row of a call that did nothing of what it was for."""
    return result.get("failure") in (ToolFailure.NOT_DONE, ToolFailure.NOT_RUN)


def with_context(text: str, context: str | None) -> str:
    """A user's words as a model reads them: the runtime context sent with them stands behind, byte for byte."""
    return f"{text}\n\n{context}" if context else text


def text_of(content: Content) -> str:
    """The words of a content, its blocks joined by lines; images and unknown blocks left out."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or [] if block.get("type") == "text")
