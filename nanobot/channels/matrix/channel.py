"""The Matrix channel: an account of its own on any homeserver (https://spec.matrix.org/v1.16/client-server-api/).

The homeserver keeps all messages. Once those of a sync are journaled, its token is saved, and the next sync continues
there. What a sync leaves out of a busy room is fetched. The first sync of an account only shows its rooms.
"""

import asyncio
import json
import logging
import mimetypes
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC
from io import BytesIO
from typing import Any, ClassVar
from urllib.parse import quote

from nio import (
    AsyncClient,
    EncryptionError,
    ErrorResponse,
    ForwardedRoomKeyEvent,
    MatrixRoom,
    MegolmEvent,
    RoomKeyEvent,
    RoomMemberEvent,
    RoomPreset,
    SyncResponse,
    Timeline,
)
from nio.crypto import ENCRYPTION_ENABLED, decrypt_attachment, encrypt_attachment

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.matrix.client import (
    Bot,
    MatrixState,
    as_send_errors,
    ask,
    check,
    is_revoked,
    open_client,
    quoted_id,
    read_message,
    revoked,
    text_of,
)
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import download
from nanobot.config.channels import MatrixConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import MATRIX
from nanobot.utils.aio import task_group
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.text import human_size

log = logging.getLogger(__name__)

_PAGE, _MOST_MISSED = 100, 500
"""Messages of one request, and most fetched in a room, the latest ones."""
_FILTER = {
    "presence": {"types": []},
    "account_data": {"types": []},
    "room": {"timeline": {"limit": 50}, "ephemeral": {"types": []}, "account_data": {"types": []}},
}
_MOST_WAITING = 200
_LONGEST_EVENT = 44_000
"""A larger one is sent without HTML. Homeservers take 65,536 bytes, and encryption adds a third."""
_LONGEST_FALLBACK = 200
_TYPES = {
    MediaKind.IMAGE: "m.image", MediaKind.VIDEO: "m.video", MediaKind.AUDIO: "m.audio", MediaKind.VOICE: "m.audio",
}  # fmt: skip
_NOT_DECRYPTED = (
    "I cannot decrypt a message here: its key did not reach me. Please send it again; if that does not help, ask in "
    "a room without encryption."
)
_NOT_ENCRYPTING = (
    "This room is encrypted, and I cannot read it. Please write in a room without encryption. (The owner can install "
    "nanobot[matrix-e2e] and set channels.matrix.e2eeEnabled to true.)"
)


