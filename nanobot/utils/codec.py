"""A dataclass as JSON text and back, by pydantic."""

import json
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def to_json(value: object, *, exclude_defaults: bool = False) -> str:
    """JSON text that can be encoded as UTF-8: lone surrogates, which models and platforms may send, become `?`."""
    data = adapter(type(value)).dump_python(value, mode="json", exclude_defaults=exclude_defaults)
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


def from_json(kind: type[T], text: str | bytes) -> T:
    """Parse the output of `to_json`. Raises ValueError. Unknown fields are ignored."""
    value: T = adapter(kind).validate_json(text)
    return value


_adapters: "dict[type, TypeAdapter[Any]]" = {}


def adapter(kind: type) -> "TypeAdapter[Any]":
    """The adapter of a type, built on first use: that takes longer than to write a value."""
    if kind not in _adapters:
        from pydantic import TypeAdapter  # most processes store no such value

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
