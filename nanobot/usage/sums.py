"""Adding up the ledger: by day, model, provider, session or cause, with what was spent today and this month."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from nanobot.usage.ledger import Ledger
from nanobot.usage.types import LedgerRow, dollars

By = Literal["day", "model", "provider", "session", "cause"]


@dataclass(slots=True)
class Sum:
    """What some calls used together."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    spent: float = 0.0
    unpriced: int = 0
    """Calls of models without a known price, which `spent` lacks."""

    def add(self, row: LedgerRow) -> None:
        """One call more."""
        self.calls += 1
        self.failed += row["outcome"] == "failed"
        self.prompt_tokens += row["prompt_tokens"]
        self.cached_tokens += row["cached_tokens"]
        self.cache_written_tokens += row["cache_written_tokens"]
        self.completion_tokens += row["completion_tokens"]
        self.reasoning_tokens += row["reasoning_tokens"]
        usd = row["usd"]
        if usd is None:
            self.unpriced += 1
        else:
            self.spent += usd

    @property
    def usd(self) -> float | None:
        """What they cost, as far as prices are known; None where none is."""
        return None if self.calls and self.unpriced == self.calls else self.spent

    @property
    def cached_share(self) -> float:
        """The part of what was sent that a cache held."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class Summary:
    """What was used: today, this month, by one session, and in groups over some days."""

    today: Sum = field(default_factory=Sum)
    month: Sum = field(default_factory=Sum)
    session: Sum = field(default_factory=Sum)
    groups: dict[str, Sum] = field(default_factory=dict)
    damaged: int = 0
    """Lines of the ledger that could not be read."""


class Days:
    """The day of a row in one zone. A minute is worked out once: there are fewer of them than rows."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._known: dict[str, str] = {}

    def __call__(self, when: str) -> str:
        """`YYYY-MM-DD`; empty where the text is no moment."""
        minute = when[:16] + when[-6:]
        day = self._known.get(minute)
        if day is None:
            try:
                day = datetime.fromisoformat(when).astimezone(self._zone).date().isoformat()
            except (ValueError, OverflowError):
                day = ""
            self._known[minute] = day
        return day


def sum_up(ledger: Ledger, now: datetime, *, by: By = "day", days: int = 30, session: str = "") -> Summary:
    """Read the ledger and add it up; groups are in falling cost, days in their order. Blocking; raises OSError.

    `days`: how far back the groups reach, today included. `session` has its own sum, over this month.
    """
    ledger.catch_up()
    summary, reader, day_of = Summary(), ledger.reader(), Days(now.tzinfo)
    today = now.date()
    first = today - timedelta(days=days - 1)
    group_of: Callable[[LedgerRow], str] = {
        "day": lambda row: day_of(row["when"]),
        "model": lambda row: row["model"],
        "provider": lambda row: row["provider"],
        "session": lambda row: row["session"],
        "cause": lambda row: row["cause"],
    }[by]
    today_name, month_name, first_name = today.isoformat(), today.isoformat()[:7], first.isoformat()
    groups = summary.groups
    for row in reader.rows(min(first, today.replace(day=1))):
        day = day_of(row["when"])
        if not day:
            summary.damaged += 1
            continue
        if day >= first_name:
            name = group_of(row)
            group = groups.get(name)
            if group is None:
                group = groups[name] = Sum()
            group.add(row)
        if day[:7] == month_name:
            summary.month.add(row)
            if day == today_name:
                summary.today.add(row)
            if row["session"] == session:
                summary.session.add(row)
    summary.damaged += reader.damaged
    summary.groups = dict(
        sorted(groups.items()) if by == "day" else sorted(groups.items(), key=lambda item: (-item[1].spent, item[0]))
    )
    return summary


def said(used: Sum) -> str:
    """A sum in a line, for a person."""
    share = f" ({used.cached_share:.0%} cached)" if used.cached_tokens else ""
    parts = [
        f"{used.calls:,} {'call' if used.calls == 1 else 'calls'}"
        + (f" ({used.failed:,} failed)" if used.failed else ""),
        f"{used.prompt_tokens:,} in{share}",
        f"{used.completion_tokens:,} out",
        dollars(used.usd),
    ]
    return ", ".join(parts if used.usd is not None else parts[:-1]) + (
        f" (and {used.unpriced:,} of unknown price)" if used.unpriced and used.usd is not None else ""
    )
