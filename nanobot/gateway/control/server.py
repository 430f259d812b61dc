"""The server of the local socket: turns and their events, outbound messages, health, stop and restart.

Terminal chats request their turns here, so that the gateway is the only writer of its sessions. Whoever can open the
socket is the owner. When a client leaves and does not come back, its turn stops and keeps its partial result.
"""

import asyncio
import hmac
import json
import logging
import math
import os
import re
import secrets
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from nanobot import __version__
from nanobot.agent.events import Answer
from nanobot.agent.feed import Feed, FeedClosedError, stored_view
from nanobot.agent.recovery import find_interrupted_turn
from nanobot.bus.events import DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.config.paths import DataPaths
from nanobot.errors import NanobotError
from nanobot.gateway.channels import GatewayChannels, TerminalChannel
from nanobot.gateway.control.backend import LocalBackend, chat_of, terminal_message, transcribe_attachments
from nanobot.messages.types import Origin
from nanobot.net.gateway_socket import (
    LONGEST_LINE,
    LONGEST_PATH,
    PROTOCOL,
    Connection,
    Frame,
    port_file,
    settings_in,
    socket_file,
)
from nanobot.net.http_server import Listener
from nanobot.runtime.build import Runtime
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.storage_error import os_reason

log = logging.getLogger(__name__)

HELLO_S = 5.0
"""Timeout for a client's request."""
ABANDONED_S = 2.0
"""A turn is stopped this time after its client has left."""
SEND_S = 60.0
"""How long `send` waits for the platform's answer."""


