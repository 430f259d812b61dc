"""Sums over the ledger: by day, model, provider, session or cause, and for today and this month."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Literal

from nanobot.usage.ledger import Ledger
from nanobot.usage.types import LedgerRow, format_dollars

By = Literal["day", "model", "provider", "session", "cause"]


@dataclass(slots=True)
class UsageSum:
    """Usage of several calls."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    cache_written_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    spent: float = 0.0
    unpriced: int = 0
    """Calls of models without a known price, missing in `spent`."""

    def add(self, row: LedgerRow) -> None:
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
        """Dollars spent as far as prices are known; None if none is."""
        return None if self.unpriced and not self.spent else self.spent

    @property
    def cached_share(self) -> float:
        """Share of the input tokens that were read from a cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True)
class UsageSummary:
    """Usage today, this month, of one session, and in groups over some days."""

    today: UsageSum = field(default_factory=UsageSum)
    month: UsageSum = field(default_factory=UsageSum)
    session: UsageSum = field(default_factory=UsageSum)
    groups: dict[str, UsageSum] = field(default_factory=dict)
    damaged: int = 0
    """Unreadable lines of the ledger."""


class Days:
    """Converts timestamps to days of one time zone, cached by minute: there are fewer minutes than rows."""

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._known: dict[str, str] = {}

    def __call__(self, when: str) -> str:
        """Return `YYYY-MM-DD`; empty for an invalid timestamp."""
        minute = when[:16] + when[-6:]
        day = self._known.get(minute)
        if day is None:
            try:
                day = datetime.fromisoformat(when).astimezone(self._zone).date().isoformat()
            except (ValueError, OverflowError):
                day = ""
            self._known[minute] = day
        return day


def sum_up(ledger: Ledger, now: datetime, *, by: By = "day", days: int = 30, session: str = "") -> UsageSummary:
    """Sum the ledger. Groups are sorted by falling cost, days by date. Blocks; raises OSError.

    `days`: length of the groups' period, including today. `session` is summed separately, over this month.
    """
    ledger.catch_up()
    summary, reader, day_of = UsageSummary(), ledger.reader(), Days(now.tzinfo)
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
                group = groups[name] = UsageSum()
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


def format_sum(used: UsageSum) -> str:
    """Format a sum as a line."""
    share = f" ({used.cached_share:.0%} cached)" if used.cached_tokens else ""
    parts = [
        f"{used.calls:,} {'call' if used.calls == 1 else 'calls'}"
        + (f" ({used.failed:,} failed)" if used.failed else ""),
        f"{used.prompt_tokens:,} in{share}",
        f"{used.completion_tokens:,} out",
        format_dollars(used.usd),
    ]
    if used.usd is None:
        parts[-1] = "price unknown"
    return ", ".join(parts) + (
        f" (and {used.unpriced:,} of unknown price)" if used.unpriced and used.usd is not None else ""
    )
