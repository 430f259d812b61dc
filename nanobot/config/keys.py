"""The keys that the schema knows, in both styles, and detection of unknown ones."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from nanobot.config.legacy import is_legacy, why_unused
from nanobot.config.loaded_from import MISSING, KeyPath, entry_of
from nanobot.config.section import RESTRICTS
from nanobot.config.spelling import camel
from nanobot.utils import text


@dataclass(frozen=True, slots=True)
class Shape:
    """The type of a key: `section` is its model, or that of each entry if `container` is "map" or "list"."""

    name: str
    section: type[BaseModel] | None
    container: str
    is_text: bool
    restricts: bool = False


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A key that is not in the schema, and the one that was probably meant."""

    path: KeyPath
    nearest: str | None
    unused: str = ""
    """For a key of an earlier release: why it has no effect."""
    lost_restrictions: tuple[tuple[KeyPath, KeyPath], ...] = ()
    """Restrictions that do not apply because of it: the key as written, and the key that was meant."""


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
    """The model of keys that a section does not name itself (`providers.<custom>`), if it has one."""
    kind = section.__annotations__.get("__pydantic_extra__")
    section_type = get_args(kind)[-1] if kind is not None else None
    return section_type if isinstance(section_type, type) and issubclass(section_type, BaseModel) else None


def in_camel_case(tree: Mapping[str, Any], section: type[BaseModel], path: KeyPath = ()) -> dict[str, Any]:
    """The tree with known keys in camelCase. Raises DuplicateKeyError if a key occurs in both styles."""
    result: dict[str, Any] = {}
    known = shapes(section)
    for key, value in tree.items():
        name = camel(key) if camel(key) in known else key
        if name in result:
            raise DuplicateKeyError((*path, name))
        shape = known.get(name)
        inner = shape.section if shape else entry_section(section)
        result[name] = _entries_in_camel_case(value, inner, shape.container if shape else "", (*path, name))
    return result


def _entries_in_camel_case(value: Any, inner: type[BaseModel] | None, container: str, path: KeyPath) -> Any:
    if inner is None:
        return value
    if container == "map" and isinstance(value, dict):
        return {name: _entries_in_camel_case(entry, inner, "", (*path, name)) for name, entry in value.items()}
    if container == "list" and isinstance(value, list):
        return [_entries_in_camel_case(entry, inner, "", (*path, index)) for index, entry in enumerate(value)]
    return in_camel_case(value, inner, path) if isinstance(value, dict) else value


def with_all_sections(tree: Mapping[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    """The tree with an empty object for each missing section.

    Only for speed: pydantic then validates everything with one schema instead of building each default.
    """
    result = dict(tree)
    for key, shape in shapes(section).items():
        if shape.section and not shape.container and isinstance(result.setdefault(key, {}), dict):
            result[key] = with_all_sections(result[key], shape.section)
    return result


class DuplicateKeyError(ValueError):
    """A key occurs in both styles."""

    def __init__(self, path: KeyPath) -> None:
        super().__init__(f"{dotted(path)} occurs twice, in two spellings. Keep one.")
        self.path = path


def unknown_keys(
    tree: Mapping[str, Any], section: type[BaseModel], path: KeyPath = (), root: type[BaseModel] | None = None
) -> Iterator[UnknownKey]:
    """Keys that are not in the schema. Keys of earlier releases and whole sections of plugins count as known."""
    known, root = shapes(section), root or section
    for key, value in tree.items():
        shape = known.get(key)
        here = (*path, key)
        if shape and shape.section:
            for entry_path, entry in _entries(value, shape.container, here):
                if isinstance(entry, dict):
                    yield from unknown_keys(entry, shape.section, entry_path, root)
        elif shape is None and is_legacy(here):
            if why := why_unused(here, value):
                yield UnknownKey(here, None, why)
        elif shape is None:
            guess = nearest(key, known)
            if path in (("channels",), ("providers",), ("plugins",)) and isinstance(value, dict) and guess is None:
                custom_section = entry_section(section)
                yield from unknown_keys(value, custom_section, here, root) if custom_section else ()
            else:
                yield UnknownKey(
                    here, guess, lost_restrictions=tuple(_lost_restrictions(here, value, guess, section, root))
                )


def _lost_restrictions(
    path: KeyPath, value: Any, guess: str | None, section: type[BaseModel], root: type[BaseModel]
) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The restrictions that an unknown key probably was or contained, each with the key that was meant."""
    if guess is None and path[:2] == ("tools", "mcpServers"):
        return  # such sections are copied from other clients, which have further keys
    if guess is None:
        name, sections = camel(str(path[-1])), {path[0]} if len(path) > 1 else {*shapes(root)} - {"channels"}
        yield from ((path, known) for known in _restrictions(root) if known[-1] == name and known[0] in sections)
        return
    shape = shapes(section)[guess]
    if shape.restricts:
        yield path, (*path[:-1], guess)
    elif shape.section and path[0] != "channels":  # a channel with a misspelt name does not start
        yield from _restrictions_in(value, shape, path, (*path[:-1], guess))


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


def _restrictions_in(value: Any, shape: Shape, path: KeyPath, meant: KeyPath) -> Iterator[tuple[KeyPath, KeyPath]]:
    """The restrictions in a section whose own name is misspelt."""
    if shape.section is None:
        return
    known = shapes(shape.section)
    pairs = zip(_entries(value, shape.container, path), _entries(value, shape.container, meant), strict=True)
    for (entry_path, entry), (meant_path, _) in pairs:
        for key, inner in entry.items() if isinstance(entry, dict) else ():
            if (name := nearest(key, known)) is None:
                continue
            if known[name].restricts:
                yield (*entry_path, key), (*meant_path, name)
            yield from _restrictions_in(inner, known[name], (*entry_path, key), (*meant_path, name))


def _entries(value: Any, container: str, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if container == "map" and isinstance(value, dict):
        yield from (((*path, name), entry) for name, entry in value.items())
    elif container == "list" and isinstance(value, list):
        yield from (((*path, index), entry) for index, entry in enumerate(value))
    else:
        yield path, value


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, ignoring the style of both; None if none is similar."""
    candidates = {candidate.lower().replace("_", ""): candidate for candidate in known}
    matches = text.nearest(name.replace("_", ""), candidates, 1, cutoff=0.75)
    return candidates[matches[0]] if matches else None


def dotted(path: KeyPath) -> str:
    """A key path in the notation of the docs: `agents.defaults.fallbackModels[0]`."""
    dots = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return dots.encode("utf-8", "replace").decode("utf-8")


def value_at(config: BaseModel, path: KeyPath) -> Any:
    """The value under a key of a config, else MISSING."""
    value: Any = config
    for name in path:
        if isinstance(value, BaseModel):
            shape = shapes(type(value)).get(str(name))
            value = getattr(value, shape.name) if shape else (value.__pydantic_extra__ or {}).get(str(name), MISSING)
        else:
            value = entry_of(value, name)
    return value
