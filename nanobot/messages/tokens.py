"""Token counts of messages: estimated from bytes, which is fast; counted with a tokenizer when a window is nearly full.

Estimates compared with cl100k and o200k: prose 7 % too high, code 20 % too high; dense text (hex, base64, numbers,
logs) within 25 %; Chinese, Japanese and Korean close to older tokenizers and 50 % too high for newer ones.
"""

import importlib.util
import math
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from nanobot.messages.types import ChatMessage

BYTES_PER_TOKEN = 4
TOKENS_PER_MESSAGE = 4
"""Role and delimiters of a message."""
TOKENS_PER_CALL = 8
"""Delimiters of a tool call."""
TOKENS_PER_IMAGE = 1500
"""About the cost of an image of one megapixel; inline image data is not counted as text."""

Count = Callable[[str], float]
"""Counts the tokens of a text."""

_EXTRA_FIELDS = frozenset({"tool_calls", "tool_call_id", "media", "reasoning_content", "thinking_blocks"})
"""Fields with tokens besides `content` and `runtime_context`."""
_PICTURES = frozenset({"image_url", "image", "input_audio", "file"})
_PICTURE_FILES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".svg"})

_MAX_OTHERS = 100
_ALL = bytes(range(256))
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
    return bytes(byte for byte in _ALL if byte not in kept)


_DENSE_COSTS = [(_all_but(kept), usual_share, cost) for kept, usual_share, cost in _DENSE]
_WIDE_COSTS = [(_all_but(kept), usual_share, cost) for kept, usual_share, cost in _WIDE]


def estimate_tokens(content: str | Iterable[ChatMessage]) -> int:
    """Estimate the tokens of a text or of messages with all their fields. Never raises."""
    if isinstance(content, str):
        return math.ceil(_estimate(content))
    return sum(_weight(message, _estimate) for message in content)


class Scale:
    """Computes and caches the tokens of messages; the messages must not change meanwhile."""

    def __init__(self) -> None:
        self._count: Count = _estimate
        self._weights: dict[int, tuple[ChatMessage, int]] = {}
        """Keyed by id() of the message, which is referenced so that the id cannot be reused."""
        self._text: tuple[str, int] | None = None

    @property
    def exact(self) -> bool:
        """Whether a tokenizer is used."""
        return self._count is not _estimate

    def weigh(self, message: ChatMessage) -> int:
        """The tokens of a message. Never raises."""
        known = self._weights.get(id(message))
        if known is None:
            known = self._weights[id(message)] = (message, _weight(message, self._count))
        return known[1]

    def weigh_text(self, text: str) -> int:
        """The tokens of a message with this text; the last result is cached."""
        if self._text is None or self._text[0] != text:
            self._text = text, TOKENS_PER_MESSAGE + math.ceil(self._count(text))
        return self._text[1]

    def weigh_all(self, messages: Sequence[ChatMessage]) -> int:
        """The tokens of all messages."""
        weights, total = self._weights, 0
        for message in messages:
            known = weights.get(id(message))
            total += self.weigh(message) if known is None else known[1]
        return total

    def forget_others(self, messages: Sequence[ChatMessage]) -> None:
        """Drop cached messages that are not among these, once there are many."""
        if len(self._weights) > 2 * len(messages) + _MAX_OTHERS:
            kept = set(map(id, messages))
            self._weights = {key: known for key, known in self._weights.items() if key in kept}

    def sharpen(self, messages: Sequence[ChatMessage]) -> bool:
        """Switch to the tokenizer and count these messages. Return False if there is none. Blocks: use a thread."""
        count = tokenizer()
        if count is None:
            return False
        if not self.exact:
            self._count, self._weights, self._text = count, {}, None
        for message in messages:
            self.weigh(message)
        return True


@cache
def tokenizer() -> Count | None:
    """The o200k tokenizer, a good approximation for most models; None if its table is missing.

    The table is read from LiteLLM's package files, without importing LiteLLM and without network access. The first call
    takes 0.3 s and 40 MB.
    """
    spec = importlib.util.find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            return _bpe(Path(folder) / "litellm_core_utils" / "tokenizers" / _O200K)
        except (OSError, ValueError, ImportError):
            continue
    return None


_O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""File name of the o200k table in tiktoken's cache format."""
_PIECES = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
"""A simplified split pattern; counts are within 9 % of those with the original one."""
_CHUNK_CHARS = 20_000
"""Texts are counted in chunks: the time for one very long word grows faster than its length."""


def _bpe(table: Path) -> Count:
    from base64 import b64decode

    with table.open("rb") as lines:
        pairs = (line.split() for line in lines)
        ranks = {b64decode(token): int(rank) for token, rank in pairs}
    import tiktoken  # lazy: only needed for a nearly full window

    encoding = tiktoken.Encoding("o200k", pat_str=_PIECES, mergeable_ranks=ranks, special_tokens={})

    def count(text: str) -> float:
        chunks = (text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS))
        return sum(len(encoding.encode_ordinary(chunk)) for chunk in chunks)

    return count


def _estimate(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    tokens = len(data) / BYTES_PER_TOKEN
    for other_bytes, usual_share, cost in _DENSE_COSTS if len(data) == len(text) else _DENSE_COSTS + _WIDE_COSTS:
        tokens += max(len(data.translate(None, other_bytes)) - usual_share * len(data), 0) * cost
    return tokens


def _weight(message: ChatMessage, count: Count) -> int:
    content = message.get("content")
    if isinstance(content, str) and not _EXTRA_FIELDS.intersection(message):  # fast path for most rows
        context = message.get("runtime_context")
        return TOKENS_PER_MESSAGE + math.ceil(count(content) + (count(context) if isinstance(context, str) else 0))
    calls = _as_list(message.get("tool_calls"))
    fixed = TOKENS_PER_MESSAGE + TOKENS_PER_CALL * len(calls) + TOKENS_PER_IMAGE * _pictures(message)
    return fixed + math.ceil(sum(map(count, _message_texts(message))))


def _pictures(message: ChatMessage) -> int:
    blocks = [block for block in _as_list(message.get("content")) if isinstance(block, dict)]
    inside = sum(1 for block in blocks if str(block.get("type")) in _PICTURES)
    return inside + sum(1 for path in _as_list(message.get("media")) if is_picture(path))


def is_picture(path: object) -> bool:
    """Whether this attachment is sent to a model as an image."""
    if not isinstance(path, str):
        return False
    return path.startswith("data:image/") or PurePath(path).suffix.lower() in _PICTURE_FILES


def _message_texts(message: ChatMessage) -> Iterator[str]:
    """All texts of a message that a model reads."""
    content: object = message.get("content")
    if content is not None and not isinstance(content, str | list):
        content = str(content)
    thinking = _as_list(message.get("thinking_blocks"))
    texts: list[object] = [content, message.get("runtime_context"), message.get("tool_call_id")]
    texts += [] if thinking else [message.get("reasoning_content")]  # the same reasoning in another format
    texts += [block.get("text") for block in _as_list(content) if isinstance(block, dict)]
    for call in _as_list(message.get("tool_calls")):
        texts += _call_texts(call)
    for block in thinking:
        texts += (
            [block.get(name) for name in ("thinking", "signature", "data", "encrypted_content")]
            if isinstance(block, dict)
            else []
        )
    return (text for text in texts if isinstance(text, str))


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _call_texts(call: Any) -> list[object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return []
    return [call.get("id"), function.get("name"), function.get("arguments")]
