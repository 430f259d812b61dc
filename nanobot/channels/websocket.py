"""WebSocket: a server of ours, for clients of one's own. docs/formats.md has the frames.

A client names itself, and that name is its chat: all connections of one name see the same, each at its own pace, and
read on after a break from the last number they saw. A reply counts as delivered when the client's end of the line has
answered a ping that was sent behind it (RFC 6455, 5.5.2: pongs come in order); until then the journal keeps it.
"""

import asyncio
import hmac
import logging
import os
import secrets
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Origin

from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.backlog import Backlog
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.frames import (
    EXPECTED,
    NAME,
    Chat,
    Fields,
    FrameError,
    Said,
    frame_of,
    id_of,
    opened,
    parsed,
    wired,
)
from nanobot.channels.media import Attachment, Kept
from nanobot.channels.media_kinds import MediaKind
from nanobot.config.channels import WebSocketConfig
from nanobot.errors import NanobotError, StorageError
from nanobot.utils.http import is_loopback

PROTOCOL = 1
HELLO_S = 10.0
"""How long a connection may take to say who it is."""
PATIENCE_S = 60.0
"""How often it is looked whether a client that is not there may still come, and how long one that is there may take."""
CLOSE_S = 1.0
MOST_CONNECTIONS = 256
MOST_STRANGERS = 16
"""Connections that have not said hello yet."""
MOST_CHATS = 1000
MOST_GUESSERS = 100
"""Addresses whose wrong tokens are told in the log."""

log = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL + 1)  # a port scan is no news, and what matters is said here


class GoodbyeError(NanobotError):
    """A connection that is not wanted. The text goes to it, and then it is closed."""


@dataclass(frozen=True, slots=True)
class Client:
    """Who is at the other end."""

    name: str
    after: int | None
    """The last number it saw, if it saw any in this life of the gateway."""


