"""`nanobot agent`: the terminal chat, or with a message one answer."""

import re
import secrets
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.cli.common import EXIT_INTERRUPTED, Setup, get_data_paths, read_setup, selected
from nanobot.cli.output import can_redraw, is_terminal, print_line, repair_output, strip_control
from nanobot.errors import NanobotError, StorageError, UsageError
from nanobot.gateway.control.backend import CHANNEL, DEFAULT_SESSION

if TYPE_CHECKING:
    from nanobot.gateway.control.backend import ChatBackend
    from nanobot.runtime.build import Runtime

_EXAMPLE = 'Example: nanobot "What is in my workspace?"'
_COMMAND = re.compile(r"\s*/[\w-]+(\s|$)")
"""A slash command is about a conversation: the chat's, unless another one is named."""
_MAX_NAMED = 3
"""Reminders named at the end of a chat."""
_STDIN_WAIT_S = 10.0
"""How long text beside a message may take to begin arriving."""


def agent(
    words: Annotated[list[str] | None, typer.Argument(metavar="[TEXT]...", help="The message.")] = None,
    message: Annotated[
        str | None,
        typer.Option("-m", "--message", metavar="TEXT", help="The same; `-` reads it from stdin, as does a pipe."),
    ] = None,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", metavar="FILE", help="Attach a file; may be repeated.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            "-s",
            "--session",
            metavar="KEY",
            help=f"Session key. Default: {DEFAULT_SESSION}; for one message a new one.",
        ),
    ] = None,
    continue_latest: Annotated[bool, typer.Option("--continue", help="Continue the latest terminal session.")] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Let the agent write in the current folder; asks once for each folder.")
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Use this model instead of the config's.")
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown/--no-markdown", help="Render Markdown, or show it as plain text.")
    ] = True,
    logs: Annotated[bool, typer.Option("--logs/--no-logs", help="Show log messages.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print turn events as JSON lines.")] = False,
) -> None:
    """Chat with the agent. With a message, print one answer and exit.

    `nanobot` alone does the same: `nanobot --continue`, `cat error.log | nanobot "Why?"`.
    """
    import asyncio  # slow; not needed for --help

    if session is not None and continue_latest:
        raise UsageError("--session and --continue cannot be combined. Leave one out.")
    if session is not None and not session.strip():
        raise UsageError("The session key is empty. Give one, for example: --session cli:work")
    if message is not None and words:
        raise UsageError("The message is given twice: as TEXT and with --message. Leave one out.")
    try:
        text = _read_message(" ".join(words) if words else message)
        media = [_resolve_attachment(file) for file in attach or ()]
        if text is None and (as_json or media):
            raise UsageError(f"{'--json' if as_json else '--attach'} needs a message. Give one, or pipe one in.")
        key = None if session is None else repair_output(session)
        if key is None and text is not None and not continue_latest and not _COMMAND.match(text):
            key = f"{CHANNEL}:{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"  # a session of its own
        backends = Backends(key, continue_latest, here, model, logs, is_chat=text is None)
        code = asyncio.run(_run(backends, text, media, as_json=as_json, markdown=markdown))
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    if code:
        raise typer.Exit(code)


async def _run(backends: "Backends", text: str | None, media: Sequence[str], *, as_json: bool, markdown: bool) -> int:
    """Ask once, or chat; return the exit code."""
    from nanobot.cli.chat.oneshot import ask, plain_chat

    async with backends.open() as (bot, key):
        if text is not None:
            return await ask(bot, text, key, media=media, as_json=as_json, markdown=markdown)
        if not can_redraw(sys.stdout):
            await plain_chat(bot, key)
            return 0
        from nanobot.cli.chat.session import ChatSession  # prompt-toolkit and Rich's Markdown are slow to import
        from nanobot.gateway.control.client import GatewayBackend

        open_local = backends.open_local if isinstance(bot, GatewayBackend) else None
        history = get_data_paths().cli_history
        return await ChatSession(bot, key, history, markdown=markdown, open_local=open_local).run()


@dataclass(frozen=True, slots=True)
class Backends:
    """Opens the bot and the session that the command line selects."""

    session: str | None
    continue_latest: bool
    here: bool
    model: str | None
    logs: bool
    is_chat: bool
    """A chat also runs the terminal's jobs where no gateway does."""

    @asynccontextmanager
    async def open(self) -> "AsyncIterator[tuple[ChatBackend, str]]":
        """The bot of the running gateway of this data folder, else one in this process; and the session key.

        Another model or workspace, --here and a visible log need a bot in this process; session locks keep both apart.
        """
        if self.model is None and selected.workspace is None and not self.here and not self.logs:
            from nanobot.gateway.control.client import find_backend

            state = get_data_paths().state
            if remote := await find_backend(state, self.session, continue_latest=self.continue_latest):
                yield remote, remote.session_key
                return
        async with self.open_local() as local:
            yield local

    @asynccontextmanager
    async def open_local(self) -> "AsyncIterator[tuple[ChatBackend, str]]":
        """A bot in this process."""
        from nanobot.gateway.control.backend import LocalBackend
        from nanobot.security.secrets import redact_all
        from nanobot.utils.log import LogTarget, set_up_logging

        setup = read_setup()
        if self.here:
            _allow_current_folder(setup)
        log = LogTarget(setup.paths.logs / "agent.log", "WARNING", "DEBUG" if self.logs else None)
        set_up_logging(log, redact_all)
        async with setup.open_runtime(self.model) as runtime:
            bot = LocalBackend(runtime)
            bot.register_message_tool()
            async with AsyncExitStack() as stack:
                if self.is_chat:
                    from nanobot.gateway.jobs import terminal_jobs  # imports the cron scheduler

                    stack.callback(_print_pending_reminders, runtime)
                    await stack.enter_async_context(terminal_jobs(runtime))
                yield bot, bot.session_of(self.session, continue_latest=self.continue_latest)
            if running := runtime.background.list_running():
                names = " and ".join(running)
                print_line(f"Still running: {names}. It resumes in the next chat or in the gateway.", err=True)


