"""Redaction of the secrets that this process holds, in everything that is logged, shown or sent.

Logs and error output belong to the process, so its secrets are collected here: for a block (`secrets_scope`), for the
lifetime of the process (`hold_secrets`), or as they appear, such as a renewed token (`learn_secrets`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nanobot.security.encodings import MARK, SecretIndex
from nanobot.security.secrets import redact

_MAX_WRAPPED_LINE = 128
"""More than a line of wrapped base64 has."""

SecretSource = Callable[[], Mapping[str, str]]
"""Returns secrets with their names. Called once, on first use."""


class _Source:
    def __init__(self, load: SecretSource) -> None:
        self._load = load
        self._index: SecretIndex | None = None

    @property
    def index(self) -> SecretIndex:
        if self._index is None:
            self._index = SecretIndex(self._load())
        return self._index


_sources: list[_Source] = []
_learned: dict[str, str] = {}
_learned_source = _Source(lambda: _learned)


@contextmanager
def secrets_scope(load: SecretSource) -> Iterator[None]:
    """Redact these secrets until the block ends."""
    source = _Source(load)
    _sources.append(source)
    try:
        yield
    finally:
        _sources.remove(source)


def hold_secrets(load: SecretSource) -> None:
    """Redact these secrets until the process ends."""
    _sources.append(_Source(load))


def learn_secrets(values: Mapping[str, str]) -> None:
    """Redact these values too from now on; each maps to its name."""
    global _learned_source
    if values.keys() - _learned.keys():
        _learned.update(values)
        _learned_source = _Source(lambda: _learned)


def forget_all() -> None:
    """Forget all secrets; for tests."""
    global _learned_source
    _sources.clear()
    _learned.clear()
    _learned_source = _Source(lambda: _learned)


def _all() -> list[SecretIndex]:
    return [source.index for source in (*_sources, _learned_source)]


def redact_known(text: str) -> str:
    """Redact the secrets of this process; everything else stays as it is."""
    for index in _all():
        text = index.redact(text)
    return text


def redact_json(value: Any) -> Any:
    """Redact every text in JSON, names included."""
    if isinstance(value, str):
        return redact_known(value)
    if isinstance(value, dict):
        return {redact_json(name): redact_json(inner) for name, inner in value.items()}
    return [redact_json(inner) for inner in value] if isinstance(value, list | tuple) else value


def redact_all(text: str) -> str:
    """Redact the secrets of this process and whatever looks like a key: for logs and errors."""
    return redact(redact_known(text))


def find_secret(data: str | bytes) -> str | None:
    """Return the name of a secret of this process in this content, if any: for requests to other hosts."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return next((name for index in _all() if (name := index.find(text)) is not None), None)


class StreamRedactor:
    """Redacts streamed text, such as an answer shown while it is generated.

    Text that may be the beginning of a secret is held back until more arrives: mostly nothing, at most a few letters.
    """

    def __init__(self) -> None:
        self._indexes = [index for index in _all() if index.longest]
        self._held_back = ""

    def feed(self, text: str) -> str:
        """Take the next text and return what may be shown by now."""
        if not self._indexes:
            return text
        text = self._held_back + text
        pieces, begin, end = [], 0, len(text)
        for offset in sorted({offset for index in self._indexes for offset in index.candidate_offsets(text)}):
            if offset < begin:
                continue
            lengths = [index.length_at(text, offset) for index in self._indexes]
            if None in lengths:
                end = offset
                break
            if length := max(length or 0 for length in lengths):
                pieces += [text[begin:offset], MARK]
                begin = offset + length
        self._held_back = text[end:]
        return "".join([*pieces, text[begin:end]])

    def end(self) -> str:
        """Return the text held back, redacted."""
        text, self._held_back = redact_known(self._held_back), ""
        return text


class RedactedOutput:
    """Redacts bytes on their way to a file, chunk by chunk, also secrets that span chunks."""

    def __init__(self) -> None:
        self._indexes = _all()
        longest = max((index.longest for index in self._indexes), default=0)
        self._margin = longest * 4 + _MAX_WRAPPED_LINE if longest else 0
        self._held_back = b""

    def feed(self, data: bytes) -> bytes:
        """Take the next chunk and return what may be written by now."""
        data = self._redact(self._held_back + data)
        end = max(len(data) - self._margin, 0)
        line = data.rfind(b"\n", max(end - _MAX_WRAPPED_LINE, 0), end) + 1  # wrapped base64 needs whole lines
        end = line or end
        data, self._held_back = data[:end], data[end:]
        return data

    def end(self) -> bytes:
        """Return the bytes held back, redacted."""
        data, self._held_back = self._redact(self._held_back), b""
        return data

    def _redact(self, data: bytes) -> bytes:
        for index in self._indexes:
            data = index.redact_bytes(data)
        return data
