"""Chat messages: the entries of a conversation, as stored, as passed around and as shown. Plain dicts at run time.

Each wire has a list of the fields it sends, so our own fields (provenance, turn_id, runtime_context...) are never sent
to a provider.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict


class Origin(StrEnum):
    """Why a message exists: what caused its turn."""

    USER = "user"
    CRON = "cron"
    HEARTBEAT = "heartbeat"
    SUBAGENT = "subagent"
    API = "api"
    CLI = "cli"
    GOAL = "goal"
    """A turn of a goal. Its message is generated, and never shown to a person."""
    SYSTEM = "system"
    """A generated message to the model, such as a request to continue: replayed, never shown to a person."""


BACKGROUND_ORIGINS = (Origin.CRON, Origin.HEARTBEAT, Origin.SUBAGENT, Origin.GOAL)
"""Origins of turns that no person asked for just now. Their messages never join a running turn."""


class Provenance(StrEnum):
    """Where content came from, in falling trust. Stored with each row; it never rises."""

    OWNER = "owner"
    SYSTEM = "system"
    FILE = "file"
    TOOL = "tool"
    MCP = "mcp"
    PERSON = "person"
    MAIL = "mail"
    WEB = "web"


class ToolFailure(StrEnum):
    """The `failure` of a tool call's row. Rows without it succeeded, or are older than this field."""

    NOT_DONE = "not_done"
    """The action was not performed; the text says why."""
    ENDED_BADLY = "ended_badly"
    """It ran and failed, such as a command with an exit code; it may have had effects."""
    NOT_RUN = "not_run"
    """It was refused and not run."""
    UNKNOWN = "unknown"
    """nanobot was interrupted while it ran; whether it had its effect is unknown."""


_BY_TRUST = list(Provenance)
_BY_NAME: dict[str, Provenance] = {str(provenance): provenance for provenance in Provenance}
_TRUST: dict[str, int] = {provenance: rank for rank, provenance in enumerate(_BY_TRUST)}


def least_trusted(provenances: Iterable[str]) -> Provenance:
    """The provenance of something derived from all of these: the lowest. Unknown values count as the lowest.

    OWNER if there are none.
    """
    ranks = [_TRUST.get(name, _TRUST[Provenance.WEB]) for name in set(provenances)]  # many rows, few values
    return _BY_TRUST[max(ranks, default=0)]


def is_outside(provenance: str) -> bool:
    """Whether this content is untrusted: neither the owner's nor produced on this machine."""
    return least_trusted([provenance, Provenance.TOOL]) is not Provenance.TOOL


OWNER_CHANNELS = frozenset({"cli", "web", "sdk", "api", "heartbeat", "cron", "unified"})
"""Session key prefixes of conversations with the owner only; used for rows without a provenance."""
_TOOL_PROVENANCE = {"web_": Provenance.WEB, "mcp_": Provenance.MCP, "inbox": Provenance.MAIL}


def stored_provenance(row: Mapping[str, Any], session_key: str = "") -> Provenance:
    """The provenance of a stored row. For a row without one it is derived from its tool; for a user's row from the
    session: messages in a channel may be anybody's.
    """
    stored = row.get("provenance")
    if stored is not None:
        return _BY_NAME.get(str(stored), Provenance.WEB)  # unknown counts as the lowest
    if row.get("role") == "tool":
        name = str(row.get("name", ""))
        return next(
            (provenance for prefix, provenance in _TOOL_PROVENANCE.items() if name.startswith(prefix)), Provenance.TOOL
        )
    channel, colon, _ = session_key.partition(":")
    is_owner_session = not colon or channel in OWNER_CHANNELS  # keys without a channel are chosen by the owner
    return Provenance.PERSON if row.get("role") == "user" and not is_owner_session else Provenance.OWNER


class FunctionCall(TypedDict):
    """The name, and the arguments as JSON text exactly as the model wrote them."""

    name: str
    arguments: str


