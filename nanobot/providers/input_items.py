"""From rows of a session to the input items of a Responses request. Fields that are ours stay home.

What the server keeps nothing of (`store: false`) goes out whole each time: thoughts as it encrypted them, without the
ids of items that nobody stored. Source: the public reference (platform.openai.com/docs/api-reference/responses).
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.providers.wire import Dialect, pictures_of, wire_text, words_of

INSTRUCTIONS = "You are nanobot, a helpful assistant."
"""For a request without a system prompt: the backend takes none without instructions."""
LONGEST_CALL_ID = 64
Item = dict[str, Any]


def tool_of(schema: ToolSchema) -> Item:
    """A tool in this wire's shape: flat, and not strict (which is the default here, and few schemas are fit for it)."""
    function = schema.get("function", {})
    named = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", **named, "strict": False}


@dataclass(frozen=True, slots=True)
class Input:
    """A conversation in this wire's shape."""

    instructions: str
    items: list[Item]


class SealedThoughts:
    """Thoughts that a server could not open: another account's, or another vendor's. They are not sent to it again."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __contains__(self, block: Item) -> bool:
        return hash(block["encrypted_content"]) in self._seen

    def add(self, rows: Iterable[ChatMessage]) -> bool:
        """Take all thoughts of these rows for sealed: which of them it is, no server says. False if none is new."""
        blocks = (block for row in rows for block in row.get("thinking_blocks") or () if is_thought(block))
        found = {hash(block["encrypted_content"]) for block in blocks} - self._seen
        self._seen |= found
        return bool(found)


_NONE_SEALED = SealedThoughts()


def input_of(rows: Sequence[ChatMessage], *, images: bool = True, sealed: SealedThoughts = _NONE_SEALED) -> Input:
    """The rows as input items. Reads the images they name: not for the event loop if there are any."""
    head = list(takewhile(lambda row: row["role"] == "system", rows))
    instructions = "\n\n".join(filter(None, map(wire_text, head)))
    dialect = Dialect(images=images)
    items: list[Item] = []
    for row in rows[len(head) :]:
        items += _items_of(row, dialect, sealed)
    return Input(instructions or INSTRUCTIONS, items)


def _items_of(row: ChatMessage, dialect: Dialect, sealed: SealedThoughts) -> list[Item]:
    role = row["role"]
    if role == "assistant":
        return _assistant(row, sealed)
    text = {"type": "input_text", "text": words_of(row, dialect)}
    pictures = [_picture(block) for block in pictures_of(row, dialect)]
    if role == "tool":
        output = [text, *pictures] if pictures else text["text"]
        return [{"type": "function_call_output", "call_id": call_id_of(row.get("tool_call_id", "")), "output": output}]
    role_here = "developer" if role == "system" else "user"
    return [{"type": "message", "role": role_here, "content": [text, *pictures]}]


def _assistant(row: ChatMessage, sealed: SealedThoughts) -> list[Item]:
    """What was thought, said and called. A row with nothing in it is left out: a thought must lead to something."""
    text = text_of(row["content"])
    said: list[Item] = []
    if text:
        said.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    for call in row.get("tool_calls") or ():
        function = call["function"]
        said.append(
            {
                "type": "function_call",
                "call_id": call_id_of(call["id"]),
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    blocks = [block for block in row.get("thinking_blocks") or () if is_thought(block) and block not in sealed]
    return [*map(_thought, blocks), *said] if said else []


def is_thought(block: object) -> bool:
    """Whether a thinking block is this wire's: encrypted by the server, so that it can go back. Others stay home."""
    return isinstance(block, dict) and block.get("type") == "reasoning" and bool(block.get("encrypted_content"))


def _thought(block: Item) -> Item:
    """As it came, less what names an item that the server did not keep, and less what is empty."""
    kept = {name: value for name, value in block.items() if name not in ("id", "status") and value is not None}
    return {"summary": [], **kept}


def _picture(block: Item) -> Item:
    if block["type"] == "image_url":
        return {"type": "input_image", "image_url": block["image_url"]["url"]}
    return {"type": "input_text", "text": block["text"]}


def call_id_of(call_id: str) -> str:
    """The id of a call as this wire takes it: other models' may be longer."""
    if len(call_id) <= LONGEST_CALL_ID:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:48]}"


def conversation_key(session_key: str) -> str:
    """What the requests of one session have in common, so that the server finds its cache; tells nothing of the key."""
    return hashlib.sha256(f"nanobot:{session_key}".encode()).hexdigest()[:32]
