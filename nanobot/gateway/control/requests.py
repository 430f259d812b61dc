"""The requests of the local socket: turns and their events, outbound messages, health, stop and restart."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from nanobot.agent.commands.sessions import list_conversations
from nanobot.agent.events import Answer, TurnEvent
from nanobot.agent.pipeline.turn import TurnOptions
from nanobot.agent.scope import OWNERS
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.shell import check_for_terminal, run_for_owner
from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.errors import NanobotError
from nanobot.gateway.control.terminal import TerminalChannel
from nanobot.gateway.report import HealthReporter
from nanobot.gateway.shutdown import ShutdownRequests
from nanobot.messages.types import Origin, text_of
from nanobot.net.gateway_socket import Frame, decode_frame, encode_frame
from nanobot.runtime.build import Runtime
from nanobot.session.file_names import is_terminal_session

SEND_S = 60.0
"""How long `send` waits for the platform's answer."""
_MAX_UNREAD = 64 * 1024 * 1024
"""Buffered bytes after which a client that does not read is disconnected."""


class ControlClient:
    """The connection of one client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: Frame) -> None:
        """Send a frame. Never raises or waits; disconnects a client that does not read."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._writer.write(encode_frame(frame))
        if transport.get_write_buffer_size() > _MAX_UNREAD:
            transport.abort()

    def send_event(self, event: TurnEvent) -> None:
        """Send a turn event."""
        self.send(event.to_json())

    async def receive(self) -> Frame | None:
        """Return the next frame, or None if the client left. Raises ValueError for an invalid frame."""
        line = await self._reader.readline()
        return decode_frame(line) if line.endswith(b"\n") else None

    def abort(self) -> None:
        """Close at once; a pending `receive` returns None."""
        self._writer.close()

    async def close(self) -> None:
        """Never raises."""
        with suppress(OSError):
            self._writer.close()
            await self._writer.wait_closed()