class ControlServer(Listener):
    """Accepts clients of the local socket and handles their requests. The protocol is in `net.gateway_socket`."""

    def __init__(
        self,
        runtime: Runtime,
        feed: Feed,
        terminal: TerminalChannel,
        channels: GatewayChannels,
        about_gateway: Callable[[str], Awaitable[Frame | None]],
    ) -> None:
        """`about_gateway` answers a request about the gateway itself, by its name; None if there is no such request."""
        super().__init__()
        self._runtime, self._feed, self._terminal, self._channels = runtime, feed, terminal, channels
        self._about_gateway = about_gateway
        self._places = DataPaths(runtime.data_dir)
        self._token: str | None = None
        self._clients: set[Connection] = set()
        self._bot = LocalBackend(runtime)
        self._followers: Counter[str] = Counter()
        """Connections of the clients that have sent a message, by the id of its turn."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._streams: dict[str, Callable[[Frame, Connection], Awaitable[None]]] = {
            "turn": self._turn,
            "resume": self._resume,
            "listen": self._forward_all,
            "background": self._background,
        }
        """Requests with more than one frame as answer."""

    async def _listen(self) -> asyncio.Server:
        """Bind a socket in the state folder, else a port. The caller holds the gateway's lock: old files are stale."""
        make_private_folder(self._places.state)
        path = socket_file(self._places.state)
        path.unlink(missing_ok=True)
        port_file(self._places.state).unlink(missing_ok=True)
        if sys.platform != "win32" and len(os.fsencode(path)) <= LONGEST_PATH:
            with suppress(OSError):  # a file system without sockets
                return await asyncio.start_unix_server(self._accept, sock=_private_socket(path), limit=LONGEST_LINE)
        self._token = secrets.token_hex(32)
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=LONGEST_LINE)
        port = server.sockets[0].getsockname()[1]
        write_atomic(port_file(self._places.state), json.dumps({"port": port, "token": self._token}))
        return server

    def _problem_of(self, error: OSError) -> str:
        reason = os_reason(error)
        return f"the control socket cannot be opened ({reason}); until then `nanobot agent` runs without the gateway"

    def _on_closed(self) -> None:
        for client in self._clients:
            client.abort()
        for file in (socket_file(self._places.state), port_file(self._places.state)):
            with suppress(OSError):
                file.unlink(missing_ok=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if _is_sandboxed(writer.get_extra_info("socket")):
            log.warning("A sandboxed command tried to connect to the gateway's socket and was rejected.")
            writer.close()
            return
        client = Connection(reader, writer)
        self._clients.add(client)
        try:
            async with asyncio.timeout(HELLO_S):
                request = await self._greet(client)
            if request is not None:
                await self._handle(request, client)
        except (OSError, TimeoutError, ValueError) as error:  # it disconnected, was too slow, or sent no frame
            log.debug("a client of the control socket is disconnected: %r", error)
        finally:
            self._clients.discard(client)
            await client.close()

    async def _greet(self, client: Connection) -> Frame | None:
        """Check the client's token, say hello, and return its request; None if it may not ask or has left."""
        if self._token is not None:
            token = str((await client.receive() or {}).get("token", ""))
            if not hmac.compare_digest(token.encode(), self._token.encode()):
                return None
        client.send(
            {
                "type": "hello",
                "protocol": PROTOCOL,
                "version": __version__,
                "pid": os.getpid(),
                "workspace": str(self._runtime.workspace),
                "settings": settings_in(os.environ),
            }
        )
        return await client.receive()

    async def _handle(self, request: Frame, client: Connection) -> None:
        """Handle a request; errors are sent to the client. Raises OSError if the client is gone."""
        try:
            if (stream := self._streams.get(str(request.get("do")))) is not None:
                await stream(request, client)
            else:
                client.send(await self._reply(request))
        except NanobotError as error:
            client.send({"type": "error", "text": str(error), "code": error.exit_code})
        except (KeyError, TypeError, ValueError) as error:
            client.send({"type": "error", "text": f"The request is incomplete: {error!r}."})

    async def _reply(self, request: Frame) -> Frame:
        """The answer to a request that has one frame as answer."""
        bot, runtime = self._bot, self._runtime
        match request:
            case {"do": "about", "session": key}:  # what a terminal chat shows
                is_continuing = bool(request.get("continue"))
                return {
                    "session": await asyncio.to_thread(bot.session_of, key, continue_latest=is_continuing),
                    "name": runtime.config.agents.defaults.bot_title,  # may have changed
                    "workspace": str(bot.workspace),
                    "commands": bot.commands(),
                    "skills": await asyncio.to_thread(bot.skills),
                }
            case {"do": "session", "session": str(key)}:
                return asdict(await bot.session_info(key))
            case {"do": "sessions", "session": str(key)}:
                return {"sessions": [asdict(item) for item in await bot.conversations(key)]}
            case {"do": "exec", "command": str(command), "session": str(key), "folder": str(folder)}:
                text, ok = await bot.shell(command, key, folder)
                return {"text": text, "ok": ok}
            case {"do": "check exec", "command": str(command), "folder": str(folder)}:
                return {"refusal": await bot.check_for_terminal(command, folder)}
            case {"do": "waiting", "turn": str(turn_id), "lines": lines}:  # replaces the lines that the turn may take
                if turn_id in self._followers:
                    self._terminal.waiting_lines[turn_id] = [
                        terminal_message(line["text"], line["session"], line["media"], line["folder"]) for line in lines
                    ]
                return {}
            case {"do": "answer", "question": str(question), "answer": answer}:  # as the owner
                return {"answered": runtime.questions.answer(question, Answer(answer))}
            case {"do": "stop turn", "session": str(key)}:  # also one of another client
                return {"stopped": await runtime.loop.stop_turn(key, request.get("turn"))}
            case {"do": "send", "channel": str(channel), "to": str(to), "text": str(text)}:
                return {"ids": await self._send(channel, to, text, request)}
            case {"do": "mcp server", "name": str(name)}:
                return await self._mcp_server(name)
        name = str(request.get("do"))
        if (answer := await self._about_gateway(name)) is not None:
            return answer
        raise NanobotError(
            f"The gateway does not know the request {name!r}, or it is incomplete. Is it an older version? Then: "
            "`nanobot gateway restart`."
        )

    async def _turn(self, request: Frame, client: Connection) -> None:
        """Accept a message, heard once however often it is sent, and follow its turn.

        A turn that its client has left is stopped soon after, unless the client comes back.
        """
        key, turn_id = str(request["session"]), str(request["turn"])
        self._followers[turn_id] += 1
        try:
            if not self._is_open(key, turn_id) and self._feed.view(turn_id) is None:
                await self._runtime.bus.publish_inbound(await self._message(request, key, turn_id))
            with self._forward_messages(key, client) if request.get("shows") else nullcontext():
                await self._follow(request, key, turn_id, client, partial(self._is_open, key, turn_id))
        finally:
            self._followers[turn_id] -= 1
            if not self._followers[turn_id]:
                del self._followers[turn_id]
                delay_s = ABANDONED_S if self._is_open(key, turn_id) else 0.0
                asyncio.get_running_loop().call_later(delay_s, self._end_abandoned, key, turn_id)

    def _end_abandoned(self, key: str, turn_id: str) -> None:
        if turn_id not in self._followers:
            self._terminal.waiting_lines.pop(turn_id, None)
            if self._is_open(key, turn_id) and not self._runtime.loop.is_stopping:
                self._start(self._runtime.loop.stop_turn(key, turn_id))

    async def _message(self, request: Frame, key: str, turn_id: str) -> InboundMessage:
        media = [str(path) for path in request.get("media", ())]
        text = await transcribe_attachments(self._runtime.config, str(request["text"]), media)
        options: Frame | None = request.get("options")  # of a program
        if options is None:
            message = terminal_message(text, key, media, str(request.get("folder", "")))
        else:  # in the session of a chat, its jobs and reports go to that chat
            channel, _, chat_id = key.partition(":")
            if channel not in self._runtime.config.channels.enabled_by_name():
                channel, chat_id = "sdk", "direct"
            message = InboundMessage.from_owner(channel, chat_id, text, session_key=key, origin=Origin.API, media=media)
        attended = bool(request.get("attended"))
        return replace(message, message_id=turn_id, turn_id=turn_id, attended=attended, request=options or {})

    async def _resume(self, request: Frame, client: Connection) -> None:
        """Follow the turn that a terminal or program has begun in a session, or resume an interrupted one."""
        key = str(request["session"])
        running = (view.started for view in self._feed.views(key))
        turn_id = next((started.turn_id for started in running if started.turn_id == started.message_id), "")
        if not turn_id:
            folder = DataPaths(self._runtime.data_dir).turns
            interrupted = await asyncio.to_thread(find_interrupted_turn, folder, key)
            turn_id = interrupted.turn_id if interrupted is not None else ""
        if self._is_open(key, turn_id):  # the loop resumes what was journaled
            await self._follow(request, key, turn_id, client, partial(self._is_open, key, turn_id))
            return
        resuming = self._start(self._runtime.loop.resume(key, attended=bool(request.get("attended"))))
        if turn_id:
            await self._follow(request, key, turn_id, client, lambda: not resuming.done())
        else:
            await asyncio.wait([resuming])
            client.send({"type": "nothing"})

    async def _follow(
        self, request: Frame, key: str, turn_id: str, client: Connection, is_open: Callable[[], bool]
    ) -> None:
        """Send the events of a turn until it ends or the client leaves. It may begin as long as it `is_open`."""

        async def send() -> None:
            view = await self._feed.wait_view(turn_id, is_open)
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

    def _start(self, work: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run work that goes on when its client leaves."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _forward_all(self, request: Frame, client: Connection) -> None:
        """Send outbound messages to a terminal chat until the client leaves."""
        with self._forward_messages(str(request["session"]), client, for_all=True):
            await _wait_left(client)

    async def _background(self, request: Frame, client: Connection) -> None:
        """Wait for the background work of a session, and send outbound messages to its chat meanwhile."""
        key, background = str(request["session"]), self._runtime.background
        with self._forward_messages(key, client):
            if running := background.list_running(key):
                client.send({"type": "working", "running": running})
            await _run_for_client(background.wait_until_delivered(key, self._terminal.name), client)
        client.send({"type": "delivered"})

    def _forward_messages(self, key: str, client: Connection, *, for_all: bool = False) -> AbstractContextManager[None]:
        """Send the client the outbound messages to the session's chat until the block ends."""

        def show(text: str) -> None:
            client.send({"type": "message", "text": text})

        return self._terminal.shown_by(chat_of(key), show, for_all=for_all)

    async def _send(self, channel: str, to: str, text: str, request: Frame) -> list[str]:
        """Send a message to a chat, or with `person` to a person, and return its platform ids."""
        channels = self._channels
        if channels.manager.get(channel) is None:
            if broken := channels.broken.get(channel):
                raise NanobotError(f"{channel} cannot send: {broken}")
            raise NanobotError(
                f"This gateway runs no channel {channel!r} (running: {', '.join(channels.names) or 'none'}). Set "
                f"channels.{channel}.enabled."
            )
        if request.get("person"):
            to = await channels.manager.chat_with(channel, to) or to
        media, thread_id = [str(path) for path in request.get("media", ())], request.get("thread")
        message = OutboundMessage(channel, to, text, media=media, kind=OutboundKind.NOTICE, thread_id=thread_id)
        receipt = await self._runtime.bus.publish_outbound(message)
        try:
            async with asyncio.timeout(SEND_S):
                return [*await receipt.wait()]
        except TimeoutError as error:
            raise DeliveryFailedError(
                f"{channel} did not accept the message within {SEND_S:.0f} s. It stays queued and is sent when "
                "possible."
            ) from error

    async def _mcp_server(self, name: str) -> Frame:
        """Connect to an MCP server if needed, and return how many tools it offers."""
        servers = self._runtime.servers
        server = servers.find(name) if servers is not None else None
        if server is None:
            return {"known": False}
        await server.connect()
        counts = {"tools": len(server.offered_names()), "leftOut": server.left_out, "unknown": server.unknown_tools()}
        return {"known": True, **counts}


async def _run_for_client(work: Awaitable[object], client: Connection) -> None:
    """Run `work` until it ends or the client leaves."""
    running = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_wait_left(client))
    try:
        await asyncio.wait((running, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.wait((running, leaving))
    if not running.cancelled():
        running.result()


async def _wait_left(client: Connection) -> None:
    with suppress(OSError, ValueError):
        while await client.receive() is not None:
            pass


def _is_sandboxed(caller: socket.socket) -> bool:
    """Whether the client is a command of the agent, which must not act as the owner.

    With Landlock alone a command can reach the socket. It has more seccomp filters than this process, and can never
    drop them.
    """
    if sys.platform != "linux" or caller.family != socket.AF_UNIX:
        return False
    pid: int = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    return pid != 0 and _seccomp_filters(pid) > _seccomp_filters(os.getpid())  # 0: from another pid namespace


def _seccomp_filters(pid: int) -> float:
    """The number of a process's seccomp filters, see proc_pid_status(5); infinity if the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return math.inf
    match = re.search(r"^Seccomp_filters:\s*(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else 0


def _private_socket(path: Path) -> socket.socket:
    """Bind a socket that only its owner can open, at any moment. Raises OSError."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(OSError):  # on Linux the file gets this mode; elsewhere the private folder protects it
            os.fchmod(bound.fileno(), 0o600)
        bound.bind(str(path))
        os.chmod(path, 0o600)
    except BaseException:
        bound.close()
        raise
    return bound
