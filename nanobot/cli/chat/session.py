"""The interactive chat: lines from the prompt, one turn after the other on the screen.

A line typed during a turn is queued visibly; the turn merges it at its next tool boundary, or it becomes the next turn.
Esc or Ctrl+C stops the turn. Other messages appear above the prompt.
"""

import asyncio
import sys
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from prompt_toolkit.patch_stdout import patch_stdout

from nanobot import __version__
from nanobot.agent.command import parse_command
from nanobot.agent.commands.table import SlashCommands
from nanobot.agent.events import Answer, ApprovalAnswered, ApprovalAsked, RunStarted, StepEnded, TurnEvent, parse_answer
from nanobot.bus.events import InboundMessage
from nanobot.cli.chat.completion import ChatCompleter
from nanobot.cli.chat.keyboard import (
    EXIT_WORDS,
    SHELL_PREFIX,
    TERMINATION_SIGNALS,
    exit_code_for,
    find_mentioned_files,
    format_choices,
    handle_signals,
    terminal_command,
)
from nanobot.cli.chat.prompt import Prompt
from nanobot.cli.chat.screen import Screen
from nanobot.cli.chat.turn_output import output_lines
from nanobot.cli.output import Paint, repair_output, strip_control, wants_colour
from nanobot.errors import NanobotError
from nanobot.gateway.control.backend import ChatBackend, SessionInfo, choose_session, current_folder, terminal_message
from nanobot.gateway.control.client import GATEWAY_BACK
from nanobot.net.gateway_socket import GatewayGoneError
from nanobot.usage.types import format_dollars, format_tokens
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun, duration

OFFLINE = "offline"
STOP_TIMEOUT_S = 5.0
_SETUP_HINT = "Set one up with `nanobot onboard`, or with a key in the environment, such as OPENAI_API_KEY."
_KEY_HELP = """
Keys
  Alt+Enter          start a new line
  Up, Ctrl+R         earlier lines, search them
  @name, $name       attach a file, use a skill
  !command           run a command in the sandbox
  !!command          run it on the terminal itself
  Esc                stop
  Ctrl+O             the last tool's whole output
  Ctrl+T             show or hide reasoning
  Ctrl+L             clear the screen
  /quit, Ctrl+D      leave the chat"""
_WITHOUT_GATEWAY = (
    "The gateway has ended. This chat continues without it, and messages to other channels are not sent. The next chat "
    "uses the gateway again if it runs."
)
_SEPARATOR = " · "
_ECHO_LINES, _ECHO_CHARS = 12, 2000


