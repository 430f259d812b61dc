"""Normalizes third-party schemas for all providers and for our validation. Pure; never raises.

Each yields two. `checked` means the same in keywords our validation handles safely: references are inlined, and what
could make it slow (patterns, exclusions, endless recursion) is dropped. It never refuses what the original allows: the
server has the last word. `shown` is for the model: one type per value, no references, no unions where one type will do,
nothing that any provider refuses; where that loses meaning, the description says it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from nanobot.utils.text import clip_line

Schema = dict[str, Any]

MAX_DEPTH = 8
MAX_SCHEMAS = 1500
"""Number of schemas in one, once its references are inlined."""
MAX_PROPERTIES = 128
MAX_SHOWN_CHARS = 24_000
"""Characters of a shown schema; a longer one loses its descriptions, then its inner levels."""
MAX_DESCRIPTION_CHARS = 600
_MAX_VALUES_CHARS = 400
_MAX_VALUES = 200

_TYPES = ("object", "array", "string", "integer", "number", "boolean")
_BOUNDS = {
    "minimum": (int, float), "maximum": (int, float),
    "exclusiveMinimum": (int, float), "exclusiveMaximum": (int, float),
    "minLength": (int,), "maxLength": (int,), "minItems": (int,), "maxItems": (int,), "minProperties": (int,),
    "maxProperties": (int,),
}  # fmt: skip
_OPEN = frozenset({"patternProperties", "if", "dependentSchemas", "$ref", "$dynamicRef"})
"""Dropped keywords by which a schema may name more properties than it lists."""
_SHOWN_BOUNDS = ("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems")
_VALID_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")
_INVALID = re.compile(r"[^A-Za-z0-9_.-]+")
_ANYTHING: Schema = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]}


@dataclass(frozen=True, slots=True)
class NormalizedSchema:
    """Both forms of a schema."""

    checked: Schema
    shown: Schema

    def restore(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with the server's property names, where the model saw others. Never raises."""
        with suppress(RecursionError):
            return cast(dict[str, Any], _restore_names(arguments, [self.checked]))
        return arguments


def normalize_schema(schema: object) -> NormalizedSchema:
    """Normalize the schema of a tool's arguments. One that is not for an object becomes one that takes any names."""
    checked = _Normalizer(schema).normalize()
    with suppress(RecursionError):  # a value may be too deep, too
        for depth, with_texts in ((MAX_DEPTH, True), (MAX_DEPTH, False), (3, False), (1, False)):
            shown = _shown_object(checked, depth, with_texts=with_texts)
            if len(json.dumps(shown)) <= MAX_SHOWN_CHARS:
                return NormalizedSchema(checked, shown)
    return NormalizedSchema(checked, {"type": "object", "properties": {}})


