"""The DingTalk channel: the user's own robot in stream mode (opensource.dingtalk.com/developerpedia/docs/learn/stream).

The stream is read here and not by DingTalk's SDK, which swallows cancellations, and blocks the event loop while it
connects. A streamed answer is an AI card; other messages are Markdown and cannot be edited.
"""

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, ClassVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.dingtalk.api import LARGEST_FILE, MESSAGES, DingTalkApi, PermissionDeniedError
from nanobot.channels.dingtalk.incoming import GROUP, read_message
from nanobot.channels.errors import NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing
from nanobot.config.channels import DingTalkConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DINGTALK
from nanobot.net.http import proxy_for, ssl_context
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import SystemClock

log = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL)  # it would log the ticket, and whole messages

_CONNECT_S, _CLOSE_S = 15.0, 1.0
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
    """How long the stream may be silent before it is pinged."""
    delta_interval_s: ClassVar[float] = 2.0
    """Each update is a request, and an organisation has a quota of them."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, DingTalkConfig) else DingTalkConfig.model_validate(config)
        self._current_api: DingTalkApi | None = None
        self._conversations: dict[str, str] = {}
        """The conversation's id by chat: a private chat has another id with us."""
        self._finished_cards: dict[str, None] = {}
        self._without_cards = ""
        """Why answers are not streamed, once DingTalk has refused a card."""

    async def start(self) -> None:
        """Log in, and receive messages until the connection breaks."""
        api = DingTalkApi(self._settings, self.services.clock)
        try:
            await api.log_in()
            self._current_api = api
            while True:
                await self._serve(api)
                await asyncio.sleep(_RECONNECT_S)
        finally:
            self._current_api = None
            await api.close()

    async def login(self, force: bool = False) -> bool:
        """Test the credentials. Raises ChannelSetupError; SendError if DingTalk is unreachable."""
        api = DingTalkApi(self._settings, SystemClock())
        try:
            await api.log_in()
            await api.open_stream()
        finally:
            await api.close()
        print(  # noqa: T201 a person waits
            f"The credentials work. Your bot is the robot {api.robot_code}: search for it in DingTalk by the name that "
            "you gave it, or add it to a group (Group Settings, Bots) and mention it."
        )
        return True

    async def _serve(self, api: DingTalkApi) -> None:
        """Receive messages until DingTalk announces the end of the connection, as it does after some hours."""
        url = await api.open_stream()
        http_url = url.replace("ws", "http", 1)
        context = await ssl_context(http_url) if url.startswith("wss:") else None
        opening = connect(
            url,
            ssl=context,
            proxy=proxy_for(http_url),
            open_timeout=_CONNECT_S,
            close_timeout=_CLOSE_S,
            ping_interval=None,
            logger=_wire,
        )
        try:
            async with opening as socket:
                self.mark_up()
                self.status.last_error = self._without_cards
                while api.refusal is None:
                    frame = await self._next_frame(socket)
                    if frame is not None and not await self._process(socket, frame):
                        return
            raise api.refusal
        except (OSError, TimeoutError, WebSocketException) as error:  # their texts may have the ticket
            raise NotConnectedError(f"the stream is lost ({type(error).__name__})") from None

    async def _next_frame(self, socket: ClientConnection) -> Mapping[str, Any] | None:
        """The next frame; None after a silence in which DingTalk answered a ping, or for one that is no JSON."""
        try:
            async with asyncio.timeout(self.ping_s):
                text = await socket.recv()
        except TimeoutError:
            await (await socket.ping())  # without an answer, the supervisor cancels this after `stall_s`
            self.status.touch()
            return None
        self.status.touch()
        with suppress(ValueError):
            frame = json.loads(text)
            if isinstance(frame, dict) and isinstance(frame.get("headers"), dict):
                return frame
        return None

    async def _process(self, socket: ClientConnection, frame: Mapping[str, Any]) -> bool:
        """Process a frame, and acknowledge it unless it could not be journaled: then DingTalk sends it again.

        Return False if DingTalk wants the connection to be replaced.
        """
        headers, data = frame["headers"], frame.get("data")
        topic = headers.get("topic")
        if frame.get("type") == "SYSTEM" and topic == "disconnect":
            return False
        if topic == MESSAGES:
            try:
                await self._receive(json.loads(str(data)))
            except StorageError as error:
                log.warning("dingtalk: a message could not be journaled, and is not acknowledged: %s", error)
                return True
            except ValueError:
                log.debug("dingtalk: a message that is no JSON was ignored")
            data = '{"response": {}}'
        acknowledgement = {
            "code": 200,
            "message": "OK",
            "headers": {"contentType": "application/json", "messageId": headers.get("messageId")},
            "data": data,
        }
        await socket.send(json.dumps(acknowledgement))
        return True

    async def _receive(self, message: object) -> None:
        data = message if isinstance(message, Mapping) else {}
        incoming = read_message(data, isolate_users=self._settings.group_user_isolation)
        if incoming is None or (incoming.is_private and self._settings.disable_private_chat):
            return
        put_bounded(self._conversations, incoming.chat_id, str(data["conversationId"]), _MOST_REMEMBERED)
        await self.receive(incoming)

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
        except PermissionDeniedError as error:
            self._without_cards = f"answers are not streamed. {error}"
            self.status.last_error = self._without_cards
            log.warning("dingtalk: %s", self._without_cards)
            raise
        return card_id

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a card."""
        if platform_id in self._finished_cards:
            await self._api.finish_card(platform_id, chunk.text)
        else:
            await self._api.stream_card(platform_id, chunk.text)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Show a card as finished."""
        if platform_id not in self._finished_cards:
            await self._api.stream_card(platform_id, chunk.text, is_last=True)
            await self._api.finish_card(platform_id, chunk.text)
            put_bounded(self._finished_cards, platform_id, None, _MOST_REMEMBERED)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file. For the URL of a picture DingTalk shows the picture itself."""
        if file.path is not None:
            return await self._api.send_file(to.chat_id, file.path)
        url = file.url or file.name
        if file.kind is MediaKind.IMAGE:
            return await self._api.send(to.chat_id, "sampleImageMsg", {"photoURL": url})
        return await self._api.send(to.chat_id, "sampleMarkdown", {"title": file.name, "text": url})

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Show an emoji below a message."""
        conversation = (
            to.chat_id.removeprefix(GROUP) if to.chat_id.startswith(GROUP) else self._conversations.get(to.chat_id)
        )
        if conversation is None:
            raise UndeliverableError(f"the conversation with {to.chat_id} is not known yet")
        await self._api.react(conversation, message_id, emoji)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file."""
        return self._api.download(attachment.source)

    @property
    def _api(self) -> DingTalkApi:
        if self._current_api is None:
            raise NotConnectedError("DingTalk is not connected")
        return self._current_api
