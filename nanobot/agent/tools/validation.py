"""Validates a model's arguments against the tool's JSON schema, with problems the model can correct.

`repair_arguments` first repairs what is obviously meant ("5" for an integer); `find_problems` then checks. Most calls
are right and most schemas flat, so a small check accepts those; anything else goes to jsonschema, whose import would
stall the event loop for 0.1 s.
"""

from __future__ import annotations  # jsonschema's types are used in annotations only

import json
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Schema = dict[str, Any]

_SIMPLE = frozenset({
    "title", "description", "default", "examples", "$schema", "$comment", "deprecated",
    "type", "enum", "minimum", "maximum", "items", "properties", "required", "additionalProperties",
})  # fmt: skip
"""Keywords that the small check understands or may ignore."""
_OPEN = frozenset({"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
"""Keywords by which a schema may allow names that its `properties` do not list."""
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
        problems: list[str] = []
        if not _surely_fits(params, schema) and (validator := validator_of(schema)) is not None:
            errors = sorted(validator.iter_errors(params), key=lambda error: [*map(str, error.absolute_path)])
            problems = [_describe_error(error) for error in errors]
        return list(dict.fromkeys([*problems, *_unknown_names(params, schema)]))
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


def _surely_fits(value: Any, schema: Any) -> bool:
    """Return True only if jsonschema would agree; False means nothing."""
    if not isinstance(schema, dict) or not _SIMPLE.issuperset(schema):
        return False
    if (kind := schema.get("type")) is not None and not _is(value, kind):
        return False
    if "enum" in schema and not (isinstance(value, str) and value in schema["enum"]):
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if schema.get("additionalProperties", True) is not True and not value.keys() <= properties.keys():
            return False
        return all(name in value for name in schema.get("required", ())) and all(
            _surely_fits(item, properties[name]) for name, item in value.items() if name in properties
        )
    if isinstance(value, list):
        return "items" not in schema or all(_surely_fits(item, schema["items"]) for item in value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return not is_number or bool(schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf))


def _is(value: Any, kind: Any) -> bool:
    """Return whether a value has a JSON schema type: true is no number, 5.0 is an integer."""
    if isinstance(value, bool):
        return bool(kind == "boolean")
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, ()))


# -- sentences ----------------------------------------------------------------------------------------------------


def _describe_error(error: ValidationError) -> str:
    """Describe the problem and the correction, for a model."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.absolute_path]
    name = "".join(steps).removeprefix(".")  # such as items[2].name
    expected = _type_names(error.schema)
    if error.validator == "required":
        missing = error.message.removesuffix(" is a required property").strip("'\"")
        location = f" in {name}" if name else ""
        schema = _properties(error.schema).get(missing)
        text = re.split(r"[.;] ", str(_mapping(schema).get("description", "")))[0].rstrip(".")
        about = f" ({_type_names(schema)}{': ' + text if text else ''})" if isinstance(schema, dict) else ""
        return f"{missing} is required{location}{about}."
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        return f"{name or 'the call'} takes only: {', '.join(_properties(error.schema)) or 'nothing'}."
    if error.validator == "type":
        return f"{name or 'the arguments'} must be {expected}, not {_clip_json(error.instance)}."
    if error.validator == "enum":
        allowed = list(cast(list[Any], error.validator_value))
        choices = ", ".join(json.dumps(choice, ensure_ascii=False) for choice in allowed)
        near = nearest(str(error.instance), map(str, allowed), 1)
        return f"{name or 'the value'} must be one of {choices}, not {_clip_json(error.instance)}.{_did_you_mean(near)}"
    if error.validator in {"minimum", "maximum"}:
        bound = "at least" if error.validator == "minimum" else "at most"
        return f"{name or 'the value'} must be {bound} {error.validator_value}, not {_clip_json(error.instance)}."
    return f"{name or 'the arguments'}: {error.message[:300]}."


def _unknown_names(params: Any, schema: Schema) -> list[str]:
    """Report names that no property has. A tool that ignores a made-up name does something else than meant."""
    properties = _properties(schema)
    if not isinstance(params, dict) or not properties:
        return []
    if schema.get("additionalProperties", False) is not False or not _OPEN.isdisjoint(schema):
        return []
    known = list(properties)
    return [
        f"{name} is not a parameter.{_did_you_mean(nearest(str(name), known, 1))} Known: {', '.join(known)}."
        for name in params
        if name not in properties
    ]


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {near[0]}?" if near else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _properties(schema: Any) -> dict[str, Any]:
    return _mapping(_mapping(schema).get("properties"))


def _type_names(schema: Any) -> str:
    names = [f"{'an' if str(kind)[0] in 'aio' else 'a'} {kind}" for kind in _kinds(schema, [])]
    return " or ".join(names) or "anything"


def _clip_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


# -- repairing ----------------------------------------------------------------------------------------------------


def _repair_object(params: Any, schema: Any) -> Any:
    properties = _properties(schema)
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
