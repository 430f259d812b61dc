"""The interactive chat: lines in from the prompt, turns out to the screen, one after the other.

The prompt is alive all the time. A line typed while a turn runs waits, visibly, until the turn comes to a boundary and
takes it along, or until it is the next. Esc or Ctrl+C stops what runs. Messages from elsewhere (the bus) appear above
the prompt.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from itertools import takewhile
from typing import Any

from nanobot import __version__
from nanobot.agent.answers import answer_in
from nanobot.agent.slash_commands import SlashCommands, parse_command
from nanobot.agent.turn import Answer, ApprovalAnswered, ApprovalAsked, TurnEvent
from nanobot.bus.events import InboundMessage
from nanobot.cli.asking import how_to_answer
from nanobot.cli.bot import Bot
from nanobot.cli.completion import ChatCompleter
from nanobot.cli.drawing import draws
from nanobot.cli.inbound import LEAVING, terminal_message
from nanobot.cli.mentions import mentioned_files
from nanobot.cli.meter import Meter
from nanobot.cli.prompt import Prompt, PromptActions
from nanobot.cli.screen import Screen
from nanobot.cli.shell_escape import MARK
from nanobot.cli.signals import KILLS, exit_code_of, on_signals
from nanobot.cli.stray import above_the_prompt
from nanobot.cli.surface import home_shortened
from nanobot.cli.terminal import Paint, mended, visible, wants_colour
from nanobot.config.paths import Places
from nanobot.errors import NanobotError

OFFLINE = "offline"
GOODBYE_S = 5.0
_SET_UP = "Set one up with `nanobot onboard`, or with a key in the environment, such as OPENAI_API_KEY."
_KEYS = (
    "Here: Alt+Enter begins a new line · @name sends a file along · $name names a skill · !command runs in the shell · "
    "Esc stops · Ctrl+R searches · Ctrl+D leaves"
)
_ECHO_LINES, _ECHO_CHARS = 12, 2000


async def chat(bot: Bot, session_key: str, places: Places, *, markdown: bool) -> int:
    """Chat until the person leaves; the exit code."""
    return await Chat(bot, session_key, places, markdown=markdown).run()


class Chat:
    """One sitting at the terminal."""

    def __init__(self, bot: Bot, session_key: str, places: Places, *, markdown: bool) -> None:
        self._bot = bot
        self._session_key = session_key
        self._meter = Meter()
        self._waiting: deque[str] = deque()
        self._wake = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._looking = False
        """Whether what runs only looks for a turn that was cut off: nobody sees that, so nobody means to stop it."""
        self._asked: ApprovalAsked | None = None
        """What the running turn waits for the person to answer."""
        self._asides: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        colour = wants_colour(sys.stdout)
        self._paint = Paint(colour)
        completer = ChatCompleter({**bot.commands(), "exit": "leave"}, bot.skills, bot.workspace)
        actions = PromptActions(
            self._take_line,
            self._stop,
            lambda: list(self._waiting),
            self._bottom_line,
            lambda: self._asked is not None,
        )
        self._prompt = Prompt(actions, completer, places.cli_history, colour=colour)
        self._draws = draws(markdown=markdown, colour=colour)
        self._screen = Screen(self._prompt, self._draws, self._paint)

    async def run(self) -> int:
        """Chat until somebody leaves; the exit code."""
        work = asyncio.create_task(self._work())
        beside = [work, asyncio.create_task(self._screen.keep_alive()), asyncio.create_task(self._listen())]
        try:
            with on_signals(KILLS, self._killed), above_the_prompt(self._screen.lines):
                await self._prompt.run()
        finally:
            self._waiting.clear()
            await self._stop_and_wait()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
        if not work.cancelled():
            work.result()
        return self._exit_code

    async def _work(self) -> None:
        """Take line after line; each ends before the next begins."""
        try:
            await self._greet()
            await self._begin(self._go_on())
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._waiting:
                    await self._begin(self._do(self._waiting.popleft()))
        except Exception:
            self._prompt.leave()  # a bug of ours must not leave a prompt that answers nothing
            raise

    async def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this where it can be stopped, to its end."""
        self._running = asyncio.create_task(work)
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()
        self._running = None
        self._prompt.refresh()

    async def _go_on(self) -> None:
        """Take up what was cut off when nanobot ended in the middle of a turn."""
        self._looking = True
        try:
            await self._shown(self._bot.resume(self._session_key, self._watch, attended=True))
        finally:
            self._looking = False

    async def _do(self, line: str) -> None:
        self._echo(line)
        await self._shown(self._run_shell(line) if line.lstrip().startswith(MARK) else self._run_turn(line))

    async def _shown(self, work: Awaitable[object]) -> None:
        self._screen.begin()
        try:
            await work
        except asyncio.CancelledError:
            self._screen.lines([self._paint.dim("(stopped)")])
            raise
        except NanobotError as error:  # the gateway left in the middle of it, or the disk refused
            self._screen.lines([self._paint.red(visible(str(error)))])
        finally:
            self._screen.finish()

    async def _run_turn(self, line: str) -> None:
        message = await asyncio.to_thread(self._message, line)
        await self._bot.run_turn(message, self._watch, waiting=self._joining, attended=True)
        command = parse_command(line)
        if command is not None:
            await self._after_command(command.name)

    def _joining(self, most: int) -> list[InboundMessage]:
        """Lines that wait and join the turn that runs; not a command or a shell line, nor what was typed behind it."""
        messages = self._may_join()[:most]
        for _ in messages:
            self._echo(self._waiting.popleft())
        return messages

    def _may_join(self) -> list[InboundMessage]:
        return [self._message(line) for line in takewhile(_is_for_the_model, self._waiting)]

    def _message(self, line: str) -> InboundMessage:
        return terminal_message(line, self._session_key, mentioned_files(line, self._bot.workspace))

    async def _run_shell(self, line: str) -> None:
        lines, went_well = await self._bot.shell(line, self._session_key)
        self._screen.lines(lines if went_well else [self._paint.red(line) for line in lines])

    async def _after_command(self, name: str) -> None:
        """What a command means here: other figures in the bottom line; the keys, beside the commands."""
        if name in ("new", "clear", "reset"):
            self._meter.forget_window()
        if name == "help":
            words = self._draws.plain.lines(_KEYS, self._prompt.columns)
            self._screen.lines(["", *[self._paint.dim(line) for line in words]])
        with suppress(NanobotError):
            await self._look_at_model()

    async def _look_at_model(self) -> tuple[str, str]:
        """The session's model for the bottom line; its provider, and why it was chosen."""
        model = await self._bot.model(self._session_key)
        self._meter.model = model.name
        self._meter.window_tokens = model.window_tokens
        return model.provider, model.reason

    async def _greet(self) -> None:
        name = visible(self._bot.name)
        place = f"{home_shortened(self._bot.workspace)} · /help for commands · Ctrl+D leaves"
        where = [self._paint.dim(line) for line in self._draws.plain.lines(place, self._prompt.columns)]
        try:
            provider, reason = await self._look_at_model()
        except NanobotError as error:
            self._screen.lines([f"{self._paint.bold(name)} {__version__}", *where])
            self._screen.lines([self._paint.red(visible(str(error)))])
            return
        who = f"{self._meter.model} from {provider}" + (f" ({reason})" if reason else "")
        if provider == OFFLINE:
            who = f"no model is set up, so only simple requests work\n{_SET_UP}"
        words = self._draws.plain.lines(f"{name} {__version__} · {who}", self._prompt.columns)
        words[0] = self._paint.bold(words[0][: len(name)]) + words[0][len(name) :]
        self._screen.lines([*words, *where])

    async def _listen(self) -> None:
        """Show what comes for this chat beside its turns."""
        async for text in self._bot.messages(self._session_key):
            self._screen.note("(message)", text, ours=False)

    def _take_line(self, line: str) -> None:
        line = mended(line)
        words = line.strip().lower()
        command = parse_command(line)
        if not words:
            return
        if words in LEAVING:
            self._prompt.leave()
        elif self._asked is not None and (answer := answer_in(words)) is not None:
            self._bot.answer(self._asked.question, answer)
        elif self._running is not None and command is not None and command.name == "stop":
            self._asked = None  # it ends with its turn
            self._stop()
        elif self._running is not None and command is not None and command.name in SlashCommands.AT_ONCE:
            aside = asyncio.create_task(self._answer_aside(line))
            self._asides.add(aside)
            aside.add_done_callback(self._asides.discard)
        else:
            self._waiting.append(line)
            self._wake.set()
            self._bot.lines_wait(self._may_join())

    async def _answer_aside(self, line: str) -> None:
        """A command that acts at once, while a turn runs."""
        result = await self._bot.run_turn(terminal_message(line, self._session_key))
        self._screen.note(f"> {line.strip()}", result.text, ours=True)

    def _stop(self) -> bool:
        """Say no to what is asked; else stop what runs. What was queued goes back to the prompt, for the person to
        decide.
        """
        if self._running is None or self._looking:
            return False
        if self._asked is not None:
            self._bot.answer(self._asked.question, Answer.NO)
            return True
        if self._waiting:
            self._prompt.put_back("\n".join(self._waiting))
            self._waiting.clear()
            self._bot.lines_wait(())
        stopping = asyncio.create_task(self._stop_running(self._running))
        self._asides.add(stopping)
        stopping.add_done_callback(self._asides.discard)
        return True

    async def _stop_running(self, running: asyncio.Task[None]) -> None:
        """A turn is stopped by its loop, so that it keeps what was said; what is no turn (yet) is cancelled."""
        if not await self._bot.stop_turn(self._session_key):
            running.cancel()

    async def _stop_and_wait(self) -> None:
        running = self._running
        if running is not None:
            await self._stop_running(running)
            await asyncio.wait([running], timeout=GOODBYE_S)

    def _killed(self, number: int) -> None:
        self._exit_code = exit_code_of(number)
        self._prompt.leave()

    def _watch(self, event: TurnEvent) -> None:
        self._looking = False
        self._meter(event)
        self._screen(event)
        if isinstance(event, ApprovalAsked | ApprovalAnswered):
            self._asked = event if isinstance(event, ApprovalAsked) else None
            self._prompt.refresh()

    def _echo(self, line: str) -> None:
        """What was sent, above what comes of it."""
        lines = visible(line).expandtabs(4).split("\n")
        shown = [text[:_ECHO_CHARS] for text in lines[:_ECHO_LINES]]
        if len(lines) > _ECHO_LINES:
            shown.append(f"… {len(lines) - _ECHO_LINES} more lines")
        marked = [("> " if index == 0 else "  ") + text for index, text in enumerate(shown)]
        self._screen.lines(["", *[self._paint.bold(text) for text in marked], ""])

    def _bottom_line(self) -> str:
        if self._asked is not None:
            answers = how_to_answer(self._asked, self._prompt.columns)
            whole = f"{answers}, then Enter (Esc: no)"
            return whole if len(whole) <= self._prompt.columns else answers
        line = self._meter.line()
        return f"{line} · Esc stops" if self._running is not None else line


def _is_for_the_model(line: str) -> bool:
    return parse_command(line) is None and not line.lstrip().startswith(MARK)
