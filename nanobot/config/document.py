"""JSON as people write it by hand: read strictly, and every complaint says where.

Reading is the standard library's. Places are looked for only when something is wrong, so a good file pays nothing.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, NoReturn

from nanobot.config.loaded_from import KeyPath
from nanobot.config.spelling import camel

LONGEST = 10 * 1024 * 1024


class DocumentError(ValueError):
    """The text is not what we read; says what, and where if that is known."""

    def __init__(self, what: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(what)
        self.line = line
        self.column = column


class _TwinError(ValueError):
    """A key that stands twice in one object."""


class _NumberError(ValueError):
    """A number that JSON does not have, or that no computer holds."""

    def __init__(self, what: str, problem: str) -> None:
        super().__init__(problem)
        self.what = what


def parse(data: bytes) -> tuple[str, dict[str, Any]]:
    """The text and the object in it. Raises DocumentError for anything that is not one JSON object."""
    if len(data) > LONGEST:
        raise DocumentError("is far too long for a config (over 10 MB)")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise DocumentError("a byte here is not UTF-8. Save the file as UTF-8", line, column) from error
    if not text.strip():
        raise DocumentError("the file is empty. Write {} into it, or delete it to start with the defaults", 1, 1)
    try:
        tree = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_such_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise DocumentError(_explain(text, error), error.lineno, error.colno) from error
    except _TwinError as error:
        raise DocumentError(str(error), *_place(text, _find_twin(text))) from error
    except _NumberError as error:
        raise DocumentError(f"{error.what[:20]} {error}", *_place(text, text.find(error.what))) from error
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except ValueError as error:  # a number with thousands of digits
        raise DocumentError(f"a number is too long ({error})") from error
    if not isinstance(tree, dict):
        raise DocumentError("the file must hold one object, from { to }", 1, 1)
    return text, tree


def line_of(text: str, path: KeyPath) -> int:
    """The line where the key stands, or the nearest key above it that does. The text must have parsed."""
    places = _places(text, path)
    return text.count("\n", 0, places[-1] if places else 0) + 1


def has(text: str, path: KeyPath) -> bool:
    """Whether the key stands in a text that parsed."""
    return len(_places(text, path)) == len(path)


def _places(text: str, path: KeyPath) -> list[int]:
    """Where each key of a path stands, as far as it goes."""
    at = _space(text, 0)
    found: list[int] = []
    for name in path:
        step = next(
            ((begin, value) for begin, key, value in _entries(text, at) if name in (key, camel(str(key)))), None
        )
        if step is None:
            break
        found.append(step[0])
        at = step[1]
    return found


def _entries(text: str, at: int) -> Iterator[tuple[int, str | int, int]]:
    """The entries of the object or list at a place: where each begins, its key or index, where its value begins."""
    opened, at = text[at], _space(text, at + 1)
    if opened not in "{[":
        return
    decoder = json.JSONDecoder()
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        begin = at
        if opened == "{":
            key, at = decoder.raw_decode(text, at)
            at = _space(text, _space(text, at) + 1)
        yield begin, key, at
        _, at = decoder.raw_decode(text, at)
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
        index += 1


def _second_twin(text: str, at: int) -> int | None:
    """Where the first key stands that was there before in its object."""
    seen: set[str] = set()
    for begin, key, value in _entries(text, at):
        if isinstance(key, str):
            if key in seen:
                return begin
            seen.add(key)
        if (inner := _second_twin(text, value)) is not None:
            return inner
    return None


def _space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twin = next(name for name in names if names.count(name) > 1).encode("utf-8", "replace").decode("utf-8")
        raise _TwinError(f'the key "{twin}" stands twice in one object. Keep one')
    return result


def _find_twin(text: str) -> int:
    try:
        return _second_twin(text, _space(text, 0)) or 0
    except (ValueError, IndexError, RecursionError):  # the text is broken further down, too
        return 0


def _no_such_number(name: str) -> NoReturn:
    raise _NumberError(name, "is not a value of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _NumberError(digits, "is too large a number")
    return number


def _place(text: str, at: int) -> tuple[int, int]:
    """Line and column."""
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _explain(text: str, error: json.JSONDecodeError) -> str:
    """What is wrong, in words for somebody who never read the JSON standard."""
    rest = text[error.pos :].lstrip()
    before = text[: error.pos].rstrip()
    if not rest and error.msg != "Extra data":
        return "the file ends too early; a } or ] is missing"
    if rest[:1] in "/#" and "string" not in error.msg:
        return "JSON has no comments. Take it out"
    if (rest[:1] in "}]" and before.endswith(",")) or "trailing comma" in error.msg:
        return "there is a comma too many before the closing bracket"
    if rest[:1] == "'":
        return 'keys and texts stand in double quotes: "..."'
    return _WORDS.get(error.msg, error.msg)


_WORDS = {
    "Expecting property name enclosed in double quotes": 'a key in double quotes must stand here: "..."',
    "Expecting ',' delimiter": "a comma is missing before this",
    "Expecting ':' delimiter": "a colon is missing between a key and its value",
    "Expecting value": 'a value must stand here: a "text", a number, true, false, null, {...} or [...]',
    "Extra data": "something follows after the last }",
    "Unterminated string starting at": "a text has no closing quote",
}
