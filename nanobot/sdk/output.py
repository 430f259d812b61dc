"""Typed answers: the form that an answer must have, told to the model and checked."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from nanobot.agent.events import TurnOutcome
from nanobot.agent.tools.validation import validator_of
from nanobot.sdk.result import OutputInvalid, RunResult

_FORMAT = """\
[Answer Format]
A program reads your final answer. Write nothing but {form}: no introduction, no code fence. Schema:
{schema}
[/Answer Format]"""
_REPAIR = (
    "Your answer does not have the form that was asked for. {problems}\nWrite the whole answer again, in that form."
)
_FENCED = re.compile(r"```\w*\n(.*)\n```", re.DOTALL)
_MAX_PROBLEMS = 5


class OutputFormat:
    """The form of an answer: a type that pydantic knows (a model, a dataclass, a TypedDict, a Literal, `list[int]`), or
    a JSON schema.
    """

    def __init__(self, wanted: Any) -> None:
        """Raises TypeError if it is neither."""
        self._adapter: TypeAdapter[Any] | None = None
        if isinstance(wanted, Mapping):
            self.schema = dict(wanted)
            if validator_of(self.schema) is None:
                raise TypeError("output is no valid JSON schema, or it refers to another one")
            return
        try:
            self._adapter = TypeAdapter(wanted)
            self.schema = self._adapter.json_schema()
        except Exception as error:  # pydantic has a class of its own for each reason
            raise TypeError(f"output={wanted!r} has no JSON schema: {error}") from error

    def describe(self) -> str:
        form = "the value itself, without quotes" if self._is_text else "JSON that fits the schema"
        return _FORMAT.format(form=form, schema=json.dumps(self.schema, ensure_ascii=False))

    def problem(self, text: str) -> str:
        """Return what is wrong with an answer, as an instruction to the model; empty if it fits."""
        try:
            self.parse(text)
        except ValueError as error:
            return _REPAIR.format(problems=" ".join(_problems(error)))
        return ""

    def parse(self, text: str) -> Any:
        """Return the value of an answer. Raises ValueError."""
        text = text.strip()
        fenced = _FENCED.fullmatch(text)
        text = fenced[1] if fenced is not None else text
        document = json.dumps(text) if self._is_text and not text.startswith('"') else _json_part(text)
        if self._adapter is not None:
            return self._adapter.validate_json(document)
        value = json.loads(document)
        validator = validator_of(self.schema)
        errors = [*validator.iter_errors(value)] if validator is not None else []
        if errors:
            raise ValueError(" ".join(f"{error.json_path}: {error.message}." for error in errors[:_MAX_PROBLEMS]))
        return value

    def complete(self, result: RunResult[Any]) -> RunResult[Any]:
        """Return the result with its typed answer; without one if the turn has no answer. Raises OutputInvalid."""
        try:
            return replace(result, parsed=self.parse(result.text)) if result.text else result
        except ValueError as error:
            if result.outcome is TurnOutcome.ANSWERED:
                raise OutputInvalid(result, _problems(error)) from error
            return result

    @property
    def _is_text(self) -> bool:
        return self.schema.get("type") == "string"


def _json_part(text: str) -> str:
    """Return the JSON in a text: all of it, or what stands between the outermost brackets."""
    try:
        json.loads(text)
    except RecursionError:
        raise ValueError("The answer is nested too deep.") from None
    except ValueError:
        begins = [at for bracket in "{[" if (at := text.find(bracket)) >= 0]
        end = max(text.rfind(bracket) for bracket in "}]")
        return text[min(begins) : end + 1] if begins and end > min(begins) else text
    return text


def _problems(error: ValueError) -> list[str]:
    if not isinstance(error, ValidationError):
        return [str(error)]
    return [
        f"{'.'.join(map(str, problem['loc'])) or 'the answer'}: {problem['msg']}."
        for problem in error.errors(include_url=False)[:_MAX_PROBLEMS]
    ]
