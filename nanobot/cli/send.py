"""`nanobot send`: a message out, through the running gateway."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, JsonOption, one_line, show_json
from nanobot.cli.terminal import mended
from nanobot.cli.through_gateway import demand_gateway, places_of
from nanobot.errors import UsageError


def send(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to send; `-` reads it from stdin.")],
    channel: Annotated[str, typer.Option("--channel", metavar="C", help="The channel, such as telegram.")],
    to: Annotated[str, typer.Option("--to", metavar="ID", help="The chat's id on that platform.")],
    thread: Annotated[
        str | None, typer.Option("--thread", metavar="ID", help="A thread or topic of that chat.")
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", metavar="FILE", help="Send a file along; may be repeated.")
    ] = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Send a message, and print the platform's ids of it."""
    said = sys.stdin.buffer.read().decode("utf-8", "replace").rstrip("\r\n") if text == "-" else mended(text)
    if not said.strip() and not attach:
        raise UsageError("There is nothing to send. Write a text, or name a file with --attach.")
    files = [str(file.expanduser().resolve()) for file in attach or ()]
    answer = demand_gateway(
        places_of(config),
        {"do": "send", "channel": channel.lower(), "to": to, "text": said, "thread": thread, "media": files},
    )
    if json:
        show_json({"channel": channel.lower(), "to": to, "ids": answer["ids"]})
    else:
        typer.echo("\n".join(one_line(str(platform_id)) for platform_id in answer["ids"]))
