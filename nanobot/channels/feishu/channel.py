"""The Feishu channel: the user's own app over its long connection.

An event that is not acknowledged within three seconds comes again (open.feishu.cn/document, server-docs/
event-subscription-guide/long-connection). After each connection the history is read, too.
"""

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE, CatchUp
from nanobot.channels.errors import RefusedError, SendError, UndeliverableError
from nanobot.channels.feishu.api import CARD_REFUSED, GONE, FeishuApi
from nanobot.channels.feishu.incoming import (
    FeishuIncoming,
    Frame,
    Parts,
    event_of,
    format_forwarded,
    format_quote,
    ping,
    read_event,
    read_message,
)
from nanobot.channels.incoming import Payload
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import FeishuConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import FEISHU, PLAIN
from nanobot.utils.aio import task_group
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_TEXT_ELEMENT = "text"
_LONGEST_PLAIN = 1000
"""A longer answer is a card, which is easier to read."""
_LONGEST_TEXT = 40_000
"""Of a text message (150 kB), for a card that is refused."""
_LARGEST_IMAGE = 10 * 1024 * 1024
_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
_FILE_TYPES = {
    ".opus": "opus", ".ogg": "opus", ".oga": "opus", ".mp4": "mp4", ".pdf": "pdf", ".doc": "doc", ".docx": "doc",
    ".xls": "xls", ".xlsx": "xls", ".ppt": "ppt", ".pptx": "ppt",
}  # fmt: skip
"""How Feishu shows a file by its suffix; others are a "stream"."""
_ID_TYPES = {"oc_": "chat_id", "ou_": "open_id", "on_": "union_id"}
_MOST_BUTTONS = 20
_MOST_ROOMS = 60
_LOOKUP_S = 1.0
"""How long a message waits for the one it quotes."""
_PAGE, _MOST_PAGES = 50, 4
_EPOCH, _TICKS_PER_S = 1_790_000_000, 5
"""Of the sequence numbers of cards, which fit into 31 bits."""


@dataclass(slots=True)
class FeishuState:
    """What is saved of one bot: the time of the last message of each chat at Feishu, in milliseconds."""

    bot: str = ""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    """Makes nonces different from those of other journals."""
    groups: dict[str, int] = field(default_factory=dict)
    private: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Card:
    id: str = ""
    """Its id in CardKit; empty if it has to be looked up."""
    is_streaming: bool = True
    sequence: int = 0

    def next_sequence(self) -> int:
        """A number above all earlier ones for this card, also those of a previous process."""
        self.sequence = max(self.sequence + 1, int((time.time() - _EPOCH) * _TICKS_PER_S))
        return self.sequence


