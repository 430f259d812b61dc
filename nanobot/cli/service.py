"""`nanobot gateway status`, `logs`, and the gateway as a service of this host: install, start, stop and the rest."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot.cli.common import ConfigOption, JsonOption, one_line, read_setup, show_json
from nanobot.cli.terminal import visible
from nanobot.cli.through_gateway import NO_GATEWAY, ask_gateway, places_of
from nanobot.config.paths import Places, absolute
from nanobot.errors import NanobotError
from nanobot.gateway.daemon import Daemon, ServiceSpec, daemon_of, find_daemon, our_command
from nanobot.gateway.lock import holder_of

_NOT_WELL = 1
_TAIL_BYTES = 256 * 1024


def status(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Whether the gateway runs and is well; exit code 1 where it is not."""
    places = places_of(config)
    report = ask_gateway(places, {"do": "report"})
    if report is None:
        holder = holder_of(places)
        problem = (
            f"The gateway (pid {holder.pid}) runs and does not answer. See `nanobot gateway logs`."
            if holder is not None
            else NO_GATEWAY.format(data=places.data)
        )
        if json:
            show_json({"running": holder is not None, "status": "silent" if holder else "off", "problems": [problem]})
            raise typer.Exit(_NOT_WELL)
        raise NanobotError(problem)
    report.pop("type", None)
    if json:
        show_json({"running": True, **report})
    else:
        _show(report)
    if report["status"] != "ok":
        raise typer.Exit(_NOT_WELL)


def _show(report: dict[str, Any]) -> None:
    up = ", ".join(f"{one_line(name)} {told['state']}" for name, told in report["channels"].items()) or "none"
    counts = report["messages"]
    told = ", ".join(f"{counts[name]} {name}" for name in ("received", "answered", "refused", "queued"))
    typer.echo(f"Gateway: pid {report['pid']}, nanobot {report['version']}, up {report['uptimeS']:.0f} s")
    typer.echo(f"Channels: {up}")
    typer.echo(f"Messages: {told}; {counts['waitingOut']} to be sent, {counts['failedOut']} not delivered")
    typer.echo(
        f"Turns: {report['runningTurns']} running; the loop was late by {report['loopLagS'] * 1000:.0f} ms at most"
    )
    for problem in report["problems"]:
        typer.echo(f"Problem: {one_line(problem)}")


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, metavar="N", help="How many lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what comes.")] = False,
    config: ConfigOption = None,
) -> None:
    """The last lines of the gateway's log."""
    file = places_of(config).gateway_log
    if not file.exists():
        raise NanobotError(f"There is no log at {file} yet. Start the gateway first: `nanobot gateway`.")
    with open(file, "rb") as log:
        log.seek(max(file.stat().st_size - _TAIL_BYTES, 0))
        _say(b"".join(log.read().splitlines(keepends=True)[-lines:]))
    if follow:
        _follow(file)


def _follow(file: Path) -> None:
    """Until Ctrl+C. When the log is begun anew, the new one is read from its start."""
    place, number = file.stat().st_size, file.stat().st_ino
    while True:
        time.sleep(0.3)
        try:
            now = file.stat()
        except FileNotFoundError:
            continue
        if now.st_ino != number or now.st_size < place:
            place, number = 0, now.st_ino
        if now.st_size > place:
            with open(file, "rb") as log:
                log.seek(place)
                more = log.read()
            place += len(more)
            _say(more)


def _say(data: bytes) -> None:
    typer.echo(visible(data.decode("utf-8", "replace")), nl=False)


def install(config: ConfigOption = None) -> None:
    """Make the gateway a service of yours, which starts with the host and is started again when it ends."""
    setup = read_setup(config, None, secrets=False)
    path = absolute(config) if config is not None else None
    spec = ServiceSpec(our_command(), path, setup.data_dir)
    for line in daemon_of().install(spec):
        typer.echo(line)


def uninstall() -> None:
    """Stop the service and take it away. Config, sessions and memory stay."""
    _tell(daemon_of().uninstall())


def start() -> None:
    """Start the service."""
    _tell(_installed().start())


def stop(config: ConfigOption = None) -> None:
    """Stop the gateway: the service, or the one that runs in a terminal."""
    _either(places_of(config), "stop gateway", lambda daemon: daemon.stop())


def restart(config: ConfigOption = None) -> None:
    """Stop the gateway in good order and start it again."""
    _either(places_of(config), "restart gateway", lambda daemon: daemon.restart())


def _either(places: Places, wish: str, by_service: Callable[[Daemon], list[str]]) -> None:
    """Ask the gateway that runs; a service's manager is asked instead, since it would start it again."""
    daemon = find_daemon()
    if daemon is not None and daemon.is_active():
        _tell(by_service(daemon))
        return
    if ask_gateway(places, {"do": wish}) is None:
        raise NanobotError(NO_GATEWAY.format(data=places.data))
    typer.echo("The gateway leaves in good order." if wish.startswith("stop") else "The gateway begins anew.")


def _installed() -> Daemon:
    daemon = daemon_of()
    if not daemon.is_installed():
        raise NanobotError("The gateway is not installed as a service. Run `nanobot gateway install` first.")
    return daemon


def _tell(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