class _Normalizer:
    """Makes the checked form, with a limit on the number of schemas."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_SCHEMAS

    def normalize(self) -> Schema:
        result = self._schema(self._root, 0, ())
        kinds = result.get("type", "object")
        return {**result, "type": "object"} if "object" in _as_list(kinds) else {"type": "object"}

    def _schema(self, schema: object, depth: int, trail: tuple[str, ...]) -> Schema:
        """Return a schema that allows at least what this one does. Beyond the limit it allows anything."""
        self._left -= 1
        if not isinstance(schema, dict) or depth > 2 * MAX_DEPTH or self._left < 0:
            return {}
        reference = schema.get("$ref")
        if reference is not None:
            target = self._target(reference) if isinstance(reference, str) and reference not in trail else None
            if target is None:
                return _copy_texts(schema)
            return {**self._schema(target, depth + 1, (*trail, str(reference))), **_copy_texts(schema)}
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            return _copy_texts(schema)
        result = {**_copy_texts(schema), **_copy_types(schema), **_copy_values(schema), **_copy_bounds(schema)}
        result |= self._members(schema, depth, trail)
        for word in ("anyOf", "oneOf"):  # oneOf as anyOf: of relaxed schemas, more than one may match
            branches = schema.get(word)
            if isinstance(branches, list) and branches and "anyOf" not in result:
                result["anyOf"] = [self._schema(branch, depth + 1, trail) for branch in branches[:64]]
                if len(branches) > len(result["anyOf"]):
                    del result["anyOf"]
        all_of = schema.get("allOf")
        if isinstance(all_of, list) and all_of:
            result["allOf"] = [self._schema(part, depth + 1, trail) for part in all_of[:64]]
        return result

    def _members(self, schema: Schema, depth: int, trail: tuple[str, ...]) -> Schema:
        result: Schema = {}
        properties = schema.get("properties")
        if isinstance(properties, dict):
            names = [name for name in properties if isinstance(name, str)][:MAX_PROPERTIES]
            result["properties"] = {name: self._schema(properties[name], depth + 1, trail) for name in names}
        required = schema.get("required")
        if isinstance(required, list):
            result["required"] = sorted({name for name in required if isinstance(name, str)})
        others = schema.get("additionalProperties")
        all_named = len(result.get("properties", {})) == len(properties if isinstance(properties, dict) else {})
        if not all_named or not _OPEN.isdisjoint(schema):
            result["additionalProperties"] = True
        elif isinstance(others, bool | dict):
            result["additionalProperties"] = (
                others if isinstance(others, bool) else self._schema(others, depth + 1, trail)
            )
        items = schema.get("items")
        if isinstance(items, dict) and "prefixItems" not in schema:
            result["items"] = self._schema(items, depth + 1, trail)
        return result

    def _target(self, reference: str) -> object:
        """Resolve a reference within the document. No other document is ever fetched."""
        if not reference.startswith("#"):
            return None
        target: object = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(name)
            elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
                target = target[int(name)]
            else:
                return None
        return target if reference in {"#", ""} or "/" in reference else None


def _copy_texts(schema: Schema) -> Schema:
    texts = {word: schema[word] for word in ("title", "description") if isinstance(schema.get(word), str)}
    is_plain = isinstance(schema.get("default"), str | int | float)
    return texts | ({"default": schema["default"]} if is_plain else {})


def _copy_types(schema: Schema) -> Schema:
    kinds = schema.get("type")
    if isinstance(kinds, str):
        kinds = [kinds, "null"] if schema.get("nullable") is True else [kinds]
    known = isinstance(kinds, list) and kinds and all(kind in (*_TYPES, "null") for kind in kinds)
    if not known or not isinstance(kinds, list):
        return {}
    return {"type": kinds[0] if len(kinds) == 1 else list(dict.fromkeys(kinds))}


def _copy_values(schema: Schema) -> Schema:
    if "const" in schema:
        return {"enum": [schema["const"]]}
    values = schema.get("enum")
    return {"enum": values} if isinstance(values, list) and values else {}


def _copy_bounds(schema: Schema) -> Schema:
    return {
        word: schema[word]
        for word, kinds in _BOUNDS.items()
        if isinstance(schema.get(word), kinds) and not isinstance(schema[word], bool)
    }


# -- for the model ------------------------------------------------------------------------------------------------


def _shown_object(schema: Schema, depth: int, *, with_texts: bool) -> Schema:
    """Make an object. At the top no provider accepts a union, so the properties of all branches are merged."""
    properties, required = _all_properties(schema)
    shown: Schema = {
        _shown_name(name): _shown(part, depth - 1, with_texts=with_texts)
        for name, part in list(properties.items())[:MAX_PROPERTIES]
    }
    result: Schema = {"type": "object", "properties": shown if depth > 0 else {}}
    required_names = [name for name in map(_shown_name, required) if name in result["properties"]]
    return result | ({"required": required_names} if required_names else {})


def _shown_name(name: str) -> str:
    """Return a property name that the strictest provider accepts: an invalid one makes it refuse the whole request."""
    if _VALID_NAME.match(name):
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:6]
    return f"{_INVALID.sub('_', name)[:50].strip('_')}_{digest}"


def _restore_names(value: Any, schemas: list[Schema]) -> Any:
    parts = [part for schema in schemas for part, _ in _branches(schema, certain=True)]
    if isinstance(value, list):
        items = [part["items"] for part in parts if "items" in part]
        return [_restore_names(item, items) for item in value] if items else value
    if not isinstance(value, dict):
        return value
    properties = [(name, prop) for part in parts for name, prop in part.get("properties", {}).items()]
    originals = {_shown_name(name): name for name, _ in properties}
    result = {}
    for key, item in value.items():
        name = originals.get(key, key)
        result[name] = _restore_names(item, [schema for other, schema in properties if other == name])
    return result


def _all_properties(schema: Schema) -> tuple[dict[str, Schema], list[str]]:
    """Return the properties of the schema and its branches, and the names that are certainly required."""
    properties: dict[str, Schema] = {}
    required: list[str] = []
    for part, certain in _branches(schema, certain=True):
        for name, prop in part.get("properties", {}).items():
            properties.setdefault(name, prop)
        required += part.get("required", []) if certain else []
    return properties, sorted(set(required))


def _branches(schema: Schema, *, certain: bool) -> Iterator[tuple[Schema, bool]]:
    yield schema, certain
    for part in schema.get("allOf", ()):
        yield from _branches(part, certain=certain)
    for branch in schema.get("anyOf", ()):
        yield from _branches(branch, certain=False)


def _shown(schema: Schema, depth: int, *, with_texts: bool) -> Schema:
    result = _shown_kind(schema, depth, with_texts=with_texts)
    text = _describe(schema, result) if with_texts else ""
    return {"description": text, **result} if text else result


def _shown_kind(schema: Schema, depth: int, *, with_texts: bool) -> Schema:
    kinds = [kind for kind in _as_list(schema.get("type", [])) if kind != "null"]
    branches = [
        branch for branch in schema.get("anyOf", ()) if branch.get("type") != "null" and branch.get("enum") != [None]
    ]
    if schema.get("allOf") and not kinds and not branches:
        merged: Schema = {}
        for part in schema["allOf"]:
            merged = {**part, **merged}
        is_object = any(part.get("properties") for part in schema["allOf"])
        return (
            _shown_object(schema, depth, with_texts=with_texts)
            if is_object
            else _shown_kind(merged, depth, with_texts=with_texts)
        )
    if len(kinds) != 1 and branches and not schema.get("properties"):
        shown = [_shown(branch, depth - 1, with_texts=with_texts) for branch in branches]
        different = [item for index, item in enumerate(shown) if item not in shown[:index]]
        return different[0] if len(different) == 1 or depth <= 0 else {"anyOf": different[:16]}
    if len(kinds) > 1:
        return {"anyOf": [_shown_kind({**schema, "type": kind}, depth, with_texts=with_texts) for kind in kinds]}
    kind = kinds[0] if kinds else _guess_type(schema)
    if kind is None:
        return _ANYTHING
    if kind == "object":
        return _shown_object(schema, depth, with_texts=with_texts)
    result: Schema = {"type": kind}
    values = schema.get("enum")
    if (
        kind == "string"
        and values
        and len(values) <= _MAX_VALUES
        and all(isinstance(value, str) and value for value in values if value is not None)
    ):
        result["enum"] = list(dict.fromkeys(value for value in values if value is not None))
    if kind == "array":
        result["items"] = _shown(schema.get("items", {}), depth - 1, with_texts=with_texts) if depth > 0 else _ANYTHING
    return result | {word: schema[word] for word in _SHOWN_BOUNDS if word in schema and _applies_to(word, kind)}


def _guess_type(schema: Schema) -> str | None:
    """Guess the type of a schema that does not state it."""
    values = schema.get("enum", ())
    if values and all(isinstance(value, str) for value in values):
        return "string"
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    return "array" if "items" in schema else None


def _applies_to(bound: str, kind: str) -> bool:
    return kind in {"Items": ("array",), "Length": ("string",)}.get(bound[3:], ("integer", "number"))


def _describe(schema: Schema, shown: Schema) -> str:
    """Return the description, with what the shown schema does not state."""
    text = " ".join(str(schema.get("description") or schema.get("title") or "").split())
    sentences = [clip_line(text, MAX_DESCRIPTION_CHARS)] if text else []
    if schema.get("enum") and "enum" not in shown:
        sentences.append(f"One of: {_values(schema['enum'])}.")
    if schema.get("default") is not None:
        sentences.append(f"Default: {_values([schema['default']])}.")
    if isinstance(schema.get("additionalProperties"), dict) or (
        schema.get("additionalProperties") is True and not schema.get("properties")
    ):
        sentences.append("Any names are allowed.")
    return " ".join(sentences)


def _values(values: list[Any]) -> str:
    texts = (json.dumps(value, ensure_ascii=False) for value in values[:_MAX_VALUES])
    return clip_line(", ".join(texts), _MAX_VALUES_CHARS)


def _as_list(kinds: Any) -> list[Any]:
    return [kinds] if isinstance(kinds, str) else list(kinds)
