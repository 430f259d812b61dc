"""A real homeserver for the contract suite: fresh accounts and rooms on Synapse, with or without encryption."""

import asyncio
import mimetypes
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

from nio import (
    AsyncClient,
    AsyncClientConfig,
    Event,
    MatrixRoom,
    RoomPreset,
    TypingNoticeEvent,
)
from nio.crypto import decrypt_attachment, encrypt_attachment
from nio.store import SqliteMemoryStore

from nanobot.bus.queue import MessageBus
from nanobot.channels.matrix import MatrixChannel
from nanobot.config.channels import MatrixConfig
from nanobot.testing.live_channel import until
from nanobot.testing.platform import Platform, Shown
from tests.fakes.matrix import as_seen, shown_texts
from tests.fakes.served import Json

PASSWORD = "a password of this test"
_numbers = count(1)


class Person:
    """Somebody with an app that shows rooms, and decrypts them."""

    def __init__(self, url: str, name: str) -> None:
        self.name = f"{name}{next(_numbers)}"
        config = AsyncClientConfig(store=SqliteMemoryStore, max_timeouts=0)
        self.client = AsyncClient(url, f"@{self.name}:localhost", config=config)
        self.events: defaultdict[str, list[Json]] = defaultdict(list)
        self.typing: list[tuple[str, str]] = []
        self._syncing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return f"@{self.name}:localhost"

    async def register(self) -> None:
        await self.client.register(self.name, PASSWORD)
        assert self.client.logged_in

    async def open(self) -> None:
        """Begin to read what happens."""
        self.client.add_event_callback(self._see, Event)
        self.client.add_ephemeral_callback(self._see_typing, TypingNoticeEvent)
        await self.client.sync(full_state=True)
        self._syncing = asyncio.create_task(self._read(), name=self.name)

    async def close(self) -> None:
        if self._syncing is not None:
            self._syncing.cancel()
            with suppress(asyncio.CancelledError):
                await self._syncing
        await self.client.close()
        if self.client.store is not None:
            self.client.store.database.close()

    async def create(self, *invited: str, encrypted: bool = False) -> str:
        """Create a room."""
        encryption = {"type": "m.room.encryption", "content": {"algorithm": "m.megolm.v1.aes-sha2"}}
        created = await self.client.room_create(
            invite=invited,
            is_direct=len(invited) == 1,
            preset=RoomPreset.trusted_private_chat,
            initial_state=[encryption] if encrypted else [],
        )
        return str(created.room_id)

    async def says(self, room: str, content: Json) -> str:
        sent = await self.client.room_send(room, "m.room.message", content, ignore_unverified_devices=True)
        return str(sent.event_id)

    async def knows_device_of(self, user: str) -> None:
        """Wait until messages can be encrypted for them."""
        await until(lambda: [*self.client.device_store.active_user_devices(user)])

    def sees_in(self, room: str, user: str) -> bool:
        """Whether they see that a user has joined a room."""
        known = self.client.rooms.get(room)
        return known is not None and user in known.users and not known.users[user].invited

    async def attach(self, path: Path, *, encrypted: bool) -> Json:
        """Upload a file. Returns the content of its message."""
        data, key = path.read_bytes(), {}
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        if encrypted:
            data, key = encrypt_attachment(data)
        uploaded, _ = await self.client.upload(BytesIO(data), kind, path.name, filesize=len(data))
        where = {"file": {**key, "url": uploaded.content_uri}} if encrypted else {"url": uploaded.content_uri}
        return {"msgtype": "m.image", "filename": path.name, "info": {"mimetype": kind}, **where}

    async def download(self, event: Json) -> bytes:
        """The file of a message, decrypted."""
        content = event["content"]
        key = content.get("file")
        answer = await self.client.download(key["url"] if key else content["url"])
        data: bytes = answer.body
        return decrypt_attachment(data, key["key"]["k"], key["hashes"]["sha256"], key["iv"]) if key else data

    def written_by(self, user: str, room: str, kind: str = "m.room.message") -> list[Json]:
        return [event for event in self.events[room] if (event["sender"], event["type"]) == (user, kind)]

    async def _read(self) -> None:
        """The SDK's own loop asks for keys at the same time as a send, and then fails."""
        while True:
            if self.client.should_upload_keys:
                await self.client.keys_upload()
            if self.client.should_query_keys:
                await self.client.keys_query()
            if self.client.should_claim_keys:
                await self.client.keys_claim(self.client.get_users_for_key_claiming())
            await self.client.send_to_device_messages()
            await self.client.sync(timeout=5000)

    async def _see(self, room: MatrixRoom, event: Event) -> None:
        self.events[room.room_id].append(event.source)

    async def _see_typing(self, room: MatrixRoom, event: TypingNoticeEvent) -> None:
        self.typing += [(room.room_id, user) for user in event.users]


