"""`nanobot gateway`: run it, install it as a service, watch it; `serve`, the same for programs only; and what asks it:
`channels status` and `test`, `send`, `web`.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.common import (
    NO_API_KEY,
    NO_GATEWAY,
    JsonOption,
    Setup,
    ask_gateway,
    get_data_paths,
    read_setup,
    require_gateway,
    selected,
)
from nanobot.cli.output import (
    Column,
    is_terminal,
    print_json,
    print_line,
    print_list,
    print_warning,
    repair_output,
    strip_control,
    to_one_line,
    wants_colour,
    when,
)
from nanobot.config.paths import absolute
from nanobot.errors import ConfigError, NanobotError, UsageError
from nanobot.gateway.daemon import ServiceSpec, find_daemon, nanobot_command, require_daemon
from nanobot.utils.text import duration

if TYPE_CHECKING:
    from nanobot.config.schema import Config

HARD_EXIT_S = 5.0
"""The process is ended this long after a shutdown request; all durable state is on disk by then."""
_TAIL_BYTES = 256 * 1024


def run(
    port: Annotated[int | None, typer.Option("-p", "--port", min=0, max=65535, help="Port of the HTTP server.")] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="Run even if no channel works, for the page, the terminal and jobs.")
    ] = False,
    env_file: Annotated[Path | None, typer.Option("--env-file", hidden=True)] = None,
) -> None:
    """Run the gateway: chat apps, reminders and jobs. Ctrl+C stops it."""
    if env_file is not None:
        _set_variables(env_file)
    setup = read_setup(warns=False)  # the gateway logs the warnings
    _run_process(setup, verbose=verbose, port=port, allow_empty=allow_empty)


def _run_process(setup: Setup, *, verbose: bool, **options: Any) -> None:
    """Run a gateway with these `Options` until a signal or a request stops it."""
    import asyncio  # slow; not needed for --help

    from nanobot.cli.chat.keyboard import INTERRUPT_SIGNALS, TERMINATION_SIGNALS, exit_code_for, handle_signals
    from nanobot.gateway.process import ExitReason, ShutdownRequests
    from nanobot.gateway.service import Options, open_gateway
    from nanobot.security.secrets import redact_all
    from nanobot.utils.log import LogTarget, set_up_logging

    level = "DEBUG" if verbose else "INFO"
    is_short = is_terminal(sys.stderr) and not verbose
    set_up_logging(LogTarget(setup.paths.gateway_log, level, level, is_short, wants_colour(sys.stderr)), redact_all)

    async def run_gateway() -> ExitReason:
        requests = ShutdownRequests()

        def on_signal(number: int) -> None:
            if requests.is_requested:  # the second signal ends the process at once
                os._exit(exit_code_for(number))
            requests.stop()

        with handle_signals([*INTERRUPT_SIGNALS, *TERMINATION_SIGNALS], on_signal):
            async with open_gateway(
                setup.config,
                data_dir=setup.data_dir,
                workspace=setup.workspace,
                options=Options(**options),
                shutdown=requests,
            ) as gateway:
                reason = await gateway.wait()
                end = _restart if reason is ExitReason.RESTART else partial(os._exit, 0)
                timer = threading.Timer(HARD_EXIT_S, end)  # even if something in it hangs
                timer.daemon = True
                timer.start()
        return reason

    if asyncio.run(run_gateway()) is ExitReason.RESTART:
        _restart()


def serve(
    host: Annotated[str | None, typer.Option("-H", "--host", help="Listen on this address.")] = None,
    port: Annotated[int | None, typer.Option("-p", "--port", min=0, max=65535, help="Port of the API.")] = None,
    timeout: Annotated[
        float | None, typer.Option("-t", "--timeout", min=1, metavar="SECONDS", help="For requests that do not stream.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
) -> None:
    """Run the HTTP API without chat apps and jobs. A running gateway has it already: then print its address."""
    running = ask_gateway({"do": "api urls"})
    if running is not None:
        typer.echo("The running gateway serves the API:")
        typer.echo("\n".join(map(str, running["urls"])))
        typer.echo(NO_API_KEY, err=True)
        return
    setup = read_setup(warns=False)
    if timeout is not None:
        setup.config.api.timeout = timeout
    _run_process(setup, verbose=verbose, api_only=True, api_host=host, api_port=port)


def _set_variables(env_file: Path) -> None:
    """Set the variables of `gateway.env`, as systemd does by itself: NAME=value lines. The file may be missing."""
    try:
        for line in env_file.read_text(encoding="utf-8").splitlines():
            name, equals, value = (part.strip() for part in line.partition("="))
            if equals and name and not name.startswith(("#", ";")):
                is_quoted = len(value) > 1 and value[0] in "'\"" and value[0] == value[-1]
                os.environ[name] = value[1:-1] if is_quoted else value
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{env_file} cannot be read: {reason}. Correct it or its permissions.") from error


def _restart() -> None:
    """Replace the process by the same command."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 our own command