class MatrixChannel(ChatChannel):
    name = "matrix"
    dialect = MATRIX
    can_edit = True
    can_react = True
    dedupe_s = 3600.0
    """A transaction id is valid as long as its device (client-server-api, "Transaction identifiers"); Synapse forgets
    it after some time.
    """
    stall_s = 120.0  # a sync that is not answered ends the connection after 45 s; the first one may take longer
    poll_s: float = 30.0
    """How long the homeserver holds a sync open without news."""
    key_wait_s: float = 10.0
    """How long the key of an encrypted message may be late."""
    delta_interval_s: ClassVar[float] = 3.0
    """Each edit is an event; homeservers take about one in five seconds, after ten at once."""

    config: MatrixConfig

    def __init__(self, config: MatrixConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._state = MatrixState()
        self._password_token: list[str] = []
        self._current: AsyncClient | None = None
        self._work = asyncio.TaskGroup()
        self._undecrypted: dict[str, tuple[MegolmEvent, float]] = {}
        """Messages whose key is missing, by id, and when they came."""
        self._has_new_keys = False
        self._upload_limit: int | None = None

    async def start(self) -> None:
        self._state = await self.load_state(self._new_state())
        async with (
            self.state_file.keep_saved(self._state),
            open_client(self.config, self._state, self.services.state, self._password_token) as client,
        ):
            await self.state_file.save(self._state)  # the device
            self._undecrypted, self._has_new_keys = {}, False
            client.add_to_device_callback(self._note_key, (RoomKeyEvent, ForwardedRoomKeyEvent))
            if self.config.e2ee_enabled and not ENCRYPTION_ENABLED:
                log.warning("matrix: encrypted rooms cannot be read; install nanobot[matrix-e2e] to change that")
            try:
                async with task_group() as self._work:
                    if not self._state.since:
                        await self._sync(client, 0.0)
                        await self.state_file.save(self._state)
                    await self._serve(client)
            finally:
                self._current = None

    async def check_login(self) -> str:
        state = await self.load_state(self._new_state())
        async with open_client(self.config, state, self.services.state, self._password_token) as client:
            await self.state_file.save(state)
            return f"The login works. Your bot is {client.user_id}; invite it to a chat."

    def _new_state(self) -> MatrixState:
        return MatrixState(f"{self.config.user_id.strip()} {self.config.homeserver.strip()}")

    # receiving

    async def _serve(self, client: AsyncClient) -> None:
        wait_s = 0.0  # the first sync returns at once and shows whether we are connected
        while True:
            try:
                await self._sync(client, wait_s)
                oldest = self.services.clock.monotonic() - self.key_wait_s
                is_waiting_for_keys = any(came > oldest for _, came in self._undecrypted.values())
                wait_s = min(self.poll_s, self.key_wait_s) if is_waiting_for_keys else self.poll_s
            except RateLimitedError as error:
                self.status.touch()
                await asyncio.sleep(min(error.retry_after_s, self.poll_s))

    async def _sync(self, client: AsyncClient, wait_s: float) -> None:
        """Wait for news, process them, and remember to continue behind them."""

        async def send_receipt(room_id: str, event_id: str) -> None:
            with suppress(SendError):
                await ask(client.update_receipt_marker(room_id, event_id))

        since, is_first = self._state.since, not client.next_batch
        with as_send_errors():
            response = await client.sync(int(wait_s * 1000), _FILTER, since or None, full_state=is_first or None)
        if is_revoked(response):
            self._password_token.clear()
            if self.config.access_token:
                raise revoked(self.config)
        response = check(response)
        self.status.touch()
        if is_first:
            with suppress(SendError):
                self._upload_limit = (await ask(client.content_repository_config())).upload_size
        await self._exchange_keys(client)
        if since:
            self._current = client  # it knows the rooms, and which of them are encrypted
            self.mark_up()
            for room_id, news in response.rooms.join.items():
                room = client.rooms[room_id]
                events = await self._complete(client, room, news.timeline, since)
                accepted = [event.event_id for event in events if await self._process(client, room, event)]
                if accepted:
                    self._work.create_task(send_receipt(room_id, accepted[-1]))
        await self._retry_undecrypted(client)
        await self._answer_invitations(client, response)
        self._state.since = response.next_batch

    async def _complete(self, client: AsyncClient, room: MatrixRoom, timeline: Timeline, since: str) -> list[Any]:
        """The events of a room since the last sync; if the bot has joined it since then, those since its invitation."""
        events: list[Any] = timeline.events
        changes = [_membership(event, client.user_id) for event in events]
        has_joined = "join" in changes
        if (has_joined and "invite" not in changes) or (timeline.limited and not has_joined):
            missed = await self._fetch_missed(client, room, timeline.prev_batch, None if has_joined else since)
            events = [*missed, *events]
            changes = [_membership(event, client.user_id) for event in events]
        return events[next((changes.index(kind) for kind in ("invite", "join") if kind in changes), 0) :]

    async def _fetch_missed(
        self, client: AsyncClient, room: MatrixRoom, start: str | None, since: str | None
    ) -> list[Any]:
        """What a sync left out of a room, oldest first: since this token, or the bot's invitation. Raises SendError."""
        events: list[Any] = []
        while start and len(events) < _MOST_MISSED:
            try:
                page = await ask(client.room_messages(room.room_id, start, since, limit=_PAGE))
            except RateLimitedError as error:
                self.status.touch()
                await asyncio.sleep(min(error.retry_after_s, self.poll_s))
                continue
            self.status.touch()
            events += page.chunk
            is_all = not page.chunk or any(_membership(event, client.user_id) == "invite" for event in page.chunk)
            start = None if is_all else page.end
        if start and since:
            log.warning("matrix: more was written in %s than the last %d messages", room.room_id, _MOST_MISSED)
            people = [user for user in room.users if user != client.user_id]
            if _is_private(room) and all(map(self.is_allowed, people)):
                text = (
                    f"You wrote more while I was away than I can catch up on. I read the last {_MOST_MISSED} messages."
                )
                notice = OutboundMessage(self.name, room.room_id, text, kind=OutboundKind.NOTICE)
                await self.bus.publish_outbound(notice)
        return events[::-1]

    async def _process(self, client: AsyncClient, room: MatrixRoom, event: Any) -> bool:
        """Process one event; everything behind it waits until it is journaled. Return whether it is."""
        if event.sender == client.user_id:
            return False
        try:
            if isinstance(event, MegolmEvent):
                event.room_id = room.room_id
                came = self.services.clock.monotonic()
                put_bounded(self._undecrypted, event.event_id, (event, came), _MOST_WAITING)
                if client.olm is not None:
                    with suppress(SendError):  # one that was asked for already is an error, too
                        await ask(client.request_room_key(event))
                return False
            incoming = await self._read(client, room, event)
            return incoming is not None and await self.receive_until_journaled(incoming)
        except Exception:  # one unreadable event must not stop the others
            log.exception("matrix: the event %s could not be read", event.event_id)
            to = Address(self.name, room.room_id)
            await self.report_unreadable(event.sender, to, is_private=_is_private(room))
            return False

    async def _read(self, client: AsyncClient, room: MatrixRoom, event: Any) -> Incoming | None:
        names = (client.user_id.removeprefix("@").partition(":")[0], room.user_name(client.user_id) or "")
        bot = Bot(client.user_id, [name for name in names if name], self.config.allow_room_mentions)
        source = Payload.of(event.source)
        incoming = read_message(source, bot)
        oldest = self.services.clock.now().astimezone(UTC) - MAX_AGE
        if incoming is None or (incoming.sent_at is not None and incoming.sent_at < oldest):
            return None
        incoming = replace(
            incoming,
            chat_id=room.room_id,
            is_private=_is_private(room),
            sender_name=room.user_name(incoming.sender_id) or "",
        )
        answered = "" if incoming.text.startswith("/") else quoted_id(source)  # a command needs no quote
        is_heard = incoming.is_private or incoming.is_mentioned or self.config.group_policy != "mention"
        if answered and is_heard and self.is_allowed(incoming.sender_id):
            quote, is_own = await self._quote(client, room, answered, incoming.sender_id)
            text = "\n".join(filter(None, [quote, incoming.text]))
            incoming = replace(incoming, text=text, quotes_others=bool(quote) and not is_own)
        return incoming

    async def _quote(self, client: AsyncClient, room: MatrixRoom, event_id: str, sender: str) -> tuple[str, bool]:
        """The message that a person answers, and whether it is the bot's or their own; empty if it cannot be read."""
        try:
            with as_send_errors():
                event = check(await client.room_get_event(room.room_id, event_id)).event
                if isinstance(event, MegolmEvent):
                    event.room_id = room.room_id
                    event = client.decrypt_event(event)
        except SendError as error:
            log.debug("matrix: the quoted message %s cannot be read: %s", event_id, error)
            return "", False
        author = "you" if event.sender == client.user_id else " ".join((room.user_name(event.sender) or "").split())
        text = text_of(Payload.of(event.source))
        return quoted_lines(text, author or event.sender), event.sender in (client.user_id, sender)

    async def _answer_invitations(self, client: AsyncClient, response: SyncResponse) -> None:
        """Join the rooms to which the bot is invited by people who are allowed, once they are."""
        for room_id in response.rooms.invite:
            room = client.invited_rooms[room_id]
            if (inviter := room.inviter) and room_id not in self._state.invites:
                put_bounded(self._state.invites, room_id, inviter)
                asking = Incoming(inviter, room_id, sender_name=room.user_name(inviter) or "")
                await self.services.access.decide(asking)  # the owner is asked about a stranger
        for room_id, inviter in [*self._state.invites.items()]:
            if not self.is_allowed(inviter):
                continue
            try:
                await ask(client.join(room_id))
            except UndeliverableError as error:  # withdrawn
                log.info("matrix: the invitation to %s is not valid any more: %s", room_id, error)
            except SendError as error:
                log.debug("matrix: %s cannot be joined yet: %s", room_id, error)
                continue
            del self._state.invites[room_id]

    # encryption

    async def _exchange_keys(self, client: AsyncClient) -> None:
        """Send and fetch the keys that the last sync asks for; what fails is tried after the next one."""
        if client.olm is None:
            return
        try:
            with as_send_errors():
                await client.send_to_device_messages()
                if client.should_upload_keys:
                    check(await client.keys_upload())
                if client.should_query_keys:
                    check(await client.keys_query())
                if client.should_claim_keys:
                    check(await client.keys_claim(client.get_users_for_key_claiming()))
        except SendError as error:
            log.debug("matrix: keys are not exchanged yet: %s", error)

    async def _note_key(self, _: object) -> None:
        self._has_new_keys = True

    async def _retry_undecrypted(self, client: AsyncClient) -> None:
        """Process the messages whose key has come; in a room where one is late, say so, once."""
        now = self.services.clock.monotonic()
        for event, came in [*self._undecrypted.values()]:
            room = client.rooms[event.room_id]
            if self._has_new_keys and client.olm is not None:
                with suppress(EncryptionError):
                    decrypted = client.decrypt_event(event)
                    del self._undecrypted[event.event_id]
                    await self._process(client, room, decrypted)
                    continue
            if client.olm is None or now - came >= self.key_wait_s:
                await self._say_unreadable(client, room, event.sender)
        self._has_new_keys = False

    async def _say_unreadable(self, client: AsyncClient, room: MatrixRoom, sender: str) -> None:
        if room.room_id in self._state.unreadable or not self.is_allowed(sender):
            return
        put_bounded(self._state.unreadable, room.room_id, None)
        text = _NOT_ENCRYPTING if client.olm is None else _NOT_DECRYPTED
        log.warning("matrix: a message of %s in %s cannot be decrypted", sender, room.room_id)
        notice = {"msgtype": "m.notice", "body": text}
        with suppress(SendError):  # not by `post`, which writes nothing unencrypted here
            await ask(client.room_send(room.room_id, "m.room.message", notice, ignore_unverified_devices=True))

    # files

    async def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        key = json.loads(attachment.source) if attachment.source.startswith("{") else None
        address = attachment.source if key is None else str(key["url"])
        chunks = self._fetch(address)
        if key is None:
            async for chunk in chunks:
                yield chunk
            return
        data = b"".join([chunk async for chunk in chunks])
        try:
            yield await asyncio.to_thread(decrypt_attachment, data, key["key"]["k"], key["hashes"]["sha256"], key["iv"])
        except (EncryptionError, KeyError, TypeError) as error:
            raise MediaError("the file cannot be decrypted with the key that came with it") from error

    async def _fetch(self, address: str) -> AsyncIterator[bytes]:
        client, size, most = self._client, 0, self.config.max_media_bytes
        server, _, media = address.removeprefix("mxc://").partition("/")
        path = f"/_matrix/client/v1/media/download/{quote(server, safe='')}/{quote(media, safe='')}"
        headers = {"Authorization": f"Bearer {client.access_token}"}
        async for chunk in download("Matrix", f"{client.homeserver}{path}", headers, self.config.proxy):
            size += len(chunk)
            if size > most:
                raise MediaError(f"it is larger than {human_size(most)}, which is channels.matrix.maxMediaBytes")
            yield chunk

    def largest_to(self, to: Address) -> int:
        return min(self.config.max_media_bytes, self._upload_limit or self.config.max_media_bytes)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        data = await read_outgoing(file)
        client, kind = self._client, mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        content: dict[str, Any] = {
            "msgtype": _TYPES.get(file.kind, "m.file"),
            "body": file.name,
            "filename": file.name,
            "info": {"mimetype": kind, "size": len(data)},
        }
        is_encrypted = self._is_encrypted(client, to.chat_id)
        if is_encrypted:
            data, key = await asyncio.to_thread(encrypt_attachment, data)
        with as_send_errors():
            uploaded, _ = await client.upload(
                BytesIO(data),
                "application/octet-stream" if is_encrypted else kind,
                None if is_encrypted else file.name,
                filesize=len(data),
            )
            address = check(uploaded).content_uri
        content |= {"file": {**key, "url": address}} if is_encrypted else {"url": address}
        return await self._send(to, content | _relation(to, options), options)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a chunk. Clients show progress, a notice, without a sound."""
        content = _format(chunk, "m.notice" if options.quiet else "m.text")
        return await self._send(to, content | _relation(to, options), options)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        new = _format(chunk, "m.text")
        text = new["body"] if len(new["body"]) <= _LONGEST_FALLBACK else f"{new['body'][:_LONGEST_FALLBACK]}…"
        content = {
            "msgtype": "m.text",
            "body": f"* {text}",  # for clients that show no edits
            "m.mentions": {},
            "m.new_content": new,
            "m.relates_to": {"rel_type": "m.replace", "event_id": platform_id},
        }
        await self._send(to, content, SendOptions())

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator until shortly after it would be renewed."""
        await ask(self._client.room_typing(to.chat_id, timeout=int(2000 * self.typing_s)))

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        relation = {"rel_type": "m.annotation", "event_id": message_id, "key": emoji}
        with as_send_errors():
            answer = await self._client.room_send(
                to.chat_id, "m.reaction", {"m.relates_to": relation}, ignore_unverified_devices=True
            )
        if not (isinstance(answer, ErrorResponse) and answer.status_code == "M_DUPLICATE_ANNOTATION"):
            check(answer)

    async def find(self, name: str) -> str | None:
        """Find a room by id, by alias such as `#kitchen:example.org`, or by name; a person by id."""
        name = name.strip()
        if name.startswith("!"):
            return name
        if name.startswith("@"):
            return await self.chat_with(name)
        client = self._client
        if name.startswith("#") and ":" in name:
            with suppress(UndeliverableError):
                return str((await ask(client.room_resolve_alias(name))).room_id)
            return None
        name = name.lstrip("#").casefold()
        named = [room.room_id for room in client.rooms.values() if (room.name or "").casefold() == name]
        return named[0] if len(named) == 1 else None

    async def chat_with(self, sender_id: str) -> str | None:
        """The private room with a person; a new one, to which they are invited, if there is none."""
        client = self._client
        for room in client.rooms.values():
            if _is_private(room) and sender_id in room.users and (client.olm is not None or not room.encrypted):
                return str(room.room_id)
        encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
        created = client.room_create(
            is_direct=True,
            invite=[sender_id],
            preset=RoomPreset.trusted_private_chat,
            initial_state=[encryption] if client.olm is not None else [],
        )
        return str((await ask(created)).room_id)

    async def _send(self, to: Address, content: Mapping[str, Any], options: SendOptions) -> str:
        """Send a message. The homeserver returns the first one again for the same nonce."""
        client = self._client
        self._is_encrypted(client, to.chat_id)
        nonce = f"{self._state.salt}-{options.nonce or secrets.token_hex(8)}"
        sending = client.room_send(to.chat_id, "m.room.message", dict(content), nonce, ignore_unverified_devices=True)
        return str((await ask(sending)).event_id)

    def _is_encrypted(self, client: AsyncClient, room_id: str) -> bool:
        """Whether messages are encrypted there. Raises UndeliverableError if they must be and cannot."""
        room = client.rooms.get(room_id)
        is_encrypted = room is not None and room.encrypted
        if is_encrypted and client.olm is None:
            raise UndeliverableError(
                "the room is encrypted; install nanobot[matrix-e2e] and set channels.matrix.e2eeEnabled to true"
            )
        return is_encrypted

    @property
    def _client(self) -> AsyncClient:
        if self._current is None:
            raise NotConnectedError("Matrix is not connected")
        return self._current


def _is_private(room: MatrixRoom) -> bool:
    return bool(room.joined_count <= 2)


def _membership(event: object, user: str) -> str:
    """The membership that this event gives a user; empty if it changes none."""
    if not isinstance(event, RoomMemberEvent) or event.state_key != user or event.prev_membership == event.membership:
        return ""
    return str(event.membership)


def _relation(to: Address, options: SendOptions) -> dict[str, Any]:
    answered = {"m.in_reply_to": {"event_id": options.reply_to or to.thread_id}}
    if to.thread_id:
        thread = {"rel_type": "m.thread", "event_id": to.thread_id, "is_falling_back": options.reply_to is None}
        return {"m.relates_to": thread | answered}
    return {"m.relates_to": answered} if options.reply_to else {}


def _format(chunk: Chunk, kind: str) -> dict[str, Any]:
    """The content of a message. It mentions nobody, whatever its text says."""
    content = {"msgtype": kind, "body": chunk.text, "m.mentions": {}}
    formatted = {"format": "org.matrix.custom.html", "formatted_body": chunk.html}
    is_small = chunk.html is not None and len(json.dumps(content | formatted)) <= _LONGEST_EVENT
    return content | formatted if is_small else content
