"""`nanobot gateway status` and `logs`, and the gateway as a service: install, uninstall, start, stop, restart."""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli.common import (
    NO_GATEWAY,
    ConfigOption,
    JsonOption,
    ask_gateway,
    get_data_paths,
    read_setup,
    require_gateway,
)
from nanobot.cli.output import print_json, print_line, to_one_line
from nanobot.cli.terminal import is_terminal, strip_control, wants_colour
from nanobot.config.paths import absolute
from nanobot.errors import NanobotError
from nanobot.gateway.daemon import ServiceSpec, find_daemon, nanobot_command, require_daemon
from nanobot.gateway.lock import find_lock_holder
from nanobot.utils.log import short_lines
from nanobot.utils.text import duration

_NOT_WELL = 1
_TAIL_BYTES = 256 * 1024


def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show whether the gateway is running and healthy; exits with 1 if it is not."""
    places = get_data_paths(config)
    report = ask_gateway(places, {"do": "report"})
    if report is None:
        holder = find_lock_holder(places)
        problem = (
            f"The gateway (pid {holder.pid}) is running but does not answer. See `nanobot gateway logs`."
            if holder is not None
            else NO_GATEWAY.format(data=places.data)
        )
        if json:
            print_json({"running": holder is not None, "status": "silent" if holder else "off", "problems": [problem]})
            raise typer.Exit(_NOT_WELL)
        raise NanobotError(problem)
    if json:
        print_json({"running": True, **report})
    else:
        states = (f"{to_one_line(name)} {channel['state']}" for name, channel in report["channels"].items())
        counts = report["messages"]
        received = ", ".join(f"{counts[name]} {name}" for name in ("received", "answered", "refused", "queued"))
        print_line(f"Gateway: pid {report['pid']}, nanobot {report['version']}, up {duration(report['uptimeS'])}")
        print_line(f"Channels: {', '.join(states) or 'none'}")
        print_line(f"Messages: {received}; {counts['waitingOut']} to be sent, {counts['failedOut']} not delivered")
        print_line(
            f"Turns: {report['runningTurns']} running; event loop lag {report['loopLagS'] * 1000:.0f} ms at most"
        )
        for problem in report["problems"]:
            print_line(f"Problem: {to_one_line(problem)}")
    if report["status"] != "ok":
        raise typer.Exit(_NOT_WELL)


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, metavar="N", help="Show the last N lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines.")] = False,
    config: ConfigOption = None,
) -> None:
    """Show the last lines of the gateway's log."""
    file = get_data_paths(config).gateway_log
    if not file.exists():
        raise NanobotError(f"There is no log at {file} yet. Start the gateway first: `nanobot gateway`.")
    shown = _read_lines(file, lines, follow)
    if is_terminal(sys.stdout):
        shown = short_lines(shown, is_coloured=wants_colour(sys.stdout))
    for line in shown:
        typer.echo(line)


def _read_lines(file: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines, then those that are appended, until Ctrl+C. A rotated log is read from its start."""
    with open(file, "rb") as log:
        stat = os.fstat(log.fileno())
        log.seek(max(stat.st_size - _TAIL_BYTES, 0))
        yield from _decode_lines(log.read())[-last:]
        offset, inode = log.tell(), stat.st_ino
    while follow:
        time.sleep(0.3)
        try:
            stat = file.stat()
        except FileNotFoundError:
            continue
        if stat.st_ino != inode or stat.st_size < offset:
            offset, inode = 0, stat.st_ino
        if stat.st_size > offset:
            with open(file, "rb") as log:
                log.seek(offset)
                yield from _decode_lines(log.read())
                offset = log.tell()


def _decode_lines(data: bytes) -> list[str]:
    return strip_control(data.decode("utf-8", "replace")).rstrip("\n").split("\n") if data else []


def install(config: ConfigOption = None) -> None:
    """Install the gateway as a user service that starts at boot and restarts after a crash."""
    setup = read_setup(config, None, secrets=False)
    path = absolute(config) if config is not None else None
    spec = ServiceSpec(nanobot_command(), path, setup.data_dir)
    _print_lines(require_daemon().install(spec))


def uninstall() -> None:
    """Stop and remove the service. Config, sessions and memory are kept."""
    _print_lines(require_daemon().uninstall())


def start() -> None:
    """Start the service."""
    daemon = require_daemon()
    if not daemon.is_installed():
        raise NanobotError("The gateway is not installed as a service. Run `nanobot gateway install` first.")
    daemon.start()
    print_line("Started.")


def stop(config: ConfigOption = None) -> None:
    """Shut the gateway down cleanly: the service, or the one that runs in a terminal."""
    places, daemon = get_data_paths(config), find_daemon()
    if daemon is not None and daemon.is_active():  # it would restart a gateway that ends by itself
        daemon.stop()
        print_line("Stopped.")
    else:
        require_gateway(places, {"do": "stop gateway"})
        print_line("The gateway is shutting down.")


def restart(config: ConfigOption = None) -> None:
    """Shut the gateway down cleanly and start it again."""
    places, daemon = get_data_paths(config), find_daemon()
    if daemon is not None and daemon.is_active():
        daemon.restart()
        print_line("Restarted.")
    else:
        require_gateway(places, {"do": "restart gateway"})
        print_line("The gateway is restarting.")


def _print_lines(lines: list[str]) -> None:
    for line in lines:
        print_line(line)
