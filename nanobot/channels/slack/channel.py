"""The Slack channel: the user's own app in Socket Mode (docs.slack.dev/apis/events-api/using-socket-mode)."""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.slack.history import SlackHistory, open_history
from nanobot.channels.slack.incoming import SlackIncoming, read_command, read_event, read_press
from nanobot.channels.slack.names import UserNames
from nanobot.config.channels import SlackConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import SLACK

if TYPE_CHECKING:
    from nanobot.channels.slack.socket_mode import Envelope
    from nanobot.channels.slack.web_api import SlackApi

log = logging.getLogger(__name__)

_LONGEST_SECTION = 3000
_LONGEST_LABEL = 75
_LONGEST_VALUE = 2000
_MOST_BUTTONS = 25
_AT_ONCE = 4
"""Chats whose missed messages are fetched concurrently."""
_DUPLICATE_S = 0.3
"""How long a mention waits for its `message` event."""
_MAX_EVENTS = 512
_TRIES, _LONGEST_PAUSE_S = 2, 30.0
"""How often, and for how long, Slack may throttle the fetch of one chat's missed messages."""
_MENTIONED_ID = re.compile(r"@([A-Z0-9]+)\b")
_REMOVAL_EVENTS = ("tokens_revoked", "app_uninstalled")


class MentionDeduplicator:
    """Finds the duplicate of a mention: it arrives as `app_mention` and as `message`, in either order.

    The message has at least as much: a mention may lack its files. So a mention without files waits a moment for its
    message; an app that receives mentions only pays that moment for each.
    """

    def __init__(self) -> None:
        self._messages: OrderedDict[tuple[str, str], asyncio.Event] = OrderedDict()

    def record_message(self, chat: str, ts: str) -> None:
        """Record that a `message` event arrived."""
        self._event_of(chat, ts).set()

    async def has_message(self, chat: str, ts: str) -> bool:
        """Whether the `message` event of a mention has arrived or does so within a moment."""
        try:
            async with asyncio.timeout(_DUPLICATE_S):
                await self._event_of(chat, ts).wait()
        except TimeoutError:
            return False
        return True

    def _event_of(self, chat: str, ts: str) -> asyncio.Event:
        event = self._messages.setdefault((chat, ts), asyncio.Event())
        while len(self._messages) > _MAX_EVENTS:
            self._messages.popitem(last=False)
        return event