class ChatSession:
    def __init__(
        self,
        bot: ChatBackend,
        session_key: str,
        history_file: Path,
        *,
        markdown: bool,
        open_local: Callable[[], AbstractAsyncContextManager[tuple[ChatBackend, str]]] | None = None,
    ) -> None:
        """`open_local` opens a bot in this process, for the case that `bot` is a gateway's and the gateway ends."""
        self._bot = bot
        self._open_local = open_local
        self._local: asyncio.Task[None] | None = None
        """Runs the bot of this process once the gateway has ended."""
        self._switched = asyncio.Event()
        """Set when that bot is used or could not be opened."""
        self._session_key = session_key
        self._meter = UsageMeter()
        self.waiting: deque[str] = deque()
        self._line_waiting = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._is_resuming = False
        """Whether only an interrupted turn is being looked for, which the user cannot see and does not mean to stop."""
        self._must_resume = True
        """Whether a turn may have been interrupted: at the start, and when a gateway is back."""
        self.question: ApprovalAsked | None = None
        """The approval question that the running turn waits for."""
        self._is_unclear = False
        """Whether a line was typed that does not answer it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._exit_code = 0
        colour = wants_colour(sys.stdout)
        self._paint = Paint(colour)
        self._last_answer = ""
        """What `/copy` copies."""
        folders = (Path(current_folder()), bot.workspace)
        self._completer = ChatCompleter({**bot.commands(), "quit": "leave the chat"}, bot.skills, folders)
        self._prompt = Prompt(self, self._completer, history_file, colour=colour)
        self.screen = Screen(self._prompt, self._paint, markdown=markdown, expand_key="Ctrl+O")

    async def run(self) -> int:
        """Chat until the user exits; return the exit code."""
        work = asyncio.create_task(self._work())
        tasks = [work, asyncio.create_task(self.screen.keep_alive())]
        self._listener = asyncio.create_task(self._show_messages())
        try:
            with handle_signals(TERMINATION_SIGNALS, self._on_signal), patch_stdout():
                await self._prompt.run()
        finally:
            self.waiting.clear()
            if (running := self._running) is not None:
                await self._stop_running(running)
                await asyncio.wait([running], timeout=STOP_TIMEOUT_S)
            for task in (*tasks, self._listener):
                task.cancel()
            await asyncio.wait((*tasks, self._listener))
            if self._local is not None:
                self._local.cancel()
                await asyncio.wait([self._local])
        if not work.cancelled():
            work.result()
        return self._exit_code

    async def _work(self) -> None:
        """Handle line after line, one at a time."""
        try:
            await self._greet()
            while True:
                if self._must_resume:
                    self._must_resume, self._is_resuming = False, True
                    await self._run(lambda: self._bot.resume(self._session_key, self._on_event, attended=True))
                    self._is_resuming = False
                while self.waiting:
                    line = self.waiting.popleft()
                    self._echo(line)
                    run, doing = (self._run_shell, "running") if _is_shell_line(line) else (self._run_turn, "thinking")
                    await self._run(partial(run, line), doing)
                await self._line_waiting.wait()
                self._line_waiting.clear()
        except Exception:
            self._prompt.leave()  # a crash must not leave a dead prompt
            raise

    async def _run(self, work: Callable[[], Awaitable[object]], waiting_for: str = "thinking") -> None:
        """Run this as the task that Esc stops, to its end, on the screen."""
        self._running = asyncio.create_task(self._show_work(work, waiting_for))
        await asyncio.wait([self._running])
        if not self._running.cancelled():
            self._running.result()
        self._running = None
        self._prompt.refresh()

    async def _show_work(self, work: Callable[[], Awaitable[object]], waiting_for: str) -> None:
        self.screen.begin(waiting_for)
        try:
            try:
                await work()
            except GatewayGoneError:
                await self._continue_without_gateway()
                await work()
        except asyncio.CancelledError:
            self.screen.say("(stopped)")
            raise
        except (NanobotError, OSError) as error:  # the gateway ended, the disk is not writable, the folder is gone
            self._show_error(error_text(error))
        finally:
            self.screen.finish()

    async def _run_turn(self, line: str) -> None:
        command = parse_command(line)
        name = command.name if command is not None else ""
        if name == "copy":
            if self._last_answer:
                self._prompt.copy(self._last_answer)
            copied = f"Copied the last answer ({count_noun(len(self._last_answer), 'character')})."
            self.screen.say(copied if self._last_answer else "There is no answer to copy yet.")
            return
        if name == "resume":
            line = await self._change_session(line)
        message = await asyncio.to_thread(self._message, line)
        result = await self._bot.run_turn(message, self._on_event, waiting=self._take_waiting, attended=True)
        if name in ("", "retry") and result.error is None:
            self._last_answer = result.text or self._last_answer
        if name in ("sessions", "resume"):
            listed = enumerate(await self._bot.conversations(self._session_key), 1)
            self._completer.conversations = {n: item for n, item in listed if item.name != self._session_key}
            if command is not None and not (name == "resume" and command.argument):
                self._prompt.suggest("/resume ")
        if name == "help":
            self.screen.lines(_KEY_HELP.split("\n"))
        with suppress(NanobotError):
            await self._update_model()

    async def _change_session(self, line: str) -> str:
        """Change to the session that `/resume` reopens. Return the line to run there."""
        key, line = await choose_session(self._bot, self._session_key, line)
        if key != self._session_key:
            self._session_key = key
            self._listener.cancel()
            self._listener = asyncio.create_task(self._show_messages())
            await self._bot.resume(key, self._on_event, attended=True)
            self.screen.begin()
        return line

    def _take_waiting(self, limit: int) -> list[InboundMessage]:
        messages = self._mergeable_messages()[:limit]
        for _ in messages:
            self._echo(self.waiting.popleft())
        return messages

    def _mergeable_messages(self) -> list[InboundMessage]:
        """The waiting lines up to the first command or shell line."""
        lines = takewhile(lambda line: not (parse_command(line) or _is_shell_line(line)), self.waiting)
        return [self._message(line) for line in lines]

    def _message(self, line: str) -> InboundMessage:
        return terminal_message(line, self._session_key, find_mentioned_files(line, self._bot.workspace))

    async def _run_shell(self, line: str) -> None:
        if command := terminal_command(line):
            if refusal := await self._bot.check_for_terminal(command, current_folder()):
                self._show_error(refusal)
            elif code := await self._prompt.run_on_terminal(command):
                self._show_error(f"Exit code: {code}")
        elif command := line.strip().lstrip(SHELL_PREFIX).strip():
            text, succeeded = await self._bot.shell(command, self._session_key, current_folder())
            if succeeded:
                self.screen.lines(output_lines(text) or [self._paint.dim("ok")])
            else:
                self._show_error("\n".join(output_lines(text)))
        else:
            self._show_error("Write a shell command after the !, for example: !ls")

    def _show_error(self, text: str) -> None:
        self.screen.say(text, self._paint.red)

    async def _update_model(self) -> SessionInfo:
        session = await self._bot.session_info(self._session_key)
        self._meter.model = session.model
        self._meter.window_tokens, self._meter.in_window = session.window_tokens, session.window_used
        return session

    async def _greet(self) -> None:
        name, session = strip_control(self._bot.name), None
        try:
            session = await self._update_model()
            model = f" · {session.model} ({session.provider})"
            if session.provider == OFFLINE:
                model = f" · no model is set up, so only simple requests work\n{_SETUP_HINT}"
        except NanobotError as error:
            model, problem = "", str(error)
        self.screen.say(
            f"{name} {__version__}{model}",
            lambda line: self._paint.bold(name) + line.removeprefix(name) if line.startswith(name) else line,
        )
        self.screen.say(f"{shorten_home(self._bot.workspace)} · /help for commands · Ctrl+D exits")
        if session is None:
            self._show_error(problem)
        elif session.messages:
            past = f"{count_noun(session.messages, 'message')}, {duration(session.idle_s)} ago"
            self.screen.say(f"continuing {self._session_key} ({past}) · /new starts a new conversation")

    async def _show_messages(self) -> None:
        bot = None
        while bot is not self._bot:
            bot = self._bot
            async for text in bot.messages(self._session_key):
                if bot is not self._bot:
                    break
                if text == GATEWAY_BACK:
                    self.screen.say(text)
                    self._look_for_interrupted_turn()
                else:
                    self.screen.lines([""])
                    self.screen.note("message", text, ours=False)
                    self._prompt.ring()
            await self._continue_without_gateway()

    def _look_for_interrupted_turn(self) -> None:
        self._must_resume = True
        self._line_waiting.set()

    async def _continue_without_gateway(self) -> None:
        """Once the gateway has ended, use a bot in this process."""
        if self._open_local is None:
            return
        if self._local is None:
            self._local = asyncio.create_task(self._run_local_bot(self._open_local()))
        await self._switched.wait()

    async def _run_local_bot(self, opening: AbstractAsyncContextManager[tuple[ChatBackend, str]]) -> None:
        try:
            async with opening as (bot, _key):
                self._bot = bot
                self.screen.say(_WITHOUT_GATEWAY)
                self._look_for_interrupted_turn()
                self._switched.set()
                await asyncio.Event().wait()
        except (NanobotError, OSError) as error:
            self._show_error(error_text(error))
        finally:
            self._switched.set()

    def accept_line(self, line: str) -> bool:
        """Act on a line that was typed; False if it stays in the prompt, since a question is open that it does not
        answer.
        """
        line = repair_output(line)
        typed, command, question = line.strip().lower(), parse_command(line), self.question
        name = command.name if command is not None and self._running is not None else ""
        self._is_unclear = False
        if typed in EXIT_WORDS:
            self._prompt.leave()
        elif question is not None and (answer := parse_answer(typed)) is not None:
            self._bot.answer(question.question, answer)
        elif name == "stop":
            self.question = None  # the question ends with its turn
            self.stop()
        elif name in SlashCommands.AT_ONCE:
            self._start(self._run_at_once(line))
        elif question is not None and typed:
            self._is_unclear = True
            return False
        elif typed:
            self.waiting.append(line)
            self._line_waiting.set()
            self._bot.set_waiting_lines(self._mergeable_messages())
        return True

    async def _run_at_once(self, line: str) -> None:
        """Run a command beside the running turn."""
        try:
            result = await self._bot.run_turn(terminal_message(line, self._session_key))
        except NanobotError as error:  # the gateway ended
            self._show_error(str(error))
        else:
            self.screen.note(f"> {line.strip()}", result.text, ours=True)

    def stop(self) -> bool:
        """Deny an open question, else stop the running turn; queued lines go back to the prompt for editing."""
        if self._prompt.is_suspended:  # Ctrl+C is for the program on the terminal
            return True
        if self._running is None or self._is_resuming:
            return False
        if self.question is not None:
            self._bot.answer(self.question.question, Answer.NO)
            return True
        if self.waiting:
            self._prompt.put_back("\n".join(self.waiting))
            self.waiting.clear()
            self._bot.set_waiting_lines(())
        self._start(self._stop_running(self._running))
        return True

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this beside the turn."""
        self._tasks.add(task := asyncio.create_task(work))
        task.add_done_callback(self._tasks.discard)

    async def _stop_running(self, running: asyncio.Task[None]) -> None:
        """Stop the turn through the backend, which keeps its text; cancel the task if no turn is running yet."""
        if not await self._bot.stop_turn(self._session_key):
            running.cancel()

    def _on_signal(self, number: int) -> None:
        self._exit_code = exit_code_for(number)
        self._prompt.leave()

    def _on_event(self, event: TurnEvent) -> None:
        self._is_resuming = False
        self._meter(event)
        self.screen(event)
        if isinstance(event, ApprovalAsked | ApprovalAnswered):
            self.question = event if isinstance(event, ApprovalAsked) else None
            self._is_unclear = False
            self._prompt.refresh()

    def _echo(self, line: str) -> None:
        """Show the sent line above its answer."""
        lines = strip_control(line).expandtabs(4).split("\n")
        shown = [text[:_ECHO_CHARS] for text in lines[:_ECHO_LINES]]
        if len(lines) > _ECHO_LINES:
            shown.append(f"… {len(lines) - _ECHO_LINES} more lines")
        marks = ["> ", *["  "] * len(shown)]
        self.screen.lines(["", *(self._paint.bold(mark + text) for mark, text in zip(marks, shown, strict=False)), ""])

    def bottom_line(self) -> str:
        width = self._prompt.columns
        if self.question is None:
            stop = "Esc stops · " if self._running is not None else ""
            return stop + self._meter.line(width - len(stop))
        if self._is_unclear:
            letters = "y, a or n" if self.question.may_always else "y or n"
            return f"First answer {letters}, then Enter (Esc: no)"
        answers = format_choices(self.question, width)
        full = f"{answers}, then Enter (Esc: no)"
        return full if len(full) <= width else answers


