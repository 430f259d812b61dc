"""Names in both styles: which keys the schema knows and what they are called in the file."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from nanobot.config.legacy import is_legacy
from nanobot.config.loaded_from import MISSING, KeyPath, entry_of
from nanobot.config.spelling import camel
from nanobot.utils import text


@dataclass(frozen=True, slots=True)
class Shape:
    """What stands under a key: `section` is its model, or that of each entry where `many` is map or list."""

    name: str
    section: type[BaseModel] | None
    many: str
    is_text: bool


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that the schema does not know, and the one it may have been meant for."""

    path: KeyPath
    nearest: str | None


@cache
def shapes(section: type[BaseModel]) -> Mapping[str, Shape]:
    """The keys of a section, in camelCase."""
    return {camel(name): _shape(name, field.annotation) for name, field in section.model_fields.items()}


def _shape(name: str, annotation: Any) -> Shape:
    kinds = list(_alternatives(annotation))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return Shape(name, kind, "", is_text=False)
        arguments = get_args(kind)
        for entry in (part for argument in arguments[-1:] for part in _alternatives(argument)):
            if isinstance(entry, type) and issubclass(entry, BaseModel):
                return Shape(name, entry, "map" if get_origin(kind) is dict else "list", is_text=False)
    containers = any(get_origin(kind) in (dict, list) for kind in kinds)
    return Shape(name, None, "", is_text=not containers)


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
def entry_section(section: type[BaseModel]) -> type[BaseModel] | None:
    """What stands under a key that a section does not name itself (`providers.<one's own>`), if it says so."""
    kind = section.__annotations__.get("__pydantic_extra__")
    found = get_args(kind)[-1] if kind is not None else None
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None


def in_camel_case(tree: Mapping[str, Any], section: type[BaseModel], path: KeyPath = ()) -> dict[str, Any]:
    """The tree with known keys in camelCase. Raises TwiceError where a key stands in both styles."""
    result: dict[str, Any] = {}
    known = shapes(section)
    for key, value in tree.items():
        name = camel(key) if camel(key) in known else key
        if name in result:
            raise TwiceError((*path, name))
        shape = known.get(name)
        inner = shape.section if shape else entry_section(section)
        result[name] = _entries_in_camel_case(value, inner, shape.many if shape else "", (*path, name))
    return result


def _entries_in_camel_case(value: Any, inner: type[BaseModel] | None, many: str, path: KeyPath) -> Any:
    if inner is None:
        return value
    if many == "map" and isinstance(value, dict):
        return {name: _entries_in_camel_case(entry, inner, "", (*path, name)) for name, entry in value.items()}
    if many == "list" and isinstance(value, list):
        return [_entries_in_camel_case(entry, inner, "", (*path, index)) for index, entry in enumerate(value)]
    return in_camel_case(value, inner, path) if isinstance(value, dict) else value


def with_all_sections(tree: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """The tree with an empty object for each section that is not there.

    Nothing changes but the cost: pydantic then checks it all by one schema, where each default would build its own.
    """
    result = dict(tree)
    for key, shape in shapes(section).items():
        if shape.section and not shape.many and isinstance(result.setdefault(key, {}), dict):
            result[key] = with_all_sections(result[key], shape.section)
    return result


class TwiceError(ValueError):
    """A key stands twice, in both styles."""

    def __init__(self, path: KeyPath) -> None:
        super().__init__(f"{dotted(path)} stands twice, in two spellings. Keep one.")
        self.path = path


def unknown_keys(tree: Mapping[str, Any], section: type[BaseModel], path: KeyPath = ()) -> Iterator[UnknownKey]:
    """Keys nobody knows. What releases before ours wrote, and whole sections that a plugin may read, are known."""
    known = shapes(section)
    for key, value in tree.items():
        shape = known.get(key)
        here = (*path, key)
        if shape and shape.section:
            for place, entry in _entries(value, shape.many, here):
                if isinstance(entry, dict):
                    yield from unknown_keys(entry, shape.section, place)
        elif shape is None and not is_legacy(here):
            guess = nearest(key, known)
            if path in (("channels",), ("providers",), ("plugins",)) and isinstance(value, dict) and guess is None:
                own = entry_section(section)
                yield from unknown_keys(value, own, here) if own else ()
            else:
                yield UnknownKey(here, guess)


def _entries(value: Any, many: str, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if many == "map" and isinstance(value, dict):
        yield from (((*path, name), entry) for name, entry in value.items())
    elif many == "list" and isinstance(value, list):
        yield from (((*path, index), entry) for index, entry in enumerate(value))
    else:
        yield path, value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was most likely meant, if one is near. The style of either is no difference."""
    spelled = {candidate.lower().replace("_", ""): candidate for candidate in known}
    found = text.nearest(name.replace("_", ""), spelled, 1, cutoff=0.75)
    return spelled[found[0]] if found else None


def dotted(path: KeyPath) -> str:
    """A key as people write it: `agents.defaults.fallbackModels[0]`."""
    dots = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return dots.encode("utf-8", "replace").decode("utf-8")


def value_at(config: BaseModel, path: KeyPath) -> Any:
    """What stands under a key of a config, MISSING if nothing does."""
    value: Any = config
    for name in path:
        if isinstance(value, BaseModel):
            shape = shapes(type(value)).get(str(name))
            value = getattr(value, shape.name) if shape else (value.__pydantic_extra__ or {}).get(str(name), MISSING)
        else:
            value = entry_of(value, name)
    return value