def status(json: JsonOption = False) -> None:
    """Show whether the gateway is running and healthy; exits with 1 if it is not."""
    report = ask_gateway({"do": "report"})
    if report is None:
        from nanobot.gateway.process import find_lock_holder  # imports asyncio

        holder = find_lock_holder(get_data_paths())
        problem = NO_GATEWAY.format(data=get_data_paths().data)
        if holder is not None:
            problem = f"The gateway (pid {holder.pid}) is running but does not answer. See `nanobot gateway logs`."
        if not json:
            raise NanobotError(problem)
        print_json({"running": holder is not None, "status": "silent" if holder else "off", "problems": [problem]})
        raise typer.Exit(1)
    if json:
        print_json({"running": True, **report})
    else:
        states = (f"{to_one_line(name)} {channel['state']}" for name, channel in report["channels"].items())
        counts, lag_ms = report["messages"], report["loopLagS"] * 1000
        received = ", ".join(f"{counts[name]} {name}" for name in ("received", "answered", "refused", "queued"))
        print_line(f"Gateway: pid {report['pid']}, nanobot {report['version']}, up {duration(report['uptimeS'])}")
        print_line(f"Channels: {', '.join(states) or 'none'}")
        print_line(f"Messages: {received}; {counts['waitingOut']} to be sent, {counts['failedOut']} not delivered")
        print_line(f"Turns: {report['runningTurns']} running; event loop lag {lag_ms:.0f} ms at most")
        for problem in report["problems"]:
            print_line(f"Problem: {to_one_line(problem)}")
    if report["status"] != "ok":
        raise typer.Exit(1)


def logs(
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, metavar="N", help="Show the last N lines.")] = 50,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines.")] = False,
) -> None:
    from nanobot.utils.log import short_lines

    file = get_data_paths().gateway_log
    if not file.exists():
        raise NanobotError(f"There is no log at {file} yet. Start the gateway first: `nanobot gateway`.")
    shown = _read_lines(file, lines, follow)
    if is_terminal(sys.stdout):
        shown = short_lines(shown, is_coloured=wants_colour(sys.stdout))
    for line in shown:
        typer.echo(line)


def _read_lines(file: Path, last: int, follow: bool) -> Iterator[str]:
    """The last lines, then those that are appended, until Ctrl+C. A rotated log is read from its start."""
    status = file.stat()
    offset, inode = max(status.st_size - _TAIL_BYTES, 0), status.st_ino
    while True:
        with suppress(FileNotFoundError), open(file, "rb") as log:
            status = os.fstat(log.fileno())
            if status.st_ino != inode or status.st_size < offset:
                offset, inode = 0, status.st_ino
            log.seek(offset)
            if data := log.read():
                yield from strip_control(data.decode("utf-8", "replace")).rstrip("\n").split("\n")[-last:]
            offset = log.tell()
        if not follow:
            return
        last = 0  # from now on all
        time.sleep(0.3)


def install() -> None:
    """Install the gateway as a user service that starts at boot and restarts after a crash."""
    config = None if selected.config is None else absolute(selected.config)
    for line in require_daemon().install(ServiceSpec(nanobot_command(), config, read_setup(secrets=False).data_dir)):
        print_line(line)


def uninstall() -> None:
    """Stop and remove the service. Config, sessions and memory are kept."""
    for line in require_daemon().uninstall():
        print_line(line)


def start() -> None:
    daemon = require_daemon()
    if not daemon.is_installed():
        raise NanobotError("The gateway is not installed as a service. Run `nanobot gateway install` first.")
    daemon.start()
    print_line("Started.")


def stop() -> None:
    """Shut the gateway down cleanly: the service, or the one that runs in a terminal."""
    daemon = find_daemon()
    if daemon is not None and daemon.is_active():  # it would restart a gateway that ends by itself
        daemon.stop()
        print_line("Stopped.")
    else:
        require_gateway({"do": "stop gateway"})
        print_line("The gateway is shutting down.")


