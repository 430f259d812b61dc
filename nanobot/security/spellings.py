"""Known values in every spelling that a program may print them in, found and taken out of texts and streams.

A value counts as it is, as JSON and addresses write it, backwards, in other cases, in hex, and in base64 wherever it
begins in it, also when its lines are wrapped. Of a value of several lines (a private key) each longer line counts as
one. What else can be made of a value (a hex dump, a cipher) is not found.
"""

import json
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from urllib.parse import quote, quote_plus

MARK = "[key]"
"""What stands where a secret stood."""
_SHORTEST = 4
_WORTH_DISGUISING = 8
"""A shorter value in base64 or backwards looks like many a word."""
_SHORTEST_IN_BASE64 = 10
_WORTH_A_LINE = 16
"""A shorter line of a value tells nothing of it."""
_WRAPPED = range(60, 81)
"""How long the lines of wrapped base64 are."""
_ENCODED = re.compile(r"[\w+/=-]{1,80}\r?", re.ASCII)


class KnownValues:
    """Values that must not be told; the longest goes first, so that no half of one stays."""

    def __init__(self, values: Iterable[str] | Mapping[str, str]) -> None:
        """Of a mapping, the keys are the values, and each maps to the name it goes by."""
        names = values if isinstance(values, Mapping) else dict.fromkeys(values, "")
        spelled = {spelling: name for value, name in names.items() for spelling in spellings(value)}
        self._spelled = {spelling: spelled[spelling] for spelling in sorted(spelled, key=len, reverse=True)}
        self._as_bytes: list[str] | None = None
        self.longest = max(map(len, self._spelled), default=0)
        """The length of the longest spelling."""

    def out_of(self, text: str) -> str:
        """The text without them."""
        return _without(self._spelled, text)

    def out_of_bytes(self, data: bytes) -> bytes:
        """The bytes without them, whatever else they are."""
        if self._as_bytes is None:
            self._as_bytes = [one.encode(errors="surrogatepass").decode("latin-1") for one in self._spelled]
        return _without(self._as_bytes, data.decode("latin-1")).encode("latin-1")

    def beginnings(self, text: str) -> list[int]:
        """The places where one may begin, as far as its first letters tell."""
        heads = self._heads
        return [at for at in range(len(text)) if text[at : at + _SHORTEST] in heads]

    def length_at(self, text: str, at: int) -> int | None:
        """How long the one is that stands at this place, 0 where none does.

        None where the text ends in what may be the beginning of one, and only its rest will tell.
        """
        found = 0
        for spelling in self._heads.get(text[at : at + _SHORTEST], ()):
            if text.startswith(spelling, at):
                found = max(found, len(spelling))
            elif len(spelling) > len(text) - at and spelling.startswith(text[at:]):
                return None
        return found

    @cached_property
    def _heads(self) -> dict[str, list[str]]:
        """They, by their first letters: as many as the shortest has, and fewer, for where a text ends."""
        heads: dict[str, list[str]] = {}
        for spelling in self._spelled:
            for length in range(1, _SHORTEST + 1):
                heads.setdefault(spelling[:length], []).append(spelling)
        return heads

    def found_in(self, text: str) -> str | None:
        """The name of one that stands in the text, None where none does."""
        return next((name for spelling, name in self._spelled.items() if spelling in text), None)


def _without(spelled: Collection[str], text: str) -> str:
    if spelled and len(text) >= _WRAPPED.start:
        # First, since a line that has lost a word is no longer as long as the others of its block.
        for block in _blocks(text):
            joined = "".join(block.split())
            if any(spelling in joined for spelling in spelled):
                text = text.replace(block, MARK)
    for spelling in spelled:
        if spelling in text:
            text = text.replace(spelling, MARK)
    return text


def spellings(value: str) -> set[str]:
    """All spellings of a value; none of one that is too short to be told from a word."""
    if len(value) < _SHORTEST:
        return set()
    plain = {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    plain |= {quote(value, safe=""), quote(value), quote_plus(value)}
    if len(value) < _WORTH_DISGUISING:
        return plain
    data = value.encode(errors="surrogatepass")
    cases = {value.upper(), value.lower(), value.swapcase()}
    return {*plain, *cases, *_of_lines(value), value[::-1], data.hex(), data.hex().upper(), *_in_base64(data)}


def _of_lines(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    if len(lines) > 1:
        for line in lines:
            if len(line) >= _WORTH_A_LINE:
                yield from spellings(line)


def _in_base64(data: bytes) -> Iterator[str]:
    """What all base64 of texts with the value in it share: it may begin at each of three places in a group."""
    for before in range(3):
        encoded = b64encode(bytes(before) + data).decode()
        core = encoded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(core) >= _SHORTEST_IN_BASE64:
            yield core
            yield core.replace("+", "-").replace("/", "_")


def _blocks(text: str) -> Iterator[str]:
    """Two lines and more that look like wrapped base64 or hex; the last may be shorter."""
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