class ControlRequests:
    """Handles requests. The protocol is in `net.gateway_socket`."""

    def __init__(
        self,
        runtime: Runtime,
        reporter: HealthReporter,
        shutdown: ShutdownRequests,
        terminal: TerminalChannel,
        new_link: Callable[[], Awaitable[str]],
        api_urls: Callable[[], list[str]],
    ) -> None:
        """`new_link` returns a one-time link to the page; raises NanobotError. `api_urls`: where the API is."""
        self._api_urls = api_urls
        self._new_link = new_link
        self._runtime = runtime
        self._reporter = reporter
        self._shutdown = shutdown
        self._terminal = terminal
        self._handlers: dict[str, Callable[[Frame, ControlClient], Awaitable[None]]] = {
            "about": self._about,
            "model": self._model,
            "sessions": self._sessions,
            "turn": self._turn,
            "resume": self._resume,
            "stop turn": self._stop_turn,
            "exec": self._exec,
            "listen": self._listen,
            "background": self._background,
            "send": self._send,
            "report": self._report,
            "mcp server": self._mcp_server,
            "web link": self._web_link,
            "api urls": self._send_api_urls,
            "stop gateway": self._stop_gateway,
            "restart gateway": self._restart_gateway,
        }

    async def answer(self, request: Frame, client: ControlClient) -> None:
        """Handle a request; errors are sent to the client. Raises OSError and ValueError if the client is gone."""
        handler = self._handlers.get(str(request.get("do")))
        if handler is None:
            client.send(
                {
                    "type": "error",
                    "text": f"The gateway does not know the request {request.get('do')!r}. It may be an older version: "
                    "`nanobot gateway restart`.",
                }
            )
            return
        try:
            await handler(request, client)
        except NanobotError as error:
            client.send({"type": "error", "text": str(error), "code": error.exit_code})
        except (KeyError, TypeError) as error:
            client.send({"type": "error", "text": f"The request is incomplete: {error!r}."})

    async def _about(self, request: Frame, client: ControlClient) -> None:
        """Send what a terminal chat shows: the bot, its commands and skills, and the session."""
        runtime = self._runtime
        skills = await asyncio.to_thread(runtime.context.skills.skills)
        client.send(
            {
                "type": "about",
                "session": await asyncio.to_thread(self._session_of, request),
                "name": runtime.config.agents.defaults.bot_title,
                "workspace": str(runtime.workspace),
                "commands": runtime.loop.commands.names(),
                "exec": runtime.tools.has("exec"),
                "skills": {skill.name: skill.description for skill in skills if skill.available},
            }
        )

    async def _model(self, request: Frame, client: ControlClient) -> None:
        """Send the model of a session and how long its conversation is."""
        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, str(request["session"]))
        model = await self._runtime.models.of_session(session)
        use = self._runtime.loop.commands.report(session, model).use
        client.send(
            {
                "type": "model",
                "name": model.name,
                "window": use.window_tokens,
                "window_used": use.tokens if session.message_count else 0,
                "provider": model.provider_name,
                "messages": session.message_count,
                "idle_s": (datetime.now() - session.updated_at).total_seconds(),
            }
        )

    async def _sessions(self, request: Frame, client: ControlClient) -> None:
        """Send the conversations that a terminal chat of this session may reopen."""
        listed = await asyncio.to_thread(list_conversations, self._runtime.sessions, OWNERS, str(request["session"]))
        client.send({"type": "sessions", "sessions": [asdict(conversation) for conversation in listed]})

    async def _exec(self, request: Frame, client: ControlClient) -> None:
        """Run a shell command that the user typed, with the agent's tool and its guards.

        With `terminal` the client runs it, and is sent what the guards say.
        """
        runtime, key, folder = self._runtime, str(request["session"]), str(request.get("folder", ""))
        address = _terminal_message("", key).address
        command = str(request["command"])
        if request.get("terminal"):
            refusal = await asyncio.to_thread(check_for_terminal, runtime.tools, command, folder)
            client.send({"type": "checked", "text": refusal})
            return
        context = ToolContext(key, address, turn_id="", workspace=runtime.workspace, clock=runtime.clock)
        result = await run_for_owner(runtime.tools, command, folder, context)
        client.send({"type": "ran", "text": text_of(result.content), "error": bool(result.error)})

    async def _turn(self, request: Frame, client: ControlClient) -> None:
        """Run the turn of a message and send its events. Lines typed meanwhile may be merged into it.

        With `shows`, outbound messages to this chat are sent too.
        """
        key = self._session_of(request)
        media = [str(path) for path in request.get("media", ())]
        folder = str(request.get("folder", ""))
        waiting: list[InboundMessage] = []

        def drain_waiting(limit: int) -> Sequence[InboundMessage]:
            merged = waiting[:limit]
            del waiting[:limit]
            if merged:
                client.send({"type": "joined", "count": len(merged)})
            return merged

        async def turn() -> None:
            text = str(request["text"])
            if media:
                from nanobot.providers.transcription import transcribe_media  # brings httpx

                text = await transcribe_media(text, media, self._runtime.config, os.environ)
            asked: Frame | None = request.get("options")  # of a program
            if asked is None:
                message, model, options = _terminal_message(text, key, media, folder), None, None
            else:
                message, model, options = self._program_message(text, key, media), asked.get("model"), _options(asked)
            attended = bool(request.get("answers"))
            await self._runtime.loop.run_turn(
                message, client.send_event, waiting=drain_waiting, attended=attended, model=model, options=options
            )

        def on_frame(frame: Frame) -> None:
            self._answer_approval(frame)
            if frame.get("do") == "waiting":
                waiting[:] = [
                    _terminal_message(str(line["text"]), key, line.get("media", ()), folder) for line in frame["lines"]
                ]

        with self._forward_messages(key, client) if request.get("shows") else nullcontext():
            await _run_for_client(turn(), client, on_frame)

    async def _resume(self, request: Frame, client: ControlClient) -> None:
        """Resume the interrupted turn of a session, if there is one."""

        async def turn() -> None:
            key, attended = self._session_of(request), bool(request.get("answers"))
            if await self._runtime.loop.resume(key, client.send_event, attended=attended) is None:
                client.send({"type": "nothing"})

        await _run_for_client(turn(), client, self._answer_approval)

    def _answer_approval(self, frame: Frame) -> None:
        """Answer an approval question of the client's turn. Raises ValueError for an unknown answer."""
        if frame.get("do") == "answer":
            self._runtime.questions.answer(str(frame.get("question")), Answer(str(frame.get("answer"))))

    async def _listen(self, request: Frame, client: ControlClient) -> None:
        """Send outbound messages to a terminal chat until the client leaves."""
        with self._forward_messages(str(request["session"]), client, for_all=True):
            client.send({"type": "listening"})
            while await client.receive() is not None:
                pass

    async def _background(self, request: Frame, client: ControlClient) -> None:
        """Wait for the background work of a session, and send outbound messages to its chat meanwhile."""
        key, background = self._session_of(request), self._runtime.background
        with self._forward_messages(key, client):
            if running := background.list_running(key):
                client.send({"type": "working", "running": running})
            await _run_for_client(background.wait_until_delivered(key), client, self._answer_approval)
        client.send({"type": "delivered"})

    def _forward_messages(
        self, key: str, client: ControlClient, *, for_all: bool = False
    ) -> AbstractContextManager[None]:
        """Send the client the outbound messages to the session's chat until the block ends."""

        def show(text: str) -> None:
            client.send({"type": "message", "text": text})

        return self._terminal.shown_by(_chat_of(key), show, for_all=for_all)

    async def _send(self, request: Frame, client: ControlClient) -> None:
        """Send a message to a chat or a person, and answer with its platform ids."""
        name, to = str(request["channel"]), str(request["to"])
        if self._reporter.channels.manager.get(name) is None:
            raise NanobotError(self._no_channel(name))
        if request.get("person"):
            to = await self._reporter.channels.manager.chat_with(name, to) or to
        message = OutboundMessage(
            name, to, str(request["text"]), media=[str(path) for path in request.get("media", ())],
            kind=OutboundKind.NOTICE, thread_id=request.get("thread"),
        )  # fmt: skip
        receipt = await self._runtime.bus.publish_outbound(message)
        try:
            async with asyncio.timeout(SEND_S):
                ids = await receipt.wait()
        except TimeoutError as error:
            raise DeliveryFailedError(
                f"{name} did not accept the message within {SEND_S:.0f} s. It stays queued and is sent when possible."
            ) from error
        client.send({"type": "sent", "ids": list(ids)})

    def _no_channel(self, name: str) -> str:
        broken = self._reporter.channels.broken.get(name)
        if broken:
            return f"{name} cannot send: {broken}"
        running = ", ".join(self._reporter.channels.names) or "none"
        return f"This gateway runs no channel {name!r} (running: {running}). Set channels.{name}.enabled."

    async def _report(self, request: Frame, client: ControlClient) -> None:
        client.send({"type": "report", **await self._reporter.report()})

    async def _mcp_server(self, request: Frame, client: ControlClient) -> None:
        """Connect to an MCP server if needed, and send the tools it offers."""
        servers = self._runtime.servers
        server = servers.find(str(request["name"])) if servers is not None else None
        if server is None:
            client.send({"type": "server", "known": False})
            return
        await server.connect()
        client.send(
            {
                "type": "server",
                "known": True,
                "tools": len(server.offered_names()),
                "leftOut": server.left_out,
                "unknown": server.unknown_tools(),
            }
        )

    async def _web_link(self, request: Frame, client: ControlClient) -> None:
        client.send({"type": "web link", "url": await self._new_link()})

    async def _send_api_urls(self, request: Frame, client: ControlClient) -> None:
        client.send({"type": "api urls", "urls": self._api_urls()})

    async def _stop_turn(self, request: Frame, client: ControlClient) -> None:
        """Stop the running turn of a session, whoever began it."""
        client.send({"type": "stopped", "stopped": await self._runtime.loop.stop_turn(str(request["session"]))})

    async def _stop_gateway(self, request: Frame, client: ControlClient) -> None:
        client.send({"type": "leaving"})
        self._shutdown.stop()

    async def _restart_gateway(self, request: Frame, client: ControlClient) -> None:
        client.send({"type": "leaving"})
        self._shutdown.restart()

    def _session_of(self, request: Frame) -> str:
        """The requested session; with `continue`, the newest one of the terminal."""
        newest = self._runtime.sessions.latest(is_terminal_session) if request.get("continue") else None
        return str(newest or request.get("session") or "cli:direct")

    def _program_message(self, text: str, key: str, media: Sequence[str]) -> InboundMessage:
        """The message of a program. In the session of a chat, its jobs and reports go to that chat."""
        channel, _, chat_id = key.partition(":")
        if channel not in self._runtime.config.channels.enabled_by_name():
            channel, chat_id = "sdk", "direct"
        return InboundMessage.from_owner(channel, chat_id, text, session_key=key, origin=Origin.API, media=media)


