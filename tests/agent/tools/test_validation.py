from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from nanobot.agent.tools.validation import find_problems, repair_arguments

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "file to read"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 9},
        "mode": {"type": "string", "enum": ["fast", "slow"]},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "extra": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "required": ["path"],
}

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["fast", "5", "true"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["n", "x"]), inner, max_size=2),
    max_leaves=4,
)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null"])
value_schemas = st.fixed_dictionaries(
    {},
    optional={
        "type": kinds | st.lists(kinds, min_size=1, max_size=2, unique=True),
        "enum": st.lists(values, min_size=1, max_size=3),
        "minimum": st.integers(-5, 5),
        "maximum": st.integers(-5, 5),
        "items": st.fixed_dictionaries({"type": kinds}),
        "pattern": st.just("^a"),
        "minLength": st.integers(0, 2),
        "const": values,
    },
)
schemas = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from("abc"), value_schemas, max_size=3)},
    optional={
        "required": st.lists(st.sampled_from("abc"), unique=True),
        "additionalProperties": st.booleans(),
        "minProperties": st.integers(0, 2),
    },
)
arguments = st.dictionaries(st.sampled_from("abcd"), values, max_size=4)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "path is required (a string: file to read)."),
        ({"path": 5.5}, "path must be a string, not 5.5."),
        ({"path": "x", "limit": 0}, "limit must be at least 1, not 0."),
        ({"path": "x", "limit": 10}, "limit must be at most 9, not 10."),
        ({"path": "x", "mode": "slwo"}, 'mode must be one of "fast", "slow", not "slwo". Did you mean slow?'),
        ({"path": "x", "tags": ["a", {}]}, "tags[1] must be a string, not {}."),
        ({"limit": "x", "deep": "y"}, "path is required|limit must be an integer|deep must be a boolean"),
        ({"path": "x", "limits": 3}, "limits is not a parameter. Did you mean limit?"),
        ([], "the arguments must be an object, not []."),
    ],
)
def test_a_problem_is_a_sentence_for_the_model(params, said):
    problems, starts = find_problems(params, SCHEMA), said.split("|")

    assert len(problems) == len(starts)
    assert all(map(str.startswith, problems, starts))


@pytest.mark.parametrize(
    ("params", "schema"),
    [
        ({"path": "x", "limit": 1}, SCHEMA),
        ({"path": "x", "limit": 9}, SCHEMA),
        ({"anything": 1}, {"type": "object"}),
        ({"x": 1}, {"type": "object", "properties": {"a": {}}, "additionalProperties": True}),
    ],
)
def test_bounds_and_names_are_free_where_the_schema_leaves_them_free(params, schema):
    assert find_problems(params, schema) == []


def test_a_closed_object_takes_no_other_names():
    closed = {"type": "object", "additionalProperties": False}

    assert find_problems({"a": 1}, closed) == ["a is not a parameter. Known: none."]
    schema = {"type": "object", "properties": {"x": closed}}
    assert find_problems({"x": {"a": 1}}, schema) == ["a is not a parameter of x. Known: none."]


def test_what_only_jsonschema_understands_is_checked_where_it_stands():
    part = {"type": "object", "properties": {"name": {"type": "string", "pattern": "^a"}}}
    schema = {
        "type": "object",
        "$defs": {"Part": part},
        "properties": {
            "parts": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
            "count": {"type": ["integer", "null"]},
            "size": {"enum": [1, 2]},
        },
    }

    assert find_problems({"parts": [{"name": "abc"}], "count": None, "size": 2}, schema) == []
    assert find_problems({"parts": [{"name": "abc"}, {"name": "x"}], "count": "many", "size": 3}, schema) == [
        "parts[1].name: 'x' does not match '^a'.",
        'count must be an integer or a null, not "many".',
        "size: 3 is not one of [1, 2].",
    ]


@pytest.mark.parametrize(
    ("value", "name", "meant"),
    [
        ("5", "limit", 5),
        (5.0, "limit", 5),
        ("2.5", "ratio", 2.5),
        ("True", "deep", True),
        (2024, "path", "2024"),
        ('["a"]', "tags", ["a"]),
        ('{"n": "7"}', "extra", {"n": 7}),
        ("five", "limit", "five"),
        ("9" * 5000, "limit", "9" * 5000),
        ("[1", "tags", "[1"),
    ],
)
def test_what_is_plainly_meant_is_put_right_and_a_null_is_left_out(value, name, meant):
    assert repair_arguments({name: value, "mode": None}, SCHEMA) == {name: meant}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"type": "object", "properties": 7},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:1/schema.json"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"properties": {"a": {"pattern": "("}}},
        {},
    ],
)
def test_a_broken_schema_never_raises(schema):
    find_problems({"a": "1"}, schema)
    repair_arguments({"a": "1"}, schema)


@given(arguments, schemas)
def test_what_we_let_pass_jsonschema_lets_pass(params, schema):
    fits = not find_problems(params, schema)

    assert Draft202012Validator(schema).is_valid(params) or not fits


@given(arguments, schemas)
def test_mending_never_changes_what_fits_and_mends_once(params, schema):
    once = repair_arguments(params, schema)

    assert repr_of(repair_arguments(once, schema)) == repr_of(once)
    if Draft202012Validator(schema).is_valid(params):
        assert repr_of(once) == repr_of(params)


def repr_of(value: Any) -> Any:
    """Equal for equal numbers, also for NaN."""
    if isinstance(value, dict):
        return {name: repr_of(item) for name, item in value.items()}
    if isinstance(value, list):
        return [repr_of(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return repr(int(value))
    return repr(value)
