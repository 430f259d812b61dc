"""The chat for dumb terminals and pipes: a line in, an answer out.

While it waits for a line, it prints messages for the chat, and the terminal's jobs run when due.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from nanobot.agent.events import TurnEvent
from nanobot.cli.chat.approval_prompt import ApprovalPrompt, is_interactive, next_line
from nanobot.cli.chat.inbound import EXIT_WORDS, find_mentioned_files
from nanobot.cli.chat.plain import PlainOutput
from nanobot.cli.terminal import repair_output, strip_control, write_text
from nanobot.errors import StorageError
from nanobot.gateway.control.backend import ChatBackend, choose_session, show_messages, terminal_message


def plain_chat(backend_context: AbstractAsyncContextManager[tuple[ChatBackend, str]]) -> int:
    """Answer line after line until the user exits; return the exit code. Ctrl+C stops a turn or exits."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        bot, session_key = runner.run(stack.enter_async_context(backend_context))
        try:
            is_open = _show_work(runner, partial(_resume, bot, session_key))
            while is_open and (line := _prompt_line(runner, bot, session_key)) is not None:
                if line.strip():
                    session_key, line = runner.run(choose_session(bot, session_key, line))
                    is_open = _show_work(runner, partial(_run_turn, bot, line, session_key))
        finally:
            runner.run(stack.aclose())
    return 0


def _show_work(runner: asyncio.Runner, work: Callable[[PlainOutput], Coroutine[Any, Any, None]]) -> bool:
    """Run the work with a new output; False if stdout was closed. Raises StorageError if writing failed."""
    output = PlainOutput(sys.stdout, sys.stderr)
    try:
        runner.run(work(output))
    except KeyboardInterrupt:
        write_text(sys.stderr, "\n(stopped)\n")
    if output.stream.problem:
        raise StorageError(f"{output.stream.problem}. The answer is stored in the session.")
    return not output.stream.closed


async def _resume(bot: ChatBackend, session_key: str, output: PlainOutput) -> None:
    """Resume a turn that was interrupted by the end of a process."""
    await bot.resume(session_key, _event_sink(bot, output), attended=is_interactive())


async def _run_turn(bot: ChatBackend, line: str, session_key: str, output: PlainOutput) -> None:
    files = await asyncio.to_thread(find_mentioned_files, line, bot.workspace)
    message = terminal_message(line, session_key, files)
    await bot.run_turn(message, _event_sink(bot, output), show=output.show, attended=is_interactive())


def _event_sink(bot: ChatBackend, output: PlainOutput) -> Callable[[TurnEvent], None]:
    """A sink for the output and, if interactive, for approval prompts."""
    if not is_interactive():
        return output
    approval_prompt = ApprovalPrompt(bot.answer)

    def watch(event: TurnEvent) -> None:
        output(event)
        approval_prompt(event)

    return watch


def _prompt_line(runner: asyncio.Runner, bot: ChatBackend, session_key: str) -> str | None:
    """The next line typed; None to exit."""
    write_text(sys.stderr, "> ")
    try:
        line = runner.run(_wait_for_line(bot, session_key))
    except KeyboardInterrupt:
        line = ""
    if not line or line.strip().lower() in EXIT_WORDS:
        return None
    return repair_output(line.rstrip("\r\n"))


async def _wait_for_line(bot: ChatBackend, session_key: str) -> str:
    """The next line of stdin, empty at its end; prints messages that arrive meanwhile."""

    def show(text: str) -> None:
        write_text(sys.stdout, f"\n{repair_output(strip_control(text))}\n")
        write_text(sys.stderr, "> ")

    async with show_messages(bot, session_key, show):
        return await next_line()
