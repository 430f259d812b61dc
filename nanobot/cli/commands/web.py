"""`nanobot web`: a one-time link to the gateway's page."""

import webbrowser
from typing import Annotated
from urllib.parse import urlsplit

import typer

from nanobot.cli.common import ConfigOption, get_data_paths, require_gateway
from nanobot.cli.output import print_warning


def web(
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the link.")] = False,
    qr: Annotated[bool, typer.Option("--qr", help="Show it as a QR code too, for a phone.")] = False,
    config: ConfigOption = None,
) -> None:
    """Print a link that signs one browser in, valid for ten minutes, and open it."""
    url = str(require_gateway(get_data_paths(config), {"do": "web link"})["url"])
    typer.echo(url)
    if qr:
        from nanobot.net.http import is_loopback
        from nanobot.utils.qr_code import qr_code

        typer.echo(qr_code(url))
        if is_loopback(urlsplit(url).hostname or ""):
            print_warning("Only this computer can open this address. For a phone, set gateway.web.publicUrl.")
    if not (no_open or qr):
        webbrowser.open(url)
