"""`nanobot usage`: what models used and what it cost, from the ledger; what is left; and where it went."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from nanobot.cli.common import ConfigOption, JsonOption, Setup, read_setup, show_json, show_rows
from nanobot.config.paths import Places
from nanobot.usage.budget import Budget, Limits
from nanobot.usage.ledger import Ledger
from nanobot.usage.sums import By, Sum, Summary, said, sum_up
from nanobot.usage.types import dollars
from nanobot.utils.clock import SystemClock, zone_named


def usage(
    by: Annotated[By, typer.Option("--by", help="What a row of the table is.")] = "day",
    days: Annotated[int, typer.Option("--days", min=1, help="How many days back the table goes.")] = 30,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Tokens and money: today, this month, what is left, and a table of where it went."""
    setup = read_setup(config, None, secrets=False)
    clock = SystemClock(zone_named(setup.config.agents.defaults.timezone))
    ledger = Ledger(Places(setup.data_dir).usage)
    summary = sum_up(ledger, clock.now(), by=by, days=days)
    limits = Budget(_limits(setup), ledger, clock).limits_as_raised()
    if json:
        show_json(_as_json(summary, limits, by, days))
        return
    if summary.month.calls or summary.groups:
        _show_totals(summary, limits)
    headings = (by.capitalize(), "Calls", "Failed", "In", "Cached", "Out", "Cost")
    rows = [(name or "-", *_cells(used)) for name, used in summary.groups.items()]
    empty = f"No model was asked in {days} days. The ledger begins with the first message."
    show_rows(headings, rows, empty=empty, spare=("Failed", "Cached", "Out", "In"))
    if summary.damaged:
        typer.echo(f"{summary.damaged} lines of the ledger could not be read and are not counted.", err=True)


def _limits(setup: Setup) -> Limits:
    limits = setup.config.limits
    return Limits(limits.daily_usd, limits.monthly_usd, limits.turn_tokens)


def _show_totals(summary: Summary, limits: Limits) -> None:
    typer.echo(f"Today: {said(summary.today)}")
    typer.echo(f"This month: {said(summary.month)}")
    for line in limits.left(summary.today.spent, summary.month.spent):
        typer.echo(line)
    typer.echo()


def _cells(used: Sum) -> tuple[object, ...]:
    share = f"{used.cached_share:.0%}" if used.prompt_tokens else "-"
    return (
        f"{used.calls:,}",
        f"{used.failed:,}",
        f"{used.prompt_tokens:,}",
        share,
        f"{used.completion_tokens:,}",
        dollars(used.usd),
    )


def _as_json(summary: Summary, limits: Limits, by: By, days: int) -> dict[str, Any]:
    return {
        "today": _sum_json(summary.today),
        "month": _sum_json(summary.month),
        "limits": {
            "dailyUsd": limits.daily_usd,
            "monthlyUsd": limits.monthly_usd,
            "turnTokens": limits.turn_tokens,
            "leftTodayUsd": _left(limits.daily_usd, summary.today.spent),
            "leftThisMonthUsd": _left(limits.monthly_usd, summary.month.spent),
        },
        "by": by,
        "days": days,
        "rows": [{by: name, **_sum_json(used)} for name, used in summary.groups.items()],
        "damaged": summary.damaged,
    }


def _sum_json(used: Sum) -> dict[str, Any]:
    fields = asdict(used)
    del fields["spent"]
    return fields | {"cached_share": round(used.cached_share, 4), "usd": used.usd}


def _left(limit: float | None, spent: float) -> float | None:
    return None if limit is None else max(limit - spent, 0.0)
