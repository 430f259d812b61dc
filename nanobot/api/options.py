"""What a request asks of its turn: stored with its message, so that it also holds after a restart."""

import json
from typing import Any

from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.bus.events import InboundMessage

_FORMAT = """\
[Answer Format]
A program reads your final answer. Write nothing but JSON that fits this schema: no introduction, no code fence.
{schema}
[/Answer Format]"""
_REPAIR = "Your answer does not fit the schema. {problem} Write the whole answer again, as JSON that fits it."


def turn_options(message: InboundMessage) -> TurnOptions:
    """The options of a message's turn, from `message.request`."""
    asked = message.request
    schema = asked.get("schema")
    return TurnOptions(
        model=asked.get("model"),
        instructions=asked.get("instructions", ""),
        max_tokens=asked.get("max_tokens"),
        temperature=asked.get("temperature"),
        reasoning_effort=asked.get("reasoning_effort"),
        answer_format=_FORMAT.format(schema=json.dumps(schema, ensure_ascii=False)) if schema is not None else "",
        format_problem=(lambda text: _problem(schema, text)) if schema is not None else None,
    )


def answer_problem(schema: dict[str, Any], text: str) -> str:
    """Why an answer does not fit a schema; empty if it does."""
    from jsonschema import Draft202012Validator  # 77 ms

    try:
        value = json.loads(text)
    except ValueError as error:
        return f"It is no JSON: {error}."
    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=str)
    return " ".join(f"{error.json_path}: {error.message[:300]}." for error in errors[:3])


def _problem(schema: dict[str, Any], text: str) -> str:
    problem = answer_problem(schema, text)
    return _REPAIR.format(problem=problem) if problem else ""