def _is_shell_line(line: str) -> bool:
    return line.lstrip().startswith(SHELL_PREFIX)


def shorten_home(path: Path) -> str:
    """The path with the home folder as ~."""
    home = Path.home()
    return str(Path("~") / path.relative_to(home) if home.name and path.is_relative_to(home) else path)


class UsageMeter:
    """A sink that adds up the usage of this chat."""

    def __init__(self) -> None:
        self.model = ""
        self.window_tokens = self.in_window = 0
        self._sums: Counter[str] = Counter()
        self._cost_usd = 0.0

    def __call__(self, event: TurnEvent) -> None:
        if isinstance(event, RunStarted):
            self.model = event.model
        elif isinstance(event, StepEnded):
            self._sums.update(event.usage)
            used = event.usage.get("prompt_tokens", 0) + event.usage.get("completion_tokens", 0)
            self.in_window = used or self.in_window
            self._cost_usd += event.cost_usd or 0.0

    def line(self, width: int = 200) -> str:
        """The bottom line; unknown values are left out, and in a narrow terminal the less important ones."""
        sent, received, cached = (self._sums[f"{name}_tokens"] for name in ("prompt", "completion", "cached"))
        parts = {"model": self.model}
        if sent or received:
            parts["sent"] = f"{format_tokens(sent)} in"
            parts["cached"] = f"{cached / sent:.0%} cached" if sent and cached else ""
            parts["received"] = f"{format_tokens(received)} out"
        if sent and self.in_window and self.window_tokens:  # before, the provider's window may be unknown
            parts["window"] = f"{self.in_window / self.window_tokens:.0%} of {format_tokens(self.window_tokens)} window"
        if self._cost_usd:
            parts["cost"] = format_dollars(self._cost_usd)
        for least in ("cached", "received", "sent", "cost", "window"):
            if len(_SEPARATOR.join(filter(None, parts.values()))) > width:
                parts.pop(least, None)
        return _SEPARATOR.join(filter(None, parts.values()))[: max(width, 0)]
