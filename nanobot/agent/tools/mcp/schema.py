"""Normalizes third-party schemas for all providers and for our validation. Pure; never raises.

Each yields two. `checked` means the same in keywords our validation handles safely: references are inlined, and what
could make it slow (patterns, exclusions, endless recursion) is dropped. It never refuses what the original allows: the
server has the last word. `shown` is for the model: one type per value and nothing that a provider refuses; where that
loses meaning, the description says it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from nanobot.utils.text import clip_line

Schema = dict[str, Any]

MAX_DEPTH = 8
MAX_SCHEMAS = 1500
"""Number of schemas in one, once its references are inlined."""
MAX_SHOWN_CHARS = 24_000
"""Characters of a shown schema; a longer one loses its inner levels."""
_MAX_DESCRIPTION_CHARS = 600
_MAX_PROPERTIES = 128
_MAX_BRANCHES = 64
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
_BOUNDS = {
    "array": ("minItems", "maxItems"),
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
}
_OPEN = frozenset({"patternProperties", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef", "allOf"})
"""Keywords by which a schema may name more properties than it lists."""
_VALID_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")
_ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]}


@dataclass(frozen=True, slots=True)
class NormalizedSchema:
    checked: Schema
    shown: Schema
    renamed: dict[str, str] = field(default_factory=dict)
    """The server's names of arguments, by those that are shown instead."""

    def restore(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the server's names."""
        return {self.renamed.get(name, name): value for name, value in arguments.items()}


def normalize_schema(schema: object) -> NormalizedSchema:
    """Normalize the schema of a tool's arguments. One that is not for an object becomes one that takes any names."""
    checked = _Inliner(schema).inline(schema, 0, ())
    if checked.get("type", "object") != "object":
        checked = {}
    checked = {**checked, "type": "object"}
    with suppress(RecursionError):  # a value may be too deep, too
        for depth in (MAX_DEPTH, 4, 2, 1):
            names: dict[str, str] = {}
            shown = _show_object(checked, depth, names)
            if len(json.dumps(shown)) <= MAX_SHOWN_CHARS:
                return NormalizedSchema(checked, shown, names)
    return NormalizedSchema(checked, {"type": "object", "properties": {}})


class _Inliner:
    """Makes the checked form. Beyond the limits, it allows anything."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def inline(self, schema: object, depth: int, references: tuple[str, ...]) -> Schema:
        """Return a schema that allows at least what this one does. `references` are those that led here."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > 2 * MAX_DEPTH or self._left < 0:
            return {}
        result = {name: schema[name] for name in ("title", "description") if isinstance(schema.get(name), str)}
        if isinstance(schema.get("default"), str | int | float):
            result["default"] = schema["default"]
        reference = schema.get("$ref")
        if reference is not None:
            target = self._target(reference) if reference not in references else None
            return {**self.inline(target, depth + 1, (*references, str(reference))), **result}
        types = schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type")]
        if all(name in _TYPES for name in types):
            types = [*dict.fromkeys([*types, "null"] if schema.get("nullable") is True else types)]
            result["type"] = types if len(types) > 1 else types[0]
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            result["enum"] = values
        for bound in {bound for bounds in _BOUNDS.values() for bound in bounds}:
            if isinstance(schema.get(bound), int | float) and not isinstance(schema[bound], bool):
                result[bound] = schema[bound]
        self._add_members(result, schema, depth, references)
        for word in ("anyOf", "oneOf"):  # oneOf as anyOf: of relaxed schemas, more than one may match
            branches = schema.get(word)
            if isinstance(branches, list) and 0 < len(branches) <= _MAX_BRANCHES and "anyOf" not in result:
                result["anyOf"] = [self.inline(branch, depth + 1, references) for branch in branches]
        parts = schema["allOf"] if isinstance(schema.get("allOf"), list) else []
        for part in parts[:_MAX_BRANCHES]:
            _merge(result, self.inline(part, depth + 1, references))
        return result

    def _add_members(self, result: Schema, schema: Schema, depth: int, references: tuple[str, ...]) -> None:
        properties = schema["properties"] if isinstance(schema.get("properties"), dict) else {}
        named = [name for name in properties if isinstance(name, str)][:_MAX_PROPERTIES]
        if named:
            result["properties"] = {name: self.inline(properties[name], depth + 1, references) for name in named}
        required = schema["required"] if isinstance(schema.get("required"), list) else []
        if names := sorted({name for name in required if isinstance(name, str)}):
            result["required"] = names
        others = schema.get("additionalProperties")
        if isinstance(others, bool | dict):
            is_open = len(named) < len(properties) or not _OPEN.isdisjoint(schema)
            result["additionalProperties"] = is_open or (others and self.inline(others, depth + 1, references))
        if isinstance(schema.get("items"), dict) and "prefixItems" not in schema:
            result["items"] = self.inline(schema["items"], depth + 1, references)

    def _target(self, reference: object) -> object:
        """Resolve a reference within the document. No other document is ever fetched."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return None
        target: object = self._root
        for step in reference.split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            elif isinstance(target, dict):
                target = target.get(name)
            else:
                return None
        return target


def _merge(result: Schema, part: Schema) -> None:
    """Merge one of `allOf` into the schema: what both state is stated by the first only, which refuses less."""
    properties = {**part.get("properties", {}), **result.get("properties", {})}
    required = sorted({*part.get("required", []), *result.get("required", [])})
    closed = {"additionalProperties": True} if "additionalProperties" in {**part, **result} else {}
    result |= {**part, **result, **closed}
    result |= {**({"properties": properties} if properties else {}), **({"required": required} if required else {})}


# -- for the model ------------------------------------------------------------------------------------------------


def _show_object(schema: Schema, depth: int, renamed: dict[str, str] | None = None) -> Schema:
    """Make an object. At the top no provider accepts a union, so the properties of all branches are merged.

    An invalid name would make the strictest provider refuse the whole request: it is replaced where `renamed` records
    it, and else left out.
    """
    properties: Schema = {}
    for part in _with_branches(schema):
        properties = {**part.get("properties", {}), **properties}
    names = {}
    for name in list(properties)[: _MAX_PROPERTIES if depth > 0 else 0]:
        if _VALID_NAME.fullmatch(name):
            names[name] = name
        elif renamed is not None:
            digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
            names[name] = f"{_INVALID.sub('_', name)[:50].strip('_')}_{digest}"
            renamed[names[name]] = name
    required = [names[name] for name in schema.get("required", []) if name in names]
    return {
        "type": "object",
        "properties": {shown: _show(properties[name], depth - 1) for name, shown in names.items()},
        **({"required": required} if required else {}),
    }


def _with_branches(schema: Schema) -> Iterator[Schema]:
    yield schema
    for branch in schema.get("anyOf", ()):
        yield from _with_branches(branch)


def _show(schema: Schema, depth: int) -> Schema:
    shown = _show_value(schema, depth)
    text = " ".join(str(schema.get("description") or schema.get("title") or "").split())
    notes = [clip_line(text, _MAX_DESCRIPTION_CHARS)] if text else []
    if "enum" in schema and "enum" not in shown:
        notes.append(f"One of: {_list_values(schema['enum'])}.")
    if "default" in schema:
        notes.append(f"Default: {_list_values([schema['default']])}.")
    if schema.get("additionalProperties") and not schema.get("properties"):
        notes.append("Any names are allowed.")
    return {"description": " ".join(notes), **shown} if notes else shown


def _show_value(schema: Schema, depth: int) -> Schema:
    types = schema.get("type", [])
    names = [name for name in ([types] if isinstance(types, str) else types) if name != "null"]
    branches = [branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null"]
    if len(names) != 1 and branches and not schema.get("properties"):
        choices = [_show(branch, depth - 1) for branch in branches]
        return _choice(choices) if depth > 0 else _ANYTHING
    if len(names) > 1:
        return _choice([_show_value({**schema, "type": name}, depth) for name in names])
    name = names[0] if names else _guess_type(schema)
    if name is None:
        return _ANYTHING
    if name == "object":
        return _show_object(schema, depth)
    shown: Schema = {"type": name}
    values = [value for value in schema.get("enum", ()) if value is not None]
    if name == "string" and 0 < len(values) <= 200 and all(isinstance(value, str) and value for value in values):
        shown["enum"] = list(dict.fromkeys(values))
    if name == "array":
        shown["items"] = _show(schema.get("items", {}), depth - 1) if depth > 0 else _ANYTHING
    return shown | {bound: schema[bound] for bound in _BOUNDS.get(name, ()) if bound in schema}


def _choice(shown: list[Schema]) -> Schema:
    different = [item for index, item in enumerate(shown) if item not in shown[:index]]
    return different[0] if len(different) == 1 else {"anyOf": different[:16]}


def _guess_type(schema: Schema) -> str | None:
    """Guess the type of a schema that does not state it."""
    values = schema.get("enum", ())
    if values and all(isinstance(value, str) for value in values):
        return "string"
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema else None


def _list_values(values: list[Any]) -> str:
    return clip_line(", ".join(json.dumps(value, ensure_ascii=False) for value in values[:200]), 400)