class SlackChannel(ChatChannel):
    """Channels, threads and private chats of one app."""

    name = "slack"
    dialect = SLACK
    largest_file = 1024 * 1024 * 1024
    can_edit = True
    can_react = True
    stall_s = 30.0  # a ping goes out every ten seconds
    delta_interval_s: ClassVar[float] = 1.5
    """`chat.update` may be called fifty times a minute (docs.slack.dev/apis/web-api/rate-limits, tier 3)."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, SlackConfig) else SlackConfig.model_validate(config)
        self._current_api: SlackApi | None = None
        self._names: UserNames | None = None
        self._history = SlackHistory()
        self._mentions = MentionDeduplicator()
        self._fetch_slots = asyncio.Semaphore(_AT_ONCE)

    async def start(self) -> None:
        """Log in, and receive messages until the connection ends."""
        await _load_sdk()
        from nanobot.channels.slack.socket_mode import SocketModeCallbacks, SocketModeConnections
        from nanobot.channels.slack.web_api import open_api

        clock = self.services.clock
        async with open_api(self._settings, clock) as api:
            me = await api.log_in()
            async with open_history(self.services.state, me.user) as history:
                self._current_api, self._history = api, history
                names = self._names = UserNames(api.name_of, clock)
                cursors_by_chat = history.cursors(clock.now())
                missed = {chat: partial(self._process_missed, chat, after) for chat, after in cursors_by_chat.items()}
                callbacks = SocketModeCallbacks(
                    self._on_arrival, self._process, self.status.touch, self.mark_up, lambda: self.stall_s
                )
                try:
                    await SocketModeConnections(api, callbacks).run(missed)
                finally:
                    self._current_api = self._names = None
                    await names.close()

    async def login(self, force: bool = False) -> bool:
        """Print which bot the tokens belong to. Raises ChannelSetupError; SendError if Slack is unreachable."""
        await _load_sdk()
        from nanobot.channels.slack.web_api import open_api
        from nanobot.utils.clock import SystemClock

        async with open_api(self._settings, SystemClock()) as api:
            me = await api.log_in()
            await api.socket_address()
        print(f"The tokens work. Your bot is @{me.name}: write `/invite @{me.name}` in a channel.")  # noqa: T201 a person waits
        return True

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk in its thread: Slack has no quotes, replies are threads."""
        blocks = {"blocks": _blocks(chunk, options.buttons)} if options.buttons else {}
        return await self._api.post(to.chat_id, to.thread_id, chunk.text, **blocks)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message."""
        await self._api.edit(to.chat_id, platform_id, chunk.text)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file. For a URL Slack shows the picture itself."""
        if file.path is None:
            return await self._api.post(
                to.chat_id, to.thread_id, file.url or file.name, unfurl_links=True, unfurl_media=True
            )
        return await self._api.upload(to.chat_id, to.thread_id, file.path, file)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Add a reaction to a message; `emoji` is its name in Slack, such as eyes."""
        await self._api.react(to.chat_id, message_id, emoji.strip(":"))

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file."""
        return self._api.download(attachment)

    @property
    def _api(self) -> "SlackApi":
        if self._current_api is None:
            raise NotConnectedError("Slack is not connected")
        return self._current_api

    def _on_arrival(self, envelope: "Envelope") -> None:
        event = _event_of(envelope)
        incoming = self._read_event(event) if event.get("type") == "message" else None
        if incoming is not None:
            self._mentions.record_message(incoming.chat_id, incoming.message_id)

    async def _process(self, envelope: "Envelope") -> None:
        """Process an envelope. Raises StorageError if it cannot be journaled."""
        incoming = self._read(envelope)
        if incoming is None or (incoming.is_group_chat and not self._settings.dm.enabled):
            return
        is_mention = incoming.is_mention_event and not incoming.attachments
        if is_mention and await self._mentions.has_message(incoming.chat_id, incoming.message_id):
            return  # the message event has everything, and is acknowledged separately
        await self._receive(incoming)

    async def _process_missed(self, chat: str, cursors: Mapping[str | None, str]) -> None:
        """Process the messages of a chat and its threads after these cursors. Raises StorageError as `receive` does."""
        missed: dict[str, SlackIncoming] = {}
        for thread, last in cursors.items():
            try:
                messages = await self._fetch_missed(chat, thread, last)
            except UndeliverableError as error:
                log.debug("slack: missed messages in %s are not fetched any more: %s", chat, error)
                self._history.forget(chat, thread)
                continue
            except SendError as error:  # new messages must not wait for old ones
                log.warning("slack: missed messages in %s cannot be fetched (%s); send them again", chat, error)
                return
            for message in messages:
                incoming = self._read_event({**message, "type": "message", "channel": chat})
                if incoming is not None:
                    missed[incoming.message_id] = incoming
        for _, incoming in sorted(missed.items()):
            await self._receive(incoming)

    async def _fetch_missed(self, chat: str, thread: str | None, last: str) -> list[Mapping[str, Any]]:
        async with self._fetch_slots:
            for _ in range(_TRIES):
                try:
                    return await self._api.messages_after(chat, thread, last)
                except RateLimitedError as error:
                    if error.retry_after_s > _LONGEST_PAUSE_S:
                        raise
                    await asyncio.sleep(error.retry_after_s)
            return await self._api.messages_after(chat, thread, last)

    def _read(self, envelope: "Envelope") -> SlackIncoming | None:
        match envelope.kind:
            case "events_api":
                event = _event_of(envelope)
                if event.get("type") in _REMOVAL_EVENTS:  # the next login tells the owner what to do
                    raise ConnectionResetError("the app was removed from the workspace")
                return self._read_event(event)
            case "slash_commands":
                return read_command(envelope.payload)
            case "interactive":
                return read_press(envelope.payload)
            case _:
                return None

    def _read_event(self, event: Mapping[str, Any]) -> SlackIncoming | None:
        return read_event(event, self._api.me, reply_in_thread=self._settings.reply_in_thread)

    async def _receive(self, incoming: SlackIncoming) -> None:
        text, name = await self._text_with_names(incoming), await self._name_of_stranger(incoming)
        accepted = await self.receive(replace(incoming, text=text, sender_name=name))
        self._history.note(incoming, accepted=accepted)

    async def _name_of_stranger(self, incoming: SlackIncoming) -> str:
        """The name of somebody who is about to be offered a pairing code; otherwise empty."""
        if self._names is None or not incoming.is_private or self.services.access.is_allowed(incoming.sender_id):
            return ""
        return (await self._names.look_up([incoming.sender_id])).get(incoming.sender_id, "")

    async def _text_with_names(self, incoming: SlackIncoming) -> str:
        """The text with the names of mentioned users before their ids, if it is from an allowed sender to the bot."""
        is_for_bot = incoming.is_private or incoming.is_mentioned or self._settings.group_policy != "mention"
        if not (incoming.people and is_for_bot and self._names is not None):
            return incoming.text
        if not self.services.access.is_allowed(incoming.sender_id):
            return incoming.text
        names = await self._names.look_up(incoming.people)
        return _MENTIONED_ID.sub(
            lambda match: f"@{names[match[1]]} ({match[1]})" if match[1] in names else match[0], incoming.text
        )


def _event_of(envelope: "Envelope") -> Mapping[str, Any]:
    event = envelope.payload.get("event") if envelope.kind == "events_api" else None
    return event if isinstance(event, Mapping) else {}


def _blocks(chunk: Chunk, buttons: Sequence[Button]) -> list[dict[str, Any]]:
    """A text with buttons below it (docs.slack.dev/reference/block-kit/block-elements/button-element).

    Each button contains its value, so that a press can be read after a restart. The label replaces a value that is too
    long.
    """
    texts = [chunk.text]
    if len(chunk.text) > _LONGEST_SECTION:
        texts = [part.text for part in split_message(chunk.content, SLACK, _LONGEST_SECTION)]
    sections = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    elements = [_button(number, button) for number, button in enumerate(buttons[:_MOST_BUTTONS])]
    return [*sections, {"type": "actions", "elements": elements}]


def _button(number: int, button: Button) -> dict[str, Any]:
    label = button.label[:_LONGEST_LABEL]
    value = button.value if 0 < len(button.value) <= _LONGEST_VALUE else label
    return {
        "type": "button",
        "action_id": f"say-{number}",
        "text": {"type": "plain_text", "text": label, "emoji": True},
        "value": value,
    }


async def _load_sdk() -> None:
    """Import the SDK in a thread: it takes 0.3 s, and other channels are starting too."""
    await asyncio.to_thread(import_module, "nanobot.channels.slack.socket_mode")
