"""`nanobot gateway`: what lives for days, from its start to its end."""

import sys
import threading
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
        int | None, typer.Option("-p", "--port", help="Where health is served; the config's if none.")
    ] = None,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log more.")] = False,
    allow_empty: AllowEmptyOption = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Run the gateway here until it is told to stop."""
    import asyncio  # not for --help

    from nanobot.cli.signals import INTERRUPT, KILLS, on_signals
    from nanobot.config.paths import Places
    from nanobot.gateway.service import Leave, Options, Wishes, serve
    from nanobot.utils.log import LogPlace, set_up_logging

    setup = read_setup(config, workspace)
    level = "DEBUG" if verbose else "INFO"
    set_up_logging(LogPlace(Places(setup.data_dir).gateway_log, level, level))
    leaving = _Leaving()

    async def until_told() -> Leave:
        wishes = Wishes()

        def signalled(number: int) -> None:
            leaving.begin()
            wishes.stop()

        with on_signals([*INTERRUPT, *KILLS], signalled):
            return await serve(
                setup.config,
                data_dir=setup.data_dir,
                workspace=setup.workspace,
                options=Options(port, allow_empty),
                wishes=wishes,
            )

    leave = asyncio.run(until_told())
    leaving.done()
    if leave is Leave.RESTART:
        _begin_anew()


class _Leaving:
    """Sees to it that the process is gone in time, also when something in it does not let go."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(HARD_END_S, _leave_now)
            self._timer.daemon = True
            self._timer.start()

    def done(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _leave_now() -> None:
    import os

    os._exit(0)


def _begin_anew() -> None:
    """The same command in the same process, from its first line."""
    import os

    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 it is ourselves
