"""`nanobot usage`: tokens and cost from the ledger, and what is left of the limits."""

import sys
from typing import Annotated

import typer

from nanobot.cli.common import JsonOption, read_setup
from nanobot.cli.output import is_terminal, print_json, print_line, print_list
from nanobot.usage.budget import usage_report
from nanobot.usage.ledger import SCHEMA, By, UsageSum, format_sum
from nanobot.usage.types import format_dollars
from nanobot.utils.clock import SystemClock, find_zone
from nanobot.utils.database import reading


def usage(
    by: Annotated[By, typer.Option("--by", help="What to group the table by.")] = "day",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, help="Cover the last N days.")] = 30,
    json: JsonOption = False,
) -> None:
    setup = read_setup(secrets=False)
    now = SystemClock(find_zone(setup.config.agents.defaults.timezone)).now()
    with reading(setup.paths.database, SCHEMA) as db:
        report = usage_report(db, setup.config.limits.spending_limits(), now, by, days)
    summary = report.summary
    if json:
        print_json(report.to_json())
        return
    if summary.month.calls or summary.groups:
        print_line(f"Today: {format_sum(summary.today)}")
        print_line(f"This month: {format_sum(summary.month)}")
        for line in report.limits.left(summary.today.spent, summary.month.spent):
            print_line(line)
        typer.echo()
    headings = (by.capitalize(), "Calls", "Failed", "In", "Cached", "Out", "Cost")
    rows = [(name or "-", *_cells(total)) for name, total in summary.groups.items()]
    empty = f"No model was used in the last {days} days."
    columns = {heading: index for index, heading in enumerate(headings)}
    print_list(rows, columns, empty=empty, spare=("Failed", "Cached", "Out", "In"))


def _cells(total: UsageSum) -> tuple[object, ...]:
    counts = total.calls, total.failed, total.prompt_tokens, total.cached_tokens, total.completion_tokens
    if not is_terminal(sys.stdout):  # for a program: no separators, no units; empty for an unknown price
        return *counts, None if total.usd is None else round(total.usd, 6)
    calls, failed, sent, _, received = (f"{count:,}" for count in counts)
    share = f"{total.cached_share:.0%}" if total.prompt_tokens else "-"
    return calls, failed, sent, share, received, format_dollars(total.usd)
