"""A strict JSON parser for hand-written files, with errors that give line and column.

Uses the standard library. Positions are computed only for errors, so valid files pay nothing.
"""

import json
import math
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

from nanobot.config.keypath import KeyPath, camel
from nanobot.config.legacy import MOVED
from nanobot.errors import ConfigError

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def parse(data: bytes, path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file and its object. Raises ConfigError, with the place, unless it is a single JSON object."""

    def fail(problem: str, at: int = 0) -> NoReturn:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise ConfigError(f"{path}:{line}:{column}: {problem}.")

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            at, key = _first_duplicate(text)
            fail(f'the key "{key}" occurs twice in one object. Keep one', at)
        return result

    def parse_finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            fail(f"{digits[:20]} is too large a number", text.find(digits))
        return number

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-8-sig", "replace")
        fail("a byte here is not UTF-8. Save the file as UTF-8", len(text))
    if not text.strip():
        fail("the file is empty. Write {} into it, or delete it to use the defaults")
    try:
        tree = json.loads(
            text,
            object_pairs_hook=reject_duplicates,
            parse_constant=lambda name: fail(f"{name} is not a JSON value", text.find(name)),
            parse_float=parse_finite,
        )
    except json.JSONDecodeError as error:
        fail(_explain(text, error), error.pos)
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply.") from error
    except ValueError as error:  # a number with thousands of digits
        raise ConfigError(f"{path} a number is too long ({error}).") from error
    if not isinstance(tree, dict):
        fail("the file must contain one object, from { to }")
    return text, tree


def line_of(text: str, path: KeyPath) -> int:
    """The line of a key in any spelling and place, or of its nearest existing parent. The text must be valid."""
    positions = {_current(found): at for found, at in _keys(text)}
    parents = (_current(path[:length]) for length in range(len(path), 0, -1))
    return text.count("\n", 0, next((positions[parent] for parent in parents if parent in positions), 0)) + 1


def _current(path: KeyPath) -> KeyPath:
    path = tuple(camel(key) if isinstance(key, str) else key for key in path)
    return MOVED.get(path, path)


def _first_duplicate(text: str) -> tuple[int, str]:
    """Position and name of the first key that occurs twice; there may be a syntax error further down, too."""
    seen: set[KeyPath] = set()
    for path, at in _keys(text):
        if path in seen:
            return at, str(path[-1]).encode("utf-8", "replace").decode()
        seen.add(path)
    raise AssertionError


def _keys(text: str, at: int = 0, path: KeyPath = ()) -> Generator[tuple[KeyPath, int], None, int]:
    """Path and position of all keys and list entries of the value at a position; returns its end."""
    at = _skip_space(text, at)
    if text[at] not in "{[":
        return _DECODER.raw_decode(text, at)[1]
    is_object = text[at] == "{"
    at = _skip_space(text, at + 1)
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        begin = at
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip_space(text, at) + 1  # the colon
        yield (*path, key), begin
        at = _skip_space(text, (yield from _keys(text, at, (*path, key))))
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1
    return at + 1


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


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
