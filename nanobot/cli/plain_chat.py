"""The chat where lines cannot be drawn anew: a dumb terminal, or a pipe behind it. Line in, answer out."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from nanobot.cli.inbound import LEAVING, terminal_message
from nanobot.cli.plain import PlainAnswer
from nanobot.cli.terminal import mended, say
from nanobot.errors import StorageError
from nanobot.runtime import Runtime


def plain_chat(runtime_opened: AbstractAsyncContextManager[Runtime], key_of: Callable[[Runtime], str]) -> int:
    """Read a line, answer it, until the person leaves; the exit code. Ctrl+C stops a turn, or leaves at the prompt."""
    with asyncio.Runner() as runner:
        lives = AsyncExitStack()
        runtime = runner.run(lives.enter_async_context(runtime_opened))
        session_key = key_of(runtime)
        try:
            while (line := _next_line()) is not None:
                face = PlainAnswer(sys.stdout, sys.stderr)
                try:
                    if line.strip():
                        runner.run(_turn(runtime, line, session_key, face))
                except KeyboardInterrupt:
                    say(sys.stderr, "\n(stopped)\n")
                if face.outlet.problem:
                    raise StorageError(f"{face.outlet.problem}. The answer is kept in its session.")
                if face.outlet.closed:
                    break
        finally:
            runner.run(lives.aclose())
    return 0


async def _turn(runtime: Runtime, line: str, session_key: str, face: PlainAnswer) -> None:
    await runtime.loop.run_turn(terminal_message(line, session_key), face)


def _next_line() -> str | None:
    """What the person typed; None where they leave."""
    say(sys.stderr, "> ")
    try:
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        line = ""
    if not line or line.strip().lower() in LEAVING:
        return None
    return mended(line.rstrip("\r\n"))
