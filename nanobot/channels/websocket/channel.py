"""The WebSocket channel: a server for the user's own clients. docs/formats.md documents the frames.

A token identifies a client, and its name is its chat. All connections of one client get the same frames, each at its
own pace, and continue after a break from the last number they saw. A reply counts as delivered when the client has
answered a ping sent after it (RFC 6455, 5.5.2: pongs are in order); until then the journal keeps it.
"""

import asyncio
import hmac
import logging
import os
import secrets
import ssl
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError
from nanobot.channels.incoming import Payload
from nanobot.channels.media import Attachment, MediaKind, StoredAttachment
from nanobot.channels.websocket.chat import (
    EXPECTED,
    NAME,
    ClientChat,
    Fields,
    FrameError,
    encode_frame,
    frame_id_of,
    frame_of,
    open_attachment,
    parse_frame,
    read_message,
)
from nanobot.config.channels import WebSocketConfig
from nanobot.errors import NanobotError, StorageError
from nanobot.net.http import is_loopback
from nanobot.security.secrets import learn_secrets
from nanobot.utils.files import make_private_folder, write_atomic

PROTOCOL = 1
HELLO_S = 10.0
"""How long a connection may take to send its hello."""
DELIVERY_S = 60.0
"""Timeout of a delivery, and interval of the check whether an absent client may still connect."""
CLOSE_S = 1.0
MOST_UNIDENTIFIED = 64
"""Most connections without a hello; one more closes the oldest: a real client sends its hello at once."""
HELLO_BYTES = 4096
BYTES_BEFORE_HELLO = 64 * 1024
"""Most bytes read before the hello, including the headers of the handshake."""
MIN_TOKEN_CHARS = 16
DEFAULT_CLIENT = "default"
"""The client of `channels.websocket.token`, or of the generated token if the config has none."""
MAX_GUESSERS = 100
"""Most addresses whose wrong tokens are logged."""

log = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL + 1)  # it logs every port scan; what matters is logged here


class ClientRefusedError(NanobotError):
    """A connection is refused: it gets the text and is closed."""


class BoundedConnection(ServerConnection):
    """A connection that is closed if it sends too much before its client is known."""

    is_identified = False
    received = 0
    """Bytes since it was opened."""

    def data_received(self, data: bytes) -> None:
        """Process received bytes, or abort the connection if there are too many."""
        self.received += len(data)
        if self.is_identified or self.received <= BYTES_BEFORE_HELLO:
            super().data_received(data)
        else:
            self.transport.abort()


