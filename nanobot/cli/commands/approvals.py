"""`nanobot approvals`: list and revoke permanent approvals."""

from dataclasses import asdict
from typing import Annotated

import typer

from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    format_timestamp,
    print_json,
    print_table,
    read_setup,
    to_one_line,
)
from nanobot.cli.layout import print_line
from nanobot.errors import NanobotError
from nanobot.security.grants import NO_GRANTS, Grants, describe_forgotten
from nanobot.utils.clock import SystemClock


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the approvals you granted permanently, and when they expire."""
    grants = _grants(config).all()
    if json:
        print_json([asdict(grant) for grant in grants])
        return
    print_table(
        ("Rule", "Holds", "Until"),
        [
            (
                to_one_line(grant.rule),
                "with untrusted content in play" if grant.outside else "with your own words",
                format_timestamp(grant.expires),
            )
            for grant in grants
        ],
        empty=NO_GRANTS,
    )


def forget(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule, from `nanobot approvals list`.")],
    config: ConfigOption = None,
) -> None:
    """Revoke a permanent approval: you will be asked again."""
    count = _grants(config).forget(rule)
    if not count:
        raise NanobotError(describe_forgotten(to_one_line(rule), 0).replace("`list`", "`nanobot approvals list`"))
    print_line(describe_forgotten(to_one_line(rule), count))


def _grants(config: ConfigOption) -> Grants:
    return Grants(read_setup(config, None, secrets=False).paths.grants, SystemClock())