def _allow_current_folder(setup: Setup) -> None:
    """Let tools write in the current folder, with a permanent approval that the user gives once.

    Raises NanobotError if it is refused or the folder must not be written.
    """
    from nanobot.runtime.sandbox import path_policy
    from nanobot.security.files.prefix_set import with_parents
    from nanobot.security.grants import VALID, Grants
    from nanobot.utils.clock import SystemClock

    folder, tools = Path.cwd(), setup.config.tools
    if setup.data_dir.is_relative_to(folder):
        raise UsageError(f"{folder} contains nanobot's own files ({setup.data_dir}). Use --here in a project's folder.")
    rules = {f"folder:{parent}" for parent in with_parents(str(folder))}
    path_policy(setup.config, setup.data_dir, setup.workspace).resolve_writable(folder / "any file", rules)
    grants = Grants(setup.paths.database, SystemClock())
    if tools.approval == "deny":
        raise NanobotError(f"tools.approval is deny, so nobody is asked. Add {folder} to tools.allowedPaths.")
    if tools.approval == "ask" and not grants.holds(rules, outside=False):
        if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
            raise NanobotError(
                f"Writing in {folder} is not approved yet. Run `nanobot --here` there in a terminal once."
            )
        question = f"{folder}\nMay the agent write there and in subfolders for {VALID.days} days?"
        typer.confirm(strip_control(question), abort=True, err=True)
        grants.add([f"folder:{folder}"], outside=False)
    tools.allowed_paths.append(str(folder))


def _print_pending_reminders(runtime: "Runtime") -> None:
    """Say that reminders of the terminal will not come while no chat is open, if there are any and no gateway runs."""
    service = runtime.cron()
    with suppress(StorageError):  # `cron list` says why
        mine = [
            job for job in service.list_jobs() if job.payload.deliver and job.payload.channel in (None, "", CHANNEL)
        ]
        times = [(job.name, job.state.next_run_at_ms) for job in mine if job.state.next_run_at_ms is not None]
        if not times or service.is_served():
            return
        names = [f"{name} ({datetime.fromtimestamp(at / 1000):%Y-%m-%d %H:%M})" for name, at in times[:_MAX_NAMED]]
        rest = f" and {len(times) - _MAX_NAMED} more" if times[_MAX_NAMED:] else ""
        print_line(
            f"Note: while no chat is open, nobody reminds you: {strip_control(', '.join(names))}{rest}. "
            "`nanobot gateway` does, and `nanobot gateway install` runs it always.",
            err=True,
        )


def _read_message(value: str | None) -> str | None:
    """The message of the command line, with what is piped in. None means: start a chat. Raises UsageError if empty."""
    at_terminal, is_piped = is_terminal(sys.stdin), value in (None, "-")
    if value is None and at_terminal:
        return None
    piped = "" if at_terminal and not is_piped else _read_stdin(None if is_piped else _STDIN_WAIT_S)
    text = "\n\n".join(part for part in ("" if is_piped else value or "", piped) if part.strip())
    if not text:
        raise UsageError(f"{'There is no message on stdin' if is_piped else 'The message is empty'}. {_EXAMPLE}")
    return repair_output(text)


def _read_stdin(wait_s: float | None) -> str:
    """Stdin to its end. If nothing arrives in `wait_s` seconds, as from an open pipe that nobody writes to, nothing."""
    if sys.stdin is None or sys.stdin.closed:
        return ""
    chunks: list[bytes] = []
    has_begun = threading.Event()

    def read() -> None:
        with suppress(OSError, ValueError):
            while chunk := sys.stdin.buffer.read1(1 << 16):  # type: ignore[union-attr]
                chunks.append(chunk)
                has_begun.set()
        has_begun.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    if not has_begun.wait(wait_s):
        note = f"Note: nothing was piped in within {wait_s:g} s; continuing without it. `</dev/null` skips the wait."
        print_line(note, err=True)
        return ""
    reader.join()
    return b"".join(chunks).decode("utf-8", "replace").removeprefix("\ufeff").rstrip("\r\n")


def _resolve_attachment(file: Path) -> str:
    path = file.expanduser().absolute()
    if not path.is_file():
        raise UsageError(f"{file} {'is not a file' if path.exists() else 'does not exist'}. Give a file with --attach.")
    return str(path)
