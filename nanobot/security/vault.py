"""What this process must not tell: the secrets of every bot in it, for all that is written, shown or sent.

A log and the last stop of an error belong to the process, and so does what they must not say. Who holds secrets says so
for as long as they are held (`holding`); what comes up later, such as a renewed token, is added (`learn`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from nanobot.security.secrets import redact
from nanobot.security.spellings import MARK, KnownValues

_LONGEST_LINE = 128
"""More than a line of wrapped base64 has."""

Ask = Callable[[], Mapping[str, str]]
"""Tells secrets, each with the name it goes by. Asked once, when first needed."""


class _Held:
    """What somebody holds."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._values: KnownValues | None = None

    @property
    def values(self) -> KnownValues:
        if self._values is None:
            self._values = KnownValues(self._ask())
        return self._values


_held: list[_Held] = []
_learnt: dict[str, str] = {}
_of_learnt = _Held(lambda: _learnt)


@contextmanager
def holding(ask: Ask) -> Iterator[None]:
    """Until the block ends, nothing that goes through here tells these."""
    held = _Held(ask)
    _held.append(held)
    try:
        yield
    finally:
        _held.remove(held)


def hold(ask: Ask) -> None:
    """The same until the process ends: for a command."""
    _held.append(_Held(ask))


def learn(values: Mapping[str, str]) -> None:
    """These are secrets too from now on, each with the name it goes by."""
    global _of_learnt
    if values.keys() - _learnt.keys():
        _learnt.update(values)
        _of_learnt = _Held(lambda: _learnt)


def forget_all() -> None:
    """As when the process began: for tests."""
    global _of_learnt
    _held.clear()
    _learnt.clear()
    _of_learnt = _Held(lambda: _learnt)


def _all() -> list[KnownValues]:
    return [held.values for held in (*_held, _of_learnt)]


def masked(text: str) -> str:
    """The text without the secrets we hold; everything else is as it was."""
    for values in _all():
        text = values.out_of(text)
    return text


def masked_json(value: Any) -> Any:
    """JSON with every text in it masked, names too."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {masked_json(name): masked_json(inner) for name, inner in value.items()}
    return [masked_json(inner) for inner in value] if isinstance(value, list | tuple) else value


def cleaned(text: str) -> str:
    """The text without the secrets we hold, and without what looks like a key: for logs and errors."""
    return redact(masked(text))


def secret_in(data: str | bytes) -> str | None:
    """The name of a secret of ours that stands in this, None where none does: for what goes to another host."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    return next((name for values in _all() if (name := values.found_in(text)) is not None), None)


class MaskedSpeech:
    """Text on its way to somebody who reads along, without the secrets we hold.

    Only what may be the beginning of one waits for what comes next: a few letters, and mostly none.
    """

    def __init__(self) -> None:
        self._values = [values for values in _all() if values.longest]
        self._rest = ""

    def passed(self, text: str) -> str:
        """What may be shown by now."""
        if not self._values:
            return text
        text = self._rest + text
        pieces, begin, end = [], 0, len(text)
        for at in sorted({at for values in self._values for at in values.beginnings(text)}):
            if at < begin:
                continue
            lengths = [values.length_at(text, at) for values in self._values]
            if None in lengths:
                end = at
                break
            if length := max(length or 0 for length in lengths):
                pieces += [text[begin:at], MARK]
                begin = at + length
        self._rest = text[end:]
        return "".join([*pieces, text[begin:end]])

    def end(self) -> str:
        """The rest of it."""
        text, self._rest = masked(self._rest), ""
        return text


class MaskedStream:
    """Bytes on their way to a file, piece by piece, without the secrets we hold, also where a piece ends within one."""

    def __init__(self) -> None:
        self._values = _all()
        longest = max((values.longest for values in self._values), default=0)
        self._behind = longest * 4 + _LONGEST_LINE if longest else 0
        self._rest = b""

    def passed(self, data: bytes) -> bytes:
        """What may be written by now."""
        data = self._masked(self._rest + data)
        end = max(len(data) - self._behind, 0)
        line = data.rfind(b"\n", max(end - _LONGEST_LINE, 0), end) + 1  # of wrapped base64, whole lines are needed
        end = line or end
        data, self._rest = data[:end], data[end:]
        return data

    def end(self) -> bytes:
        """The rest of it."""
        data, self._rest = self._masked(self._rest), b""
        return data

    def _masked(self, data: bytes) -> bytes:
        for values in self._values:
            data = values.out_of_bytes(data)
        return data
