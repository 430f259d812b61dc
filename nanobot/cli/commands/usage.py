"""`nanobot usage`: tokens and cost from the ledger, and what is left of the limits."""

import sys
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, JsonOption, read_setup
from nanobot.cli.output import print_json, print_line, print_table
from nanobot.cli.terminal import is_terminal
from nanobot.usage.budget import SpendingLimits
from nanobot.usage.sums import By, UsageSum, UsageSummary, format_sum, read_usage
from nanobot.usage.types import format_dollars
from nanobot.utils.clock import SystemClock, find_zone


def usage(
    by: Annotated[By, typer.Option("--by", help="What to group the table by.")] = "day",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="Cover the last N days.")] = 30,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Show tokens and cost: today, this month, what is left of the limits, and a table."""
    setup = read_setup(config, None, secrets=False)
    now = SystemClock(find_zone(setup.config.agents.defaults.timezone)).now()
    report = read_usage(setup.paths.database, setup.config.limits.spending_limits(), now, by, days)
    summary, limits = report.summary, report.limits
    if json:
        print_json(report.to_json())
        return
    if summary.month.calls or summary.groups:
        _print_totals(summary, limits)
    headings = (by.capitalize(), "Calls", "Failed", "In", "Cached", "Out", "Cost")
    format_row = _format_row if is_terminal(sys.stdout) else _plain_row
    rows = [(name or "-", *format_row(total)) for name, total in summary.groups.items()]
    empty = f"No model was used in the last {days} days."
    print_table(headings, rows, empty=empty, spare=("Failed", "Cached", "Out", "In"))


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
