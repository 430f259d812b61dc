"""A strict JSON parser for hand-written files, with errors that give line and column.

Uses the standard library. Positions are computed only for errors, so valid files pay nothing.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from nanobot.config.keypath import KeyPath, camel

MAX_BYTES = 10 * 1024 * 1024


class DocumentError(ValueError):
    """The text is not valid; says what is wrong, and where if known."""

    def __init__(self, text: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(text)
        self.line = line
        self.column = column


class _RejectedError(ValueError):
    """Something that Python would read but a config must not have; `find` returns its position in the text."""

    def __init__(self, problem: str, find: Callable[[str], int]) -> None:
        super().__init__(problem)
        self.find = find


def parse(data: bytes) -> tuple[str, dict[str, Any]]:
    """The decoded text and its object. Raises DocumentError unless it is a single JSON object."""
    if len(data) > MAX_BYTES:
        raise DocumentError("is too large for a config (over 10 MB)")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        raise DocumentError("a byte here is not UTF-8. Save the file as UTF-8", line, column) from error
    if not text.strip():
        raise DocumentError("the file is empty. Write {} into it, or delete it to use the defaults", 1, 1)
    try:
        tree = json.loads(
            text, object_pairs_hook=_reject_duplicates, parse_constant=_reject_constant, parse_float=_parse_finite
        )
    except json.JSONDecodeError as error:
        raise DocumentError(_explain(text, error), error.lineno, error.colno) from error
    except _RejectedError as error:
        raise DocumentError(str(error), *_line_and_column(text, error.find(text))) from error
    except RecursionError as error:
        raise DocumentError("is nested too deeply") from error
    except ValueError as error:  # a number with thousands of digits
        raise DocumentError(f"a number is too long ({error})") from error
    if not isinstance(tree, dict):
        raise DocumentError("the file must contain one object, from { to }", 1, 1)
    return text, tree


def line_of(text: str, path: KeyPath) -> int:
    """The line of the key, or of its nearest existing parent. The text must have been parsed."""
    places = _key_positions(text, path)
    return text.count("\n", 0, places[-1] if places else 0) + 1


def has(text: str, path: KeyPath) -> bool:
    """Whether the key exists in a parsed text."""
    return len(_key_positions(text, path)) == len(path)


def _key_positions(text: str, path: KeyPath) -> list[int]:
    """The position of each key of a path, as far as the path exists."""
    position = _skip_space(text, 0)
    positions: list[int] = []
    for name in path:
        match = next(
            ((begin, value) for begin, key, value in _iter_entries(text, position) if name in (key, camel(str(key)))),
            None,
        )
        if match is None:
            break
        positions.append(match[0])
        position = match[1]
    return positions


def _iter_entries(text: str, at: int) -> Iterator[tuple[int, str | int, int]]:
    """The entries of the object or list at a position: start, key or index, and start of the value."""
    opened, at = text[at], _skip_space(text, at + 1)
    if opened not in "{[":
        return
    decoder = json.JSONDecoder()
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        begin = at
        if opened == "{":
            key, at = decoder.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        yield begin, key, at
        _, at = decoder.raw_decode(text, at)
        at = _skip_space(text, at)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1


def _duplicate_in(text: str, at: int) -> int | None:
    """The position of the first duplicate key."""
    seen: set[str] = set()
    for begin, key, value in _iter_entries(text, at):
        if isinstance(key, str):
            if key in seen:
                return begin
            seen.add(key)
        if (inner := _duplicate_in(text, value)) is not None:
            return inner
    return None


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1).encode("utf-8", "replace").decode("utf-8")
        raise _RejectedError(f'the key "{duplicate}" occurs twice in one object. Keep one', _find_duplicate)
    return result


def _find_duplicate(text: str) -> int:
    try:
        return _duplicate_in(text, _skip_space(text, 0)) or 0
    except (ValueError, IndexError, RecursionError):  # there is a syntax error further down, too
        return 0


def _reject_constant(name: str) -> NoReturn:
    raise _RejectedError(f"{name} is not a JSON value", lambda text: text.find(name))


def _parse_finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _RejectedError(f"{digits[:20]} is too large a number", lambda text: text.find(digits))
    return number


def _line_and_column(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _explain(text: str, error: json.JSONDecodeError) -> str:
    """The problem in words for a reader who does not know the JSON standard."""
    rest = text[error.pos :].lstrip()
    before = text[: error.pos].rstrip()
    if not rest and error.msg != "Extra data":
        return "the file ends too early; a } or ] is missing"
    if rest[:1] in "/#" and "string" not in error.msg:
        return "JSON has no comments. Remove it"
    if (rest[:1] in "}]" and before.endswith(",")) or "trailing comma" in error.msg:
        return "trailing comma before the closing bracket"
    if rest[:1] == "'":
        return 'keys and strings need double quotes: "..."'
    return _EXPLANATIONS.get(error.msg, error.msg)


_EXPLANATIONS = {
    "Expecting property name enclosed in double quotes": 'expected a key in double quotes: "..."',
    "Expecting ',' delimiter": "a comma is missing before this",
    "Expecting ':' delimiter": "a colon is missing between a key and its value",
    "Expecting value": 'expected a value: a "string", a number, true, false, null, {...} or [...]',
    "Extra data": "something follows after the last }",
    "Unterminated string starting at": "a string has no closing quote",
}
