"""Are a model's arguments what the tool's JSON schema asks for? If not, say it so that the model can mend it.

`mended` first repairs what is plainly meant ("5" where an integer is asked for); `problems_with` then judges. Most
calls are right and most schemas flat, so a small check of our own says "fits" for those; any doubt goes to jsonschema,
which is slow to import and has the last word.
"""

from __future__ import annotations  # the types of jsonschema are named here and not imported

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

_WHATEVER = frozenset({"title", "description", "default", "examples", "$schema", "$comment", "deprecated"})
_SIMPLE_OBJECT = _WHATEVER | {"type", "properties", "required", "additionalProperties"}
_SIMPLE_VALUE = _WHATEVER | {"type", "enum", "minimum", "maximum", "items"}
_OPEN = frozenset({"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"})
"""Words by which a schema may allow names that its `properties` do not list."""

_KEPT_VALIDATORS = 256
_validators: OrderedDict[int, tuple[Schema, Draft202012Validator | None]] = OrderedDict()


def problems_with(params: Any, schema: dict[str, Any]) -> list[str]:
    """Each problem in a sentence; empty where the arguments fit. Never raises, whatever the schema."""
    try:
        problems = [] if _surely_fits(params, schema) else [_sentence(error) for error in _errors(params, schema)]
        return list(dict.fromkeys([*problems, *_unknown_names(params, schema)]))
    except Exception:  # a schema of somebody else's may be broken in any way; the tool itself then judges
        return []


def mended(params: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The arguments with what is plainly meant put right: a number in quotes, "true", JSON in a string, a null for
    what may be left out. What fits is left as it is; what cannot be mended too. Never raises."""
    try:
        return cast(dict[str, Any], _mended_object(params, schema))
    except Exception:  # the same wall as above
        return params


# -- the quick check ----------------------------------------------------------------------------------------------


def _surely_fits(params: Any, schema: Schema) -> bool:
    """True only where jsonschema would agree; False says nothing."""
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
    """Whether a value is of a kind as JSON schema has it: true is no number, 5.0 is an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _KINDS.get(kind, ()))


# -- the judge ----------------------------------------------------------------------------------------------------


def _errors(params: Any, schema: Schema) -> Iterator[ValidationError]:
    validator = _validator_of(schema)
    if validator is not None:
        yield from sorted(validator.iter_errors(params), key=lambda error: [str(part) for part in error.absolute_path])


def _validator_of(schema: Schema) -> Draft202012Validator | None:
    """Compiled once a schema (the very object: a tool's schema does not change); None where the schema is broken."""
    known = _validators.get(id(schema))
    if known is None:
        from jsonschema import Draft202012Validator  # 77 ms, for the calls that are not plainly right
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(schema)
            known = (schema, None if _points_elsewhere(schema) else Draft202012Validator(schema))
        except SchemaError:
            known = (schema, None)
        _validators[id(schema)] = known
        while len(_validators) > _KEPT_VALIDATORS:
            _validators.popitem(last=False)
    return known[1]


def _points_elsewhere(schema: Any) -> bool:
    """Whether a `$ref` names anything but a place in the schema itself: an address would be fetched."""
    if isinstance(schema, list):
        return any(map(_points_elsewhere, schema))
    if not isinstance(schema, dict):
        return False
    references = [schema[word] for word in ("$ref", "$dynamicRef") if isinstance(schema.get(word), str)]
    return any(not ref.startswith("#") for ref in references) or any(map(_points_elsewhere, schema.values()))


def _sentence(error: ValidationError) -> str:
    """What is wrong and what would be right, for a model."""
    name = _place(error.absolute_path)
    wanted = _wanted(error.schema)
    if error.validator == "required":
        missing = error.message.removesuffix(" is a required property").strip("'\"")
        within = f" in {name}" if name else ""
        properties = error.schema.get("properties", {}) if isinstance(error.schema, dict) else {}
        return f"{missing} is required{within}{_described(properties.get(missing))}."
    if error.validator == "additionalProperties" and isinstance(error.validator_value, bool):
        return f"{name or 'the call'} takes only: {', '.join(_listed(error.schema)) or 'nothing'}."
    if error.validator == "type":
        return f"{name or 'the arguments'} must be {wanted}, not {_shown(error.instance)}."
    if error.validator == "enum":
        allowed = list(cast(list[Any], error.validator_value))
        choices = ", ".join(json.dumps(choice, ensure_ascii=False) for choice in allowed)
        near = nearest(str(error.instance), map(str, allowed), 1)
        return f"{name or 'the value'} must be one of {choices}, not {_shown(error.instance)}.{_did_you_mean(near)}"
    if error.validator in {"minimum", "maximum"}:
        bound = "at least" if error.validator == "minimum" else "at most"
        return f"{name or 'the value'} must be {bound} {error.validator_value}, not {_shown(error.instance)}."
    return f"{name or 'the arguments'}: {error.message[:300]}."