class SynapsePlatform(Platform):
    """Rooms without encryption."""

    name = "matrix"
    url: ClassVar[str]
    """Of the Synapse that runs; set before it is opened."""
    is_encrypted: ClassVar[bool] = False
    limit = 16_000
    group = "a group"
    edits = threads = files = quotes = dedupes = queues_messages = reacts = types = True
    acknowledges = connects = refuses = has_token = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.anna, self.zoe, self.bot = (Person(self.url, name) for name in ("anna", "zoe", "nanobot"))
        self._channel: MatrixChannel | None = None
        self._was_there = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["SynapsePlatform"]:
        people = (self.anna, self.zoe, self.bot)
        try:
            for one in people:
                await one.register()
            self.person, self.stranger = self.anna.id, self.zoe.id  # type: ignore[misc]
            encrypted = self.is_encrypted
            self.private = await self.anna.create(self.bot.id, encrypted=encrypted)  # type: ignore[misc]
            self.stranger_chat = await self.zoe.create(self.bot.id, encrypted=encrypted)  # type: ignore[misc]
            self.group = await self.anna.create(self.zoe.id, self.bot.id, encrypted=encrypted)  # type: ignore[misc]
            for room in (self.private, self.stranger_chat, self.group):
                await self.bot.client.join(room)
            await self.zoe.client.join(self.group)
            await self.anna.open()
            await self.zoe.open()
            self.thread = await self.zoe.says(self.group, {"msgtype": "m.text", "body": "root"})  # type: ignore[misc]
            yield self
        finally:
            for one in people:
                await one.close()

    def channel(self, bus: MessageBus, **settings: Any) -> MatrixChannel:
        usual = {
            "enabled": True, "homeserver": self.url, "user_id": self.bot.id, "allow_from": [self.person],
            "access_token": self.bot.client.access_token, "e2ee_enabled": self.is_encrypted,
        }  # fmt: skip
        self._channel = MatrixChannel(MatrixConfig.model_validate(usual | settings), bus)
        self._channel.key_wait_s = 0.5
        return self._channel

    # what people do and see

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
    ) -> str:
        if not self._was_there:
            assert self._channel is not None
            await self._channel.status.connected.wait()
            self._was_there = True
        return await self.writes(text, sender=sender, chat=chat, thread=thread, mention=mention, file=file)

    async def writes(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
    ) -> str:
        """The same without a look at the channel, which may run in another process."""
        person = self.zoe if sender == self.stranger else self.anna
        if self.is_encrypted:
            await person.knows_device_of(self.bot.id)
        content: Json = {"msgtype": "m.text", "m.mentions": {"user_ids": [self.bot.id] if mention else []}}
        if file is not None:
            content |= await person.attach(file, encrypted=self.is_encrypted)
        content["body"] = f"{self.bot.name}: {text}" if mention else text
        if thread is not None:
            answered = {"m.in_reply_to": {"event_id": thread}, "is_falling_back": True}
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread, **answered}
        return await person.says(chat or self.private, content)

    def shown(self, chat: str | None = None) -> list[Shown]:
        chat = chat or self.private
        person = self.zoe if chat == self.stranger_chat else self.anna
        messages = shown_texts(person.written_by(self.bot.id, chat))
        return [as_seen(event_id, content, edits) for event_id, (content, edits) in messages.items()]

    def reactions_on(self, message_id: str) -> list[str]:
        events = [
            event["content"]["m.relates_to"]
            for room in (self.private, self.group or "")
            for event in self.anna.written_by(self.bot.id, room, "m.reaction")
        ]
        return [relation["key"] for relation in events if relation["event_id"] == message_id]

    def typed(self, chat: str | None = None) -> int:
        return self.anna.typing.count((chat or self.private, self.bot.id))


class EncryptedSynapsePlatform(SynapsePlatform):
    """Encrypted rooms."""

    is_encrypted = True
