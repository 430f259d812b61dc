"""A dataclass as JSON text and back, by pydantic."""

import json
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def to_json(value: object) -> str:
    """JSON text that can be encoded as UTF-8: lone surrogates, which models and platforms may send, become `?`."""
    data = _adapter(type(value)).dump_python(value, mode="json")
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace").decode()


def from_json(kind: type[T], text: str) -> T:
    """Parse the output of `to_json`. Raises ValueError. Unknown fields are ignored."""
    value: T = _adapter(kind).validate_json(text)
    return value


_adapters: "dict[type, TypeAdapter[Any]]" = {}


def _adapter(kind: type) -> "TypeAdapter[Any]":
    """Built on first use: most processes store no such value."""
    if kind not in _adapters:
        from pydantic import TypeAdapter

        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]
