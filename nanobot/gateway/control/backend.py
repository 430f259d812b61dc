"""What a terminal talks to: the bot of this process (LocalBackend), or of a running gateway (`client.GatewayBackend`).

Chat and one-shot only use the ChatBackend protocol, so they behave the same with either. A gateway answers its
terminals with a LocalBackend too.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind
from nanobot.messages.types import Origin, text_of
from nanobot.session.file_format import is_terminal_session

if TYPE_CHECKING:
    from nanobot.agent.commands.sessions import Conversation
    from nanobot.agent.events import Answer, EventSink, TurnResult
    from nanobot.config.schema import Config
    from nanobot.runtime.build import Runtime

CHANNEL = "cli"
DEFAULT_SESSION = "cli:direct"

Joining = Callable[[int], Sequence[InboundMessage]]
"""Removes and returns at most N waiting lines, to merge them into the running turn."""
OnBackgroundStart = Callable[[Sequence[str]], None]
"""Called with the names of the background work that is waited for."""
Show = Callable[[str], None]
"""Shows a message that is not part of the answer. Must not block or raise."""

_CONSOLIDATION_TIMEOUT_S = 60.0
_NOT_DELIVERED = (
    "Nothing goes to {channel} from here: no gateway runs. Nothing was sent. Start one with `nanobot gateway`, then "
    "ask again."
)


def chat_of(session_key: str) -> str:
    """The chat id of a terminal's session."""
    return session_key.removeprefix(f"{CHANNEL}:") or "direct"


def terminal_message(
    text: str, session_key: str, media: Sequence[str] = (), folder: str | None = None
) -> InboundMessage:
    """An owner's message for this session, by default from the current folder; the reply goes back to the terminal."""
    folder = current_folder() if folder is None else folder
    return InboundMessage.from_owner(
        CHANNEL, chat_of(session_key), text, session_key=session_key, origin=Origin.CLI, media=media, folder=folder
    )