class WebSocketChannel(BaseChannel):
    name = "websocket"
    stall_s = 0.0  # there may be no client for days; each connection has its own pings
    delta_interval_s = 0.05

    config: WebSocketConfig

    def __init__(self, config: WebSocketConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._epoch = secrets.token_hex(8)
        self._tokens: dict[str, str] = {}
        self._chats: dict[str, ClientChat] = {}
        """By name, one for each token."""
        self._guessers: set[str] = set()
        self._unidentified: dict[BoundedConnection, None] = {}
        """Connections without a hello, oldest first."""

    @property
    def supports_streaming(self) -> bool:
        return self.config.streaming

    async def start(self) -> None:
        """Listen until cancelled. Raises ChannelSetupError for settings that cannot be used."""
        section = self.config
        self._tokens = await asyncio.to_thread(self._load_tokens)
        self._chats = {name: self._chats.get(name) or ClientChat(name) for name in self._tokens}
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
                origins=[None, *(Origin(origin) for origin in section.allow_origins)],
                compression=None,
                create_connection=BoundedConnection,
                server_header=None,
                open_timeout=HELLO_S,
                ping_interval=None,  # see `_ping`
                close_timeout=CLOSE_S,
                max_size=section.max_message_bytes,
                max_queue=2,  # of the largest frames
                logger=_wire,
            )
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)  # asyncio's own text is long
            raise ChannelSetupError(
                f"channels.websocket cannot listen on {section.host}, port {section.port} ({reason}). Stop the program "
                "that uses it, or set channels.websocket.port."
            ) from error
        self.mark_up()
        try:
            await server.wait_closed()
        finally:
            server.close()
            await server.wait_closed()

    async def check_login(self) -> str:
        """Say where clients connect, and a generated token."""
        section = self.config
        tokens = await asyncio.to_thread(self._load_tokens)
        lines = [f"Clients connect to {'wss' if section.ssl_certfile else 'ws'}://{section.host}:{section.port}"]
        if section.token or section.clients:
            lines.append(f"with the tokens that the config has for: {', '.join(tokens)}.")
        else:
            lines.append(f"with this token:\n  {tokens[DEFAULT_CLIENT]}")
        return "\n".join(lines)

    def _load_tokens(self) -> dict[str, str]:
        """The token of each client: from the config, or if it has none, a generated one from the state folder.

        Blocking. Raises ChannelSetupError.
        """
        section = self.config
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
                    f"channels.websocket.clients.{name}.token is empty. Set a long random one, such "
                    "as the output of `openssl rand -hex 24`."
                )
        if len({*tokens.values()}) < len(tokens):
            raise ChannelSetupError(
                "channels.websocket: two clients have the same token, so they cannot be told apart. Give each its own."
            )
        return tokens or {DEFAULT_CLIENT: _stored_token(self.services.state)}

    # sending

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a message to the connections; a durable one until it has arrived."""
        if message.kind.is_durable:
            return await self.send(message)
        if (chat := self._chats.get(message.chat_id)) is not None:
            chat.add(frame_of(message, None, []))
        return ()

    async def reachable(self, chat_id: str) -> None:
        """Wait for a connection of this client, as long as it may still connect."""
        await super().reachable(chat_id)
        chat = self._chats.get(chat_id)
        while chat is not None and not chat.connections and self.services.access.is_allowed(chat_id):
            with suppress(TimeoutError):
                async with asyncio.timeout(DELIVERY_S):
                    await chat.wait_until(lambda: chat.connections)

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Send a message, and wait until the client has it. Return its id. A retry waits for the same frame.

        Adds no note about a possible repeat: clients drop a frame whose id they know.
        """
        frame_id = frame_id_of(message)
        message.sent_ids = (frame_id,)
        chat = self._chats.get(message.chat_id)
        frame = chat.find(frame_id) if chat is not None else None
        if chat is None or (frame is None and not self._is_expected(chat)):
            raise UndeliverableError(f"no client named {message.chat_id!r} is connected or allowed")
        if frame is None:
            files, problems = await chat.attach(message.media)
            text = "\n\n".join([message.content, *problems]).lstrip()
            frame = chat.add(frame_of(replace(message, content=text), frame_id, files), frame_id)
        try:
            async with asyncio.timeout(DELIVERY_S):
                await chat.wait_until(lambda: frame.has_arrived)
        except TimeoutError:
            if self._is_expected(chat):
                raise NotConnectedError(f"the client {chat.name} is not connected") from None
            chat.drop(frame)
            raise UndeliverableError(f"no client named {chat.name!r} is connected or allowed") from None
        return (frame_id,)

    def _is_expected(self, chat: ClientChat) -> bool:
        """Whether the client is connected or may connect."""
        return chat.connections > 0 or self.services.access.is_allowed(chat.name)

    # one connection

    async def _serve(self, socket: ServerConnection) -> None:
        """Serve one connection, from its hello to its end. Never raises."""
        assert isinstance(socket, BoundedConnection)  # noqa: S101 narrows the type: `serve` creates no others
        try:
            await self._serve_client(socket, *await self._identify(socket))
        except ConnectionClosed:
            pass
        except ClientRefusedError as error:
            await _refuse(socket, 1008, str(error))
        except Exception:  # one connection must not stop the server
            log.exception("websocket: a connection failed")
            await _refuse(socket, 1011, "Internal error; see the gateway's log.")

    async def _identify(self, socket: BoundedConnection) -> tuple[ClientChat, int | None]:
        """The chat of the token in the hello, and the last number that the client saw in this run of the gateway.

        Raises ClientRefusedError.
        """
        hello = await self._receive_hello(socket)
        if hello.text("type") != "hello":
            raise ClientRefusedError('The first frame must be {"type": "hello", "token": "..."}.')
        token = hello.text("token").encode(errors="replace")
        matches = (name for name, known in self._tokens.items() if hmac.compare_digest(known.encode(), token))
        if (name := next(matches, None)) is None:
            address = str(socket.remote_address[0]) if isinstance(socket.remote_address, tuple) else "nowhere"
            # once per address: guesses must not fill the log
            if address not in self._guessers and len(self._guessers) < MAX_GUESSERS:
                self._guessers.add(address)
                log.warning("websocket: a connection from %s had a wrong token", address)
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
        return self._chats[name], after if hello.get("epoch") == self._epoch else None

    async def _receive_hello(self, socket: BoundedConnection) -> Payload:
        """The first frame. Raises ClientRefusedError if it is late, too long or not a JSON object."""
        if len(self._unidentified) >= MOST_UNIDENTIFIED:
            oldest = next(iter(self._unidentified))
            del self._unidentified[oldest]
            oldest.transport.abort()
        self._unidentified[socket] = None
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

    async def _serve_client(self, socket: BoundedConnection, chat: ClientChat, after: int | None) -> None:
        welcome = {
            "type": "welcome",
            "protocol": PROTOCOL,
            "epoch": self._epoch,
            "last": chat.last,
            "client": chat.name,
        }
        with chat.connection():
            await socket.send(encode_frame(welcome))
            work = (_send_frames(socket, chat, after), self._ping(socket))
            tasks = [asyncio.create_task(part, name=f"websocket {chat.name}") for part in work]
            try:
                async for raw in socket:
                    self.status.touch()
                    await socket.send(encode_frame(await self._answer(chat, raw)))
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ping(self, socket: BoundedConnection) -> None:
        """Ping regularly, and close the connection if nothing comes back.

        Any bytes count: on a slow line a pong waits for minutes behind a large frame of the client.
        """
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self.config.ping_interval_s)
                received = socket.received
                pong = asyncio.ensure_future(await socket.ping())
                await asyncio.wait([pong], timeout=self.config.ping_timeout_s)
                if socket.received == received:
                    await socket.close(1011, "no answer to a ping")

    async def _answer(self, chat: ClientChat, raw: str | bytes) -> Fields:
        """The answer to a frame: each gets exactly one."""
        ids: Fields = {}
        try:
            frame = parse_frame(raw)
            ids = {name: frame.text(name) for name in ("id", "file") if frame.text(name)}
            match frame.text("type"):
                case "message":
                    incoming = read_message(chat.name, frame)
                    if files := frame.parts("media"):
                        incoming = replace(incoming, fetch=partial(self._store_files, files))
                    try:
                        return {"type": "ack", "accepted": await self.receive(incoming)} | ids
                    except StorageError as error:
                        return {"type": "nack", "reason": str(error)} | ids
                case "fetch":
                    return await chat.read_part(frame)
                case "ping":
                    return {"type": "pong"}
            raise FrameError(EXPECTED)
        except FrameError as error:
            return {"type": "error", "reason": str(error)} | ids

    async def _store_files(self, files: Sequence[Payload]) -> list[StoredAttachment]:
        """Store the files of a message. Raises FrameError, which rejects the message."""
        stored = []
        for file in files:
            chunks = await open_attachment(file, self.config.media_folders)
            kind = next((kind for kind in MediaKind if kind == file.text("kind")), MediaKind.FILE)
            name, content_type = file.text("name") or file.text("path"), file.text("mime") or None
            attachment = Attachment(kind, name=name, content_type=content_type)
            stored.append(await self.services.media.store(attachment, chunks))
        return stored


