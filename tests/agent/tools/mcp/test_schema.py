"""Schemas of other people's, made fit: goldens, and what holds of all of them."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.mcp.listing import MAX_CHARS, MAX_DEPTH, normalize_schema


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
ANYTHING = {"anyOf": [TEXT, NUMBER, {"type": "boolean"}, {"type": "object"}]}
PLACE = {"type": "object", "properties": {"city": {**TEXT, "minLength": 1}}, "required": ["city"]}
TREE = object_of(kids={"type": "array", "items": {"$ref": "#/$defs/Tree"}})
DEFS = {"Place": {**PLACE, "additionalProperties": False}, "Tree": TREE}
GOLDEN: dict[str, tuple[Any, Any]] = {
    "pydantic's optional text": (
        {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "Name"}, {"description": "Name", **TEXT}
    ),
    "a list of types": ({"type": ["string", "null"], "description": "Who"}, {"description": "Who", **TEXT}),
    "two types": ({"type": ["string", "integer"]}, {"anyOf": [TEXT, {"type": "integer"}]}),
    "a constant": ({"const": "now"}, {**TEXT, "enum": ["now"]}),
    "numbers, which one provider refuses": (
        {"type": "integer", "enum": [1, 2], "default": 1},
        {"description": "One of: 1, 2. Default: 1.", "type": "integer"}
    ),
    "a reference": ({"$ref": "#/$defs/Place", "description": "Where"}, {"description": "Where", **PLACE}),
    "a tree without an end": ({"$ref": "#/$defs/Tree"}, object_of(kids={"type": "array", "items": ANYTHING})),
    "one of several shapes": (
        {"oneOf": [object_of(a=TEXT), {"type": "array", "items": NUMBER}]},
        {"anyOf": [object_of(a=TEXT), {"type": "array", "items": NUMBER}]},
    ),
    "a wrapped reference, as pydantic writes a default beside one": (
        {"allOf": [{"$ref": "#/$defs/Place"}], "default": {"city": "Rome"}}, PLACE
    ),
    "an object in two parts": (
        {"allOf": [{**object_of(a=TEXT), "required": ["a"]}, object_of(b={"type": "integer"})]},
        {**object_of(a=TEXT, b={"type": "integer"}), "required": ["a"]},
    ),
    "a map": (
        {"type": "object", "additionalProperties": TEXT}, {"description": "Any names are allowed.", **object_of()}
    ),
    "another document": ({"$ref": "https://example.com/schema.json"}, ANYTHING),
    "a boolean": (True, ANYTHING),
    "a format and a pattern": ({**TEXT, "format": "uri", "pattern": "^h"}, TEXT),
}  # fmt: skip


@pytest.mark.parametrize(("part", "shown"), GOLDEN.values(), ids=GOLDEN.keys())
def test_a_part_becomes_what_every_provider_takes(part: Any, shown: Any):
    whole = {**object_of(x=part), "$defs": DEFS, "required": ["x"]}

    assert normalize_schema(whole) == {**object_of(x=shown), "required": ["x"]}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        # at the top the branches of a union are put together
        (
            {"anyOf": [{**object_of(id=NUMBER), "required": ["id"]}, object_of(name=TEXT)]},
            object_of(id=NUMBER, name=TEXT),
        ),
        # a property that a provider refuses is left out
        ({**object_of(**{"$filter": TEXT, "n": NUMBER}), "required": ["$filter"]}, object_of(n=NUMBER)),
        *zip([None, [], 7, "x", {}, TEXT, {"type": 7}, {"properties": [1]}], [object_of()] * 8, strict=True),
    ],
)  # fmt: skip
def test_the_whole_is_an_object(schema: Any, shown: Any):
    assert normalize_schema(schema) == shown


def test_a_hostile_schema_costs_little_and_loses_its_inner_levels():
    fan = {f"f{level}": {"anyOf": [{"$ref": f"#/$defs/f{level + 1}"}] * 9} for level in range(64)}
    wide = object_of(**{f"name{number}": {**TEXT, "description": "w" * 1000} for number in range(3000)})
    deep: Any = TEXT
    for _ in range(300):
        deep = {**object_of(x=deep), "required": ["x"]}
    begun = time.perf_counter()

    shown = normalize_schema({**object_of(wide=wide, deep=deep, fan={"$ref": "#/$defs/f0"}), "$defs": fan})

    assert time.perf_counter() - begun < 3
    assert list(shown["properties"]) == ["wide", "deep", "fan"]
    assert len(json.dumps(shown)) <= MAX_CHARS


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.sampled_from(["", "a", "now"]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
)
TYPES = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(st.sampled_from(["x", "y", "z", "ä b"]), inner, max_size=3),
            "required": st.lists(st.sampled_from("xyz"), unique=True, max_size=2),
            "additionalProperties": st.booleans() | inner,
            "patternProperties": st.just({"^x": {}}),
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": SCALARS,
            "minimum": st.integers(-2, 2),
            "maxLength": st.integers(0, 2),
            "pattern": st.just("^a"),
            "$ref": st.sampled_from(["#/$defs/one", "#/$defs/two", "#", "#/$defs/none"]),
            "nullable": st.booleans(),
            "description": st.just("words"),
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), _schemas, max_leaves=6)


def _problems(schema: Any, depth: int = 0) -> list[str]:
    """What a strict provider would not take, anywhere in a shown schema."""
    if not isinstance(schema, dict):
        return [f"{schema!r} is no schema"]
    odd = [name for name in schema.get("properties", {}) if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", name)]
    known = {"type", "description", "properties", "required", "items", "enum", "anyOf", "minimum", "maximum"}
    known |= {"minLength", "maxLength", "minItems", "maxItems"}
    found = [f"{word} is refused" for word in schema.keys() - known] + [f"the name {name!r}" for name in odd]
    if ("anyOf" in schema) == ("type" in schema):
        found.append("neither one type nor a choice")
    if not isinstance(schema.get("type", ""), str) or schema.get("type") == "null":
        found.append(f"the type {schema['type']}")
    if schema.get("type") == "array" and "items" not in schema:
        found.append("an array of nobody knows what")
    if not set(schema.get("required", [])) <= set(schema.get("properties", {})):
        found.append("something is required that is not there")
    if depth > 2 * MAX_DEPTH:
        found.append("too deep")
    below = [*schema.get("properties", {}).values(), *schema.get("anyOf", [])]
    below += [schema["items"]] if "items" in schema else []
    return found + [problem for one in below for problem in _problems(one, depth + 1)]


@given(SCHEMAS, SCHEMAS, SCHEMAS)
def test_every_schema_becomes_one_that_strict_providers_take(schema: Any, one: Any, two: Any):
    whole = {**(schema if isinstance(schema, dict) else {}), "$defs": {"one": one, "two": two}}

    assert _problems(normalize_schema(whole)) == []
