"""`nanobot approvals`: list and revoke permanent approvals."""

from typing import Annotated

import typer

from nanobot.cli.common import JsonOption, read_setup
from nanobot.cli.output import Column, print_line, print_list, to_one_line, when
from nanobot.errors import NanobotError
from nanobot.security.grants import NO_GRANTS, Grants, describe_forgotten
from nanobot.utils.clock import SystemClock


def list_(json: JsonOption = False) -> None:
    columns: dict[str, Column] = {
        "Rule": "rule",
        "Holds": lambda grant: "with untrusted content in play" if grant.outside else "with your own words",
        "Until": when("expires"),
    }
    print_list(_grants().all(), columns, as_json=json, empty=NO_GRANTS)


def forget(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule, from `nanobot approvals list`.")],
) -> None:
    """Revoke a permanent approval: you will be asked again."""
    count = _grants().forget(rule)
    if not count:
        raise NanobotError(describe_forgotten(to_one_line(rule), 0).replace("`list`", "`nanobot approvals list`"))
    print_line(describe_forgotten(to_one_line(rule), count))


def _grants() -> Grants:
    return Grants(read_setup(secrets=False).paths.database, SystemClock())
