"""Finding known secrets in texts and streams, in every encoding that a program may print them in.

Encodings: as is, as in JSON and URLs, reversed, in other letter cases, hex, and base64 at any offset, also wrapped. In
a value of several lines (a private key) each longer line counts as a secret. Hex dumps and ciphers are not found.
"""

import json
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from urllib.parse import quote, quote_plus

MARK = "[key]"
"""Replaces a secret."""
_MIN_LENGTH = 4
_MIN_ENCODED = 8
"""Shorter values in base64 or reversed would match ordinary words."""
_MIN_BASE64 = 10
_MIN_LINE = 16
"""Shorter lines of a value reveal nothing."""
_WRAPPED = range(60, 81)
"""Line lengths of wrapped base64."""
_ENCODED = re.compile(r"[\w+/=-]{1,80}\r?", re.ASCII)


class SecretIndex:
    """Secrets with all their encodings. The longest is replaced first, so that no part of one is left."""

    def __init__(self, values: Iterable[str] | Mapping[str, str]) -> None:
        """A mapping maps each value to its name."""
        names = values if isinstance(values, Mapping) else dict.fromkeys(values, "")
        encoded = {encoding: name for value, name in names.items() for encoding in encodings_of(value)}
        self._names = {encoding: encoded[encoding] for encoding in sorted(encoded, key=len, reverse=True)}
        self._as_bytes: list[str] | None = None
        self.longest = max(map(len, self._names), default=0)
        """The length of the longest encoding."""

    def redact(self, text: str) -> str:
        return _redact(self._names, text)

    def redact_bytes(self, data: bytes) -> bytes:
        """Replace the secrets; the rest need not be text."""
        if self._as_bytes is None:
            self._as_bytes = [encoding.encode(errors="surrogatepass").decode("latin-1") for encoding in self._names]
        return _redact(self._as_bytes, data.decode("latin-1")).encode("latin-1")

    def candidate_offsets(self, text: str) -> list[int]:
        """Offsets at which a secret may begin, judging by its first characters."""
        prefixes = self._by_prefix
        return [offset for offset in range(len(text)) if text[offset : offset + _MIN_LENGTH] in prefixes]

    def length_at(self, text: str, offset: int) -> int | None:
        """The length of the longest secret at this offset, 0 if there is none.

        None if the text ends within what may be a secret, so that only more text can tell.
        """
        longest = 0
        for encoding in self._by_prefix.get(text[offset : offset + _MIN_LENGTH], ()):
            if text.startswith(encoding, offset):
                longest = max(longest, len(encoding))
            elif len(encoding) > len(text) - offset and encoding.startswith(text[offset:]):
                return None
        return longest

    @cached_property
    def _by_prefix(self) -> dict[str, list[str]]:
        """Encodings by their prefixes of one to `_MIN_LENGTH` characters; short ones match at the end of a text."""
        prefixes: dict[str, list[str]] = {}
        for encoding in self._names:
            for length in range(1, _MIN_LENGTH + 1):
                prefixes.setdefault(encoding[:length], []).append(encoding)
        return prefixes

    def find(self, text: str) -> str | None:
        """The name of a secret in the text, None if there is none."""
        return next((name for encoding, name in self._names.items() if encoding in text), None)


def _redact(encodings: Collection[str], text: str) -> str:
    if encodings and len(text) >= _WRAPPED.start:
        # First, since redacting a word changes the length of its line, by which a block is recognized.
        for block in _blocks(text):
            joined = "".join(block.split())
            if any(encoding in joined for encoding in encodings):
                text = text.replace(block, MARK)
    for encoding in encodings:
        if encoding in text:
            text = text.replace(encoding, MARK)
    return text


def encodings_of(value: str) -> set[str]:
    """All encodings of a value; none if it is too short to tell from a word."""
    if len(value) < _MIN_LENGTH:
        return set()
    plain = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    plain |= {quote(value, safe=""), quote(value), quote_plus(value)}
    if len(value) < _MIN_ENCODED:
        return plain
    data = value.encode(errors="surrogatepass")
    cases = {value.upper(), value.lower(), value.swapcase()}
    return {*plain, *cases, *_long_lines(value), value[::-1], data.hex(), data.hex().upper(), *_in_base64(data)}


def _long_lines(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        for line in lines:
            if len(line) >= _MIN_LINE:
                yield from encodings_of(line)


def _in_base64(data: bytes) -> Iterator[str]:
    """The part that all base64 of texts with this value share; the value may begin at three offsets in a group."""
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode()
        core = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(core) >= _MIN_BASE64:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def _blocks(text: str) -> Iterator[str]:
    """Blocks of two or more lines that look like wrapped base64 or hex; the last line may be shorter."""
    block: list[str] = []
    for line in text.split("\n"):
        if len(line) - line.endswith("\r") in _WRAPPED and " " not in line:
            block.append(line)
        elif block:
            if line and _ENCODED.fullmatch(line):
                block.append(line)
            if len(block) > 1:
                yield "\n".join(block)
            block = []
    if len(block) > 1:
        yield "\n".join(block)
