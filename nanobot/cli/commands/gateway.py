"""`nanobot gateway`: run the gateway process, with its signals and its restart."""

import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot.cli.common import ConfigOption, Setup, WorkspaceOption, read_setup
from nanobot.cli.terminal import is_terminal, wants_colour
from nanobot.errors import ConfigError

HARD_EXIT_S = 5.0
"""The process is ended this long after a shutdown request; all durable state is on disk by then."""

AllowEmptyOption = Annotated[
    bool, typer.Option("--allow-empty", help="Run even if no channel works, for the page, the terminal and jobs.")
]


def run(
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", min=0, max=65535, help="Port of the HTTP server."),
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
    allow_empty: AllowEmptyOption = False,
    env_file: Annotated[Path | None, typer.Option("--env-file", hidden=True)] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Run the gateway: chat apps, reminders and jobs. Ctrl+C stops it."""
    if env_file is not None:
        _set_variables(env_file)
    setup = read_setup(config, workspace, warns=False)  # the gateway logs the warnings
    run_process(setup, verbose=verbose, port=port, allow_empty=allow_empty)


def run_process(setup: Setup, *, verbose: bool, **options: Any) -> None:
    """Run a gateway with these `Options` until a signal or a request stops it."""
    import asyncio  # slow; not needed for --help

    from nanobot.cli.chat.signals import INTERRUPT_SIGNALS, TERMINATION_SIGNALS, exit_code_for, handle_signals
    from nanobot.gateway.service import Options, serve
    from nanobot.gateway.shutdown import ExitReason, ShutdownRequests
    from nanobot.security.secrets import redact_all
    from nanobot.utils.log import LogTarget, set_up_logging

    level = "DEBUG" if verbose else "INFO"
    is_short = is_terminal(sys.stderr) and not verbose
    target = LogTarget(setup.paths.gateway_log, level, level, is_short, wants_colour(sys.stderr))
    set_up_logging(target, redact_all)

    async def run_gateway() -> ExitReason:
        requests = ShutdownRequests()

        def on_signal(number: int) -> None:
            if requests.is_requested:  # the second signal ends the process at once
                os._exit(exit_code_for(number))
            requests.stop()

        async def enforce_exit() -> None:
            """End the process HARD_EXIT_S after the request even if something in it hangs."""
            end = _restart if await requests.wait() is ExitReason.RESTART else partial(os._exit, 0)
            timer = threading.Timer(HARD_EXIT_S, end)
            timer.daemon = True
            timer.start()

        with handle_signals([*INTERRUPT_SIGNALS, *TERMINATION_SIGNALS], on_signal):
            enforcing = asyncio.create_task(enforce_exit())
            try:
                return await serve(
                    setup.config,
                    data_dir=setup.data_dir,
                    workspace=setup.workspace,
                    options=Options(**options),
                    shutdown=requests,
                )
            finally:
                enforcing.cancel()

    if asyncio.run(run_gateway()) is ExitReason.RESTART:
        _restart()


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
