"""Turns without a prompt: one message and one answer, or a plain chat of a line in, an answer out.

Imports Rich only on a terminal that can redraw, and prompt-toolkit never, for a fast start.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from nanobot.agent.events import ToolEnded, ToolStarted, TurnEvent, TurnOutcome, TurnResult, parse_answer
from nanobot.cli.chat.keyboard import (
    EXIT_WORDS,
    INTERRUPT_SIGNALS,
    TERMINATION_SIGNALS,
    answering_questions,
    exit_code_for,
    find_mentioned_files,
    handle_signals,
    is_interactive,
    next_line,
)
from nanobot.cli.chat.turn_output import FAILURES, JsonLinesOutput, PlainOutput
from nanobot.cli.output import Paint, SafeStream, can_redraw, repair_output, strip_control, write_text
from nanobot.errors import StorageError
from nanobot.gateway.control.backend import ChatBackend, choose_session, show_messages, terminal_message

T = TypeVar("T")

_JOB_ACTIONS = ("add", "enable", "run")


class Output(Protocol):
    """Shows one turn on stdout."""

    def __call__(self, event: TurnEvent) -> None:
        """Show an event."""

    def show(self, text: str) -> None:
        """Show a message the agent sent with its tool."""


async def ask(
    bot: ChatBackend, text: str, session_key: str, *, media: Sequence[str] = (), as_json: bool, markdown: bool
) -> int:
    """Run one turn and print it; return the exit code."""
    async with _open_output(as_json=as_json, markdown=markdown) as (output, stdout):
        turn = _OneShot(bot, session_key, output, stdout)
        with handle_signals([*INTERRUPT_SIGNALS, *TERMINATION_SIGNALS], turn.on_signal):
            code = await turn.run(turn.ask(text, media))
        return exit_code_for(turn.signal) if turn.signal is not None else code or 0


async def plain_chat(bot: ChatBackend, session_key: str) -> None:
    """Answer line after line until the user exits. Ctrl+C stops a turn or exits.

    While it waits for a line, it prints messages for the chat, and the terminal's jobs run when due.
    """
    line: str | None = None  # at first, an interrupted turn is resumed
    while True:
        output = PlainOutput(sys.stdout, sys.stderr)
        turn = _Turn(bot, session_key, output, output.stream)
        with handle_signals(INTERRUPT_SIGNALS, turn.on_signal):
            await turn.run(turn.resume() if line is None else turn.answer(line))
        if output.stream.closed or (line := await _prompt_line(bot, session_key)) is None:
            return
        session_key, line = await choose_session(bot, session_key, line)


async def _prompt_line(bot: ChatBackend, session_key: str) -> str | None:
    """The next line typed; None to exit. Prints messages that arrive meanwhile."""

    def show(text: str) -> None:
        write_text(sys.stdout, f"\n{repair_output(strip_control(text))}\n")
        write_text(sys.stderr, "> ")

    line = "\n"
    while line and not line.strip():
        write_text(sys.stderr, "> ")
        reading = asyncio.create_task(next_line())
        async with show_messages(bot, session_key, show):
            with handle_signals(INTERRUPT_SIGNALS, lambda _number, task=reading: task.cancel()):  # type: ignore[misc]
                await asyncio.wait([reading])
        line = "" if reading.cancelled() else reading.result()
    return None if not line or line.strip().lower() in EXIT_WORDS else repair_output(line.rstrip("\r\n"))


class _Turn:
    """A turn that a signal or a closed stdout stops; the text so far is kept in the session. A second signal ends it at
    once.
    """

    def __init__(self, bot: ChatBackend, session_key: str, output: Output, stdout: SafeStream) -> None:
        self._bot = bot
        self._session_key = session_key
        self._output = output
        self._stdout = stdout
        self._task: asyncio.Task[Any] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self.signal: int | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Run this to its end; None if it was cancelled. Raises StorageError if stdout cannot be written."""
        self._task = task = asyncio.create_task(work)
        await asyncio.wait([task])
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        if self.signal is None and self._stdout.problem:
            raise StorageError(f"{self._stdout.problem}. The answer is stored in the session.")
        return None if task.cancelled() else task.result()

    async def resume(self) -> None:
        """Resume the turn that was interrupted by the end of a process."""
        async with answering_questions(self._bot, self._on_event) as sink:
            await self._bot.resume(self._session_key, sink, attended=is_interactive())

    async def answer(self, text: str, media: Sequence[str] | None = None) -> TurnResult:
        """Run the turn of a message. Without `media`, files that it mentions go with it."""
        if media is None:
            media = await asyncio.to_thread(find_mentioned_files, text, self._bot.workspace)
        message = terminal_message(text, self._session_key, media)
        async with answering_questions(self._bot, self._on_event) as sink:
            return await self._bot.run_turn(message, sink, show=self._output.show, attended=is_interactive())

    def on_signal(self, number: int) -> None:
        if self.signal is not None and self._task is not None:
            self._task.cancel()
        self.signal = number
        self._stop()

    def _on_event(self, event: TurnEvent) -> None:
        self._output(event)
        if self._stdout.closed:
            self._stop()

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_turn())

    async def _stop_turn(self) -> None:
        if not await self._bot.stop_turn(self._session_key) and self._task is not None:
            self._task.cancel()  # not started yet: it is waiting for its session


