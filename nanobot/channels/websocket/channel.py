"""WebSocket: a server of ours, for clients of one's own. docs/formats.md has the frames.

A client is who its token says: the config gives each a token, and its name is its chat. All connections of one client
see the same, each at its own pace, and read on after a break from the last number they saw. A reply counts as delivered
when the client's end of the line has answered a ping that was sent behind it (RFC 6455, 5.5.2: pongs come in order);
until then the journal keeps it.
"""

import asyncio
import hmac
import logging
import os
import secrets
import ssl
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.typing import Origin

from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment, StoredAttachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.websocket.backlog import FrameBacklog
from nanobot.channels.websocket.frames import (
    EXPECTED,
    NAME,
    ChatTarget,
    Fields,
    FrameError,
    IncomingFrame,
    encode_frame,
    frame_of,
    id_of,
    opened,
    parse_frame,
)
from nanobot.config.channels import WebSocketConfig
from nanobot.errors import NanobotError, StorageError
from nanobot.net.http import is_loopback
from nanobot.security.redaction import learn_secrets
from nanobot.utils.files import make_private_folder, write_atomic

PROTOCOL = 1
HELLO_S = 10.0
"""How long a connection may take to say who it is."""
PATIENCE_S = 60.0
"""How often it is looked whether a client that is not there may still come, and how long one that is there may take."""
CLOSE_S = 1.0
MOST_CONNECTIONS = 256
MOST_UNIDENTIFIED = 64
"""Connections that have not said hello yet. One more, and the oldest goes."""
HELLO_BYTES = 4096
BYTES_BEFORE_HELLO = 64 * 1024
"""What is read of a connection, with the headers of its handshake, until its hello has come."""
MIN_TOKEN_CHARS = 16
DEFAULT_CLIENT = "default"
"""The client of `channels.websocket.token`, or of the token that is made where the config has none."""
MOST_CHATS = 1000
MOST_GUESSERS = 100
"""Addresses whose wrong tokens are told in the log."""

log = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL + 1)  # a port scan is no news, and what matters is said here


class ClientRefusedError(NanobotError):
    """A connection that is not wanted. The text goes to it, and then it is closed."""