async def _run_for_client(work: Awaitable[None], client: ControlClient, on_frame: Callable[[Frame], None]) -> None:
    """Run `work` until it ends, or the client stops it or leaves. Other frames go to `on_frame`."""
    running = asyncio.ensure_future(work)
    receiving = asyncio.ensure_future(_receive_until_stop(client, on_frame))
    try:
        await asyncio.wait((running, receiving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()  # a cancelled turn keeps its partial result
        receiving.cancel()
        await asyncio.wait((running, receiving))
    if not running.cancelled():
        running.result()


async def _receive_until_stop(client: ControlClient, on_frame: Callable[[Frame], None]) -> None:
    with suppress(OSError, ValueError):
        while (frame := await client.receive()) is not None and frame.get("do") != "stop":
            on_frame(frame)


def _options(asked: Frame) -> TurnOptions:
    output = None
    if asked.get("schema") is not None:
        from nanobot.sdk.output import OutputFormat  # brings pydantic's validators, for programs only

        output = OutputFormat(asked["schema"])
    return TurnOptions(
        instructions=str(asked.get("instructions") or ""),
        budget_usd=asked.get("budget_usd"),
        ephemeral=bool(asked.get("ephemeral")),
        answer_format=output.describe() if output is not None else "",
        format_problem=output.problem if output is not None else None,
    )


def _terminal_message(text: str, key: str, media: Sequence[str] = (), folder: str = "") -> InboundMessage:
    paths = [str(Path(path)) for path in media]
    return InboundMessage.from_owner(
        "cli", _chat_of(key), text, session_key=key, origin=Origin.CLI, media=paths, folder=folder
    )


def _chat_of(session_key: str) -> str:
    return session_key.removeprefix("cli:") or "direct"
