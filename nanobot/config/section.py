"""The base class of all config sections, value types with a range, and what a section knows about its keys.

Attributes are snake_case. The file may use both styles; camelCase is written. Unknown keys are preserved.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from nanobot.config.keypath import MISSING, KeyPath, camel, dotted, mask_value


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


RESTRICTS = object()
"""Marks a key that removes rights or limits spending. Misspelling such a key is an error, not just a warning."""


def empty_is_null(value: object) -> object:
    """Treat an empty string as null."""
    return None if value == "" else value


def _null_is_empty(value: object) -> object:
    return "" if value is None else value


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

Number = BeforeValidator(_reject_bool)
Text = Annotated[str, BeforeValidator(_null_is_empty)]  # earlier releases wrote null for an empty string
Count = Annotated[int, Number, Field(ge=1)]
Whole = Annotated[int, Number, Field(ge=0)]
Port = Annotated[int, Number, Field(ge=1, le=65535)]
Seconds = Annotated[float, Number, Field(gt=0)]
Millis = Annotated[int, Number, Field(ge=0)]
Retries = Annotated[int, Number, Field(ge=0, le=10)]
Money = Annotated[float, Number, Field(ge=0)]
WebSocketUrl = Annotated[str, Field(pattern=r"^wss?://.+")]
HttpUrl = Annotated[str, Field(pattern=r"^https?://.+")]
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
    """The type of a key: `section` is its model, or that of each entry if `container` is "map" or "list"."""

    name: str
    section: type[BaseModel] | None
    container: str = ""
    is_text: bool = False
    """Whether a value is one word: neither object nor list."""
    restricts: bool = False

    @property
    def keys(self) -> Mapping[str, "Shape"]:
        """The keys it knows, in camelCase."""
        return shapes(self.section) if self.section and not self.container else {}

    def child(self, key: str | int) -> "Shape | None":
        """The shape under one of its keys, None if it has none: an own key, any entry of a container, a custom key."""
        if self.section is None or (self.container == "list") != isinstance(key, int):
            return None
        if self.container:
            return Shape("", self.section)
        return self.keys.get(str(key)) or _custom_shape(self.section)


@cache
def shapes(section: type[BaseModel]) -> Mapping[str, Shape]:
    """The keys of a section, in camelCase."""
    return {
        camel(name): replace(_shape(name, field.annotation), restricts=RESTRICTS in field.metadata)
        for name, field in section.model_fields.items()
    }


def _shape(name: str, annotation: Any) -> Shape:
    kinds = list(_alternatives(annotation))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return Shape(name, kind)
        for entry in _alternatives(get_args(kind)[-1]) if get_origin(kind) in (dict, list) else ():
            if isinstance(entry, type) and issubclass(entry, BaseModel):
                return Shape(name, entry, "map" if get_origin(kind) is dict else "list")
    return Shape(name, None, is_text=not any(get_origin(kind) in (dict, list) for kind in kinds))


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    else:
        yield annotation


@cache
def _custom_shape(section: type[BaseModel]) -> Shape | None:
    """The shape of keys that a section does not name itself (`providers.<custom>`), if it has one."""
    kind = section.__annotations__.get("__pydantic_extra__")
    entry = get_args(kind)[-1] if kind is not None else None
    return Shape("", entry) if isinstance(entry, type) and issubclass(entry, BaseModel) else None


class DuplicateKeyError(ValueError):
    """A key occurs in both styles."""

    def __init__(self, path: KeyPath) -> None:
        super().__init__(f"{dotted(path)} occurs twice, in two spellings. Keep one.")
        self.path = path


def in_camel_case(value: Any, shape: Shape, path: KeyPath = ()) -> Any:
    """The value with known keys in camelCase. Raises DuplicateKeyError if a key occurs in both styles."""
    if isinstance(value, list) and shape.container == "list":
        entry_shape = Shape("", shape.section)
        return [in_camel_case(entry, entry_shape, (*path, index)) for index, entry in enumerate(value)]
    if not isinstance(value, dict) or shape.section is None:
        return value
    result: dict[str, Any] = {}
    for key, entry in value.items():
        name = camel(key) if camel(key) in shape.keys else key
        if name in result:
            raise DuplicateKeyError((*path, name))
        inner = shape.child(name)
        result[name] = in_camel_case(entry, inner, (*path, name)) if inner else entry
    return result


def with_all_sections(tree: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """The tree with an empty object for each missing section.

    Only for speed: pydantic then validates everything with one schema instead of building each default.
    """
    result = dict(tree)
    for key, shape in shapes(section).items():
        if shape.section and not shape.container and isinstance(result.setdefault(key, {}), dict):
            result[key] = with_all_sections(result[key], shape.section)
    return result


@cache
def _defaults(section: type[BaseModel]) -> dict[str, tuple[str, Any]]:
    """The keys of a section, in camelCase, with their attribute and default."""
    return {
        camel(name): (name, field.get_default(call_default_factory=True))
        for name, field in section.model_fields.items()
    }


def settings_in(value: Any, path: KeyPath = (), default: Any = MISSING) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Path, value and default of each setting below a section; the default of a key that no section names is MISSING.

    Objects are descended into. A list is one setting.
    """
    if isinstance(value, BaseModel):
        for key, (name, field_default) in _defaults(type(value)).items():
            yield from settings_in(getattr(value, name), (*path, key), field_default)
    entries = (value.model_extra or {}) if isinstance(value, BaseModel) else value if isinstance(value, dict) else {}
    for name, entry in entries.items():
        yield from settings_in(entry, (*path, name))
    if isinstance(value, list):
        value = [
            entry.model_dump(by_alias=True, exclude_defaults=True) if isinstance(entry, BaseModel) else entry
            for entry in value
        ]
    if not isinstance(value, BaseModel) and not entries:
        yield path, value, default
