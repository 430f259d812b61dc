"""The requests of the local socket: turns and their events, outbound messages, health, stop and restart."""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from nanobot.agent.commands.sessions import list_conversations
from nanobot.agent.events import Answer
from nanobot.agent.feed import Feed, FeedClosedError, stored_view
from nanobot.agent.recovery import find_interrupted_turn
from nanobot.agent.scope import OWNERS
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.shell import check_for_terminal, run_for_owner
from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError
from nanobot.gateway.control.terminal import TerminalChannel
from nanobot.gateway.report import HealthReporter
from nanobot.gateway.shutdown import ShutdownRequests
from nanobot.messages.types import Origin, text_of
from nanobot.net.gateway_socket import Frame, decode_frame, encode_frame
from nanobot.runtime.build import Runtime
from nanobot.session.file_names import is_terminal_session

ABANDONED_S = 2.0
"""A turn is stopped this time after its client has left."""
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

    async def receive(self) -> Frame | None:
        """Return the next frame, or None if the client left. Raises ValueError for an invalid frame."""
        line = await self._reader.readline()
        return decode_frame(line) if line.endswith(b"\n") else None

    async def wait_left(self) -> None:
        """Wait until the client has left."""
        with suppress(OSError, ValueError):
            while await self.receive() is not None:
                pass

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
        feed: Feed,
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
        self._feed = feed
        self._followers: Counter[str] = Counter()
        """Connections of the clients that have sent a message, by the id of its turn."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._reporter = reporter
        self._shutdown = shutdown
        self._terminal = terminal
        self._handlers: dict[str, Callable[[Frame, ControlClient], Awaitable[None]]] = {
            "about": self._about,
            "model": self._model,
            "sessions": self._sessions,
            "turn": self._turn,
            "resume": self._resume,
            "waiting": self._waiting,
            "answer": self._answer_question,
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
        """Handle a request; errors are sent to the client. Raises OSError if the client is gone."""
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
        except (KeyError, TypeError, ValueError) as error:
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
        """Accept a message, heard once however often it is sent, and follow its turn.

        A turn that its client has left is stopped soon after, unless the client comes back.
        """
        key, turn_id = self._session_of(request), str(request["turn"])
        text = str(request["text"])
        self._followers[turn_id] += 1
        try:
            if not self._is_open(key, turn_id) and self._feed.view(turn_id) is None:
                await self._runtime.bus.publish_inbound(await self._message(request, key, turn_id, text))
            with self._forward_messages(key, client) if request.get("shows") else nullcontext():
                await self._follow(request, key, turn_id, client, partial(self._is_open, key))
        finally:
            self._followers[turn_id] -= 1
            if not self._followers[turn_id]:
                del self._followers[turn_id]
                if self._is_open(key, turn_id):
                    asyncio.get_running_loop().call_later(ABANDONED_S, self._stop_abandoned, key, turn_id)
                else:
                    self._terminal.waiting_lines.pop(turn_id, None)

    async def _message(self, request: Frame, key: str, turn_id: str, text: str) -> InboundMessage:
        media = [str(path) for path in request.get("media", ())]
        if media:
            from nanobot.providers.transcription import transcribe_media  # brings httpx

            text = await transcribe_media(text, media, self._runtime.config, os.environ)
        options: Frame | None = request.get("options")  # of a program
        if options is None:
            message = _terminal_message(text, key, media, str(request.get("folder", "")))
        else:
            message = self._program_message(text, key, media)
        return replace(
            message,
            message_id=turn_id,
            turn_id=turn_id,
            attended=bool(request.get("attended")),
            request=options or {},
        )

    async def _resume(self, request: Frame, client: ControlClient) -> None:
        """Follow the turn that a terminal or program has begun in a session, or resume an interrupted one."""
        key = self._session_of(request)
        running = (view.started for view in self._feed.views(key))
        turn_id = next((started.turn_id for started in running if started.turn_id == started.message_id), "")
        is_open: Callable[[str], bool] = partial(self._is_open, key)
        if not turn_id:
            folder = DataPaths(self._runtime.data_dir).turns
            interrupted = await asyncio.to_thread(find_interrupted_turn, folder, key)
            turn_id = interrupted.turn_id if interrupted is not None else ""
        if not is_open(turn_id):  # the loop resumes what was journaled
            resuming = self._start(self._runtime.loop.resume(key, attended=bool(request.get("attended"))))
            if not turn_id:
                await asyncio.wait([resuming])
                client.send({"type": "nothing"})
                return
            is_open = lambda turn_id: not resuming.done()  # noqa: E731 it is one line
        await self._follow(request, key, turn_id, client, is_open)

    async def _follow(
        self, request: Frame, key: str, turn_id: str, client: ControlClient, is_open: Callable[[str], bool]
    ) -> None:
        """Send the events of a turn until it ends or the client leaves. It may begin as long as it `is_open`."""

        async def send() -> None:
            view = await self._feed.wait_view(turn_id, lambda: is_open(turn_id))
            if view is None:
                session = await asyncio.to_thread(self._runtime.sessions.read, key)
                view = stored_view(session, turn_id, Origin.CLI) if session is not None else None
            if view is None:
                raise NanobotError(f"The session {key} has no turn {turn_id}.")
            async for frame in self._feed.follow_turn(view, str(request.get("seen", ""))):
                client.send(frame)

        with suppress(FeedClosedError):  # the client comes back
            await _run_for_client(send(), client)

    def _is_open(self, key: str, turn_id: str) -> bool:
        return self._runtime.bus.is_open(key, turn_id)

    def _stop_abandoned(self, key: str, turn_id: str) -> None:
        if turn_id not in self._followers:
            self._terminal.waiting_lines.pop(turn_id, None)
            if self._is_open(key, turn_id) and not self._runtime.loop.is_stopping:
                self._start(self._runtime.loop.stop_turn(key, turn_id))

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run work that goes on when its client leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _waiting(self, request: Frame, client: ControlClient) -> None:
        """Replace the lines that wait in a terminal, which its turn may take."""
        key, folder = self._session_of(request), str(request.get("folder", ""))
        if request["turn"] in self._followers:
            self._terminal.waiting_lines[request["turn"]] = [
                _terminal_message(str(line["text"]), key, line.get("media", ()), folder) for line in request["lines"]
            ]
        client.send({"type": "waiting"})

    async def _answer_question(self, request: Frame, client: ControlClient) -> None:
        """Answer an approval question as the owner."""
        answered = self._runtime.questions.answer(str(request["question"]), Answer(request["answer"]))
        client.send({"type": "answered", "answered": answered})

    async def _listen(self, request: Frame, client: ControlClient) -> None:
        """Send outbound messages to a terminal chat until the client leaves."""
        with self._forward_messages(str(request["session"]), client, for_all=True):
            await client.wait_left()

    async def _background(self, request: Frame, client: ControlClient) -> None:
        """Wait for the background work of a session, and send outbound messages to its chat meanwhile."""
        key, background = self._session_of(request), self._runtime.background
        with self._forward_messages(key, client):
            if running := background.list_running(key):
                client.send({"type": "working", "running": running})
            await _run_for_client(background.wait_until_delivered(key), client)
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
        """Stop a turn, or the running turn of a session, whoever began it."""
        key, turn_id = str(request["session"]), request.get("turn")
        client.send({"type": "stopped", "stopped": await self._runtime.loop.stop_turn(key, turn_id)})

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


async def _run_for_client(work: Awaitable[object], client: ControlClient) -> None:
    """Run `work` until it ends or the client leaves."""
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(client.wait_left())
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.wait((running, leaving))
    if not running.cancelled():
        running.result()


def _terminal_message(text: str, key: str, media: Sequence[str] = (), folder: str = "") -> InboundMessage:
    paths = [str(Path(path)) for path in media]
    return InboundMessage.from_owner(
        "cli", _chat_of(key), text, session_key=key, origin=Origin.CLI, media=paths, folder=folder
    )


def _chat_of(session_key: str) -> str:
    return session_key.removeprefix("cli:") or "direct"
