"""Turns pydantic's errors into messages of the form "key must be X, not Y". Secrets are not quoted."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nanobot.config.keys import dotted, nearest
from nanobot.config.loaded_from import MISSING, KeyPath, entry_of
from nanobot.config.masking import is_secret


@dataclass(frozen=True, slots=True)
class Problem:
    """A key and what is wrong with it."""

    path: KeyPath
    text: str

    def __str__(self) -> str:
        return f"{dotted(self.path)} {self.text}" if self.path else self.text


def problems_in(error: ValidationError, tree: Mapping[str, Any]) -> list[Problem]:
    """One problem per wrong key, in the order of the schema."""
    expectations: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False):
        path, value = _walk(detail["loc"], tree, detail["type"])
        notes = getattr(detail.get("ctx", {}).get("error"), "__notes__", None)
        if notes and not path:
            path, value = _parse_path(notes[0]), MISSING
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


def _walk(loc: tuple[int | str, ...], tree: Any, kind: str) -> tuple[KeyPath, Any]:
    """The key of an error: its loc without the names of pydantic's union members."""
    path: list[str | int] = []
    value = tree
    for index, part in enumerate(loc):
        if (entry := entry_of(value, part)) is not MISSING:
            value = entry
        elif kind == "missing" and index == len(loc) - 1:
            value = MISSING
        else:
            continue
        path.append(part)
    return tuple(path), value


def _parse_path(key: str) -> KeyPath:
    parts: list[str | int] = []
    for part in key.split("."):
        name, bracket, index = part.partition("[")
        parts.append(name)
        if bracket:
            parts.append(int(index.rstrip("]")))
    return tuple(parts)


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
