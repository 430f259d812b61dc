"""Builds the input items of a Responses request from the rows of a session, without nanobot's own fields.

The server stores nothing (`store: false`), so each request carries everything: reasoning as the server encrypted it,
without item ids, which refer to stored items. Source: the public reference
(platform.openai.com/docs/api-reference/responses).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.providers.wire.chat_request import RequestDialect, image_blocks, text_for_model, wire_text

INSTRUCTIONS = "You are nanobot, a helpful assistant."
"""Used if a request has no system prompt: the backend requires instructions."""
MAX_CALL_ID_LENGTH = 64
Item = dict[str, Any]


def flat_tool(schema: ToolSchema) -> Item:
    """A tool in this wire's shape: flat, and not strict (strict is the default here, but few schemas qualify)."""
    function = schema.get("function", {})
    fields = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", **fields, "strict": False}


@dataclass(frozen=True, slots=True)
class Input:
    """A conversation as Responses input."""

    instructions: str
    items: list[Item]


class UndecryptableReasoning:
    """Reasoning that a server could not decrypt, from another account or vendor. It is not sent to it again."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def __contains__(self, block: Item) -> bool:
        return hash(block["encrypted_content"]) in self._hashes

    def add(self, rows: Iterable[ChatMessage]) -> bool:
        """Mark all reasoning of these rows, since no server says which item failed. Return False if none is new."""
        blocks = (block for row in rows for block in row.get("thinking_blocks") or () if is_encrypted_reasoning(block))
        hashes = {hash(block["encrypted_content"]) for block in blocks} - self._hashes
        self._hashes |= hashes
        return bool(hashes)


_NONE_UNDECRYPTABLE = UndecryptableReasoning()


def build_input(
    rows: Sequence[ChatMessage], *, images: bool = True, undecryptable: UndecryptableReasoning = _NONE_UNDECRYPTABLE
) -> Input:
    """The rows as input items. Reads the image files they name: call it in a thread if there are any."""
    head = list(takewhile(lambda row: row["role"] == "system", rows))
    instructions = "\n\n".join(filter(None, map(wire_text, head)))
    dialect = RequestDialect(images=images)
    items: list[Item] = []
    for row in rows[len(head) :]:
        items += _items_of(row, dialect, undecryptable)
    return Input(instructions or INSTRUCTIONS, items)


def _items_of(row: ChatMessage, dialect: RequestDialect, undecryptable: UndecryptableReasoning) -> list[Item]:
    role = row["role"]
    if role == "assistant":
        return _assistant(row, undecryptable)
    text = {"type": "input_text", "text": text_for_model(row, dialect)}
    images = [_image_item(block) for block in image_blocks(row, dialect)]
    if role == "tool":
        output = [text, *images] if images else text["text"]
        return [
            {"type": "function_call_output", "call_id": short_call_id(row.get("tool_call_id", "")), "output": output}
        ]
    input_role = "developer" if role == "system" else "user"
    return [{"type": "message", "role": input_role, "content": [text, *images]}]


def _assistant(row: ChatMessage, undecryptable: UndecryptableReasoning) -> list[Item]:
    """The items of an assistant row; none if it has neither text nor calls, since reasoning alone is rejected."""
    text = text_of(row["content"])
    output: list[Item] = []
    if text:
        output.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    for call in row.get("tool_calls") or ():
        function = call["function"]
        output.append(
            {
                "type": "function_call",
                "call_id": short_call_id(call["id"]),
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    blocks = [
        block
        for block in row.get("thinking_blocks") or ()
        if is_encrypted_reasoning(block) and block not in undecryptable
    ]
    return [*map(_reasoning_item, blocks), *output] if output else []


def is_encrypted_reasoning(block: object) -> bool:
    """Whether a thinking block belongs to this wire, encrypted by the server so that it can go back."""
    return isinstance(block, dict) and block.get("type") == "reasoning" and bool(block.get("encrypted_content"))


def _reasoning_item(block: Item) -> Item:
    """The block without server-side ids and empty fields."""
    fields = {name: value for name, value in block.items() if name not in ("id", "status") and value is not None}
    return {"summary": [], **fields}


def _image_item(block: Item) -> Item:
    if block["type"] == "image_url":
        return {"type": "input_image", "image_url": block["image_url"]["url"]}
    return {"type": "input_text", "text": block["text"]}


def short_call_id(call_id: str) -> str:
    """The call id, shortened by hashing if it exceeds this wire's limit."""
    if len(call_id) <= MAX_CALL_ID_LENGTH:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:48]}"


def conversation_key(session_key: str) -> str:
    """An opaque key shared by all requests of a session, for the server's prompt cache."""
    return hashlib.sha256(f"nanobot:{session_key}".encode()).hexdigest()[:32]
