"""`nanobot usage`: tokens and cost from the ledger, and what is left of the limits."""

import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from nanobot.cli.common import ConfigOption, JsonOption, Setup, print_json, print_table, read_setup
from nanobot.cli.layout import print_line
from nanobot.cli.terminal import is_terminal
from nanobot.usage.budget import SpendingLimits, limits_as_raised, read_additions
from nanobot.usage.ledger import SCHEMA
from nanobot.usage.sums import By, UsageSum, UsageSummary, format_sum, sum_up
from nanobot.usage.types import format_dollars
from nanobot.utils.clock import SystemClock, find_zone
from nanobot.utils.database import reading


def usage(
    by: Annotated[By, typer.Option("--by", help="What to group the table by.")] = "day",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="Cover the last N days.")] = 30,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show tokens and cost: today, this month, what is left of the limits, and a table."""
    setup = read_setup(config, None, secrets=False)
    now = SystemClock(find_zone(setup.config.agents.defaults.timezone)).now()
    with reading(setup.paths.database, SCHEMA) as db:
        summary = sum_up(db, now, by=by, days=days)
        limits = limits_as_raised(_limits(setup), read_additions(db), now)
    if json:
        print_json(_as_json(summary, limits, by, days))
        return
    if summary.month.calls or summary.groups:
        _print_totals(summary, limits)
    headings = (by.capitalize(), "Calls", "Failed", "In", "Cached", "Out", "Cost")
    format_row = _format_row if is_terminal(sys.stdout) else _plain_row
    rows = [(name or "-", *format_row(total)) for name, total in summary.groups.items()]
    empty = f"No model was used in the last {days} days."
    print_table(headings, rows, empty=empty, spare=("Failed", "Cached", "Out", "In"))


def _limits(setup: Setup) -> SpendingLimits:
    limits = setup.config.limits
    return SpendingLimits(limits.daily_usd, limits.monthly_usd, limits.turn_tokens)


def _print_totals(summary: UsageSummary, limits: SpendingLimits) -> None:
    print_line(f"Today: {format_sum(summary.today)}")
    print_line(f"This month: {format_sum(summary.month)}")
    for line in limits.left(summary.today.spent, summary.month.spent):
        print_line(line)
    typer.echo()


def _format_row(total: UsageSum) -> tuple[object, ...]:
    share = f"{total.cached_share:.0%}" if total.prompt_tokens else "-"
    return (
        f"{total.calls:,}",
        f"{total.failed:,}",
        f"{total.prompt_tokens:,}",
        share,
        f"{total.completion_tokens:,}",
        format_dollars(total.usd),
    )


def _plain_row(total: UsageSum) -> tuple[object, ...]:
    """Numbers for a program that reads the pipe: no separators, no units; empty for an unknown price."""
    usd = None if total.usd is None else round(total.usd, 6)
    return total.calls, total.failed, total.prompt_tokens, total.cached_tokens, total.completion_tokens, usd


def _as_json(summary: UsageSummary, limits: SpendingLimits, by: By, days: int) -> dict[str, Any]:
    return {
        "today": _sum_as_json(summary.today),
        "month": _sum_as_json(summary.month),
        "limits": {
            "dailyUsd": limits.daily_usd,
            "monthlyUsd": limits.monthly_usd,
            "turnTokens": limits.turn_tokens,
            "leftTodayUsd": _remaining(limits.daily_usd, summary.today.spent),
            "leftThisMonthUsd": _remaining(limits.monthly_usd, summary.month.spent),
        },
        "by": by,
        "days": days,
        "rows": [{by: name, **_sum_as_json(total)} for name, total in summary.groups.items()],
    }


def _sum_as_json(total: UsageSum) -> dict[str, Any]:
    fields = asdict(total)
    del fields["spent"]
    return fields | {"cached_share": round(total.cached_share, 4), "usd": total.usd}


def _remaining(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(limit - spent, 0.0)
