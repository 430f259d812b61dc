"""Usage and what is left of the limits, for the command line and the page."""

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.usage.budget import SpendingLimits, limits_as_raised, read_additions
from nanobot.usage.ledger import SCHEMA
from nanobot.usage.sums import By, UsageSum, UsageSummary, sum_up
from nanobot.utils.database import reading


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


def read_usage(database: Path, limits: SpendingLimits, now: datetime, by: By, days: int) -> UsageReport:
    """Read the ledger. Blocks. Raises StorageError."""
    with reading(database, SCHEMA) as db:
        summary = sum_up(db, now, by=by, days=days)
        return UsageReport(summary, limits_as_raised(limits, read_additions(db), now), by, days)


def _sum_to_json(total: UsageSum) -> dict[str, Any]:
    fields = asdict(total)
    del fields["spent"]
    return fields | {"cached_share": round(total.cached_share, 4), "usd": total.usd}


def _remaining(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(limit - spent, 0.0)
