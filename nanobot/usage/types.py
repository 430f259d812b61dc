"""The words of this room: the tokens of a call, the row it leaves in the ledger, and dollars for people to read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict


class LedgerRow(TypedDict):
    """One request to a model, as it stands in the ledger."""

    when: str
    """When it was sent, with the offset of the owner's zone."""
    cause: str
    session: str
    turn: str
    provider: str
    model: str
    outcome: str
    """ok, failed or stopped."""
    error: str | None
    """What kind of failure."""
    prompt_tokens: int
    cached_tokens: int
    cache_written_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    usd: float | None
    """None where no price is known."""
    ms: int
    estimated: bool
    """Whether the tokens are our estimate, since the server told none."""
    process: str
    """Who wrote the row, so that a process knows its own."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a call used. `prompt` is all that was sent, cached or written to a cache; `completion` has the reasoning."""

    prompt: int = 0
    cached: int = 0
    cache_written: int = 0
    completion: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, int]) -> "Tokens":
        """The counts of an answer, under the names of chat completions; what is no count counts as nothing."""
        names = ("prompt", "cached", "cache_written", "completion", "reasoning")
        counts = (usage.get(f"{name}_tokens") for name in names)
        return cls(*(max(count, 0) if type(count) is int else 0 for count in counts))

    @property
    def total(self) -> int:
        """All that went over the wire, both ways."""
        return self.prompt + self.completion


def add_tokens(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add what one more call used, count by count."""
    for name, tokens in more.items():
        total[name] = total.get(name, 0) + tokens


def dollars(usd: float | None) -> str:
    """An amount for a person: `$12.30`, `$0.012`, `<$0.001`; a dash where no price is known."""
    if usd is None:
        return "-"
    if usd >= 0.1:
        return f"${usd:,.2f}"
    if usd == 0:
        return "$0"
    return f"${usd:.3f}" if usd >= 0.001 else "<$0.001"
