"""Validates a model's arguments against the tool's JSON schema, with problems the model can correct.

`repair_arguments` first repairs what is obviously meant ("5" for an integer); `find_problems` then checks. Most calls
are right and most schemas flat, so a small check accepts those; anything else goes to jsonschema, which is slow to
import and decides.
"""

from __future__ import annotations  # jsonschema's types are used in annotations only

import json
import math
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

Schema = dict[str, Any]

_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "$schema", "$comment", "deprecated"})
_SIMPLE_OBJECT = _ANNOTATIONS | {"type", "properties", "required", "additionalProperties"}
_SIMPLE_VALUE = _ANNOTATIONS | {"type", "enum", "minimum", "maximum", "items"}
_OPEN = frozenset({"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
"""Keywords by which a schema may allow names that its `properties` do not list."""

_MAX_VALIDATORS = 256
_validators: OrderedDict[int, tuple[Schema, Draft202012Validator | None]] = OrderedDict()


def find_problems(params: Any, schema: dict[str, Any]) -> list[str]:
    """Return each problem as a sentence; empty if the arguments fit. Never raises, whatever the schema."""
    try:
        problems = [] if _surely_fits(params, schema) else [_describe_error(error) for error in _errors(params, schema)]
        return list(dict.fromkeys([*problems, *_unknown_names(params, schema)]))
    except Exception:  # a third-party schema may be broken in any way; the tool decides then
        return []


def repair_arguments(params: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Repair what is obviously meant: a number in quotes, "true", JSON in a string, a null for an optional argument.
    Leaves valid and irreparable values as they are. Never raises."""
    try:
        return cast(dict[str, Any], _repair_object(params, schema))
    except Exception:  # as above
        return params


# -- the quick check ----------------------------------------------------------------------------------------------


def _surely_fits(params: Any, schema: Schema) -> bool:
    """Return True only if jsonschema would agree; False means nothing."""
    if not isinstance(params, dict) or schema.get("type") != "object" or not _SIMPLE_OBJECT.issuperset(schema):
        return False
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if schema.get("additionalProperties", True) is not True and not params.keys() <= properties.keys():
        return False
    if not isinstance(required, list) or not all(name in params for name in required):
        return False
    return all(_value_surely_fits(value, properties[name]) for name, value in params.items() if name in properties)


def _value_surely_fits(value: Any, schema: Any) -> bool:
    if not isinstance(schema, dict) or not _SIMPLE_VALUE.issuperset(schema):
        return False
    kind = schema.get("type")
    if not isinstance(kind, str) or not _is(value, kind):
        return False
    if "enum" in schema and not (isinstance(value, str) and value in schema["enum"]):
        return False
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
        if not (low <= value <= high):
            return False
    if isinstance(value, list) and "items" in schema:
        return all(_value_surely_fits(item, schema["items"]) for item in value)
    return True


_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def _is(value: Any, kind: str) -> bool:
    """Return whether a value has a JSON schema type: true is no number, 5.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, ()))


# -- the full check -----------------------------------------------------------------------------------------------


def _errors(params: Any, schema: Schema) -> Iterator[ValidationError]:
    validator = validator_of(schema)
    if validator is not None:
        yield from sorted(validator.iter_errors(params), key=lambda error: [str(part) for part in error.absolute_path])


def validator_of(schema: Schema) -> Draft202012Validator | None:
    """Compile once per schema object (a tool's schema does not change); None if the schema is broken."""
    entry = _validators.get(id(schema))
    if entry is None:
        from jsonschema import Draft202012Validator  # 77 ms, only for calls that are not obviously right
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(schema)
            entry = (schema, None if _has_external_reference(schema) else Draft202012Validator(schema))
        except SchemaError:
            entry = (schema, None)
        _validators[id(schema)] = entry
        while len(_validators) > _MAX_VALIDATORS:
            _validators.popitem(last=False)
    return entry[1]


def _has_external_reference(schema: Any) -> bool:
    """Return whether a `$ref` points outside of the schema: a URL would be fetched."""
    if isinstance(schema, list):
        return any(map(_has_external_reference, schema))
    if not isinstance(schema, dict):
        return False
    references = [schema[word] for word in ("$ref", "$dynamicRef") if isinstance(schema.get(word), str)]
    return any(not ref.startswith("#") for ref in references) or any(map(_has_external_reference, schema.values()))


def _describe_error(error: ValidationError) -> str:
    """Describe the problem and the correction, for a model."""
    name = _format_path(error.absolute_path)
    expected = _type_names(error.schema)
    if error.validator == "required":
        missing = error.message.removesuffix(" is a required property").strip("'\"")
        location = f" in {name}" if name else ""
        properties = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        return f"{missing} is required{location}{_describe_parameter(properties.get(missing))}."
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        return f"{name or 'the call'} takes only: {', '.join(_property_names(error.schema)) or 'nothing'}."
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
    properties = schema.get("properties")
    if not isinstance(params, dict) or not isinstance(properties, dict) or not properties:
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


def _property_names(schema: Any) -> list[str]:
    return list(schema.get("properties", {})) if isinstance(schema, dict) else []


def _format_path(path: Any) -> str:
    """Return `items[2].name` for a path into the arguments."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).removeprefix(".")


def _describe_parameter(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    description = re.split(r"[.;] ", str(schema.get("description", "")))[0].rstrip(".")
    return f" ({_type_names(schema)}{': ' + description if description else ''})"


def _type_names(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return " or ".join("anything" if k is None else f"{'an' if str(k)[0] in 'aio' else 'a'} {k}" for k in kinds)


def _clip_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


# -- repairing ----------------------------------------------------------------------------------------------------

_UNCHANGED = object()


def _repair_value(value: Any, schema: Any) -> Any:
    """Return the value as its schema wants it; unchanged if that is not obvious."""
    if not isinstance(schema, dict):
        return value
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list):
        return value
    if not any(_is(value, kind) for kind in kinds):
        repairs = (_REPAIRS[kind](value) for kind in kinds if kind in _REPAIRS)
        value = next((repaired for repaired in repairs if repaired is not _UNCHANGED), value)
    if isinstance(value, dict) and "object" in kinds:
        return _repair_object(value, schema)
    if isinstance(value, list) and "array" in kinds and isinstance(schema.get("items"), dict):
        return [_repair_value(item, schema["items"]) for item in value]
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return int(value)  # equal, and usable for counting
    return value


def _repair_object(params: Any, schema: Schema) -> Any:
    properties = schema.get("properties")
    if not isinstance(params, dict) or not isinstance(properties, dict):
        return params
    required = schema.get("required", [])
    return {
        name: _repair_value(value, properties.get(name))
        for name, value in params.items()
        if value is not None or name in required or not _refuses_null(properties.get(name))
    }


def _refuses_null(schema: Any) -> bool:
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return bool(kinds) and not _is_any(None, kinds)


def _is_any(value: Any, kinds: Any) -> bool:
    return any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _as_integer(value: Any) -> Any:
    plain = isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d{1,18}\s*", value, re.ASCII)
    return int(value) if plain else _UNCHANGED


def _as_number(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"\s*[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,2})?\s*", value):
        return _UNCHANGED
    whole = _as_integer(value)
    return float(value) if whole is _UNCHANGED else whole


def _as_boolean(value: Any) -> Any:
    return (
        {"true": True, "false": False}.get(value.strip().lower(), _UNCHANGED) if isinstance(value, str) else _UNCHANGED
    )


def _as_string(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return json.dumps(value) if is_number else _UNCHANGED


def _as_json(kind: type) -> Any:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return _UNCHANGED
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return _UNCHANGED
        return parsed if isinstance(parsed, kind) else _UNCHANGED

    return read


_REPAIRS = {
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "string": _as_string,
    "object": _as_json(dict),
    "array": _as_json(list),
}
