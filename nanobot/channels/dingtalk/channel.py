"""The DingTalk channel: the user's own robot in stream mode (opensource.dingtalk.com/developerpedia/docs/learn/stream).

The stream is read here and not by DingTalk's SDK, which swallows cancellations, and blocks the event loop while it
connects. A streamed answer is an AI card; other messages are Markdown and cannot be edited.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.dingtalk.api import LARGEST_FILE, MESSAGES, NO_PERMISSION, DingTalkApi
from nanobot.channels.dingtalk.incoming import GROUP, read_message
from nanobot.channels.errors import RefusedError, UndeliverableError
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import DingTalkConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DINGTALK
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_RECONNECT_S = 0.2
_LONGEST_TITLE = 40
_MOST_REMEMBERED = 1000


class DingTalkChannel(ChatChannel):
    """Private and group chats of one robot."""

    name = "dingtalk"
    dialect = DINGTALK
    largest_file = LARGEST_FILE
    can_edit = True
    can_react = True
    stall_s = 30.0
    ping_s: float = 10.0
    """How often the stream is pinged."""
    delta_interval_s: ClassVar[float] = 2.0
    """Each update is a request, and an organisation has a quota of them."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, DingTalkConfig) else DingTalkConfig.model_validate(config)
        self._api = DingTalkApi(self._settings)
        self._conversations: dict[str, str] = {}
        """The conversation's id by chat: a private chat has another id with us."""
        self._cards: dict[str, bool] = {}
        """Cards that are not finished, and whether their stream is open. The stream of a crashed process may not be."""
        self._without_cards = ""
        """Why answers are not streamed, once DingTalk has refused a card."""

    async def start(self) -> None:
        """Log in, and receive messages until the connection breaks."""
        async with self._api:
            await self._api.token()
            while True:
                await self._serve()
                await asyncio.sleep(_RECONNECT_S)

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Test the credentials. Raises ChannelSetupError; SendError if DingTalk is unreachable."""
        async with self._api:
            await self._api.token()
            await self._api.open_stream()
        show(
            LoginStep(
                f"The credentials work. Your bot is the robot {self._api.robot_code}.\n"
                "Search for it in DingTalk by the name that you gave it, or add it to a group and mention it."
            )
        )
        return True

    async def _serve(self) -> None:
        """Receive messages until DingTalk announces the end of the connection, as it does after some hours."""
        async with open_socket("DingTalk", await self._api.open_stream(), ping_interval=None) as socket:
            self.mark_up()
            self.status.last_error = self._without_cards
            async for text in read_messages(socket, self.status.touch, self.ping_s):
                if not await self._process(socket, Payload.parse(text)):
                    return

    async def _process(self, socket: ClientConnection, frame: Payload) -> bool:
        """Process a frame, and acknowledge it unless it could not be journaled: then DingTalk sends it again.

        Return False if DingTalk wants the connection to be replaced.
        """
        topic, data = frame.text("headers", "topic"), frame.get("data")
        if frame.text("type") == "SYSTEM" and topic == "disconnect":
            return False
        if topic == MESSAGES:
            try:
                message = Payload.parse(str(data))
                incoming = read_message(message, isolate_users=self._settings.group_user_isolation)
                if incoming is not None and not (incoming.is_private and self._settings.disable_private_chat):
                    conversation = message.text("conversationId")
                    put_bounded(self._conversations, incoming.chat_id, conversation, _MOST_REMEMBERED)
                    await self.receive(incoming)
            except StorageError as error:
                log.warning("dingtalk: a message could not be journaled, and is not acknowledged: %s", error)
                return True
            data = '{"response": {}}'
        if message_id := frame.text("headers", "messageId"):
            headers = {"contentType": "application/json", "messageId": message_id}
            await socket.send(json.dumps({"code": 200, "message": "OK", "headers": headers, "data": data}))
        return True

    @property
    def supports_streaming(self) -> bool:
        """Whether the config does not disable streaming, and DingTalk has refused no card."""
        return super().supports_streaming and not self._without_cards

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a message; a card, if its text will grow."""
        if options.growing:
            return await self._post_card(to, chunk, options.nonce or secrets.token_hex(8))
        lines = (line.strip("#>*`- ") for line in chunk.content.text.splitlines())
        title = next((line for line in lines if line), "nanobot")[:_LONGEST_TITLE]  # shown in notifications
        return await self._api.send(to.chat_id, "sampleMarkdown", {"title": title, "text": chunk.text})

    async def _post_card(self, to: Address, chunk: Chunk, card_id: str) -> str:
        if self._without_cards:
            raise UndeliverableError(self._without_cards)
        try:
            await self._api.create_card(to.chat_id, card_id, chunk.text)
        except RefusedError as error:
            if error.code != NO_PERMISSION:
                raise
            self._without_cards = f"answers are not streamed. {error}"
            self.status.last_error = self._without_cards
            log.warning("dingtalk: %s", self._without_cards)
            raise
        put_bounded(self._cards, card_id, True, _MOST_REMEMBERED)
        return card_id

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        if self._cards.get(platform_id):
            await self._api.stream_card(platform_id, chunk.text)
        else:
            await self._api.finish_card(platform_id, chunk.text)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        if platform_id in self._cards:
            if self._cards[platform_id]:
                await self._api.stream_card(platform_id, chunk.text, is_last=True)
                self._cards[platform_id] = False
            await self._api.finish_card(platform_id, chunk.text)
            del self._cards[platform_id]

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file. For the URL of a picture DingTalk shows the picture itself."""
        if file.path is not None:
            return await self._api.send_file(to.chat_id, file.path)
        url = file.url or file.name
        if file.kind is MediaKind.IMAGE:
            return await self._api.send(to.chat_id, "sampleImageMsg", {"photoURL": url})
        return await self._api.send(to.chat_id, "sampleMarkdown", {"title": file.name, "text": url})

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        conversation = (
            to.chat_id.removeprefix(GROUP) if to.chat_id.startswith(GROUP) else self._conversations.get(to.chat_id)
        )
        if conversation is None:
            raise UndeliverableError(f"the conversation with {to.chat_id} is not known yet")
        await self._api.react(conversation, message_id, emoji)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment.source)
