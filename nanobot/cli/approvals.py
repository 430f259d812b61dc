"""`nanobot approvals`: what the owner said "always" to, and asking about it again."""

from dataclasses import asdict
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, JsonOption, one_line, read_setup, show_json, show_rows
from nanobot.config.paths import Places
from nanobot.errors import NanobotError
from nanobot.security.grants import NOTHING_ALWAYS, Grants, forgotten
from nanobot.utils.clock import SystemClock


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """What nobody is asked about any more, and until when."""
    found = _grants(config).all()
    if json:
        show_json([asdict(one) for one in found])
        return
    show_rows(
        ("Rule", "Holds", "Until"),
        [
            (
                one_line(one.rule),
                "with words from outside in play" if one.outside else "with your own words",
                one.expires[:10],
            )
            for one in found
        ],
        empty=NOTHING_ALWAYS,
    )


def forget(
    rule: Annotated[str, typer.Argument(metavar="RULE", help="The rule, as `nanobot approvals list` shows it.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Ask about this again."""
    count = _grants(config).forget(rule)
    if not count:
        raise NanobotError(forgotten(one_line(rule), 0).replace("`list`", "`nanobot approvals list`"))
    if json:
        show_json({"rule": rule, "forgotten": count})
    else:
        typer.echo(forgotten(one_line(rule), count))


def _grants(config: ConfigOption) -> Grants:
    return Grants(Places(read_setup(config, None).data_dir).grants, SystemClock())
