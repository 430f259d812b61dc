"""What messages weigh. Estimated from their characters, so that nobody waits for a tokenizer; counted by one when a
window is nearly full.

Measured against cl100k and o200k: prose comes out a fifteenth too heavy and code a fifth, dense text (hex, base64,
numbers, logs) between a quarter too light and a quarter too heavy, Chinese, Japanese and Korean near what older
tokenizers make of them and half too heavy for newer ones.
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
"""The role and the marks around a message."""
TOKENS_PER_CALL = 8
"""The marks around a call of a tool."""
TOKENS_PER_IMAGE = 1500
"""About what a picture of a megapixel costs; its bytes, when they are inline, are not text and are not counted."""

Count = Callable[[str], float]
"""How many tokens a text is."""

_UNUSUAL = frozenset({"tool_calls", "tool_call_id", "media", "reasoning_content", "thinking_blocks"})
"""Fields that weigh something beside the words."""
_PICTURES = frozenset({"image_url", "image", "input_audio", "file"})
_PICTURE_FILES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".svg"})

_OTHERS_KEPT = 100
_ALL = bytes(range(256))
_DENSE = [  # bytes that share a token with few others: their share of usual text, what each more costs beside a quarter
    (string.digits.encode(), 0.02, 0.55),
    (string.ascii_uppercase.encode(), 0.04, 0.85),
    (string.punctuation.encode(), 0.06, 0.3),
]
_WIDE = [  # first bytes of characters of two, three and four bytes
    (bytes(range(0xC0, 0xE0)), 0.0, 0.15),
    (bytes(range(0xE0, 0xF0)), 0.0, 0.3),
    (bytes(range(0xF0, 0xF8)), 0.0, 1.0),
]


def _others(kept: bytes) -> bytes:
    return bytes(byte for byte in _ALL if byte not in kept)


_DENSE_COSTS = [(_others(kept), usual, cost) for kept, usual, cost in _DENSE]
_WIDE_COSTS = [(_others(kept), usual, cost) for kept, usual, cost in _WIDE]


def estimate_tokens(what: str | Iterable[ChatMessage]) -> int:
    """About how many tokens a text, or a list of messages with all they carry, costs. Never raises."""
    if isinstance(what, str):
        return math.ceil(_estimate(what))
    return sum(_weight(message, _estimate) for message in what)


class Scale:
    """Weighs messages, each once however often it is asked: hold one as long as the messages stay as they are."""

    def __init__(self) -> None:
        self._count: Count = _estimate
        self._known: dict[int, tuple[ChatMessage, int]] = {}
        """By identity; the message is held, so that nothing else can come to stand at its place."""
        self._text: tuple[str, int] | None = None

    @property
    def exact(self) -> bool:
        """Whether a tokenizer does the counting."""
        return self._count is not _estimate

    def weigh(self, message: ChatMessage) -> int:
        """About how many tokens this message costs. Never raises."""
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = (message, _weight(message, self._count))
        return known[1]

    def weigh_text(self, text: str) -> int:
        """About how many tokens a message with this text costs; that of the last time is not weighed again."""
        if self._text is None or self._text[0] != text:
            self._text = text, TOKENS_PER_MESSAGE + math.ceil(self._count(text))
        return self._text[1]

    def weigh_all(self, messages: Sequence[ChatMessage]) -> int:
        """What they cost together."""
        known, total = self._known, 0
        for message in messages:
            found = known.get(id(message))
            total += self.weigh(message) if found is None else found[1]
        return total

    def forget_others(self, messages: Sequence[ChatMessage]) -> None:
        """Let go of messages that are not among these, once there are many of them."""
        if len(self._known) > 2 * len(messages) + _OTHERS_KEPT:
            kept = set(map(id, messages))
            self._known = {key: known for key, known in self._known.items() if key in kept}

    def sharpen(self, messages: Sequence[ChatMessage]) -> bool:
        """From now on let a tokenizer count, these messages first; whether there is one. Blocking: for a thread."""
        count = tokenizer()
        if count is None:
            return False
        if not self.exact:
            self._count, self._known, self._text = count, {}, None
        for message in messages:
            self.weigh(message)
        return True


@cache
def tokenizer() -> Count | None:
    """The tokenizer of today's larger models, for others a good likeness; None where its tables are missing.

    The tables are those that come with LiteLLM, read from their file: LiteLLM itself, and the network, are left alone.
    Takes a third of a second and 40 MB the first time.
    """
    found = importlib.util.find_spec("litellm")
    for folder in (found.submodule_search_locations or ()) if found is not None else ():
        try:
            return _bpe(Path(folder) / "litellm_core_utils" / "tokenizers" / _O200K)
        except (OSError, ValueError, ImportError):
            continue
    return None


_O200K = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""How the table of o200k is called in a cache of tiktoken."""
_PIECES = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s+"
"""A text is cut into words, numbers, marks and spaces before it is counted; within 9 % of the true rules everywhere."""
_STRETCH = 20_000
"""Characters counted at a time: one endless word costs more than its length."""


