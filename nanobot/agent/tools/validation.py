"""Validates a model's arguments against the tool's JSON schema, with problems the model can correct.

`repair_arguments` first repairs what is obviously meant ("5" for an integer); `find_problems` then checks. Most schemas
use a few keywords, which are checked here; the others go to jsonschema, whose import stalls the event loop for 0.1 s.
"""

from __future__ import annotations  # jsonschema's types are used in annotations only

import json
import math
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

Schema = dict[str, Any]

_SIMPLE = frozenset({
    "title", "description", "default", "examples", "$schema", "$comment", "deprecated",
    "type", "enum", "minimum", "maximum", "items", "properties", "required", "additionalProperties", "$defs",
})  # fmt: skip
"""Keywords that are checked here or forbid nothing."""
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_INTEGER = re.compile(r"[+-]?\d{1,18}", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,2})?", re.ASCII)
_UNCHANGED = object()
_validators: dict[int, tuple[Schema, Draft202012Validator | None]] = {}
"""By the id of a schema: a tool's is compiled once."""


def find_problems(params: Any, schema: Schema) -> list[str]:
    """Return each problem as a sentence; empty if the arguments fit. Never raises, whatever the schema."""
    try:
        return list(_problems(params, schema, "", schema))
    except Exception:  # a third-party schema may be broken in any way; the tool decides then
        return []


def repair_arguments(params: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Repair what is obviously meant: a number in quotes, "true", JSON in a string, a null for an optional argument.
    Leaves valid and irreparable values as they are. Never raises."""
    try:
        return cast(dict[str, Any], _repair_object(params, schema))
    except Exception:  # as above
        return params


def validator_of(schema: Schema) -> Draft202012Validator | None:
    """Compile a schema, which must not change; None if it is broken or refers to another document."""
    if id(schema) not in _validators:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        validator = None
        with suppress(SchemaError):
            Draft202012Validator.check_schema(schema)
            validator = None if _has_external_reference(schema) else Draft202012Validator(schema)
        if len(_validators) > 256:
            _validators.clear()
        _validators[id(schema)] = (schema, validator)
    return _validators[id(schema)][1]


def _has_external_reference(schema: Any) -> bool:
    """Return whether a `$ref` points outside of the schema: a URL would be fetched."""
    if isinstance(schema, list):
        return any(map(_has_external_reference, schema))
    if not isinstance(schema, dict):
        return False
    references = [schema[word] for word in ("$ref", "$dynamicRef") if isinstance(schema.get(word), str)]
    return any(not ref.startswith("#") for ref in references) or any(map(_has_external_reference, schema.values()))


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value has a JSON schema type: true is no number, 5.0 is an integer."""
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, ()))


# -- sentences ----------------------------------------------------------------------------------------------------


def _problems(value: Any, schema: Any, name: str, root: Schema) -> Iterator[str]:
    """Yield each problem and its correction, for a model. `name` is the value's, such as items[2].name; `root` is the
    whole schema.
    """
    if not _is_simple(schema):
        validator = validator_of(root)
        for error in validator.evolve(schema=schema).iter_errors(value) if validator is not None else ():
            steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path]
            yield f"{''.join([name, *steps]).removeprefix('.') or 'the arguments'}: {error.message[:300]}."
        return
    kinds, choices, properties = _kinds(schema, []), schema.get("enum"), schema.get("properties", {})
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield f"{name or 'the arguments'} must be {_type_names(schema)}, not {_clip_json(value)}."
        return
    if choices is not None and not (isinstance(value, str) and value in choices):
        allowed = ", ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
        near = _did_you_mean(nearest(str(value), choices, 1))
        yield f"{name or 'the value'} must be one of {allowed}, not {_clip_json(value)}.{near}"
    if isinstance(value, dict):
        for missing in schema.get("required", ()):
            if missing not in value:
                wanted = properties.get(missing)
                text = re.split(r"[.;] ", str(_mapping(wanted).get("description", "")))[0].rstrip(".")
                about = f" ({_type_names(wanted)}{': ' + text if text else ''})" if isinstance(wanted, dict) else ""
                yield f"{missing} is required{f' in {name}' if name else ''}{about}."
        # A tool that ignores a made-up name does something else than meant.
        takes_others = schema.get("additionalProperties", bool(name) or not properties)
        for key, item in value.items():
            if key in properties:
                yield from _problems(item, properties[key], f"{name}.{key}" if name else key, root)
            elif not takes_others:
                near, known = _did_you_mean(nearest(str(key), properties, 1)), ", ".join(properties) or "none"
                yield f"{key} is not a parameter{f' of {name}' if name else ''}.{near} Known: {known}."
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from _problems(item, schema["items"], f"{name}[{index}]", root)
    elif _is(value, "number"):
        if value < schema.get("minimum", -math.inf):
            yield f"{name or 'the value'} must be at least {schema['minimum']}, not {_clip_json(value)}."
        if value > schema.get("maximum", math.inf):
            yield f"{name or 'the value'} must be at most {schema['maximum']}, not {_clip_json(value)}."


def _is_simple(schema: Any) -> bool:
    """Return whether the schema, without those below it, means nothing that is not checked here."""
    return (
        isinstance(schema, dict)
        and _SIMPLE.issuperset(schema)
        and _KINDS.keys() >= set(_kinds(schema, []))
        and isinstance(schema.get("properties", {}), dict)
        and isinstance(schema.get("additionalProperties", True), bool)
        and all(isinstance(choice, str) for choice in schema.get("enum", ()))
    )


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {near[0]}?" if near else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _type_names(schema: Any) -> str:
    names = [f"{'an' if str(kind)[0] in 'aio' else 'a'} {kind}" for kind in _kinds(schema, [])]
    return " or ".join(names) or "anything"


def _clip_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


# -- repairing ----------------------------------------------------------------------------------------------------


def _repair_object(params: Any, schema: Any) -> Any:
    properties = _mapping(_mapping(schema).get("properties"))
    if not isinstance(params, dict) or not properties:
        return params
    required = schema.get("required", [])
    return {
        name: _repair_value(value, properties.get(name))
        for name, value in params.items()
        if value is not None or name in required or "null" in _kinds(properties.get(name), ["null"])
    }


def _kinds(schema: Any, default: list[Any]) -> list[Any]:
    """Return the types that a schema names."""
    kinds = _mapping(schema).get("type")
    return [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else default


def _repair_value(value: Any, schema: Any) -> Any:
    """Return the value as its schema wants it; unchanged if that is not obvious."""
    kinds = _kinds(schema, [])
    if kinds and not any(_is(value, kind) for kind in kinds):
        repairs = (_convert(value, kind) for kind in kinds)
        value = next((repaired for repaired in repairs if repaired is not _UNCHANGED), value)
    if isinstance(value, dict) and "object" in kinds:
        return _repair_object(value, schema)
    if isinstance(value, list) and "array" in kinds and isinstance(schema.get("items"), dict):
        return [_repair_value(item, schema["items"]) for item in value]
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return int(value)  # equal, and usable for counting
    return value


def _convert(value: Any, kind: Any) -> Any:
    """Return the value as one of this JSON type; _UNCHANGED if it does not plainly stand for one."""
    if isinstance(value, str):
        text = value.strip()
        if kind in ("integer", "number") and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "number" and _NUMBER.fullmatch(text):
            return float(text)
        if kind == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in ("object", "array"):
            with suppress(ValueError, RecursionError):
                parsed = json.loads(text)
                return parsed if _is(parsed, kind) else _UNCHANGED
    elif kind == "string" and _is(value, "number") and math.isfinite(value):
        return json.dumps(value)
    return _UNCHANGED
