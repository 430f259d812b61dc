"""Schemas of other people's servers, made fit for every provider and for our own check. Pure; never raises.

Two are made of each. `checked` says the same with the words our check can bear: references are written out, what could
make judging slow (patterns, exclusions, endless recursion) is left away. It never refuses what the original allows: the
server judges last. `shown` is what a model is told: one type a place, no references, no unions where one will do,
nothing that one provider or another refuses; where that loses a meaning, it is said in words.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nanobot.utils.text import clip_line

Schema = dict[str, Any]

DEEPEST = 8
MOST_PLACES = 1500
"""How many schemas one may hold, once its references are written out."""
MOST_PROPERTIES = 128
LONGEST_SHOWN = 24_000
"""Characters of a shown schema; a longer one loses its words, then its depths."""
LONGEST_DESCRIPTION = 600
_LONGEST_VALUES = 400
_MOST_VALUES = 200

_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_BOUNDS = {
    "minimum": (int, float), "maximum": (int, float),
    "exclusiveMinimum": (int, float), "exclusiveMaximum": (int, float),
    "minLength": (int,), "maxLength": (int,), "minItems": (int,), "maxItems": (int,), "minProperties": (int,),
    "maxProperties": (int,),
}  # fmt: skip
_OPEN = frozenset({"patternProperties", "if", "dependentSchemas", "$ref", "$dynamicRef"})
"""Words left away by which a schema may name more properties than it lists."""
_SHOWN_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]}


@dataclass(frozen=True, slots=True)
class Normalised:
    """What became of a schema."""

    checked: Schema
    shown: Schema


def normalised(schema: object) -> Normalised:
    """The schema of a tool's arguments. What is no schema of an object becomes one that takes any names."""
    checked = _Bearable(schema).whole()
    with suppress(RecursionError):  # a value, too, may be deeper than anybody reads
        for depth, words in ((DEEPEST, True), (DEEPEST, False), (3, False), (1, False)):
            shown = _shown_object(checked, depth, words=words)
            if len(json.dumps(shown)) <= LONGEST_SHOWN:
                return Normalised(checked, shown)
    return Normalised(checked, {"type": "object", "properties": {}})


class _Bearable:
    """The way from an original to what our check can bear, within a budget of places."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MOST_PLACES

    def whole(self) -> Schema:
        found = self._schema(self._root, 0, ())
        kinds = found.get("type", "object")
        return {**found, "type": "object"} if "object" in _listed(kinds) else {"type": "object"}

    def _schema(self, schema: object, depth: int, trail: tuple[str, ...]) -> Schema:
        """A schema that allows at least what this one does. Past the budget it allows anything."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > 2 * DEEPEST or self._left < 0:
            return {}
        reference = schema.get("$ref")
        if reference is not None:
            target = self._target(reference) if isinstance(reference, str) and reference not in trail else None
            if target is None:
                return _words_of(schema)
            return {**self._schema(target, depth + 1, (*trail, str(reference))), **_words_of(schema)}
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            return _words_of(schema)
        found = {**_words_of(schema), **_kinds_of(schema), **_values_of(schema), **_bounds_of(schema)}
        found |= self._members_of(schema, depth, trail)
        for word in ("anyOf", "oneOf"):  # whether exactly one fits cannot be said of schemas that were made wider
            branches = schema.get(word)
            if isinstance(branches, list) and branches and "anyOf" not in found:
                found["anyOf"] = [self._schema(branch, depth + 1, trail) for branch in branches[:64]]
                if len(branches) > len(found["anyOf"]):
                    del found["anyOf"]
        every = schema.get("allOf")
        if isinstance(every, list) and every:
            found["allOf"] = [self._schema(one, depth + 1, trail) for one in every[:64]]
        return found

    def _members_of(self, schema: Schema, depth: int, trail: tuple[str, ...]) -> Schema:
        found: Schema = {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            kept = [name for name in properties if isinstance(name, str)][:MOST_PROPERTIES]
            found["properties"] = {name: self._schema(properties[name], depth + 1, trail) for name in kept}
        required = schema.get("required")
        if isinstance(required, list):
            found["required"] = sorted({name for name in required if isinstance(name, str)})
        others = schema.get("additionalProperties")
        all_named = len(found.get("properties", {})) == len(properties if isinstance(properties, dict) else {})
        if not all_named or not _OPEN.isdisjoint(schema):
            found["additionalProperties"] = True
        elif isinstance(others, bool | dict):
            found["additionalProperties"] = (
                others if isinstance(others, bool) else self._schema(others, depth + 1, trail)
            )
        items = schema.get("items")
        if isinstance(items, dict) and "prefixItems" not in schema:
            found["items"] = self._schema(items, depth + 1, trail)
        return found

    def _target(self, reference: str) -> object:
        """What a reference inside of the same document leads to. No other document is ever asked for."""
        if not reference.startswith("#"):
            return None
        place: object = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict):
                place = place.get(name)
            elif isinstance(place, list) and name.isdecimal() and int(name) < len(place):
                place = place[int(name)]
            else:
                return None
        return place if reference in {"#", ""} or "/" in reference else None


def _words_of(schema: Schema) -> Schema:
    words = {word: schema[word] for word in ("title", "description") if isinstance(schema.get(word), str)}
    plain = isinstance(schema.get("default"), str | int | float)
    return words | ({"default": schema["default"]} if plain else {})