async def _send_frames(socket: ServerConnection, chat: ClientChat, after: int | None) -> None:
    """Send the kept and the new frames, at the pace of this connection, until it is closed."""

    def confirm(seq: int, pong: "asyncio.Future[float]") -> None:
        if not pong.cancelled() and pong.exception() is None:
            chat.confirm(seq)

    if after is None:
        sent, seen = chat.before_undelivered(), chat.last
    else:
        sent = seen = min(after, chat.last)
        chat.confirm(sent)  # the client says that it has them
    try:
        while True:
            await chat.wait_until(partial(chat.after, sent))
            if chat.has_gap(seen):
                await socket.send(encode_frame({"type": "gap", "after": seen}))
            frames, newest = chat.after(sent), chat.last
            has_undelivered = any(frame.is_undelivered for frame in frames)
            for frame in frames:
                await socket.send(frame.text)
            sent = seen = newest
            if has_undelivered:
                pong = asyncio.ensure_future(await socket.ping())
                pong.add_done_callback(partial(confirm, newest))
    except ConnectionClosed:
        return
    except Exception:  # close it: a client that gets nothing would not notice
        log.exception("websocket: a connection failed")
        await socket.close(1011)


async def _refuse(socket: ServerConnection, code: int, reason: str) -> None:
    with suppress(ConnectionClosed):
        await socket.send(encode_frame({"type": "error", "reason": reason}))
        await socket.close(code)


def _stored_token(folder: Path | None) -> str:
    """The token in the state folder, readable by us only; created if missing. Raises ChannelSetupError."""
    if folder is None:
        raise ChannelSetupError("channels.websocket.token is not set. Set a token.")
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


def _tls(section: WebSocketConfig) -> ssl.SSLContext | None:
    """The TLS context of the config. Raises ChannelSetupError for files that cannot be used."""
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
