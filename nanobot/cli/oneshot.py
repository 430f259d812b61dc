"""One message, one answer and out. Imports only what the answer needs: Rich on a screen, never the line editor."""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from nanobot.agent.turn import ToolEnded, ToolStarted, TurnEvent, TurnOutcome
from nanobot.cli.asking import Asking, hear_lines, somebody_is_there
from nanobot.cli.bot import Bot
from nanobot.cli.closing import FAILURES, failure_line
from nanobot.cli.inbound import terminal_message
from nanobot.cli.outlet import Outlet
from nanobot.cli.signals import INTERRUPT, KILLS, exit_code_of, on_signals
from nanobot.cli.terminal import Paint, can_redraw, wants_colour
from nanobot.errors import StorageError

if TYPE_CHECKING:
    from nanobot.cli.screen import Screen

_MAKES_A_JOB = ("add", "enable", "run")


class Face(Protocol):
    """A sink that shows one turn to somebody."""

    @property
    def outlet(self) -> Outlet:
        """Where the answer goes."""
        ...

    def __call__(self, event: TurnEvent) -> None:
        """Show what happened."""
        ...

    def show(self, text: str) -> None:
        """Show what the agent sent to this chat beside its answer."""
        ...


async def ask(
    bot: Bot, text: str, session_key: str, *, media: Sequence[str] = (), as_json: bool, markdown: bool
) -> int:
    """Run one turn and show it on stdout; the exit code.

    A signal stops the turn, and what was said is kept; a second one leaves at once. A reader who leaves stops it too.
    """
    async with _face(as_json=as_json, markdown=markdown) as face:
        one = _OneTurn(bot, session_key, face)
        with on_signals([*INTERRUPT, *KILLS], one.signalled):
            return await one.run(text, media)


class _OneTurn:
    """The turn while it runs, and how to end it early."""

    def __init__(self, bot: Bot, session_key: str, face: Face) -> None:
        self._bot = bot
        self._session_key = session_key
        self._face = face
        self._turn: asyncio.Task[int] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._signal: int | None = None
        self._asking = Asking(bot.answer) if somebody_is_there() else None
        self._calls_for_a_job: set[str] = set()
        self._asides: set[asyncio.Task[None]] = set()
        self._has_made_a_job = False
        self._waits = False
        """Whether the answer is there, and only what goes on in the background is waited for."""

    async def run(self, text: str, media: Sequence[str]) -> int:
        self._turn = asyncio.create_task(self._ask(text, media))
        await asyncio.wait([self._turn])
        if self._stopping is not None:
            await asyncio.wait([self._stopping])
        if self._signal is not None:
            return exit_code_of(self._signal)
        if self._face.outlet.problem:
            raise StorageError(f"{self._face.outlet.problem}. The answer is kept in its session.")
        return 0 if self._turn.cancelled() else self._turn.result()

    def signalled(self, number: int) -> None:
        if self._signal is not None and self._turn is not None:
            self._turn.cancel()
        self._signal = number
        self._stop()

    async def _ask(self, text: str, media: Sequence[str]) -> int:
        message = terminal_message(text, self._session_key, media)
        attended = self._asking is not None
        result = await self._bot.run_turn(message, self._watch, show=self._face.show, attended=attended)
        if self._has_made_a_job and (remark := await self._bot.jobs_wait()):
            Outlet(sys.stderr).write(f"Note: {remark}\n")  # whatever the model said: it will not ring by itself
        if result.outcome is not TurnOutcome.STOPPED:
            await self._bot.background_ends(self._session_key, self._begins_to_wait, self._show)
        if self._bot.is_tidying:
            Outlet(sys.stderr).write("Note: old messages are being moved into memory; Ctrl+C puts that off.\n")
            await self._bot.tidied()
        return 1 if result.outcome in FAILURES else 0

    def _begins_to_wait(self, at_work: Sequence[str]) -> None:
        """Say what goes on. What it asks is answered with what is typed."""
        self._waits = True
        Outlet(sys.stderr).write(f"Waiting for {' and '.join(at_work)} (Ctrl+C stops)\n")
        if somebody_is_there():
            hear_lines(self._typed)

    def _show(self, text: str) -> None:
        self._face.show(text)
        if self._face.outlet.closed:
            self._stop()

    def _typed(self, line: str) -> None:
        from nanobot.agent.answers import answer_in  # only who waits and types
        from nanobot.agent.slash_commands import parse_command

        if self._waits and (answer_in(line) is not None or parse_command(line) is not None):
            self._asides.add(aside := asyncio.create_task(self._tell(line)))
            aside.add_done_callback(self._asides.discard)

    async def _tell(self, line: str) -> None:
        """Say a word to nanobot, and what it answers to the person."""
        result = await self._bot.run_turn(terminal_message(line, self._session_key))
        Outlet(sys.stderr).write(f"{result.text}\n")

    def _watch(self, event: TurnEvent) -> None:
        self._face(event)
        if self._asking is not None:
            self._asking(event)
        if isinstance(event, ToolStarted) and event.name == "cron" and event.arguments.get("action") in _MAKES_A_JOB:
            self._calls_for_a_job.add(event.call_id)
        if isinstance(event, ToolEnded) and event.call_id in self._calls_for_a_job and event.ok:
            self._has_made_a_job = True
        if self._face.outlet.closed:
            self._stop()

    def _stop(self) -> None:
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop_turn())

    async def _stop_turn(self) -> None:
        if self._waits:
            await self._tell("/stop")
        if not await self._bot.stop_turn(self._session_key) and self._turn is not None:
            self._turn.cancel()  # it has not begun: it waits for its session


@asynccontextmanager
async def _face(*, as_json: bool, markdown: bool) -> AsyncIterator[Face]:
    """What suits whoever reads stdout: a program, a pipe or a person."""
    if as_json:
        from nanobot.cli.jsonl import JsonLines  # one of three faces; the others are not needed

        yield JsonLines(sys.stdout, sys.stderr)
    elif not can_redraw(sys.stdout):
        from nanobot.cli.plain import PlainAnswer

        yield PlainAnswer(sys.stdout, sys.stderr)
    else:
        async with _screen(markdown=markdown) as face:
            yield face


@asynccontextmanager
async def _screen(*, markdown: bool) -> AsyncIterator[Face]:
    from nanobot.cli.drawing import draws  # only where somebody looks
    from nanobot.cli.screen import Screen
    from nanobot.cli.surface import DirectSurface

    colour = wants_colour(sys.stdout)
    surface = DirectSurface(sys.stdout)
    screen = Screen(surface, draws(markdown=markdown, colour=colour), Paint(colour), tells_failure=False)
    screen.begin()
    alive = asyncio.create_task(screen.keep_alive())
    try:
        yield _Watched(screen, surface.outlet)
    finally:
        alive.cancel()
        await asyncio.gather(alive, return_exceptions=True)
        screen.finish()


class _Watched:
    """A screen as a face; a failure is told on stderr, wherever that goes."""

    def __init__(self, screen: "Screen", outlet: Outlet) -> None:
        self._screen = screen
        self.outlet = outlet

    def show(self, text: str) -> None:
        """A message beside the answer."""
        self._screen.note("(message)", text, ours=False)

    def __call__(self, event: TurnEvent) -> None:
        self._screen(event)
        if failure := failure_line(event):
            Outlet(sys.stderr).write(f"{failure}\n")
