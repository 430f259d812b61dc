"""What messages weigh, estimated from their characters, so that nobody waits for a tokenizer.

A token is taken to be four bytes of UTF-8. That is 4 characters of English or code, 2 of Cyrillic, Greek or Arabic, 1.3
of Chinese, Japanese or Korean, and one emoji: near the middle of what today's tokenizers do, a little high for prose.
"""

from collections.abc import Iterable
from typing import Any

from nanobot.messages.types import ChatMessage

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
"""The role and the marks around a message."""
TOKENS_PER_IMAGE = 1500
"""About what a picture of a megapixel costs; its bytes, when they are inline, are not text and are not counted."""

_PICTURES = frozenset({"image_url", "image", "input_audio", "file"})


def estimate_tokens(what: str | Iterable[ChatMessage]) -> int:
    """About how many tokens a text, or a list of messages with all they carry, costs. Never raises."""
    if isinstance(what, str):
        return _tokens(_size(what))
    return sum(_message_tokens(message) for message in what)


def _tokens(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def _size(text: object) -> int:
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _message_tokens(message: ChatMessage) -> int:
    content: object = message.get("content")
    size, tokens = _size(content), TOKENS_PER_MESSAGE
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            size += _size(block.get("text"))
            tokens += TOKENS_PER_IMAGE if block.get("type") in _PICTURES else 0
    size += _size(message.get("runtime_context")) + _size(message.get("reasoning_content"))
    size += sum(_call_size(call) for call in message.get("tool_calls") or ())
    thoughts = message.get("thinking_blocks") or ()
    size += sum(_size(block.get("thinking")) + _size(block.get("encrypted_content")) for block in thoughts)
    return tokens + _tokens(size)


def _call_size(call: Any) -> int:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return 0
    return _size(call.get("id")) + _size(function.get("name")) + _size(function.get("arguments"))