class ToolCall(TypedDict):
    """A tool call in OpenAI's format."""

    id: str
    type: Literal["function"]
    function: FunctionCall
    extra_content: NotRequired[dict[str, Any]]
    """Data to send back unchanged with the call: Gemini stores its signature here."""


Content = str | list[dict[str, Any]] | None
"""Text, or content blocks in OpenAI's format (`text`, `image_url`; images are stored by path, never inline)."""


class ChatMessage(TypedDict):
    """A row of a session and an entry of a request. docs/formats.md lists the fields of each role."""

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
    reply: NotRequired[str]
    sent_back: NotRequired[bool]
    retryable: NotRequired[bool]
    # tool
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    failure: NotRequired[str]
    own_provenance: NotRequired[str]


INTERRUPTED = "interrupted"
"""The `error` of an assistant row with the partial text of an interrupted answer."""

ToolSchema = dict[str, Any]
"""A tool as sent to a provider: `{"type": "function", "function": {name, description, parameters}}`."""


def is_synthetic(message: ChatMessage) -> bool:
    """Whether this user row was generated by nanobot for the model: replayed, never shown."""
    return message["role"] == "user" and message.get("origin") == Origin.SYSTEM


def had_no_effect(result: ChatMessage) -> bool:
    """Whether this is the result of a call that did not perform its action."""
    return result.get("failure") in (ToolFailure.NOT_DONE, ToolFailure.NOT_RUN)


def with_context(text: str, context: str | None) -> str:
    """A user's text as sent to a model, followed by its runtime context."""
    return f"{text}\n\n{context}" if context else text


def text_of(content: Content) -> str:
    """The text of a content: text blocks joined by newlines, other blocks left out."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content or [] if block.get("type") == "text")


CONTEXT_MARK = "[Runtime Context"
"""Start of every runtime context, also in old sessions."""
CONTEXT_CLOSE = "[/Runtime Context]"
JOB_NOTE = '[Scheduled job "'
"""Start of the note below the text of a due job."""
GOAL_CHECK = "At the end this must hold:"
GOAL_RULES = "You work at this by yourself, turn after turn:"
"""Text after a goal in the message of its first turn."""
_GOAL = re.compile(rf"\[Goal, turn 1: [^\]\n]*\]\n\n(.*?)\n\n(?:{GOAL_CHECK}|{GOAL_RULES}) ", re.DOTALL)
_CONTEXT_LINE = re.compile(r"(?:Current Time|Channel|Chat ID|Sender ID|Sender|Timezone)\s*:")


def shown_text(message: ChatMessage) -> str:
    """The text of a message as a person may see it.

    Empty for generated messages and for answers that a review sent back. The runtime context that old sessions store in
    the content is removed.
    """
    if message.get("sent_back"):
        return ""
    if message.get("origin") in (Origin.SYSTEM, Origin.GOAL) and message.get("role") == "user":
        return ""
    content = message.get("content")
    text = content if isinstance(content, str) else "\n".join(_texts(content))
    return _without_runtime_context(text) if message.get("role") == "user" else text


def visible_text(message: ChatMessage) -> str:
    """Like `shown_text`, for views of a conversation: the first message of a goal shows the goal."""
    if message.get("role") == "user" and message.get("origin") == Origin.GOAL:
        match = _GOAL.match(str(message.get("content")))
        return f"[goal] {match[1]}" if match else ""
    return shown_text(message)


def _texts(content: object) -> list[str]:
    blocks = content if isinstance(content, list) else ()
    texts = (block.get("text") if isinstance(block, dict) else block for block in blocks)
    return [text for text in texts if isinstance(text, str)]


def _without_runtime_context(text: str) -> str:
    """Remove a runtime context at the end of the text; one that the person typed in the middle stays."""
    start = text.rfind(CONTEXT_MARK)
    if start < 0 or (start > 0 and text[start - 1] != "\n"):
        return text
    block = text[start:].rstrip()
    closed = block.endswith(CONTEXT_CLOSE)
    if closed or all(_CONTEXT_LINE.match(line) for line in block.splitlines()[1:]):
        return text[:start].rstrip()
    return text
