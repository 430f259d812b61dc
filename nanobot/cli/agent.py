"""`nanobot agent`: talk with the agent. With a message, one answer and out; without one, the chat.

Reading order: agent -> oneshot (one answer) -> plain, jsonl, screen (its faces); chat -> prompt (the line editor).
"""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.cli.common import INTERRUPTED, ConfigOption, WorkspaceOption, read_setup
from nanobot.cli.inbound import CHANNEL, DEFAULT_SESSION
from nanobot.cli.terminal import can_redraw, is_screen, mended, say
from nanobot.config.paths import Places, get_data_dir, use_config
from nanobot.errors import UsageError

if TYPE_CHECKING:
    from nanobot.cli.bot import Bot
    from nanobot.runtime import Runtime


def agent(
    message: Annotated[
        str | None, typer.Option("-m", "--message", metavar="TEXT", help="One message; `-` reads it from stdin.")
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", metavar="FILE", help="Send a file along; may be repeated.")
    ] = None,
    session: Annotated[
        str | None, typer.Option("-s", "--session", metavar="KEY", help=f"Which session; {DEFAULT_SESSION} if none.")
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="Go on with the newest session of the terminal.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Another model than the config's.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown/--no-markdown", help="Draw Markdown, or show it as it is.")
    ] = True,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Show what nanobot logs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print turn events as JSON lines.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Talk with the agent; with -m or a pipe, one answer and out."""
    if session is not None and go_on:
        raise UsageError("--session and --continue exclude each other. Leave one out.")
    if session is not None and not session.strip():
        raise UsageError("The session key is empty. Name one, for example: --session cli:work")
    text = _message(message)
    media = _attachments(attach or ())
    if text is None and (as_json or media):
        raise UsageError(f"{'--json' if as_json else '--attach'} needs a message. Give one with -m, or pipe one in.")
    key = None if session is None else mended(session)
    sitting = Sitting(config, workspace, key, go_on, model, logs)
    try:
        if text is not None:
            code = sitting.ask(text, media, as_json=as_json, markdown=markdown)
        else:
            code = sitting.chat(markdown=markdown)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class Sitting:
    """What both ways of talking share: which bot, which session."""

    config: Path | None
    workspace: Path | None
    session: str | None
    go_on: bool
    model: str | None
    logs: bool

    def ask(self, text: str, media: Sequence[str], *, as_json: bool, markdown: bool) -> int:
        """One answer; the exit code."""
        import asyncio  # not for --help

        from nanobot.cli.oneshot import ask

        async def one_answer() -> int:
            async with self._bot() as (bot, key):
                return await ask(bot, text, key, media=media, as_json=as_json, markdown=markdown)

        return asyncio.run(one_answer())

    def chat(self, *, markdown: bool) -> int:
        """The chat, in the way this terminal can show it; the exit code."""
        import asyncio  # not for --help

        if not can_redraw(sys.stdout):
            from nanobot.cli.plain_chat import plain_chat

            return plain_chat(self._bot(stays=True))

        async def sit() -> int:
            from nanobot.cli.chat import chat  # prompt-toolkit and Rich's Markdown: only where somebody chats

            async with self._bot(stays=True) as (bot, key):
                return await chat(bot, key, Places(get_data_dir()), markdown=markdown)

        return asyncio.run(sit())

    @asynccontextmanager
    async def _bot(self, *, stays: bool = False) -> "AsyncIterator[tuple[Bot, str]]":
        """The bot of the gateway that runs for this data folder, else one of our own; and the session.

        One that stays for a while runs the jobs of the terminal, which a gateway does else.

        Who wants another model or workspace, or to see the log, wants a bot of their own: sessions have their locks.
        """
        use_config(self.config)
        if self.model is None and self.workspace is None and not self.logs:
            from nanobot.cli.gateway_bot import find_bot

            found = await find_bot(Places(get_data_dir()).state, self.session, go_on=self.go_on)
            if found is not None:
                yield found, found.session_key
                return
        async with self._own_bot(stays=stays) as own:
            yield own

    @asynccontextmanager
    async def _own_bot(self, *, stays: bool) -> "AsyncIterator[tuple[Bot, str]]":
        from nanobot.cli.bot import OwnBot
        from nanobot.runtime import build_runtime  # the engine: 200 ms that a gateway has behind it

        setup = read_setup(self.config, self.workspace)
        _show_logs(setup.data_dir, wanted=self.logs)
        async with build_runtime(
            setup.config, data_dir=setup.data_dir, workspace=setup.workspace, model=self.model
        ) as runtime:
            newest = runtime.sessions.latest(is_terminals) if self.go_on else None
            async with _jobs(runtime) if stays else nullcontext():
                yield OwnBot(runtime), self.session or newest or DEFAULT_SESSION
            if at_work := runtime.background.at_work():
                say(
                    sys.stderr,
                    f"Not done yet: {' and '.join(at_work)}. It goes on when you come back, or in the gateway.\n",
                )


def _jobs(runtime: "Runtime") -> AbstractAsyncContextManager[None]:
    from nanobot.gateway.jobs import jobs_of_the_terminal  # brings the calendar

    return jobs_of_the_terminal(runtime)


def is_terminals(key: str) -> bool:
    """Whether a session belongs to the terminal: `cli:...`, or a name without a channel before it."""
    return key.startswith(f"{CHANNEL}:") or ":" not in key


def _message(given: str | None) -> str | None:
    """The one message: an option, or stdin where it is not a person's keyboard. None means: chat.

    Raises UsageError where there is no word in it.
    """
    if given is None and is_screen(sys.stdin):
        return None
    text = _from_stdin() if given in (None, "-") else given
    if not text or not text.strip():
        where = "on stdin" if given in (None, "-") else "in --message"
        raise UsageError(f'There is no message {where}. Write one: nanobot agent -m "What is in my workspace?"')
    return mended(text)


def _from_stdin() -> str:
    if sys.stdin is None or sys.stdin.closed:
        return ""
    return sys.stdin.buffer.read().decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")


def _attachments(files: Sequence[Path]) -> list[str]:
    """Absolute paths of files that can be read. Raises UsageError."""
    found = []
    for file in files:
        path = file.expanduser().absolute()
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "is no plain file" if path.exists() else "does not exist"
            raise UsageError(f"--attach {file}: this {kind}. Name a file.")
        found.append(str(path))
    return found


def _show_logs(data_dir: Path, *, wanted: bool) -> None:
    """What goes wrong inside is kept in a file; on the screen only for who asks."""
    from nanobot.security.vault import cleaned
    from nanobot.utils.log import LogPlace, set_up_logging  # logging: not for --help

    set_up_logging(LogPlace(Places(data_dir).logs / "agent.log", "WARNING", "DEBUG" if wanted else None), cleaned)