def _unknown_names(params: Any, schema: Schema) -> list[str]:
    """Names that no property has. Models make them up, and a tool that ignores them does something else than meant."""
    properties = schema.get("properties")
    if not isinstance(params, dict) or not isinstance(properties, dict) or not properties:
        return []
    if schema.get("additionalProperties", False) is not False or not _OPEN.isdisjoint(schema):
        return []
    known = list(properties)
    return [
        f"{name} is not known here.{_did_you_mean(nearest(str(name), known, 1))} Known: {', '.join(known)}."
        for name in params
        if name not in properties
    ]


def _did_you_mean(near: list[str]) -> str:
    return f" Did you mean {near[0]}?" if near else ""


def _listed(schema: Any) -> list[str]:
    return list(schema.get("properties", {})) if isinstance(schema, dict) else []


def _place(path: Any) -> str:
    """`items[2].name` for a path into the arguments."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(steps).removeprefix(".")


def _described(schema: Any) -> str:
    if not isinstance(schema, dict):
        return ""
    description = re.split(r"[.;] ", str(schema.get("description", "")))[0].rstrip(".")
    return f" ({_wanted(schema)}{': ' + description if description else ''})"


def _wanted(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = kind if isinstance(kind, list) else [kind]
    return " or ".join("anything" if k is None else f"{'an' if str(k)[0] in 'aio' else 'a'} {k}" for k in kinds)


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:60]}..."


# -- mending ------------------------------------------------------------------------------------------------------

_NOTHING = object()


def _mended(value: Any, schema: Any) -> Any:
    """A value as its schema wants it; as it was where that is not plain."""
    if not isinstance(schema, dict):
        return value
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list):
        return value
    if not any(_is(value, kind) for kind in kinds):
        meant = (_MENDERS[kind](value) for kind in kinds if kind in _MENDERS)
        value = next((mending for mending in meant if mending is not _NOTHING), value)
    if isinstance(value, dict) and "object" in kinds:
        return _mended_object(value, schema)
    if isinstance(value, list) and "array" in kinds and isinstance(schema.get("items"), dict):
        return [_mended(item, schema["items"]) for item in value]
    if isinstance(value, float) and "integer" in kinds and value.is_integer():
        return int(value)  # equal, and what a tool that counts can use
    return value


def _mended_object(params: Any, schema: Schema) -> Any:
    properties = schema.get("properties")
    if not isinstance(params, dict) or not isinstance(properties, dict):
        return params
    required = schema.get("required", [])
    return {
        name: _mended(value, properties.get(name))
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
    return int(value) if plain else _NOTHING


def _as_number(value: Any) -> Any:
    if not isinstance(value, str) or not re.fullmatch(r"\s*[+-]?\d{1,18}(\.\d{1,18})?([eE][+-]?\d{1,2})?\s*", value):
        return _NOTHING
    whole = _as_integer(value)
    return float(value) if whole is _NOTHING else whole


def _as_boolean(value: Any) -> Any:
    return {"true": True, "false": False}.get(value.strip().lower(), _NOTHING) if isinstance(value, str) else _NOTHING


def _as_string(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return json.dumps(value) if is_number else _NOTHING


def _as_json(kind: type) -> Any:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return _NOTHING
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return _NOTHING
        return found if isinstance(found, kind) else _NOTHING

    return read


_MENDERS = {
    "integer": _as_integer,
    "number": _as_number,
    "boolean": _as_boolean,
    "string": _as_string,
    "object": _as_json(dict),
    "array": _as_json(list),
}
