"""Types of this package: the tokens of a call, a row of the ledger, and formatted dollars."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One request to a model. The names are the columns of the table `calls`."""

    id: str
    sent_at: str
    """ISO 8601 in the owner's time zone: its first ten characters are the owner's day."""
    cause: str
    session: str
    turn: str
    provider: str
    model: str
    process: str
    """The process that wrote the row."""
    outcome: str = "unfinished"
    """ok, failed, stopped, or unfinished: in flight, or its process was killed."""
    error: str | None = None
    """The type of the failure."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    usd: float | None = None
    """None if no price is known."""
    ms: int = 0
    estimated: bool = False
    """Whether the token counts are estimates, because the server sent none."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token counts of a call. `prompt` includes cache reads and writes, `completion` includes reasoning."""

    prompt: int = 0
    cached: int = 0
    cache_written: int = 0
    completion: int = 0
    reasoning: int = 0

    @classmethod
    def of(cls, usage: Mapping[str, int]) -> "Tokens":
        """Parse the counts of a response, named as in chat completions; invalid counts are 0."""
        names = ("prompt", "cached", "cache_written", "completion", "reasoning")
        counts = (usage.get(f"{name}_tokens") for name in names)
        return cls(*(max(count, 0) if type(count) is int else 0 for count in counts))

    @property
    def total(self) -> int:
        """Input and output together."""
        return self.prompt + self.completion


def add_tokens(total: dict[str, int], more: Mapping[str, int]) -> None:
    """Add the counts of one more call."""
    for name, tokens in more.items():
        total[name] = total.get(name, 0) + tokens


def format_dollars(usd: float | None) -> str:
    """Format an amount: `$12.30`, `$0.012`, `<$0.001`; a dash if it is unknown."""
    if usd is None:
        return "-"
    if usd >= 0.1:
        return f"${usd:,.2f}"
    if usd == 0:
        return "$0"
    return f"${usd:.3f}" if usd >= 0.001 else "<$0.001"


def format_tokens(tokens: int) -> str:
    """A token count in short: 950, 12.3k, 1.2M."""
    if tokens < 1000:
        return str(tokens)
    thousands = tokens / 1000
    if thousands < 999.5:
        return f"{thousands:.1f}k" if thousands < 99.95 else f"{thousands:.0f}k"
    return f"{thousands / 1000:.1f}M"
