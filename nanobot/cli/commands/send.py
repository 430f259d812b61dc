"""`nanobot send`: send a message through the running gateway."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, get_data_paths, require_gateway
from nanobot.cli.output import to_one_line
from nanobot.cli.terminal import repair_output
from nanobot.errors import UsageError


def send(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The message; `-` reads it from stdin.")],
    channel: Annotated[str, typer.Option("--channel", metavar="C", help="The channel, such as telegram.")],
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The chat id on that platform.")],
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="A thread or topic of that chat.")
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", metavar="FILE", help="Attach a file; may be repeated.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Send a message and print the ids the platform gave it."""
    content = sys.stdin.buffer.read().decode("utf-8", "replace").rstrip("\r\n") if text == "-" else repair_output(text)
    if not content.strip() and not attach:
        raise UsageError("There is nothing to send. Give a text, or a file with --attach.")
    files = [str(file.expanduser().resolve()) for file in attach or ()]
    answer = require_gateway(
        get_data_paths(config),
        {"do": "send", "channel": channel.lower(), "to": to, "text": content, "thread": thread, "media": files},
    )
    typer.echo("\n".join(to_one_line(str(platform_id)) for platform_id in answer["ids"]))
