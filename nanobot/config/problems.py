"""What is wrong with a config: unknown keys, and values that are not allowed, in words that quote no secret."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from nanobot.config.keypath import MISSING, KeyPath, camel, dotted, get, is_secret, nearest, walk
from nanobot.config.legacy import is_legacy, why_unused
from nanobot.config.schema import UnknownNameError
from nanobot.config.section import Shape, shapes

_OPEN_SECTIONS: tuple[KeyPath, ...] = (("channels",), ("providers",), ("plugins",))
"""Sections that may have whole sections of plugins or custom endpoints."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A key and what is wrong with it."""

    path: KeyPath
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)} {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that is not in the schema, and the one that was probably meant."""

    path: KeyPath
    nearest: str | None
    unused: str = ""
    """For a key of an earlier release: why it has no effect."""
    lost_restrictions: tuple[tuple[KeyPath, KeyPath], ...] = ()
    """Restrictions that do not apply because of it: the key as written, and the key that was meant."""


def unknown_keys(tree: Any, root: type[BaseModel]) -> Iterator[UnknownKey]:
    """Keys that are not in the schema. Keys of earlier releases and whole sections of plugins count as known."""
    return _unknown_below(tree, Shape("", root), (), root)


def _unknown_below(value: Any, shape: Shape, path: KeyPath, root: type[BaseModel]) -> Iterator[UnknownKey]:
    if shape.section is None or not isinstance(value, list if shape.container == "list" else dict):
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
        here, inner = (*path, key), shape.child(key)
        if shape.container or key in shape.keys:
            yield from _unknown_below(entry, inner, here, root) if inner else ()
        elif is_legacy(here):
            if why := why_unused(here, entry):
                yield UnknownKey(here, None, why)
        else:
            guess = nearest(str(key), shape.keys)
            if guess is None and path in _OPEN_SECTIONS and isinstance(entry, dict):
                yield from _unknown_below(entry, inner, here, root) if inner else ()
            else:
                yield UnknownKey(here, guess, lost_restrictions=tuple(_lost_restrictions(here, entry, guess, root)))


def _lost_restrictions(
    path: KeyPath, value: Any, guess: str | None, root: type[BaseModel]
) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The restrictions that an unknown key probably was or contained, each with the key that was meant."""
    if guess is None:
        if path[:2] != ("tools", "mcpServers"):  # such sections are copied from other clients, which have further keys
            name, sections = camel(str(path[-1])), {path[0]} if len(path) > 1 else {*shapes(root)} - {"channels"}
            yield from ((path, known) for known in _restrictions(root) if known[-1] == name and known[0] in sections)
        return
    contained = () if path[0] == "channels" else walk(value)  # a channel with a misspelt name does not start
    for inner, _ in [((), value), *contained]:
        written, shape = (*path, *inner), Shape("", root)
        meant: list[str | int] = []
        for key in written:
            known = shape.container or key in shape.keys
            meant_key: str | int | None = key if known else nearest(str(key), shape.keys)
            inner_shape = shape.child(meant_key) if meant_key is not None else None
            if meant_key is None or inner_shape is None:
                break
            meant.append(meant_key)
            shape = inner_shape
        else:
            if shape.restricts:
                yield written, tuple(meant)


@cache
def _restrictions(section: type[BaseModel]) -> tuple[KeyPath, ...]:
    """All restricting keys, with `*` for the names of map entries."""
    restrictions: list[KeyPath] = []
    for name, shape in shapes(section).items():
        if shape.restricts:
            restrictions.append((name,))
        if shape.section:
            parents = (name, "*") if shape.container else (name,)
            restrictions += [(*parents, *inner) for inner in _restrictions(shape.section)]
    return tuple(restrictions)


def problems_in(error: ValidationError, tree: Mapping[str, Any]) -> list[Problem]:
    """One problem per wrong key, in the order of the schema."""
    expectations: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        path, value = _find(detail["loc"], tree, detail["type"])
        if isinstance(cause, UnknownNameError):
            path, value = cause.path, MISSING
        if detail["type"] == "value_error" and isinstance(value, list):
            value = MISSING  # its message names the entry
        expectation = _expected(detail["type"], detail.get("ctx", {}), detail["msg"], value)
        values.setdefault(path, value)
        if expectation not in expectations.setdefault(path, []):
            expectations[path].append(expectation)
    return [
        Problem(path, _with_value(path, " or ".join(expectation), values[path]))
        for path, expectation in expectations.items()
    ]


def _find(loc: tuple[int | str, ...], tree: Any, kind: str) -> tuple[KeyPath, Any]:
    """The key of an error: its loc without the names of pydantic's union members."""
    path: list[str | int] = []
    value = tree
    for index, part in enumerate(loc):
        entry = get(value, (part,))
        if entry is MISSING and not (kind == "missing" and index == len(loc) - 1):
            continue
        path.append(part)
        value = entry
    return tuple(path), value


def _with_value(path: KeyPath, expectation: str, value: Any) -> str:
    """Expectation and actual value. A string in place of a section is not quoted: it may be an API key."""
    return expectation + ("" if isinstance(value, str) and "object" in expectation else _not_this(path, value))


def _not_this(path: KeyPath, value: Any) -> str:
    if value is MISSING or is_secret(path):
        return ""
    if isinstance(value, dict | list):  # it may contain a secret anywhere
        return f", not {'an object' if isinstance(value, dict) else 'a list'}"
    quoted = json.dumps(value, ensure_ascii=True, default=str)
    return f", not {quoted if len(quoted) <= 60 else quoted[:57] + '...'}"


def _expected(kind: str, context: Mapping[str, Any], message: str, value: Any) -> str:
    if kind == "literal_error":
        return _one_of(str(context["expected"]), value)
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    expectation = _MESSAGES.get(kind)
    return expectation(context) if expectation else f"is wrong: {message}"


def _one_of(expected: str, value: Any) -> str:
    names = [name.strip().strip("'") for name in expected.replace(" or ", ", ").split(",")]
    guess = nearest(value, names) if isinstance(value, str) else None
    return f"must be one of {', '.join(names)}" + (f" (did you mean {guess}?)" if guess else "")


def _must_be(expectation: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: f"must be {expectation}"


_MESSAGES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _must_be("a whole number")),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), _must_be("a number")),
    **dict.fromkeys(("bool_type", "bool_parsing"), _must_be("true or false")),
    **dict.fromkeys(("string_type", "string_unicode"), _must_be("a string")),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _must_be("an object {...}")),
    "list_type": _must_be("a list [...]"),
    "missing": lambda _: "is missing",
    "string_too_short": _must_be("a string that is not empty"),
    "greater_than": lambda limits: f"must be more than {limits['gt']}",
    "greater_than_equal": lambda limits: f"must be at least {limits['ge']}",
    "less_than_equal": lambda limits: f"must be at most {limits['le']}",
    "string_pattern_mismatch": lambda limits: (
        "must be an address that begins with "
        + ("ws:// or wss://" if "ws" in limits["pattern"] else "http:// or https://")
    ),
}