def restart() -> None:
    daemon = find_daemon()
    if daemon is not None and daemon.is_active():
        daemon.restart()
        print_line("Restarted.")
    else:
        require_gateway({"do": "restart gateway"})
        print_line("The gateway is restarting.")


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
) -> None:
    """Send a message and print the ids the platform gave it."""
    content = sys.stdin.buffer.read().decode("utf-8", "replace").rstrip("\r\n") if text == "-" else repair_output(text)
    if not content.strip() and not attach:
        raise UsageError("There is nothing to send. Give a text, or a file with --attach.")
    media = [str(file.expanduser().resolve()) for file in attach or ()]
    request = {"do": "send", "channel": channel.lower(), "to": to, "text": content, "thread": thread, "media": media}
    for platform_id in require_gateway(request)["ids"]:
        typer.echo(to_one_line(str(platform_id)))


def channels_status(json: JsonOption = False) -> None:
    """Show each enabled channel: its state, last messages received and sent, and last error."""
    report = ask_gateway({"do": "report"})
    channels = report["channels"] if report is not None else offline_status(read_setup(secrets=False).config)
    if json:
        print_json({"running": report is not None, "channels": channels})
        return
    columns: dict[str, Column] = {
        "Channel": "name",
        "State": "state",
        "Last received": when("lastReceived"),
        "Last sent": when("lastSent"),
        "Last error": lambda row: (row["lastError"] or "").removeprefix(f"{row['name']}: "),
    }
    rows = [{"name": name, "lastReceived": "", "lastSent": "", **row} for name, row in channels.items()]
    print_list(rows, columns, empty="No channel is enabled. Set one up with `nanobot channels login`.")
    if report is None and channels:
        print_line(NO_GATEWAY.format(data=get_data_paths().data), err=True)


def offline_status(config: "Config") -> dict[str, dict[str, Any]]:
    """The state of each enabled channel while no gateway is running: `failed` if it could not start, else `off`."""
    from nanobot.channels.errors import MissingSettingsError  # slow to import
    from nanobot.channels.platforms import find_platform
    from nanobot.channels.registry import check_channel
    from nanobot.config.keypath import camel

    states: dict[str, dict[str, Any]] = {}
    for name in config.channels.enabled:
        problem = ""
        try:
            check_channel(name, config.plugins.disabled)
            if (platform := find_platform(name)) is not None:
                missing = platform.missing_settings(config.channels.section(name))
                problem = str(MissingSettingsError(name, *map(camel, missing))) if missing else ""
        except NanobotError as error:
            problem = str(error)
        states[name] = {"state": "failed" if problem else "off", "lastError": problem}
    return states


def channels_test(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The channel, from `nanobot channels status`.")],
    to: Annotated[str | None, typer.Option("--to", metavar="ID", help="The chat; default: its owners.")] = None,
) -> None:
    """Send a test message through the running gateway and print the ids the platform gave it."""
    from nanobot.pairing.store import PairingStore

    places, name = get_data_paths(), name.lower()
    chats = [to] if to is not None else [*PairingStore(places).load().owners.get(name, ())]
    if not chats:
        raise NanobotError(f"{name} has no owner to write to. Give a chat with --to, or pair as its owner first.")
    text = "This is a test of nanobot. It works."
    request = {"do": "send", "channel": name, "text": text, "person": to is None}
    sent = {chat: require_gateway(request | {"to": chat})["ids"] for chat in chats}
    for chat, ids in sent.items():
        shown = ", ".join(to_one_line(str(sent_id)) for sent_id in ids)
        print_line(f"Sent to {name}:{to_one_line(chat)}{f' as {shown}' if shown else ''}.")


def web(
    no_open: Annotated[bool, typer.Option("--no-open", help="Only print the link.")] = False,
    qr: Annotated[bool, typer.Option("--qr", help="Show it as a QR code too, for a phone.")] = False,
) -> None:
    """Print a link that signs one browser in, valid for ten minutes, and open it."""
    url = str(require_gateway({"do": "web link"})["url"])
    typer.echo(url)
    if qr:
        from urllib.parse import urlsplit

        from nanobot.net.http import is_loopback
        from nanobot.utils.qr_code import qr_code

        typer.echo(qr_code(url))
        if is_loopback(urlsplit(url).hostname or ""):
            print_warning("Only this computer can open this address. For a phone, set gateway.web.publicUrl.")
    if not (no_open or qr):
        import webbrowser

        webbrowser.open(url)