class _OneShot(_Turn):
    """The only turn of its process, which also waits for the work that the turn leaves behind."""

    def __init__(self, bot: ChatBackend, session_key: str, output: Output, stdout: SafeStream) -> None:
        super().__init__(bot, session_key, output, stdout)
        self._stderr = SafeStream(sys.stderr)
        self._job_call_ids: set[str] = set()
        self._created_job = self._in_background = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, text: str, media: Sequence[str]) -> int:
        result = await self.answer(text, media)
        if self._created_job and (note := await self._bot.jobs_problem()) and note not in result.text:
            self._stderr.write(f"Note: {note}\n")  # whatever the model said, no process runs the job
        if result.outcome is not TurnOutcome.STOPPED:
            await self._bot.wait_for_background(self._session_key, self._on_background_start, self._show)
        await self._bot.wait_for_consolidation(self._stderr.write)
        return 1 if result.outcome in FAILURES else 0

    def _on_event(self, event: TurnEvent) -> None:
        super()._on_event(event)
        if isinstance(event, ToolStarted) and event.name == "cron" and event.arguments.get("action") in _JOB_ACTIONS:
            self._job_call_ids.add(event.call_id)
        self._created_job |= isinstance(event, ToolEnded) and event.ok and event.call_id in self._job_call_ids

    def _on_background_start(self, running: Sequence[str]) -> None:
        """Print what is still running; answers and commands typed meanwhile are handled."""
        self._in_background = True
        self._stderr.write(f"Waiting for {' and '.join(running)} (Ctrl+C stops)\n")
        if is_interactive():
            self._start(self._read_lines())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _read_lines(self) -> None:
        from nanobot.agent.command import parse_command  # slow to import

        while line := await next_line():
            if parse_answer(line) is not None or parse_command(line) is not None:
                self._start(self._send_line(line))

    def _show(self, text: str) -> None:
        self._output.show(text)
        if self._stdout.closed:
            self._stop()

    async def _send_line(self, line: str) -> None:
        """Run a command or an approval answer, and print the result."""
        result = await self._bot.run_turn(terminal_message(line, self._session_key))
        self._stderr.write(f"{result.text}\n")

    async def _stop_turn(self) -> None:
        if self._in_background:
            await self._send_line("/stop")
        await super()._stop_turn()


@asynccontextmanager
async def _open_output(*, as_json: bool, markdown: bool) -> AsyncIterator[tuple[Output, SafeStream]]:
    """JSON lines, plain text for a pipe, or a screen; and its stdout."""
    if as_json or not can_redraw(sys.stdout):
        output = (JsonLinesOutput if as_json else PlainOutput)(sys.stdout, sys.stderr)
        yield output, output.stream
        return
    from nanobot.cli.chat.screen import Screen, TerminalSurface  # slow to import

    surface, paint = TerminalSurface(sys.stdout), Paint.on(sys.stdout)
    screen = Screen(surface, paint, markdown=markdown, stderr=SafeStream(sys.stderr))
    screen.begin()
    refresh = asyncio.create_task(screen.keep_alive())
    try:
        yield screen, surface.stream
    finally:
        refresh.cancel()
        await asyncio.gather(refresh, return_exceptions=True)
        screen.finish()
