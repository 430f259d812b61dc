"""What pydantic found wrong, told as: this key must be that, not this. Secrets are not quoted."""

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
    what: str

    def __str__(self) -> str:
        return f"{dotted(self.path)} {self.what}" if self.path else self.what


def problems_in(error: ValidationError, tree: Mapping[str, Any]) -> list[Problem]:
    """Each wrong key once, in the order of the schema."""
    expected: dict[KeyPath, list[str]] = {}
    values: dict[KeyPath, Any] = {}
    for detail in error.errors(include_url=False):
        path, value = _walk(detail["loc"], tree, detail["type"])
        noted = getattr(detail.get("ctx", {}).get("error"), "__notes__", None)
        if noted and not path:
            path, value = _parts(noted[0]), MISSING
        if detail["type"] == "value_error" and isinstance(value, list):
            value = MISSING  # its words say which entry it is
        words = _expected(detail["type"], detail.get("ctx", {}), detail["msg"], value)
        values.setdefault(path, value)
        if words not in expected.setdefault(path, []):
            expected[path].append(words)
    return [Problem(path, _told(path, " or ".join(words), values[path])) for path, words in expected.items()]


def _walk(loc: tuple[int | str, ...], tree: Any, kind: str) -> tuple[KeyPath, Any]:
    """The key an error is about: its loc without the names of pydantic's alternatives."""
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


def _parts(key: str) -> KeyPath:
    parts: list[str | int] = []
    for part in key.split("."):
        name, bracket, index = part.partition("[")
        parts.append(name)
        if bracket:
            parts.append(int(index.rstrip("]")))
    return tuple(parts)


def _told(path: KeyPath, words: str, value: Any) -> str:
    """What it must be, and what it is. A text in the place of a section may be the key that belongs into it."""
    return words + ("" if isinstance(value, str) and "object" in words else _but(path, value))


def _but(path: KeyPath, value: Any) -> str:
    if value is MISSING or is_secret(path):
        return ""
    if isinstance(value, dict | list):  # it may hold a key wherever one was not looked for
        return f", not {'an object' if isinstance(value, dict) else 'a list'}"
    shown = json.dumps(value, ensure_ascii=True, default=str)
    return f", not {shown if len(shown) <= 60 else shown[:57] + '...'}"


def _expected(kind: str, context: Mapping[str, Any], message: str, value: Any) -> str:
    if kind == "literal_error":
        return _one_of(str(context["expected"]), value)
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    words = _WORDS.get(kind)
    return words(context) if words else f"is wrong: {message}"


def _one_of(expected: str, value: Any) -> str:
    names = [name.strip().strip("'") for name in expected.replace(" or ", ", ").split(",")]
    guess = nearest(value, names) if isinstance(value, str) else None
    return f"must be one of {', '.join(names)}" + (f" (did you mean {guess}?)" if guess else "")


def _is(words: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda _: f"must be {words}"


_WORDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), _is("a whole number")),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), _is("a number")),
    **dict.fromkeys(("bool_type", "bool_parsing"), _is("true or false")),
    **dict.fromkeys(("string_type", "string_unicode"), _is("a text")),
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), _is("an object {...}")),
    "list_type": _is("a list [...]"),
    "missing": lambda _: "is missing",
    "string_too_short": _is("a text that is not empty"),
    "greater_than": lambda limits: f"must be more than {limits['gt']}",
    "greater_than_equal": lambda limits: f"must be at least {limits['ge']}",
    "less_than_equal": lambda limits: f"must be at most {limits['le']}",
    "string_pattern_mismatch": lambda limits: (
        "must be an address that begins with "
        + ("ws:// or wss://" if "ws" in limits["pattern"] else "http:// or https://")
    ),
}
