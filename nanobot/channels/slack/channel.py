"""The Slack channel: an app of one's own, in socket mode (docs.slack.dev/apis/events-api/using-socket-mode)."""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.slack.history import SlackHistory, remembered
from nanobot.channels.slack.incoming import IncomingMessage, read_command, read_event, read_press
from nanobot.channels.slack.mention_dedupe import MentionDeduplicator
from nanobot.channels.slack.names import UserNames
from nanobot.config.channels import SlackConfig
from nanobot.markdown.chunks import Chunk, split_message
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
"""Chats that are asked at once what was missed there."""
_TRIES, _LONGEST_PAUSE_S = 2, 30.0
"""How often, and how long, Slack may let what was missed in one chat wait."""
_CALLED = re.compile(r"@([A-Z0-9]+)\b")
_GOODBYES = ("tokens_revoked", "app_uninstalled")


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
        self._now: SlackApi | None = None
        self._names: UserNames | None = None
        self._past = SlackHistory()
        self._twins = MentionDeduplicator()
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def start(self) -> None:
        """Log in, and hear what is said until the connection ends."""
        await _load_sdk()
        from nanobot.channels.slack.socket_mode import SocketModeCallbacks, SocketModeConnections
        from nanobot.channels.slack.web_api import open_api

        clock = self.services.clock
        async with open_api(self._settings, clock) as web:
            me = await web.log_in()
            async with remembered(self.services.state, me.user) as past:
                self._now, self._past = web, past
                names = self._names = UserNames(web.name_of, clock)
                ends = past.open_ends(clock.now())
                missed = {chat: partial(self._hear_missed, chat, marks) for chat, marks in ends.items()}
                ears = SocketModeCallbacks(
                    self._arrived, self._take, self.status.touch, self.mark_up, lambda: self.stall_s
                )
                try:
                    await SocketModeConnections(web, ears).run(missed)
                finally:
                    self._now = self._names = None
                    await names.close()

    async def login(self, force: bool = False) -> bool:
        """Ask Slack whose tokens these are, and say so. Raises ChannelSetupError, or SendError where it is away."""
        await _load_sdk()
        from nanobot.channels.slack.web_api import open_api
        from nanobot.utils.clock import SystemClock

        async with open_api(self._settings, SystemClock()) as web:
            me = await web.log_in()
            await web.socket_address()
        print(f"The tokens are good. Your bot is @{me.name}: write `/invite @{me.name}` in a channel.")  # noqa: T201 a person waits
        return True

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Post one piece, in its thread. (Slack cannot quote: the thread is its way to answer a message.)"""
        blocks = {"blocks": _blocks(piece, how.buttons)} if how.buttons else {}
        return await self._web.post(to.chat_id, to.thread_id, piece.text, **blocks)

    async def edit(self, to: Address, platform_id: str, piece: Chunk) -> None:
        """Make a message say this."""
        await self._web.edit(to.chat_id, platform_id, piece.text)

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        """Send a file; of an address Slack makes a picture by itself."""
        if file.path is None:
            return await self._web.post(
                to.chat_id, to.thread_id, file.url or file.name, unfurl_links=True, unfurl_media=True
            )
        return await self._web.upload(to.chat_id, to.thread_id, file.path, file)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on somebody's message; `emoji` by its name in Slack, such as eyes."""
        await self._web.react(to.chat_id, message_id, emoji.strip(":"))

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """A file somebody sent."""
        return self._web.download(attachment)

    @property
    def _web(self) -> "SlackApi":
        if self._now is None:
            raise NotConnectedError("Slack is not connected")
        return self._now

    def _arrived(self, envelope: "Envelope") -> None:
        event = _event_of(envelope)
        said = self._said(event) if event.get("type") == "message" else None
        if said is not None:
            self._twins.came(said.chat_id, said.message_id)

    async def _take(self, envelope: "Envelope") -> None:
        """Take in what an envelope says. Raises StorageError where the disk refuses."""
        said = self._read(envelope)
        if said is None or (said.kind == "mpim" and not self._settings.dm.enabled):
            return
        if said.is_twin and not said.files and await self._twins.has_come(said.chat_id, said.message_id):
            return  # the message says all of it, and is acknowledged for itself
        await self._receive(said)

    async def _hear_missed(self, chat: str, marks: Mapping[str | None, str]) -> None:
        """Hear what was said in a chat and its threads since these marks. Raises StorageError, as `receive` does."""
        missed: dict[str, IncomingMessage] = {}
        for thread, last in marks.items():
            try:
                told = await self._missed(chat, thread, last)
            except UndeliverableError as error:
                log.debug("slack: missed messages in %s are not fetched any more: %s", chat, error)
                self._past.forget(chat, thread)
                continue
            except SendError as error:  # what comes now must not wait for what was
                log.warning("slack: missed messages in %s cannot be fetched (%s); send them again", chat, error)
                return
            for one in told:
                said = self._said({**one, "type": "message", "channel": chat})
                if said is not None:
                    missed[said.message_id] = said
        for _, said in sorted(missed.items()):
            await self._receive(said)

    async def _missed(self, chat: str, thread: str | None, last: str) -> list[Mapping[str, Any]]:
        async with self._asking:
            for _ in range(_TRIES):
                try:
                    return await self._web.since(chat, thread, last)
                except RateLimitedError as error:
                    if error.retry_after_s > _LONGEST_PAUSE_S:
                        raise
                    await asyncio.sleep(error.retry_after_s)
            return await self._web.since(chat, thread, last)

    def _read(self, envelope: "Envelope") -> IncomingMessage | None:
        match envelope.kind:
            case "events_api":
                event = _event_of(envelope)
                if event.get("type") in _GOODBYES:  # logging in again will say what is to do
                    raise ConnectionResetError("the app was removed from the workspace")
                return self._said(event)
            case "slash_commands":
                return read_command(envelope.payload)
            case "interactive":
                return read_press(envelope.payload)
            case _:
                return None

    def _said(self, event: Mapping[str, Any]) -> IncomingMessage | None:
        return read_event(event, self._web.me, reply_in_thread=self._settings.reply_in_thread)

    async def _receive(self, said: IncomingMessage) -> None:
        when = said.when
        accepted = await self.receive(
            said.sender_id,
            said.chat_id,
            await self._with_names(said),
            message_id=said.message_id,
            thread_id=said.thread_id,
            is_private=said.is_private,
            is_mentioned=said.is_mentioned,
            attachments=said.files,
            timestamp=when.astimezone(self.services.clock.now().tzinfo) if when else None,
            quotes_others=said.quotes_others,
        )
        self._past.note(said, accepted=accepted)

    async def _with_names(self, said: IncomingMessage) -> str:
        """The text with the names of those it calls, their ids behind; only what is heard is worth a question."""
        policy = self._settings.group_policy
        is_meant = said.is_private or said.is_mentioned or policy != "mention"
        if not (
            said.people and is_meant and self._names is not None and self.services.access.is_allowed(said.sender_id)
        ):
            return said.text
        named = await self._names.of(said.people)
        return _CALLED.sub(lambda call: f"@{named[call[1]]} ({call[1]})" if call[1] in named else call[0], said.text)


def _event_of(envelope: "Envelope") -> Mapping[str, Any]:
    event = envelope.payload.get("event") if envelope.kind == "events_api" else None
    return event if isinstance(event, Mapping) else {}


def _blocks(piece: Chunk, buttons: Sequence[Button]) -> list[dict[str, Any]]:
    """A text with buttons below it (docs.slack.dev/reference/block-kit/block-elements/button-element).

    The value travels in the button itself, so that a press is understood after a restart; one that is too long for that
    gives way to the label.
    """
    texts = [piece.text]
    if len(piece.text) > _LONGEST_SECTION:
        texts = [part.text for part in split_message(piece.source, SLACK, _LONGEST_SECTION)]
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
    """In a thread: it takes 0.3 s, and other channels are starting too."""
    await asyncio.to_thread(import_module, "nanobot.channels.slack.socket_mode")