def _bpe(table: Path) -> Count:
    from base64 import b64decode

    with table.open("rb") as lines:
        pairs = (line.split() for line in lines)
        ranks = {b64decode(token): int(rank) for token, rank in pairs}
    import tiktoken  # only a window that is nearly full pays for it

    encoding = tiktoken.Encoding("o200k", pat_str=_PIECES, mergeable_ranks=ranks, special_tokens={})

    def count(text: str) -> float:
        stretches = (text[at : at + _STRETCH] for at in range(0, len(text), _STRETCH))
        return sum(len(encoding.encode_ordinary(stretch)) for stretch in stretches)

    return count


def _estimate(text: str) -> float:
    data = text.encode("utf-8", "surrogatepass")
    tokens = len(data) / BYTES_PER_TOKEN
    for others, usual, cost in _DENSE_COSTS if len(data) == len(text) else _DENSE_COSTS + _WIDE_COSTS:
        tokens += max(len(data.translate(None, others)) - usual * len(data), 0) * cost
    return tokens


def _weight(message: ChatMessage, count: Count) -> int:
    content = message.get("content")
    if isinstance(content, str) and not _UNUSUAL.intersection(message):  # most rows: words, and the time beside them
        context = message.get("runtime_context")
        return TOKENS_PER_MESSAGE + math.ceil(count(content) + (count(context) if isinstance(context, str) else 0))
    calls = _list(message.get("tool_calls"))
    fixed = TOKENS_PER_MESSAGE + TOKENS_PER_CALL * len(calls) + TOKENS_PER_IMAGE * _pictures(message)
    return fixed + math.ceil(sum(map(count, _texts(message))))


def _pictures(message: ChatMessage) -> int:
    blocks = [block for block in _list(message.get("content")) if isinstance(block, dict)]
    inside = sum(1 for block in blocks if str(block.get("type")) in _PICTURES)
    return inside + sum(1 for path in _list(message.get("media")) if is_picture(path))


def is_picture(path: object) -> bool:
    """Whether what was sent beside a message goes to a model as a picture."""
    if not isinstance(path, str):
        return False
    return path.startswith("data:image/") or PurePath(path).suffix.lower() in _PICTURE_FILES


def _texts(message: ChatMessage) -> Iterator[str]:
    """All of a message that a model reads."""
    content: object = message.get("content")
    if content is not None and not isinstance(content, str | list):
        content = str(content)
    thoughts = _list(message.get("thinking_blocks"))
    found: list[object] = [content, message.get("runtime_context"), message.get("tool_call_id")]
    found += [] if thoughts else [message.get("reasoning_content")]  # the same thoughts, in another shape
    found += [block.get("text") for block in _list(content) if isinstance(block, dict)]
    for call in _list(message.get("tool_calls")):
        found += _call_texts(call)
    for block in thoughts:
        found += (
            [block.get(name) for name in ("thinking", "signature", "data", "encrypted_content")]
            if isinstance(block, dict)
            else []
        )
    return (text for text in found if isinstance(text, str))


def _list(found: object) -> list[Any]:
    """What a stored row holds where a list should be."""
    return found if isinstance(found, list) else []


def _call_texts(call: Any) -> list[object]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return []
    return [call.get("id"), function.get("name"), function.get("arguments")]
