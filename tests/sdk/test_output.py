"""Typed answers: what is read, what is sent back to the model, and when it is given up."""

import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict

from nanobot import Nanobot
from nanobot.agent.tools.base import ToolContext
from nanobot.sdk import OutputInvalid, tool
from nanobot.sdk.output import OutputFormat
from nanobot.testing import ScriptedProvider, calls


class Town(TypedDict):
    name: str
    people: int


class Trip(BaseModel):
    towns: list[Town]
    mode: Literal["bus", "train"] = "train"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("wanted", "answer", "value"),
    [
        (Town, '{"name": "Ulm", "people": 5}', {"name": "Ulm", "people": 5}),
        (Town, '```json\n{"name": "Ulm", "people": 5}\n```', {"name": "Ulm", "people": 5}),
        (Town, 'Here it is: {"name": "Ulm", "people": 5}.', {"name": "Ulm", "people": 5}),
        (Literal["yes", "no"], "yes\n", "yes"),
        (Literal["yes", "no"], '"no"', "no"),
        (list[int], "[1, 2]", [1, 2]),
        (int, "42", 42),
        (SCHEMA, '{"n": 1, "more": true}', {"n": 1, "more": True}),
    ],
)
def test_an_answer_is_read_also_with_words_around_it(wanted: Any, answer: str, value: Any):
    assert OutputFormat(wanted).parse(answer) == value


@pytest.mark.parametrize(
    ("wanted", "answer", "reason"),
    [
        (Town, '{"name": "Ulm"}', "people: Field required"),
        (Town, "I do not know.", "Invalid JSON"),
        (Literal["yes", "no"], "maybe", "'yes' or 'no'"),
        (SCHEMA, '{"n": "one"}', "$.n: 'one' is not of type 'integer'"),
    ],
)
def test_what_does_not_fit_is_said_to_the_model(wanted: Any, answer: str, reason: str):
    assert reason in OutputFormat(wanted).problem(answer)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_value_is_read_as_it_was_written(value: Any):
    trip = OutputFormat(Any)

    assert trip.parse(json.dumps(value)) == value


@pytest.mark.parametrize("wanted", [object(), ToolContext, {"type": "nonsense"}])
def test_what_has_no_schema_is_refused_at_once(wanted: Any):
    with pytest.raises(TypeError, match="schema"):
        Nanobot.local(model=ScriptedProvider()).stream("hi", output=wanted)


async def test_an_answer_is_sent_back_twice_and_then_given_up():
    model = ScriptedProvider("north", "south", "west")

    async with Nanobot.local(model=model) as bot:
        with pytest.raises(OutputInvalid) as raised:
            await bot.run("Which way?", output=Literal["left", "right"])
        stored = [str(row["content"]) for row in bot.sessions.get_or_create("sdk:default").messages]

    assert raised.value.result.text == "west"
    assert raised.value.errors == ["the answer: Input should be 'left' or 'right'."]
    assert len(model.requests) == 3
    assert stored[0] == "Which way?"
    assert stored[-1] == "west"


async def test_tools_are_used_before_the_typed_answer():
    @tool(read_only=True)
    def people(town: str) -> int:
        """Count the people of a town."""
        return 5

    model = ScriptedProvider(calls(("people", {"town": "Ulm"})), '{"towns": [{"name": "Ulm", "people": 5}]}')

    result = await Nanobot.local(model=model, tools=[people]).run("Plan", output=Trip)

    assert result.output == Trip(towns=[{"name": "Ulm", "people": 5}])
    assert len(result.steps) == 2
