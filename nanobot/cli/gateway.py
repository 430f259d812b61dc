"""`nanobot gateway`: what lives for days, from its start to its end."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, WorkspaceOption, read_setup

HARD_END_S = 5.0
"""After so long it leaves whatever still holds it; all that counts is on the disk by then."""

AllowEmptyOption = Annotated[
    bool, typer.Option("--allow-empty", help="Run also where no channel works: for the terminal and jobs.")
]


def run(
    port: Annotated[
        int | None, typer.Option("-p", "--port", min=0, max=65535, help="Where health is served; the config's if none.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
    allow_empty: AllowEmptyOption = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Run the gateway here until it is told to stop."""
    import asyncio  # not for --help

    from nanobot.cli.signals import INTERRUPT, KILLS, exit_code_of, on_signals
    from nanobot.config.paths import Places
    from nanobot.gateway.service import Options, serve
    from nanobot.gateway.wishes import Leave, Wishes
    from nanobot.security.vault import cleaned
    from nanobot.utils.log import LogPlace, set_up_logging

    setup = read_setup(config, workspace, warns=False)  # the log has them
    level = "DEBUG" if verbose else "INFO"
    set_up_logging(LogPlace(Places(setup.data_dir).gateway_log, level, level), cleaned)

    async def until_told() -> Leave:
        wishes = Wishes()

        def signalled(number: int) -> None:
            if wishes.told:  # somebody is in a hurry
                os._exit(exit_code_of(number))
            wishes.stop()

        async def in_time() -> None:
            _end_in_time(_begin_anew if await wishes.wait() is Leave.RESTART else _leave_now)

        with on_signals([*INTERRUPT, *KILLS], signalled):
            watching = asyncio.create_task(in_time())
            try:
                return await serve(
                    setup.config,
                    data_dir=setup.data_dir,
                    workspace=setup.workspace,
                    options=Options(port, allow_empty),
                    wishes=wishes,
                )
            finally:
                watching.cancel()

    if asyncio.run(until_told()) is Leave.RESTART:
        _begin_anew()


def _end_in_time(end: Callable[[], None]) -> None:
    """See to it that the process leaves, also when something in it does not let go."""
    timer = threading.Timer(HARD_END_S, end)
    timer.daemon = True
    timer.start()


def _leave_now() -> None:
    os._exit(0)


def _begin_anew() -> None:
    """The same command in the same process, from its first line."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 it is ourselves