class FeishuChannel(ChatChannel):
    name = "feishu"
    dialect = FEISHU
    largest_file = 30 * 1024 * 1024
    can_edit = True
    can_react = True
    dedupe_s = 3600.0
    """Of messages with one `uuid`, at most one is sent in an hour (server-docs/im-v1/message/create)."""
    stall_s = 300.0  # Feishu wants a ping every two minutes; WebSocket pings notice a dead connection before
    delta_interval_s: ClassVar[float] = 0.5
    """A card may be updated ten times a second, all cards of an app a thousand times a minute."""

    config: FeishuConfig

    def __init__(self, config: FeishuConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._api = FeishuApi(config)
        self._state = FeishuState()
        self._catch_up = CatchUp(self.name)
        self._cards: dict[str, _Card] = {}

    async def start(self) -> None:
        async with self._api:
            await self._api.log_in()
            self._state = await self.load_state(FeishuState(self._api.bot))
            async with self.state_file.keep_saved(self._state):
                await self._serve()

    async def _serve(self) -> None:
        url, service, ping_s = await self._api.fetch_endpoint()
        parts, beat = Parts(), ping(service)
        async with open_socket("Feishu", url, max_size=None) as socket, task_group() as work:
            self.mark_up()
            for rooms, is_private in ((self._state.groups, False), (self._state.private, True)):
                for room in [*rooms]:
                    work.create_task(self._process_missed(room, rooms[room], is_private=is_private))
            async for data in read_messages(socket, self.status.touch, ping_s, lambda: socket.send(beat)):
                if isinstance(data, str):
                    continue
                try:
                    frame = Frame.decode(data)
                    if (event := parts.add(frame)) is not None:
                        work.create_task(self._process(socket, frame, event))
                except ValueError as error:
                    log.debug("feishu: a frame cannot be read: %s", error)

    async def check_login(self) -> str:
        async with self._api:
            await self._api.log_in()
            await self._api.fetch_endpoint()
        return (
            f"The app works. Your bot is {self._api.bot_name}: search for it in Feishu and write to it.\n"
            "Only if you created the app by hand: while nanobot is connected, open\n"
            f"{self._api.console}\n"
            "Events & Callbacks: choose the long connection for events and for callbacks, and save."
        )

    # receiving

    async def _process(self, connection: ClientConnection, frame: Frame, payload: bytes) -> None:
        """Process an event and acknowledge it; if it could not be journaled, Feishu is told to send it again."""
        incoming = read_event(payload, self._api.bot, topic_isolation=self.config.topic_isolation)
        code = 200
        try:
            if incoming is not None:
                async with self._catch_up.lock_of(incoming.room or incoming.chat_id):
                    await self._receive(incoming)
        except StorageError as error:
            log.warning("feishu: a message could not be journaled, and is not acknowledged to Feishu: %s", error)
            code = 500
        with suppress(ConnectionClosed):  # then it comes again, and is a duplicate
            await connection.send(frame.answer(code))

    async def _receive(self, incoming: FeishuIncoming) -> None:
        is_for_bot = incoming.is_private or incoming.is_mentioned or self.config.group_policy != "mention"
        is_allowed = self.services.access.is_allowed(incoming.sender_id)
        if (incoming.parent_id or incoming.is_forward) and is_for_bot and is_allowed:
            bot, text, files, quotes = self._api.bot, incoming.text, [*incoming.attachments], incoming.quotes_others
            with suppress(TimeoutError, SendError):  # what it replies to or forwards, if Feishu says it in time
                async with asyncio.timeout(_LOOKUP_S):
                    if incoming.is_forward:
                        text = format_forwarded(await self._messages(f"/{incoming.message_id}"), bot)
                    if incoming.parent_id and not text.startswith("/"):  # a command needs no quoted message
                        items = await self._messages(f"/{incoming.parent_id}")
                        quote, more, is_of_others = format_quote(items, incoming, bot, self._api.app_id)
                        text, files, quotes = f"{quote}\n{text}".strip(), [*files, *more], quotes or is_of_others
            incoming = replace(incoming, text=text, attachments=tuple(files), quotes_others=quotes)
        await self.receive(incoming)
        if incoming.room and incoming.sent_at is not None:
            rooms = self._state.private if incoming.is_private else self._state.groups
            last = max(rooms.get(incoming.room, 0), int(incoming.sent_at.timestamp() * 1000))
            put_bounded(rooms, incoming.room, last, _MOST_ROOMS)

    async def _process_missed(self, room: str, last: int, *, is_private: bool) -> None:
        """Process the messages of a chat after this time, before any new ones."""
        since = max(last // 1000, int((self.services.clock.now() - MAX_AGE).timestamp()))
        query = {"container_id_type": "chat", "container_id": room, "start_time": str(since)}
        query |= {"sort_type": "ByCreateTimeDesc", "page_size": str(_PAGE)}
        async with self._catch_up.missed(room):
            for item in reversed(await self._messages("", query)):
                event = event_of(item, is_private=is_private)
                incoming = read_message(event, self._api.bot, topic_isolation=self.config.topic_isolation)
                if incoming is not None and not item.get("deleted"):
                    await self._receive(incoming)

    async def _messages(self, path: str, query: Mapping[str, str] | None = None) -> list[Payload]:
        """The items of a list of messages: the first few pages. Raises SendError."""
        items: list[Payload] = []
        query = {**(query or {})}
        for _ in range(_MOST_PAGES):
            data = await self._api.call("GET", f"/im/v1/messages{path}", params=query)
            items += data.parts("items")
            query["page_token"] = data.text("page_token")
            if not data.get("has_more") or not query["page_token"]:
                break
        return items

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment.source)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk: a card, or a text if it is short, without formatting and will not be edited."""
        is_plain = chunk.text == chunk.content.text and len(chunk.text) <= _LONGEST_PLAIN
        if is_plain and not options.growing and not options.buttons:
            return await self._send(to, "text", {"text": chunk.text}, options)
        if options.growing:
            # a card of CardKit may be edited often (cardkit-v1/streaming-updates-openapi-overview)
            card = {"type": "card_json", "data": _dump(_card(chunk, growing=True))}
            card_id = (await self._api.call("POST", "/cardkit/v1/cards", json=card)).text("card_id")
            posted = await self._send(to, "interactive", {"type": "card", "data": {"card_id": card_id}}, options)
            # after a lost confirmation the message may have the card of the earlier attempt
            put_bounded(self._cards, posted, _Card("" if options.is_retry else card_id))
            return posted
        try:
            buttons = []
            for button in options.buttons[:_MOST_BUTTONS]:  # what Feishu tells of a press does not have its chat
                value = {"say": button.value or button.label, "chat": to.chat_id, "thread": to.thread_id or ""}
                label = {"tag": "plain_text", "content": button.label}
                press = {"type": "callback", "value": value}
                buttons.append({"tag": "button", "text": label, "behaviors": [press]})
            return await self._send(to, "interactive", _card(chunk, buttons), options)
        except RefusedError as error:
            if error.code not in CARD_REFUSED:
                raise
            log.warning("feishu: a card is sent as text: %s", error)
            plain = split_message(chunk.content, PLAIN, _LONGEST_TEXT)[0].text
            return await self._send(to, "text", {"text": plain}, options)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a card: while it streams its text only, which is shown as it grows."""
        card = self._cards.get(platform_id) or _Card()
        put_bounded(self._cards, platform_id, card)
        if card.is_streaming:
            try:
                path = f"/elements/{_TEXT_ELEMENT}/content"
                await self._update(platform_id, card, "PUT", path, {"content": chunk.text})
            except RefusedError as error:  # it streams for ten minutes at most
                log.debug("feishu: a card no longer streams: %s", error)
                card.is_streaming = False
            else:
                return
        whole = {"type": "card_json", "data": _dump(_card(chunk))}
        await self._update(platform_id, card, "PUT", "", {"card": whole})

    async def _update(self, message_id: str, card: _Card, method: str, path: str, change: dict[str, Any]) -> None:
        if not card.id:
            found = await self._api.call("POST", "/cardkit/v1/cards/id_convert", json={"message_id": message_id})
            card.id = found.text("card_id")
        if not card.id:
            raise UndeliverableError("Feishu has no card for this message")
        change["sequence"] = card.next_sequence()
        await self._api.call(method, f"/cardkit/v1/cards/{card.id}{path}", json=change)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """End the card's streaming: otherwise the list of chats shows it as being written for ten minutes."""
        card = self._cards.get(platform_id)
        if card is None or not card.is_streaming:
            return
        card.is_streaming = False
        try:
            settings = _dump({"config": {"streaming_mode": False}})
            await self._update(platform_id, card, "PATCH", "/settings", {"settings": settings})
        except SendError as error:
            log.debug("feishu: a card still shows that it streams: %s", error)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file; a larger picture, or one of another format, as a document."""
        content, suffix = await read_outgoing(file), file.suffix
        if suffix in _IMAGES and file.size <= _LARGEST_IMAGE:
            form: dict[str, Any] = {"data": {"image_type": "message"}, "files": {"image": (file.name, content)}}
            data = await self._api.call("POST", "/im/v1/images", **form)
            return await self._send(to, "image", {"image_key": data.text("image_key")}, options)
        kind = _FILE_TYPES.get(suffix, "stream")
        form = {"data": {"file_type": kind, "file_name": file.name}, "files": {"file": (file.name, content)}}
        data = await self._api.call("POST", "/im/v1/files", **form)
        shown = {"opus": "audio", "mp4": "media"}.get(kind, "file")
        return await self._send(to, shown, {"file_key": data.text("file_key")}, options)

    async def react(self, to: Address, message_id: str, emoji: str) -> str | None:
        """Add a reaction to a message; `emoji` is its name at Feishu, such as THUMBSUP."""
        body = {"reaction_type": {"emoji_type": emoji}}
        added = await self._api.call("POST", f"/im/v1/messages/{message_id}/reactions", json=body)
        return added.text("reaction_id") or None

    async def take_back(self, to: Address, message_id: str, reaction: str) -> None:
        """Remove a reaction (server-docs/im-v1/message-reaction/delete)."""
        await self._api.call("DELETE", f"/im/v1/messages/{message_id}/reactions/{reaction}")

    async def _send(self, to: Address, kind: str, content: Mapping[str, Any], options: SendOptions) -> str:
        """Send a message; in a thread, and if it quotes one, as a reply."""
        body: dict[str, Any] = {"msg_type": kind, "content": _dump(content)}
        if options.nonce is not None:
            unique = f"{self._state.salt}:{to.chat_id}:{options.nonce}"
            body["uuid"] = sha256(unique.encode()).hexdigest()[:40]
        quoted = options.reply_to if self.config.reply_to_message else None
        for target in [one for one in (quoted, to.thread_id) if one is not None]:
            try:
                data = await self._api.call("POST", f"/im/v1/messages/{target}/reply", json=body)
            except RefusedError as error:
                if error.code not in GONE:
                    raise
            else:
                return data.text("message_id")
        chat = to.chat_id
        id_type = _ID_TYPES.get(chat[:3], "email" if "@" in chat else "user_id")
        query = {"receive_id_type": id_type}
        data = await self._api.call("POST", "/im/v1/messages", params=query, json=body | {"receive_id": chat})
        return data.text("message_id")


def _card(chunk: Chunk, buttons: Sequence[dict[str, Any]] = (), *, growing: bool = False) -> dict[str, Any]:
    """A card of version 2.0 (feishu-cards/card-json-v2-structure)."""
    text = {"tag": "markdown", "content": chunk.text, "element_id": _TEXT_ELEMENT}
    config = {"update_multi": True, "streaming_mode": growing}
    return {"schema": "2.0", "config": config, "body": {"elements": [text, *buttons]}}


def _dump(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