def _kinds_of(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds, "null"] if schema.get("nullable") is True else [kinds]
    known = isinstance(kinds, list) and kinds and all(kind in (*_TYPES, "null") for kind in kinds)
    if not known or not isinstance(kinds, list):
        return {}
    return {"type": kinds[0] if len(kinds) == 1 else list(dict.fromkeys(kinds))}


def _values_of(schema: Schema) -> Schema:
    if "const" in schema:
        return {"enum": [schema["const"]]}
    values = schema.get("enum")
    return {"enum": values} if isinstance(values, list) and values else {}


def _bounds_of(schema: Schema) -> Schema:
    return {
        word: schema[word]
        for word, kinds in _BOUNDS.items()
        if isinstance(schema.get(word), kinds) and not isinstance(schema[word], bool)
    }


# -- what a model is told -----------------------------------------------------------------------------------------


def _shown_object(schema: Schema, depth: int, *, words: bool) -> Schema:
    """An object, at the top too: there no provider takes a union, so what its branches name is put together."""
    properties, required = _all_properties(schema)
    shown: Schema = {
        name: _shown(part, depth - 1, words=words) for name, part in list(properties.items())[:MOST_PROPERTIES]
    }
    found: Schema = {"type": "object", "properties": shown if depth > 0 else {}}
    asked = [name for name in required if name in found["properties"]]
    return found | ({"required": asked} if asked else {})


def _all_properties(schema: Schema) -> tuple[dict[str, Schema], list[str]]:
    """What the schema itself names, and its branches; what is required for certain."""
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for part, certain in _parts(schema, certain=True):
        for name, one in part.get("properties", {}).items():
            properties.setdefault(name, one)
        required += part.get("required", []) if certain else []
    return properties, sorted(set(required))


def _parts(schema: Schema, *, certain: bool) -> Iterator[tuple[Schema, bool]]:
    yield schema, certain
    for one in schema.get("allOf", ()):
        yield from _parts(one, certain=certain)
    for branch in schema.get("anyOf", ()):
        yield from _parts(branch, certain=False)


def _shown(schema: Schema, depth: int, *, words: bool) -> Schema:
    found = _shown_kind(schema, depth, words=words)
    text = _told(schema, found) if words else ""
    return {"description": text, **found} if text else found


def _shown_kind(schema: Schema, depth: int, *, words: bool) -> Schema:
    kinds = [kind for kind in _listed(schema.get("type", [])) if kind != "null"]
    branches = [
        branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null" and branch.get("enum") != [None]
    ]
    if schema.get("allOf") and not kinds and not branches:
        merged: Schema = {}
        for part in schema["allOf"]:
            merged = {**part, **merged}
        is_object = any(part.get("properties") for part in schema["allOf"])
        return _shown_object(schema, depth, words=words) if is_object else _shown_kind(merged, depth, words=words)
    if len(kinds) != 1 and branches and not schema.get("properties"):
        told = [_shown(branch, depth - 1, words=words) for branch in branches]
        different = [one for place, one in enumerate(told) if one not in told[:place]]
        return different[0] if len(different) == 1 or depth <= 0 else {"anyOf": different[:16]}
    if len(kinds) > 1:
        return {"anyOf": [_shown_kind({**schema, "type": kind}, depth, words=words) for kind in kinds]}
    kind = kinds[0] if kinds else _guessed(schema)
    if kind is None:
        return _ANYTHING
    if kind == "object":
        return _shown_object(schema, depth, words=words)
    found: Schema = {"type": kind}
    values = schema.get("enum")
    if (
        kind == "string"
        and values
        and len(values) <= _MOST_VALUES
        and all(isinstance(one, str) and one for one in values if one is not None)
    ):
        found["enum"] = list(dict.fromkeys(one for one in values if one is not None))
    if kind == "array":
        found["items"] = _shown(schema.get("items", {}), depth - 1, words=words) if depth > 0 else _ANYTHING
    return found | {word: schema[word] for word in _SHOWN_BOUNDS if word in schema and _is_for(word, kind)}


def _guessed(schema: Schema) -> str | None:
    """The type of a schema that does not say it."""
    values = schema.get("enum", ())
    if values and all(isinstance(value, str) for value in values):
        return "string"
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema else None


def _is_for(bound: str, kind: str) -> bool:
    return kind in {"Items": ("array",), "Length": ("string",)}.get(bound[3:], ("integer", "number"))


def _told(schema: Schema, shown: Schema) -> str:
    """The description, and in words what the shown schema does not say."""
    text = " ".join(str(schema.get("description") or schema.get("title") or "").split())
    said = [clip_line(text, LONGEST_DESCRIPTION)] if text else []
    if schema.get("enum") and "enum" not in shown:
        said.append(f"One of: {_values(schema['enum'])}.")
    if schema.get("default") is not None:
        said.append(f"Default: {_values([schema['default']])}.")
    if isinstance(schema.get("additionalProperties"), dict) or (
        schema.get("additionalProperties") is True and not schema.get("properties")
    ):
        said.append("Any names are allowed.")
    return " ".join(said)


def _values(values: list[Any]) -> str:
    told = (json.dumps(value, ensure_ascii=False) for value in values[:_MOST_VALUES])
    return clip_line(", ".join(told), _LONGEST_VALUES)


def _listed(kinds: Any) -> list[Any]:
    return [kinds] if isinstance(kinds, str) else list(kinds)
