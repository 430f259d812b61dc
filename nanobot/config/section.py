"""The base class of all config sections, value types with a range, and the shape of sections: which keys they have.

Attributes are snake_case. The file may use both styles; camelCase is written. Unknown keys are preserved.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nanobot.config.keypath import InvalidKeyError, KeyPath, camel, mask_value


class Section(BaseModel):
    """A section of config.json."""

    # defer_build: models are built when a config is first created, not at import.
    model_config = ConfigDict(
        alias_generator=camel,
        populate_by_name=True,
        extra="allow",
        allow_inf_nan=False,
        defer_build=True,
        hide_input_in_errors=True,
    )

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Masks secrets in logs and tracebacks."""
        return ((name, mask_value((name,), value) if name else value) for name, value in super().__repr_args__())


def defaults_of(section: type[Section]) -> Any:
    """The default of a key that holds a section."""

    def create() -> Section:  # of a class as factory, pydantic would compute the whole signature: 9 ms at each start
        return section()

    return Field(default_factory=create)


RESTRICTS = object()
"""Marks a key that removes rights or limits spending. Misspelling such a key is an error, not just a warning."""


def empty_is_null(value: object) -> object:
    return None if value == "" else value


def _reject_bool(value: object) -> object:
    """Reject `true` as a number, which Python would read as 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 only a ValueError becomes a problem
    return value


def _validate_headers(headers: dict[str, str]) -> dict[str, str]:
    """Reject headers that HTTP cannot carry, which would otherwise look like a connection failure."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"must contain HTTP header names; {name[:60]!r} is not one")
        if not (value.isascii() and value.strip().isprintable()):
            raise ValueError(f"must contain printable one-line values; that of {name[:60]!r} is not")
    return {name: value.strip() for name, value in headers.items()}


_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")

WEBSOCKET_URL = r"^wss?://.+"
HTTP_URL = r"^https?://.+"

Number = BeforeValidator(_reject_bool)
Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]  # earlier releases wrote null
Count = Annotated[int, Number, Field(ge=1)]
Whole = Annotated[int, Number, Field(ge=0)]
Port = Annotated[int, Number, Field(ge=1, le=65535)]
Seconds = Annotated[float, Number, Field(gt=0)]
Millis = Annotated[int, Number, Field(ge=0)]
Retries = Annotated[int, Number, Field(ge=0, le=10)]
Money = Annotated[float, Number, Field(ge=0)]
WebSocketUrl = Annotated[str, Field(pattern=WEBSOCKET_URL)]
HttpUrl = Annotated[str, Field(pattern=HTTP_URL)]
NullableUrl = Annotated[HttpUrl | None, BeforeValidator(empty_is_null)]
Ids = list[Annotated[str, Field(coerce_numbers_to_str=True)]]  # users write ids as numbers
StrMap = dict[str, str]
Headers = Annotated[StrMap, AfterValidator(_validate_headers)]
AnyMap = dict[str, Any]
ApiType = Annotated[
    Literal["auto", "chat_completions", "responses"],
    BeforeValidator(lambda value: value or "auto"),  # earlier releases wrote null
]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a key holds: a section; a "map" or "list" `container`, of such sections if there is one; or one word."""

    section: type[BaseModel] | None = None
    container: str = ""
    name: str = ""
    """Its attribute in Python."""
    restricts: bool = False

    @property
    def keys(self) -> Mapping[str, "Shape"]:
        """The keys of a section, in camelCase."""
        return _keys(self.section) if self.section and not self.container else {}

    def child(self, key: str | int) -> "Shape | None":
        """The shape under a key: one of its own, an entry of a container, or one that a section allows besides."""
        if self.section is None or (self.container == "list") != isinstance(key, int):
            return None
        if self.container:
            return Shape(self.section)
        return self.keys.get(str(key)) or _custom_entry(self.section)

    def entries(self, value: Any) -> Iterator[tuple[Any, Any, "Shape | None"]]:
        """Key, value and shape of each entry of a value of this shape."""
        if self.section and isinstance(value, list if self.container == "list" else dict):
            for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
                yield key, entry, self.child(key)

    def locate(self, names: Iterable[str]) -> tuple[KeyPath, "Shape | None"]:
        """The path of a key below it, given in any spelling, and its shape; None if there is no such key."""
        path: KeyPath = ()
        shape: Shape | None = self
        for name in names:
            key = camel(name) if shape and camel(name) in shape.keys else name
            path, shape = (*path, key), shape.child(key) if shape else None
        return path, shape

    def below(self, path: KeyPath = ()) -> Iterator[tuple[KeyPath, "Shape"]]:
        """All keys below it, with `*` for the names of a container's entries."""
        for key, shape in self.keys.items():
            yield (*path, key), shape
            if shape.section:
                inner = (*path, key, "*") if shape.container else (*path, key)
                yield from Shape(shape.section).below(inner)


@cache
def _keys(section: type[BaseModel]) -> Mapping[str, Shape]:
    keys = {}
    for name, field in section.model_fields.items():
        shape = _shape_of(field.annotation)
        keys[camel(name)] = Shape(shape.section, shape.container, name, restricts=RESTRICTS in field.metadata)
    return keys


def _shape_of(annotation: Any) -> Shape:
    if isinstance(annotation, type):
        return Shape(annotation) if issubclass(annotation, BaseModel) else Shape()
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _shape_of(arguments[0])
    if origin in (Union, UnionType):
        return max(map(_shape_of, arguments), key=lambda shape: (shape.section is not None, shape.container != ""))
    if origin in (dict, list):
        return Shape(_shape_of(arguments[-1]).section, "map" if origin is dict else "list")
    return Shape()


@cache
def _custom_entry(section: type[BaseModel]) -> Shape | None:
    """The shape of keys that a section does not name itself (`providers.<custom>`), if it has one."""
    annotation = section.__annotations__.get("__pydantic_extra__")
    entry = _shape_of(annotation).section if annotation is not None else None
    return Shape(entry) if entry else None


def in_camel_case(value: Any, shape: Shape, path: KeyPath = ()) -> Any:
    """The value with known keys in camelCase. Raises InvalidKeyError if a key occurs in both styles."""
    result: dict[Any, Any] = {}
    for key, entry, _ in shape.entries(value):
        (name,), inner = shape.locate([key]) if isinstance(key, str) else ((key,), shape.child(key))
        if name in result:
            raise InvalidKeyError((*path, name), "occurs twice, in two spellings. Keep one")
        result[name] = in_camel_case(entry, inner, (*path, name)) if inner else entry
    if not result:
        return value
    return [*result.values()] if isinstance(value, list) else result


def with_all_sections(tree: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    """The tree with an empty object for each missing section.

    Only for speed: pydantic then validates everything with one schema instead of building each default.
    """
    result = dict(tree)
    for key, inner in shape.keys.items():
        if inner.section and not inner.container and isinstance(result.setdefault(key, {}), dict):
            result[key] = with_all_sections(result[key], inner)
    return result
