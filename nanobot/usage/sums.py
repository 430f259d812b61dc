"""Sums over the ledger by day, model, provider, session or cause, for today and this month, and the usage report."""

from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal

from nanobot.usage.budget import SpendingLimits, limits_as_raised, read_additions
from nanobot.usage.types import format_dollars

if TYPE_CHECKING:
    from sqlite3 import Connection

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


_SUMS = (
    "COUNT(*), COUNT(*) FILTER (WHERE outcome = 'failed'), IFNULL(SUM(prompt_tokens), 0), "
    "IFNULL(SUM(cached_tokens), 0), IFNULL(SUM(cache_written_tokens), 0), IFNULL(SUM(completion_tokens), 0), "
    "IFNULL(SUM(reasoning_tokens), 0), TOTAL(usd), COUNT(*) - COUNT(usd)"
)
"""The fields of a UsageSum, in order."""


def sum_up(db: "Connection", now: datetime, *, by: By = "day", days: int = 30, session: str = "") -> UsageSummary:
    """Sum the ledger. Groups are sorted by falling cost, days by date. Blocks.

    `days`: length of the groups' period, including today. `session` is summed separately, over this month.
    """
    today = now.date()
    first = today.replace(day=1)
    next_month = (first + timedelta(days=32)).replace(day=1)
    column = "substr(sent_at, 1, 10)" if by == "day" else by
    order = "1" if by == "day" else "TOTAL(usd) DESC, 1"
    groups = db.execute(
        f"SELECT {column}, {_SUMS} FROM calls WHERE sent_at >= ? GROUP BY 1 ORDER BY {order}",  # noqa: S608 ours
        (f"{today - timedelta(days=days - 1)}",),
    )
    return UsageSummary(
        today=_sum(db, today, today + timedelta(days=1)),
        month=_sum(db, first, next_month),
        session=_sum(db, first, next_month, session),
        groups={str(name): UsageSum(*sums) for name, *sums in groups},
    )


def turn_sums(db: "Connection", session: str, since: str) -> dict[str, tuple[str, UsageSum]]:
    """Sum the calls of each turn of a session since a day (`2026-11-27`), with the model that answered. Blocks."""
    query = (
        f"SELECT turn, model, {_SUMS}, MAX(sent_at) FROM calls WHERE sent_at >= ? AND session = ? AND turn != '' "  # noqa: S608
        "GROUP BY turn"
    )
    return {turn: (model, UsageSum(*sums)) for turn, model, *sums, _ in db.execute(query, (since, session))}


def session_sums(db: "Connection", prefix: str, since: str) -> dict[str, tuple[int, UsageSum]]:
    """Sum the calls of the sessions with this prefix since a day (`2026-11-27`), with the number of turns. Blocks."""
    query = (
        f"SELECT session, COUNT(DISTINCT turn), {_SUMS} FROM calls WHERE sent_at >= ? "  # noqa: S608 ours
        "AND substr(session, 1, ?) = ? GROUP BY session"
    )
    rows = db.execute(query, (since, len(prefix), prefix))
    return {session: (turns, UsageSum(*sums)) for session, turns, *sums in rows}


def _sum(db: "Connection", start: date, end: date, session: str | None = None) -> UsageSum:
    query = f"SELECT {_SUMS} FROM calls WHERE sent_at >= ? AND sent_at < ? AND session = IFNULL(?, session)"  # noqa: S608
    return UsageSum(*db.execute(query, (f"{start}", f"{end}", session)).fetchone())


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


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Usage today, this month and in groups, with the limits as they were raised."""

    summary: UsageSummary
    limits: SpendingLimits
    by: By
    days: int

    def to_json(self) -> dict[str, Any]:
        """The report for programs; docs/guides/money.md documents the fields."""
        summary, limits = self.summary, self.limits
        return {
            "today": _sum_to_json(summary.today),
            "month": _sum_to_json(summary.month),
            "limits": {
                "dailyUsd": limits.daily_usd,
                "monthlyUsd": limits.monthly_usd,
                "turnTokens": limits.turn_tokens,
                "leftTodayUsd": _remaining(limits.daily_usd, summary.today.spent),
                "leftThisMonthUsd": _remaining(limits.monthly_usd, summary.month.spent),
            },
            "by": self.by,
            "days": self.days,
            "rows": [{self.by: name, **_sum_to_json(total)} for name, total in summary.groups.items()],
        }


def usage_report(db: "Connection", limits: SpendingLimits, now: datetime, by: By, days: int) -> UsageReport:
    summary = sum_up(db, now, by=by, days=days)
    return UsageReport(summary, limits_as_raised(limits, read_additions(db), now), by, days)


def _sum_to_json(total: UsageSum) -> dict[str, Any]:
    fields = asdict(total)
    del fields["spent"]
    return fields | {"cached_share": round(total.cached_share, 4), "usd": total.usd}


def _remaining(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(limit - spent, 0.0)