class WebSocketChannel(BaseChannel):
    """The channel `websocket`."""

    name = "websocket"
    stall_s = 0.0  # nobody may be there for days; each connection has its own pings
    delta_interval_s = 0.05

    def __init__(self, config: WebSocketConfig | Mapping[str, Any], bus: MessageBus) -> None:
        section = config if isinstance(config, WebSocketConfig) else WebSocketConfig.model_validate(config)
        super().__init__(section, bus)
        self._section = section
        self._epoch = secrets.token_hex(8)
        self._chats: dict[str, Chat] = {}
        self._guessers: set[str] = set()
        self._strangers = 0
        self._connections = 0

    @property
    def supports_streaming(self) -> bool:
        """Always, unless the config says no."""
        return self._section.streaming

    async def start(self) -> None:
        """Listen until this is cancelled. Raises ChannelSetupError where that is not possible or not wise."""
        section = self._section
        is_local = is_loopback(section.host)
        if not section.token and not is_local:
            raise ChannelSetupError(
                f"channels.websocket.token is empty, and channels.websocket.host is {section.host}: anybody who can "
                "reach it could talk to the bot. Set a token, or the host to 127.0.0.1."
            )
        tls = _tls(section)
        if tls is None and not is_local:
            log.warning(
                "websocket: words and token travel unencrypted on %s; set channels.websocket.sslCertfile and "
                "sslKeyfile, or put a proxy with TLS before it",
                section.host,
            )
        try:
            server = await serve(
                self._serve,
                section.host,
                section.port,
                ssl=tls,
                origins=[None, *(Origin(one) for one in section.allow_origins)],
                compression=None,
                process_request=self._admit,
                server_header=None,
                open_timeout=HELLO_S,
                ping_interval=section.ping_interval_s,
                ping_timeout=section.ping_timeout_s,
                close_timeout=CLOSE_S,
                max_size=section.max_message_bytes,
                max_queue=2,  # of the largest frames
                logger=_wire,
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own words are long
            raise ChannelSetupError(
                f"channels.websocket cannot listen on {section.host}, port {section.port} ({why}). Stop the program "
                "that has it, or set channels.websocket.port."
            ) from error
        await self._until_cancelled(server)

    async def _until_cancelled(self, server: Server) -> None:
        self.up()
        try:
            await server.wait_closed()
        finally:
            server.close()
            await server.wait_closed()

    async def stop(self) -> None:
        """Nothing is left to do: `start` said goodbye to everybody."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Say it to whoever listens; what lasts, until it has arrived."""
        if message.kind.lasts:
            return await self.send(message)
        self._chat(message.chat_id).backlog.add(frame_of(message, None, []))
        return ()

    async def reachable(self, chat_id: str) -> None:
        """Wait for a client of that name, as long as one may come. Nothing is written meanwhile."""
        await super().reachable(chat_id)
        backlog = self._chat(chat_id).backlog
        while not backlog.listeners and self._may_come(chat_id):
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await backlog.somebody_listens()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Say it, and wait until the client has it; its id. A second try waits for the same frame.

        Nothing is said of a possible repeat: clients drop what comes with an id they know.
        """
        chat = self._chat(message.chat_id)
        frame_id = id_of(message)
        message.sent_ids = (frame_id,)
        frame = chat.backlog.find(frame_id)
        if frame is None:
            self._check_somebody_may_come(message.chat_id, chat)
            files, problems = await chat.attach(message.media)
            told = "\n\n".join([message.content, *problems]).lstrip()
            frame = chat.backlog.add(frame_of(replace(message, content=told), frame_id, files), frame_id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await frame.arrived.wait()
        except TimeoutError:
            try:
                self._check_somebody_may_come(message.chat_id, chat)
            except UndeliverableError:
                chat.backlog.drop(frame)
                raise
            raise NotConnectedError(f"the client {message.chat_id} is not there") from None
        return (frame_id,)

    def _check_somebody_may_come(self, name: str, chat: Chat) -> None:
        """Raises UndeliverableError where nobody listens, and nobody of that name is let in."""
        if not chat.backlog.listeners and not self._may_come(name):
            raise UndeliverableError(f"no client called {name!r} is connected, and none of that name may speak here")

    def _may_come(self, name: str) -> bool:
        return NAME.fullmatch(name) is not None and self.services.access.knows(name)

    def _chat(self, name: str) -> Chat:
        if name not in self._chats:
            if len(self._chats) >= MOST_CHATS:
                idle = (one for one, chat in self._chats.items() if chat.backlog.is_idle)
                self._chats.pop(next(idle, ""), None)
            self._chats[name] = Chat()
        return self._chats[name]

    # one connection

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuse a crowd before it costs anything."""
        if self._connections >= MOST_CONNECTIONS or self._strangers >= MOST_STRANGERS:
            return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections. Try again later.\n")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        """One connection, from its hello to its end. Never raises."""
        self._connections += 1
        try:
            await self._talk(socket, await self._greet(socket))
        except ConnectionClosed:
            pass
        except GoodbyeError as error:
            await _say_goodbye(socket, 1008, str(error))
        except Exception:  # the wall of a connection
            log.exception("websocket: a connection broke")
            await _say_goodbye(socket, 1011, "Something broke here; the log of the gateway says what.")
        finally:
            self._connections -= 1

    async def _greet(self, socket: ServerConnection) -> Client:
        """Who it is, once it has shown that it may be here. Raises GoodbyeError."""
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_S):
                hello = parsed(await socket.recv())
        except TimeoutError:
            raise GoodbyeError(f"There was no hello within {HELLO_S:g} seconds.") from None
        except FrameError as error:
            raise GoodbyeError(str(error)) from error
        finally:
            self._strangers -= 1
        if hello.get("type") != "hello":
            raise GoodbyeError('The first frame must be {"type": "hello", "client": "a-name", "token": "..."}.')
        token = self._section.token
        if token and not hmac.compare_digest(token.encode(), str(hello.get("token", "")).encode(errors="replace")):
            self._warn_of(socket)
            raise GoodbyeError("The token is wrong: it must be that of channels.websocket.token.")
        name, after = hello.get("client"), hello.get("after")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise GoodbyeError("`client` must be a name of letters, digits and . _ @ + -, at most 64 characters.")
        if after is not None and (not isinstance(after, int) or isinstance(after, bool) or after < 0):
            raise GoodbyeError("`after` must be the `seq` of the last frame that was seen.")
        return Client(name, after if hello.get("epoch") == self._epoch else None)

    def _warn_of(self, socket: ServerConnection) -> None:
        """Once for each address: who guesses must not fill the log."""
        address = socket.remote_address[0] if isinstance(socket.remote_address, tuple) else "nowhere"
        if address not in self._guessers and len(self._guessers) < MOST_GUESSERS:
            self._guessers.add(address)
            log.warning("websocket: a connection from %s had a wrong token", address)

    async def _talk(self, socket: ServerConnection, client: Client) -> None:
        chat = self._chat(client.name)
        backlog = chat.backlog
        backlog.came()
        welcome = {"type": "welcome", "protocol": PROTOCOL, "epoch": self._epoch, "last": backlog.last}
        writing: asyncio.Task[None] | None = None
        try:
            await socket.send(wired(welcome | {"client": client.name}))
            writing = asyncio.create_task(_write(socket, backlog, client.after), name=f"websocket {client.name}")
            async for raw in socket:
                self.evidence.sign()
                await socket.send(wired(await self._answer(client, chat, raw)))
        finally:
            backlog.left()
            if writing is not None:
                writing.cancel()
                await asyncio.wait([writing])

    async def _answer(self, client: Client, chat: Chat, raw: str | bytes) -> Fields:
        """Every frame of a client gets one frame back."""
        about: Fields = {}
        try:
            frame = parsed(raw)
            about = {name: frame[name] for name in ("id", "file") if isinstance(frame.get(name), str)}
            match frame.get("type"):
                case "message":
                    return await self._message(client, frame)
                case "fetch":
                    return await chat.part_of_file(frame)
                case "ping":
                    return {"type": "pong"}
            raise FrameError(EXPECTED)
        except FrameError as error:
            return {"type": "error", "reason": str(error)} | about

    async def _message(self, client: Client, frame: Fields) -> Fields:
        said = Said.of(frame)
        try:
            accepted = await self.receive(
                client.name,
                client.name,
                said.text,
                message_id=said.id,
                thread_id=said.thread,
                fetch=partial(self._keep, said.files) if said.files else None,
            )
        except StorageError as error:
            return {"type": "nack", "id": said.id, "reason": str(error)}
        return {"type": "ack", "id": said.id, "accepted": accepted}

    async def _keep(self, files: Sequence[Fields]) -> list[Kept]:
        """What came with a message. Raises FrameError, and then the message is not taken."""
        kept = []
        for told in files:
            chunks = await opened(told, self._section.media_folders)
            attachment = Attachment(
                next((kind for kind in MediaKind if kind == told.get("kind")), MediaKind.FILE),
                name=str(told.get("name") or told.get("path") or ""),
                content_type=str(told["mime"]) if "mime" in told else None,
            )
            kept.append(await self.services.media.keep(attachment, chunks))
        return kept


async def _write(socket: ServerConnection, backlog: Backlog, after: int | None) -> None:
    """Send what there is and what comes, at the pace of this connection, until it is closed."""
    if after is None:
        sent, seen = backlog.owed_after(), backlog.last
    else:
        sent = seen = min(after, backlog.last)
        backlog.arrived(sent)  # it says so itself
    try:
        while True:
            await backlog.wait_after(sent)
            if backlog.has_gap(seen):
                await socket.send(wired({"type": "gap", "after": seen}))
            frames, newest = backlog.after(sent), backlog.last
            owed = any(frame.is_owed for frame in frames)
            for frame in frames:
                await socket.send(frame.text)
            sent = seen = newest
            if owed:
                pong = asyncio.ensure_future(await socket.ping())
                pong.add_done_callback(partial(_confirm, backlog, newest))
    except ConnectionClosed:
        return
    except Exception:  # the wall of a connection: who reads but hears nothing would never know
        log.exception("websocket: a connection broke")
        await socket.close(1011)


def _confirm(backlog: Backlog, seq: int, pong: "asyncio.Future[float]") -> None:
    if not pong.cancelled() and pong.exception() is None:
        backlog.arrived(seq)


async def _say_goodbye(socket: ServerConnection, code: int, reason: str) -> None:
    try:
        await socket.send(wired({"type": "error", "reason": reason}))
    except ConnectionClosed:
        return
    await socket.close(code)


def _tls(section: WebSocketConfig) -> ssl.SSLContext | None:
    """What the config says of TLS. Raises ChannelSetupError for files that cannot be used."""
    if not section.ssl_certfile:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(section.ssl_certfile, section.ssl_keyfile or None)
    except OSError as error:
        raise ChannelSetupError(
            f"channels.websocket.sslCertfile and sslKeyfile cannot be used ({error.strerror or error}). Name a PEM "
            "file with the certificate chain, and one with its key."
        ) from error
    return context