class BoundedConnection(ServerConnection):
    """A connection of which little is read until its client is known."""

    is_identified = False
    _received = 0

    def data_received(self, data: bytes) -> None:
        """Take what came, or end the connection."""
        self._received += len(data)
        if self.is_identified or self._received <= BYTES_BEFORE_HELLO:
            super().data_received(data)
        else:
            self.transport.abort()

    @property
    def address(self) -> str:
        """Where it comes from."""
        return str(self.remote_address[0]) if isinstance(self.remote_address, tuple) else "nowhere"


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
        self._chats: dict[str, ChatTarget] = {}
        self._tokens: dict[str, str] = {}
        self._guessers: set[str] = set()
        self._unidentified: dict[BoundedConnection, None] = {}
        """Oldest first."""
        self._connections = 0

    @property
    def supports_streaming(self) -> bool:
        """Always, unless the config says no."""
        return self._section.streaming

    async def start(self) -> None:
        """Listen until this is cancelled. Raises ChannelSetupError where that is not possible or not wise."""
        section = self._section
        self._tokens = await asyncio.to_thread(self._load_tokens)
        tls = _tls(section)
        if tls is None and not is_loopback(section.host):
            log.warning(
                "websocket: messages and token are unencrypted on %s; set channels.websocket.sslCertfile and "
                "sslKeyfile, or use a reverse proxy with TLS",
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
                create_connection=BoundedConnection,
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
                "that uses it, or set channels.websocket.port."
            ) from error
        await self._until_cancelled(server)

    async def login(self, force: bool = False) -> bool:
        """Show where clients connect, and the token that was made for them. Raises ChannelSetupError."""
        section = self._section
        tokens = await asyncio.to_thread(self._load_tokens)
        lines = [f"Clients connect to {'wss' if section.ssl_certfile else 'ws'}://{section.host}:{section.port}"]
        if section.token or section.clients:
            lines.append(f"with the tokens that the config has for: {', '.join(tokens)}.")
        else:
            lines.append(f"with this token:\n  {tokens[DEFAULT_CLIENT]}")
        print("\n".join(lines))  # noqa: T201 a person waits
        return True

    def _load_tokens(self) -> dict[str, str]:
        """The token of each client: the config's, or where it has none, one that is kept in the state folder.

        Blocking. Raises ChannelSetupError.
        """
        section = self._section
        tokens = {name: client.token for name, client in section.clients.items()}
        if section.token and DEFAULT_CLIENT in tokens:
            raise ChannelSetupError(
                f"channels.websocket.token and channels.websocket.clients.{DEFAULT_CLIENT} are tokens of the same "
                "client. Keep one."
            )
        if section.token:
            tokens[DEFAULT_CLIENT] = section.token
        for name, token in tokens.items():
            if not NAME.fullmatch(name):
                raise ChannelSetupError(
                    f"channels.websocket.clients: {name!r} is not a name of letters, digits and . _ @ + -, at most 64 "
                    "characters. Rename that client."
                )
            if not token:
                raise ChannelSetupError(
                    f"channels.websocket.clients.{name}.token is empty. Set a long random one, as "
                    "`openssl rand -hex 24` makes it."
                )
        if len({*tokens.values()}) < len(tokens):
            raise ChannelSetupError(
                "channels.websocket: two clients have the same token, so they cannot be told apart. Give each its own."
            )
        return tokens or {DEFAULT_CLIENT: _kept_token(self.services.state)}

    async def _until_cancelled(self, server: Server) -> None:
        self.mark_up()
        try:
            await server.wait_closed()
        finally:
            server.close()
            await server.wait_closed()

    async def stop(self) -> None:
        """Nothing is left to do: `start` said goodbye to everybody."""

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Say it to whoever listens; what lasts, until it has arrived."""
        if message.kind.is_durable:
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
            raise NotConnectedError(f"the client {message.chat_id} is not connected") from None
        return (frame_id,)

    def _check_somebody_may_come(self, name: str, chat: ChatTarget) -> None:
        """Raises UndeliverableError where nobody listens, and nobody of that name is let in."""
        if not chat.backlog.listeners and not self._may_come(name):
            raise UndeliverableError(f"no client named {name!r} is connected or allowed")

    def _may_come(self, name: str) -> bool:
        return name in self._tokens and self.services.access.is_allowed(name)

    def _chat(self, name: str) -> ChatTarget:
        if name not in self._chats:
            if len(self._chats) >= MOST_CHATS:
                idle = (one for one, chat in self._chats.items() if chat.backlog.is_idle)
                self._chats.pop(next(idle, ""), None)
            self._chats[name] = ChatTarget()
        return self._chats[name]

    # one connection

    def _admit(self, socket: ServerConnection, request: Request) -> Response | None:
        """Refuse a crowd before it costs anything."""
        if self._connections >= MOST_CONNECTIONS:
            return socket.respond(HTTPStatus.SERVICE_UNAVAILABLE, "Too many connections. Try again later.\n")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        """One connection, from its hello to its end. Never raises."""
        assert isinstance(socket, BoundedConnection)  # noqa: S101 for the type alone: `serve` makes no others
        self._connections += 1
        try:
            await self._talk(socket, await self._identify(socket))
        except ConnectionClosed:
            pass
        except ClientRefusedError as error:
            await _say_goodbye(socket, 1008, str(error))
        except Exception:  # the wall of a connection
            log.exception("websocket: a connection failed")
            await _say_goodbye(socket, 1011, "Internal error; see the gateway's log.")
        finally:
            self._connections -= 1

    async def _identify(self, socket: BoundedConnection) -> Client:
        """Which client it is, by the token in its hello. Raises GoodbyeError."""
        hello = await self._receive_hello(socket)
        if hello.get("type") != "hello":
            raise ClientRefusedError('The first frame must be {"type": "hello", "token": "..."}.')
        name = self._name_of(str(hello.get("token", "")))
        if name is None:
            self._warn_of(socket)
            raise ClientRefusedError(
                "The token is wrong: it must be one of channels.websocket in the config, or the one that "
                "`nanobot channels login websocket` shows."
            )
        if hello.get("client", name) != name:
            raise ClientRefusedError(f"This token belongs to the client {name}. Omit `client`, or use that name.")
        after = hello.get("after")
        if after is not None and (not isinstance(after, int) or isinstance(after, bool) or after < 0):
            raise ClientRefusedError("`after` must be the `seq` of the last frame received.")
        socket.is_identified = True
        return Client(name, after if hello.get("epoch") == self._epoch else None)

    async def _receive_hello(self, socket: BoundedConnection) -> Fields:
        """The first frame. Raises GoodbyeError where there is none in time, or one that is no hello."""
        self._unidentified[socket] = None
        if len(self._unidentified) > MOST_UNIDENTIFIED:
            self._drop_oldest_unidentified()
        try:
            async with asyncio.timeout(HELLO_S):
                raw = await socket.recv()
            if len(raw) > HELLO_BYTES:
                raise ClientRefusedError(f"The first frame must be a hello, of at most {HELLO_BYTES} bytes.")
            return parse_frame(raw)
        except TimeoutError:
            raise ClientRefusedError(f"No hello was received within {HELLO_S:g} seconds.") from None
        except FrameError as error:
            raise ClientRefusedError(str(error)) from error
        finally:
            self._unidentified.pop(socket, None)

    def _drop_oldest_unidentified(self) -> None:
        """Make room: a client says hello at once, so the oldest connection of the address with the most is none."""
        (crowded, _), *_ = Counter(one.address for one in self._unidentified).most_common(1)
        oldest = next(one for one in self._unidentified if one.address == crowded)
        del self._unidentified[oldest]
        oldest.transport.abort()

    def _name_of(self, token: str) -> str | None:
        """The client that has this token."""
        given = token.encode(errors="replace")
        return next((name for name, own in self._tokens.items() if hmac.compare_digest(own.encode(), given)), None)

    def _warn_of(self, socket: BoundedConnection) -> None:
        """Once for each address: who guesses must not fill the log."""
        if socket.address not in self._guessers and len(self._guessers) < MOST_GUESSERS:
            self._guessers.add(socket.address)
            log.warning("websocket: a connection from %s had a wrong token", socket.address)

    async def _talk(self, socket: ServerConnection, client: Client) -> None:
        chat = self._chat(client.name)
        backlog = chat.backlog
        backlog.came()
        welcome = {"type": "welcome", "protocol": PROTOCOL, "epoch": self._epoch, "last": backlog.last}
        writing: asyncio.Task[None] | None = None
        try:
            await socket.send(encode_frame(welcome | {"client": client.name}))
            writing = asyncio.create_task(_write(socket, backlog, client.after), name=f"websocket {client.name}")
            async for raw in socket:
                self.status.touch()
                await socket.send(encode_frame(await self._answer(client, chat, raw)))
        finally:
            backlog.left()
            if writing is not None:
                writing.cancel()
                await asyncio.wait([writing])

    async def _answer(self, client: Client, chat: ChatTarget, raw: str | bytes) -> Fields:
        """Every frame of a client gets one frame back."""
        about: Fields = {}
        try:
            frame = parse_frame(raw)
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
        said = IncomingFrame.of(frame)
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

    async def _keep(self, files: Sequence[Fields]) -> list[StoredAttachment]:
        """What came with a message. Raises FrameError, and then the message is not taken."""
        kept = []
        for told in files:
            chunks = await opened(told, self._section.media_folders)
            attachment = Attachment(
                next((kind for kind in MediaKind if kind == told.get("kind")), MediaKind.FILE),
                name=str(told.get("name") or told.get("path") or ""),
                content_type=str(told["mime"]) if "mime" in told else None,
            )
            kept.append(await self.services.media.store(attachment, chunks))
        return kept


def _kept_token(folder: Path | None) -> str:
    """The token in the state folder, ours alone to read; it is made when it is missing. Raises ChannelSetupError."""
    if folder is None:
        raise ChannelSetupError("channels.websocket.token is empty. Set a token.")
    path = folder / "token"
    try:
        if not path.exists():
            make_private_folder(folder)
            write_atomic(path, secrets.token_hex(24))
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ChannelSetupError(
            f"channels.websocket has no token in the config, and {path} cannot be used ({error}). Set "
            "channels.websocket.token, or fix the file."
        ) from error
    if len(token) < MIN_TOKEN_CHARS:
        raise ChannelSetupError(f"{path} contains no token. Delete it, and a new one is created.")
    learn_secrets({token: "the token of channels.websocket"})
    log.info("websocket: the token for clients is in %s; `nanobot channels login websocket` shows it", path)
    return token


async def _write(socket: ServerConnection, backlog: FrameBacklog, after: int | None) -> None:
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
                await socket.send(encode_frame({"type": "gap", "after": seen}))
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
        log.exception("websocket: a connection failed")
        await socket.close(1011)


def _confirm(backlog: FrameBacklog, seq: int, pong: "asyncio.Future[float]") -> None:
    if not pong.cancelled() and pong.exception() is None:
        backlog.arrived(seq)


async def _say_goodbye(socket: ServerConnection, code: int, reason: str) -> None:
    try:
        await socket.send(encode_frame({"type": "error", "reason": reason}))
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
