"""Token counts of messages, estimated from bytes, which is fast. What a model counts corrects them (agent/window).

Estimates compared with cl100k and o200k: prose 7 % too high, code 20 % too high; dense text (hex, base64, numbers,
logs) within 25 %; Chinese, Japanese and Korean close to older tokenizers and 50 % too high for newer ones.
"""

import math
import string
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from nanobot.messages.types import ChatMessage

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
"""Role and delimiters of a message."""
TOKENS_PER_CALL = 8
"""Delimiters of a tool call."""
TOKENS_PER_IMAGE = 1500
"""About the cost of an image of one megapixel."""

_EXTRA_FIELDS = frozenset({"tool_calls", "tool_call_id", "media", "reasoning_content", "thinking_blocks"})
"""Fields with tokens besides `content` and `runtime_context`."""
_PICTURES = frozenset({"image_url", "image", "input_audio", "file"})
_UNCOUNTED = _PICTURES | {"type", "source"}
"""Fields without text for a model: inline image data is not counted as text."""
_PICTURE_FILES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".svg"})

_DENSE = [  # (bytes, usual share of a text, extra tokens per byte beyond that share)
    (string.digits.encode(), 0.02, 0.55),
    (string.ascii_uppercase.encode(), 0.04, 0.85),
    (string.punctuation.encode(), 0.06, 0.3),
]
_WIDE = [  # the same for lead bytes of characters of two, three and four bytes
    (bytes(range(0xC0, 0xE0)), 0.0, 0.15),
    (bytes(range(0xE0, 0xF0)), 0.0, 0.3),
    (bytes(range(0xF0, 0xF8)), 0.0, 1.0),
]


def _all_but(kept: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in kept)


_DENSE_COSTS = [(_all_but(kept), usual_share, cost) for kept, usual_share, cost in _DENSE]
_WIDE_COSTS = [(_all_but(kept), usual_share, cost) for kept, usual_share, cost in _WIDE]


def estimate_tokens(content: str | Iterable[ChatMessage]) -> int:
    """Estimate the tokens of a text or of messages with all their fields. Never raises."""
    if isinstance(content, str):
        return math.ceil(_estimate(content))
    return sum(_weight(message) for message in content)


def _estimate(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    tokens = len(data) / BYTES_PER_TOKEN
    for other_bytes, usual_share, cost in _DENSE_COSTS if len(data) == len(text) else _DENSE_COSTS + _WIDE_COSTS:
        tokens += max(len(data.translate(None, other_bytes)) - usual_share * len(data), 0) * cost
    return tokens


def _weight(message: ChatMessage) -> int:
    content, context = message.get("content"), message.get("runtime_context")
    if isinstance(content, str) and not _EXTRA_FIELDS.intersection(message):  # fast path for most rows
        return TOKENS_PER_MESSAGE + math.ceil(
            _estimate(content) + (_estimate(context) if isinstance(context, str) else 0)
        )
    calls, media, blocks = (
        value if isinstance(value, list) else [] for value in map(message.get, ("tool_calls", "media", "content"))
    )
    pictures = sum(map(is_picture, media)) + sum(
        1 for block in blocks if isinstance(block, dict) and str(block.get("type")) in _PICTURES
    )
    thinking = message.get("thinking_blocks") or message.get("reasoning_content")  # the same in two formats
    texts = _texts([content, context, message.get("tool_call_id"), calls, thinking])
    fixed = TOKENS_PER_MESSAGE + TOKENS_PER_CALL * len(calls) + TOKENS_PER_IMAGE * pictures
    return fixed + math.ceil(sum(map(_estimate, texts)))


def is_picture(path: object) -> bool:
    """Whether this attachment is sent to a model as an image."""
    if not isinstance(path, str):
        return False
    return path.startswith("data:image/") or PurePath(path).suffix.lower() in _PICTURE_FILES


def _texts(value: object) -> Iterator[str]:
    """All texts inside that a model reads."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name not in _UNCOUNTED:
                yield from _texts(item)