def current_folder() -> str:
    """The folder the user is in; empty if it was deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


async def transcribe_attachments(config: "Config", text: str, media: Sequence[str]) -> str:
    """Add transcriptions of attached recordings to the text, or why they could not be transcribed."""
    if not media:
        return text
    from nanobot.providers.transcription import transcribe_media  # brings httpx

    return await transcribe_media(text, media, config, os.environ)


_NO_SHELL = "Shell commands are disabled. Set tools.exec.enable to true in the config."


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """A session as the chat shows it: its model and its conversation so far."""

    model: str
    window_tokens: int
    provider: str
    messages: int
    idle_s: float
    """Since its last message."""
    window_used: int


class ChatBackend(Protocol):
    """A bot as the terminal uses it."""

    name: str
    workspace: Path

    def commands(self) -> Mapping[str, str]:
        """Slash commands with their help."""

    def skills(self) -> Mapping[str, str]:
        """Available skills with their descriptions."""

    async def session_info(self, session_key: str) -> SessionInfo:
        """Raises NanobotError if there is no model."""

    async def conversations(self, session_key: str) -> "list[Conversation]":
        """The conversations that `/resume` can reopen, newest first."""

    async def run_turn(
        self,
        message: InboundMessage,
        sink: "EventSink | None" = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> "TurnResult":
        """Run the turn of a message to its end. Cancelling stops the turn; the text so far is kept.

        `show` gets messages for this chat, for callers that do not read `messages` meanwhile. `attended` means that
        a person can answer approval questions, with `answer`.
        """

    async def resume(self, session_key: str, sink: "EventSink", *, attended: bool = False) -> None:
        """Resume the interrupted turn of this session, if there is one."""

    def answer(self, question: str, answer: "Answer") -> None:
        """Answer a question of the running turn."""

    async def stop_turn(self, session_key: str) -> bool:
        """Stop the running turn; False if it has not started."""

    def set_waiting_lines(self, messages: Sequence[InboundMessage]) -> None:
        """Replace the waiting lines, which the running turn may merge. One of this process asks for them."""
        return

    async def shell(self, command: str, session_key: str, folder: str) -> tuple[str, bool]:
        """Run a command that the user typed; return its output and whether it succeeded."""

    async def check_for_terminal(self, command: str, folder: str) -> str:
        """Why a command may not run on the terminal itself; empty if it may."""

    def messages(self, session_key: str) -> AsyncIterator[str]:
        """Messages for this chat that are not part of a turn, until cancelled."""

    async def jobs_problem(self) -> str:
        """Why jobs created here will not run when due; empty if a process runs them."""
        return ""

    async def wait_for_background(self, session_key: str, on_start: OnBackgroundStart, show: Show) -> None:
        """Wait until the session's background work has ended and its results were shown.

        If there is any, `on_start` is called first with its names. Cancelling only stops waiting.
        """

    async def wait_for_consolidation(self, note: Show) -> None:
        """Wait for a consolidation that is running in this process, a minute at most, and say so first."""
        return


class LocalBackend(ChatBackend):
    """The bot of this process."""

    def __init__(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        self.name = runtime.config.agents.defaults.bot_title
        self.workspace = runtime.workspace

    def register_message_tool(self) -> None:
        """Register the `message` tool without a gateway: it knows the names of all targets, but reaches only the
        terminal.
        """
        from nanobot.agent.tools.message import MessageTool  # slow to import

        runtime = self._runtime
        paths = runtime.toolbox.policies.paths
        runtime.tools.register(MessageTool(runtime.bus, _LocalTargets(runtime), paths))

    def commands(self) -> Mapping[str, str]:
        return self._runtime.loop.commands.names()

    def skills(self) -> Mapping[str, str]:
        return {skill.name: skill.description for skill in self._runtime.context.skills.skills() if skill.available}

    def session_of(self, session_key: str | None, *, continue_latest: bool) -> str:
        """The session to open: the newest one of the terminal with `continue_latest`, else this one or the default."""
        newest = self._runtime.sessions.latest(is_terminal_session) if continue_latest else None
        return session_key or newest or DEFAULT_SESSION

    async def session_info(self, session_key: str) -> SessionInfo:
        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, session_key)
        model = await self._runtime.models.of_session(session)
        idle_s = (datetime.now() - session.updated_at).total_seconds()
        use = self._runtime.loop.commands.report(session, model).use
        count = session.message_count
        return SessionInfo(
            model.name, use.window_tokens, model.provider_name, count, idle_s, use.tokens if count else 0
        )

    async def conversations(self, session_key: str) -> "list[Conversation]":
        from nanobot.agent.commands.sessions import list_conversations
        from nanobot.agent.scope import OWNERS

        return await asyncio.to_thread(list_conversations, self._runtime.sessions, OWNERS, session_key)

    async def run_turn(
        self,
        message: InboundMessage,
        sink: "EventSink | None" = None,
        *,
        waiting: Joining | None = None,
        show: Show | None = None,
        attended: bool = False,
    ) -> "TurnResult":
        """Transcribe recordings, then run the turn."""
        message.content = await transcribe_attachments(self._runtime.config, message.content, message.media)
        turn = self._runtime.loop.run_turn(message, sink, waiting=waiting, attended=attended)
        if show is None:
            return await turn
        async with show_messages(self, message.session_key, show):
            return await turn

    async def resume(self, session_key: str, sink: "EventSink", *, attended: bool = False) -> None:
        await self._runtime.loop.resume(session_key, sink, attended=attended)

    def answer(self, question: str, answer: "Answer") -> None:
        self._runtime.questions.answer(question, answer)

    async def stop_turn(self, session_key: str) -> bool:
        return await self._runtime.loop.stop_turn(session_key)

    async def shell(self, command: str, session_key: str, folder: str) -> tuple[str, bool]:
        """Runs through the exec tool, with its sandbox and guards. No model sees it."""
        from nanobot.agent.tools.base import ToolContext  # slow to import
        from nanobot.agent.tools.shell import run_for_owner

        runtime = self._runtime
        if not runtime.tools.has("exec"):
            return _NO_SHELL, False
        address = terminal_message("", session_key, folder=folder).address
        context = ToolContext(session_key, address, turn_id="", workspace=runtime.workspace, clock=runtime.clock)
        result = await run_for_owner(runtime.tools, command, folder, context)
        return text_of(result.content), not result.error

    async def check_for_terminal(self, command: str, folder: str) -> str:
        from nanobot.agent.tools.shell import check_for_terminal  # slow to import

        tools = self._runtime.tools
        return await asyncio.to_thread(check_for_terminal, tools, command, folder) if tools.has("exec") else _NO_SHELL

    async def messages(self, session_key: str) -> AsyncIterator[str]:
        """Messages from the bus. Messages for other channels fail, since no channel runs in this process."""
        while (message := await self._runtime.bus.consume_outbound()) is not None:
            if message.channel == CHANNEL:
                if message.kind in (OutboundKind.REPLY, OutboundKind.NOTICE) and message.content.strip():
                    yield message.content
                if message.receipt is not None:
                    message.receipt.settle()
            elif message.receipt is not None:
                message.receipt.fail(DeliveryFailedError(_NOT_DELIVERED.format(channel=message.channel)))

    async def jobs_problem(self) -> str:
        """Asks the job store, since another process may run the jobs."""
        from nanobot.cron.tool_backend import NEEDS_GATEWAY  # already loaded once a job was created

        return "" if await asyncio.to_thread(self._runtime.cron().is_served) else NEEDS_GATEWAY

    async def wait_for_background(self, session_key: str, on_start: OnBackgroundStart, show: Show) -> None:
        """Includes work left by a process that died."""
        background = self._runtime.background
        await background.recover(session_key)
        if running := background.list_running(session_key):
            on_start(running)
            async with show_messages(self, session_key, show):
                await background.wait_until_delivered(session_key, CHANNEL)

    async def wait_for_consolidation(self, note: Show) -> None:
        if self._runtime.memory.consolidation.is_busy:
            note("Note: old messages are being moved into memory; Ctrl+C postpones that.\n")
            with suppress(TimeoutError):
                async with asyncio.timeout(_CONSOLIDATION_TIMEOUT_S):
                    await self._runtime.memory.consolidation.wait_done()


class _LocalTargets:
    """Targets of the `message` tool: the names are known, but only the terminal can be reached."""

    def __init__(self, runtime: "Runtime") -> None:
        channels = runtime.config.channels.enabled_by_name()
        self.names = [CHANNEL, *(name for name, is_on in channels.items() if is_on)]

    async def find(self, channel: str, name: str) -> str | None:
        """Ids are used as they are."""
        return name


@asynccontextmanager
async def show_messages(bot: ChatBackend, session_key: str, show: Show) -> AsyncIterator[None]:
    """Show messages for this chat until the block ends."""

    async def listen() -> None:
        async for text in bot.messages(session_key):
            show(text)

    listener = asyncio.create_task(listen(), name="messages")
    try:
        yield
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def choose_session(bot: ChatBackend, session_key: str, line: str) -> tuple[str, str]:
    """The session that a line goes to, and the line: `/resume NUMBER` goes to the session that it reopens."""
    from nanobot.agent.command import parse_command
    from nanobot.agent.commands.sessions import find_conversation

    command = parse_command(line)
    if command is None or command.name != "resume" or not command.argument:
        return session_key, line
    found = find_conversation(await bot.conversations(session_key), command.argument)
    return (session_key, line) if found is None else (found.key, f"/resume {found.name}")
