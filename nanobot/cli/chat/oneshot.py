"""One message, one answer, then exit. Imports Rich only on a terminal and prompt-toolkit never, for a fast start."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from nanobot.agent.events import ToolEnded, ToolStarted, TurnEvent, TurnOutcome, parse_answer
from nanobot.cli.chat.event_lines import FAILURES
from nanobot.cli.chat.plain import JsonLinesOutput, PlainOutput
from nanobot.cli.chat.signals import INTERRUPT_SIGNALS, TERMINATION_SIGNALS, exit_code_for, handle_signals
from nanobot.cli.chat.typed_lines import is_interactive, read_lines, with_approvals
from nanobot.cli.terminal import Paint, SafeStream, can_redraw, wants_colour
from nanobot.errors import StorageError
from nanobot.gateway.control.backend import ChatBackend, terminal_message

_JOB_ACTIONS = ("add", "enable", "run")


class OneShotOutput(Protocol):
    """Shows one turn on stdout."""

    def __call__(self, event: TurnEvent) -> None:
        """Show an event."""

    def show(self, text: str) -> None:
        """Show a message the agent sent with its tool."""


async def ask(
    bot: ChatBackend, text: str, session_key: str, *, media: Sequence[str] = (), as_json: bool, markdown: bool
) -> int:
    """Run one turn and print it; return the exit code.

    A signal or a closed stdout stops the turn; the text so far is kept in the session. A second signal exits at once.
    """
    async with _open_output(as_json=as_json, markdown=markdown) as (output, stdout):
        turn = _OneTurn(bot, session_key, output, stdout)
        with handle_signals([*INTERRUPT_SIGNALS, *TERMINATION_SIGNALS], turn.on_signal):
            return await turn.run(text, media)


class _OneTurn:
    """The running turn and its early end."""

    def __init__(self, bot: ChatBackend, session_key: str, output: OneShotOutput, stdout: SafeStream) -> None:
        self._bot = bot
        self._session_key = session_key
        self._output = output
        self._stdout = stdout
        self._stderr = SafeStream(sys.stderr)
        self._turn: asyncio.Task[int] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._signal: int | None = None
        self._job_call_ids: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._created_job = False
        self._in_background = False
        """Whether the turn has ended and only background work is waited for."""

    async def run(self, text: str, media: Sequence[str]) -> int:
        self._turn = asyncio.create_task(self._ask(text, media))
        await asyncio.wait([self._turn])
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        if self._signal is not None:
            return exit_code_for(self._signal)
        if self._stdout.problem:
            raise StorageError(f"{self._stdout.problem}. The answer is stored in the session.")
        return 0 if self._turn.cancelled() else self._turn.result()

    def on_signal(self, number: int) -> None:
        if self._signal is not None and self._turn is not None:
            self._turn.cancel()
        self._signal = number
        self._stop()

    async def _ask(self, text: str, media: Sequence[str]) -> int:
        message = terminal_message(text, self._session_key, media)
        sink = with_approvals(self._bot, self._on_event)
        result = await self._bot.run_turn(message, sink, show=self._output.show, attended=is_interactive())
        if self._created_job and (note := await self._bot.jobs_problem()) and note not in result.text:
            self._stderr.write(f"Note: {note}\n")  # whatever the model said, no process runs the job
        if result.outcome is not TurnOutcome.STOPPED:
            await self._bot.wait_for_background(self._session_key, self._on_background_start, self._show)
        await self._bot.wait_for_consolidation(self._stderr.write)
        return 1 if result.outcome in FAILURES else 0

    def _on_background_start(self, running: Sequence[str]) -> None:
        """Print what is still running; answers and commands typed meanwhile are handled."""
        self._in_background = True
        self._stderr.write(f"Waiting for {' and '.join(running)} (Ctrl+C stops)\n")
        if is_interactive():
            read_lines(self._on_line)

    def _show(self, text: str) -> None:
        self._output.show(text)
        if self._stdout.closed:
            self._stop()

    def _on_line(self, line: str) -> None:
        from nanobot.agent.command import parse_command  # slow to import

        if parse_answer(line) is not None or parse_command(line) is not None:
            self._tasks.add(task := asyncio.create_task(self._send_line(line)))
            task.add_done_callback(self._tasks.discard)

    async def _send_line(self, line: str) -> None:
        """Run a command or an approval answer, and print the result."""
        result = await self._bot.run_turn(terminal_message(line, self._session_key))
        self._stderr.write(f"{result.text}\n")

    def _on_event(self, event: TurnEvent) -> None:
        self._output(event)
        if isinstance(event, ToolStarted) and event.name == "cron" and event.arguments.get("action") in _JOB_ACTIONS:
            self._job_call_ids.add(event.call_id)
        if isinstance(event, ToolEnded) and event.call_id in self._job_call_ids and event.ok:
            self._created_job = True
        if self._stdout.closed:
            self._stop()

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_turn())

    async def _stop_turn(self) -> None:
        if self._in_background:
            await self._send_line("/stop")
        if not await self._bot.stop_turn(self._session_key) and self._turn is not None:
            self._turn.cancel()  # not started yet: it is waiting for its session


@asynccontextmanager
async def _open_output(*, as_json: bool, markdown: bool) -> AsyncIterator[tuple[OneShotOutput, SafeStream]]:
    """JSON lines, plain text for a pipe, or a screen; and its stdout."""
    if as_json or not can_redraw(sys.stdout):
        output = (JsonLinesOutput if as_json else PlainOutput)(sys.stdout, sys.stderr)
        yield output, output.stream
        return
    from nanobot.cli.chat.screen import Screen, TerminalSurface  # slow to import

    surface, paint = TerminalSurface(sys.stdout), Paint(wants_colour(sys.stdout))
    screen = Screen(surface, paint, markdown=markdown, stderr=SafeStream(sys.stderr))
    screen.begin()
    refresh = asyncio.create_task(screen.keep_alive())
    try:
        yield screen, surface.stream
    finally:
        refresh.cancel()
        await asyncio.gather(refresh, return_exceptions=True)
        screen.finish()
