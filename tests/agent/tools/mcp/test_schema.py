"""Schemas of other people's, made fit: goldens, and what holds of all of them."""

import json
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.mcp.schema import MAX_CHARS, MAX_DEPTH, normalize_schema


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


GOLDEN: list[tuple[str, Any, Any]] = [
    (
        "pydantic's optional text",
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Name"},
        {"description": "Name", "type": "string"},
    ),
    (
        "a list of types",
        {"type": ["string", "null"], "description": "Who"},
        {"description": "Who", "type": "string"},
    ),
    (
        "two types",
        {"type": ["string", "integer"]},
        {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    ),
    ("a constant", {"const": "now"}, {"type": "string", "enum": ["now"]}),
    (
        "numbers to choose from, which one provider refuses",
        {"type": "integer", "enum": [1, 2], "default": 1},
        {"description": "One of: 1, 2. Default: 1.", "type": "integer"},
    ),
    (
        "a reference",
        {"$ref": "#/$defs/Place", "description": "Where"},
        {
            "description": "Where",
            "type": "object",
            "properties": {"city": {"type": "string", "minLength": 1}},
            "required": ["city"],
        },
    ),
    (
        "a tree without an end",
        {"$ref": "#/$defs/Tree"},
        {
            "type": "object",
            "properties": {
                "kids": {
                    "type": "array",
                    "items": {
                        "anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]
                    },
                }
            },
        },
    ),
    (
        "one of several shapes",
        {"oneOf": [object_of(a={"type": "string"}), {"type": "array", "items": {"type": "number"}}]},
        {
            "anyOf": [
                {"type": "object", "properties": {"a": {"type": "string"}}},
                {"type": "array", "items": {"type": "number"}},
            ]
        },
    ),
    (
        "a wrapped reference, as pydantic writes a default beside one",
        {"allOf": [{"$ref": "#/$defs/Place"}], "default": {"city": "Rome"}},
        {"type": "object", "properties": {"city": {"type": "string", "minLength": 1}}, "required": ["city"]},
    ),
    (
        "an object in two parts",
        {"allOf": [{**object_of(a={"type": "string"}), "required": ["a"]}, object_of(b={"type": "integer"})]},
        {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    ),
    (
        "a map",
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"description": "Any names are allowed.", "type": "object", "properties": {}},
    ),
    ("another document", {"$ref": "https://example.com/schema.json"}, None),
    ("a boolean", True, None),
    ("a format and a pattern", {"type": "string", "format": "uri", "pattern": "^h"}, {"type": "string"}),
]
ANYTHING = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}, {"type": "object"}]}
DEFS = {
    "Place": {
        "type": "object",
        "properties": {"city": {"type": "string", "minLength": 1}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "Tree": {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}},
}


@pytest.mark.parametrize(("part", "shown"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN])
def test_a_part_becomes_what_every_provider_takes(part: Any, shown: Any):
    whole = {**object_of(x=part), "$defs": DEFS, "required": ["x"]}

    assert normalize_schema(whole) == {
        "type": "object",
        "properties": {"x": shown or ANYTHING},
        "required": ["x"],
    }


def test_at_the_top_the_branches_of_a_union_are_put_together():
    schema = {"anyOf": [{**object_of(id={"type": "integer"}), "required": ["id"]}, object_of(name={"type": "string"})]}

    assert normalize_schema(schema) == object_of(id={"type": "integer"}, name={"type": "string"})


def test_a_property_that_a_provider_refuses_is_left_out():
    schema = {**object_of(**{"$filter": {"type": "string"}, "n": {"type": "integer"}}), "required": ["$filter"]}

    assert normalize_schema(schema) == object_of(n={"type": "integer"})


@pytest.mark.parametrize("schema", [None, [], 7, "x", {}, {"type": "string"}, {"type": 7}, {"properties": [1]}])
def test_what_is_no_schema_of_an_object_takes_any_names(schema: Any):
    assert normalize_schema(schema) == {"type": "object", "properties": {}}


def hostile() -> dict[str, Any]:
    bomb = {f"b{level}": {"allOf": [{"$ref": f"#/$defs/b{level + 1}"}] * 2} for level in range(64)}
    fan = {f"f{level}": {"anyOf": [{"$ref": f"#/$defs/f{level + 1}"}] * 9} for level in range(64)}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"x": deep}, "required": ["x"]}
    wide = {f"name {number}": {"type": "string", "description": "w" * 1000} for number in range(3000)}
    loop = {"loop": {"$ref": "#/$defs/other"}, "other": {"anyOf": [{"$ref": "#/$defs/loop"}] * 9}}
    values = {"enum": [f"value {number}" for number in range(50_000)]}
    return {
        **object_of(
            bomb={"$ref": "#/$defs/b0"},
            fan={"$ref": "#/$defs/f0"},
            deep=deep,
            loop={"$ref": "#/$defs/loop"},
            values=values,
            **wide,
        ),
        "$defs": {**bomb, **fan, **loop},
    }


def test_a_hostile_schema_costs_little_and_is_small():
    begun = time.perf_counter()

    normalized = normalize_schema(hostile())

    assert time.perf_counter() - begun < 3
    assert len(json.dumps(normalized)) <= MAX_CHARS


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
