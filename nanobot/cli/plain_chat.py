"""The chat where lines cannot be drawn anew: a dumb terminal, or a pipe behind it. Line in, answer out.

While it waits for a line it shows what comes for the chat, and jobs of the terminal run when they are due.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from functools import partial
from typing import Any

from nanobot.agent.turn import TurnEvent
from nanobot.cli.asking import Asking, somebody_is_there
from nanobot.cli.bot import Bot, listening
from nanobot.cli.inbound import LEAVING, terminal_message
from nanobot.cli.mentions import mentioned_files
from nanobot.cli.plain import PlainAnswer
from nanobot.cli.terminal import mended, say, visible
from nanobot.errors import StorageError


def plain_chat(opened: AbstractAsyncContextManager[tuple[Bot, str]]) -> int:
    """Read a line, answer it, until the person leaves; the exit code. Ctrl+C stops a turn, or leaves at the prompt."""
    with asyncio.Runner() as runner:
        lives = AsyncExitStack()
        bot, session_key = runner.run(lives.enter_async_context(opened))
        try:
            heard = _shown(runner, partial(_go_on, bot, session_key))
            while heard and (line := _next_line(runner, bot, session_key)) is not None:
                if line.strip():
                    heard = _shown(runner, partial(_turn, bot, line, session_key))
        finally:
            runner.run(lives.aclose())
    return 0


def _shown(runner: asyncio.Runner, work: Callable[[PlainAnswer], Coroutine[Any, Any, None]]) -> bool:
    """Do it and show it; whether somebody still reads. Raises StorageError where the answer cannot be written."""
    face = PlainAnswer(sys.stdout, sys.stderr)
    try:
        runner.run(work(face))
    except KeyboardInterrupt:
        say(sys.stderr, "\n(stopped)\n")
    if face.outlet.problem:
        raise StorageError(f"{face.outlet.problem}. The answer is kept in its session.")
    return not face.outlet.closed


async def _go_on(bot: Bot, session_key: str, face: PlainAnswer) -> None:
    """Take up what was cut off when nanobot ended in the middle of a turn."""
    await bot.resume(session_key, _watching(bot, face), attended=somebody_is_there())


async def _turn(bot: Bot, line: str, session_key: str, face: PlainAnswer) -> None:
    files = await asyncio.to_thread(mentioned_files, line, bot.workspace)
    message = terminal_message(line, session_key, files)
    await bot.run_turn(message, _watching(bot, face), show=face.show, attended=somebody_is_there())


def _watching(bot: Bot, face: PlainAnswer) -> Callable[[TurnEvent], None]:
    """The face, and who answers what it shows."""
    if not somebody_is_there():
        return face
    asking = Asking(bot.answer)

    def watch(event: TurnEvent) -> None:
        face(event)
        asking(event)

    return watch


def _next_line(runner: asyncio.Runner, bot: Bot, session_key: str) -> str | None:
    """What the person typed; None where they leave."""
    say(sys.stderr, "> ")
    try:
        line = runner.run(_typed(bot, session_key))
    except KeyboardInterrupt:
        line = ""
    if not line or line.strip().lower() in LEAVING:
        return None
    return mended(line.rstrip("\r\n"))


async def _typed(bot: Bot, session_key: str) -> str:
    """The next line of the keyboard, empty at its end; messages that come meanwhile are shown."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Future[str] = loop.create_future()

    def settle(line: str) -> None:
        if not typed.done():
            typed.set_result(line)

    def read() -> None:
        try:
            line = sys.stdin.readline()
        except (OSError, ValueError):  # the terminal is gone
            line = ""
        with suppress(RuntimeError):  # so is the chat: nobody waits for the line
            loop.call_soon_threadsafe(settle, line)

    def show(text: str) -> None:
        say(sys.stdout, f"\n{mended(visible(text))}\n")
        say(sys.stderr, "> ")

    async with listening(bot, session_key, show):
        threading.Thread(target=read, name="keyboard", daemon=True).start()  # a read cannot be cancelled
        return await typed
