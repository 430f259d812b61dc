"""What a run returns: its answer, what it cost, and what was done."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from nanobot.agent.events import ApprovalAsked, TurnOutcome
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage

T = TypeVar("T")

_NO_OUTPUT = object()


@dataclass(frozen=True)
class Usage:
    """Tokens of all model calls of a run."""

    prompt_tokens: int = 0
    """Including `cached_tokens` and `cache_written_tokens`."""
    completion_tokens: int = 0
    """Including `reasoning_tokens`."""
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    reasoning_tokens: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, int]) -> "Usage":
        return cls(**{name: usage.get(name, 0) for name in cls.__dataclass_fields__})

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def keys(self) -> list[str]:
        """The names of the counts: `dict(usage)` and `usage["prompt_tokens"]` work as in the original, a dict."""
        return [*self.__dataclass_fields__, "total_tokens"]

    def __getitem__(self, name: str) -> int:
        if name not in self.keys():
            raise KeyError(name)
        return int(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call. `text` is its result; `ok` is False for a call that failed, was refused or was stopped."""

    id: str
    name: str
    arguments: dict[str, Any]
    ok: bool = False
    text: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One model call: what the model said, and the tool calls it asked for."""

    text: str = ""
    calls: tuple[Call, ...] = ()


class TurnFailed(NanobotError):  # noqa: N818 it describes a turn, as the outcome does
    """A run did not end with an answer; raised by `RunResult.check` and `RunResult.output`."""

    def __init__(self, result: "RunResult[Any]") -> None:
        super().__init__(f"The turn ended {result.outcome}: {result.text}")
        self.result = result


class OutputInvalid(NanobotError):  # noqa: N818 as above
    """The model answered, but not in the form that was asked for, and two repairs did not help."""

    def __init__(self, result: "RunResult[Any]", errors: Sequence[str]) -> None:
        super().__init__(f"The answer does not have the form of the output: {' '.join(errors)}")
        self.result = result
        self.errors = list(errors)


@dataclass(frozen=True)
class RunResult(Generic[T]):
    """How a run ended. `str` gives its text."""

    text: str
    """The answer; if there is none, why not."""
    outcome: TurnOutcome
    session: str
    turn_id: str = ""
    error: str | None = None
    """The name of the error's type."""
    model: str | None = None
    usage: Usage = field(default_factory=Usage)
    cost_usd: float = 0.0
    """0.0 if no price is known, see `has_price`."""
    has_price: bool = False
    """Whether the price of the model is known."""
    steps: tuple[Step, ...] = ()
    files: tuple[Path, ...] = ()
    """Files that its tools wrote, in order."""
    message: str = ""
    """What was asked."""
    parsed: Any = field(default=_NO_OUTPUT, repr=False)

    def __str__(self) -> str:
        return self.text

    @property
    def ok(self) -> bool:
        """Whether it ended with a complete answer."""
        return self.outcome is TurnOutcome.ANSWERED

    @property
    def output(self) -> T:
        """The typed answer; None if no `output` was asked for. Raises TurnFailed if the turn has no answer."""
        if self.parsed is _NO_OUTPUT:
            raise TurnFailed(self)
        return self.parsed  # type: ignore[no-any-return]

    def check(self) -> "RunResult[T]":
        """Return the result itself. Raises TurnFailed if it is not `ok`."""
        if not self.ok:
            raise TurnFailed(self)
        return self

    @property
    def new_messages(self) -> list[ChatMessage]:
        """The chat messages of the run, from the question on."""
        rows: list[ChatMessage] = [{"role": "user", "content": self.message}]
        for step in self.steps or (Step(self.text),):
            row: ChatMessage = {"role": "assistant", "content": step.text or None}
            if step.calls:
                row["tool_calls"] = [
                    {
                        "id": call.id,
                        "type": "function",
                        "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
                    }
                    for call in step.calls
                ]
            rows.append(row)
            rows += [
                {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": call.text}
                for call in step.calls
            ]
        return rows

    @property
    def content(self) -> str:
        """The original's name for `text`."""
        return self.text

    @property
    def messages(self) -> list[ChatMessage]:
        """The original's name for `new_messages`."""
        return self.new_messages

    @property
    def stop_reason(self) -> str:
        """`completed`, or the outcome of a run that did not."""
        return "completed" if self.ok else self.outcome.value

    @property
    def tools_used(self) -> list[str]:
        """The name of each tool call, in order."""
        return [call.name for step in self.steps for call in step.calls]


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A tool call that needs the owner's approval."""

    tool: str
    arguments: dict[str, Any]
    """Secrets are redacted."""
    summary: str
    """The whole question, for a person."""
    reaches: list[str]
    """What a yes grants, as `kind:target`."""
    source: str | None
    """The untrusted content that is the reason; None if the call always needs approval."""
    may_always: bool
    """Whether "always" counts; otherwise it is a yes to this call."""
    session: str
    turn_id: str

    @classmethod
    def of(cls, event: ApprovalAsked, session: str) -> "ApprovalRequest":
        return cls(
            event.name, event.arguments, event.text, event.reaches, event.source, event.may_always, session,
            event.turn_id,
        )  # fmt: skip
