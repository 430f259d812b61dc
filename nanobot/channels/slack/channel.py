"""The Slack channel: the user's own app in Socket Mode (docs.slack.dev/apis/events-api/using-socket-mode).

The SDK keeps the connection open and replaces it. An outage that lasts longer ends `start`, so that the next login says
what the owner has to do. Payloads are read with care, whatever they contain.

Messages: docs.slack.dev/reference/events/message and .../app_mention. Buttons: .../interaction-payloads/
block_actions-payload. Commands: .../interactivity/implementing-slash-commands. Text: .../messaging/
formatting-message-text.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any, ClassVar

import aiohttp
from slack_sdk.socket_mode.aiohttp import SocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.web.async_client import AsyncWebClient

from nanobot.bus.events import Address, Button
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE, CatchUp
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.slack.web_api import BotIdentity, SlackApi, describe_file
from nanobot.config.channels import SlackConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import SLACK
from nanobot.utils.aio import task_group
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)
_sdk_log = logging.getLogger(f"{__name__}.sdk")
_sdk_log.setLevel(logging.CRITICAL)  # the SDK logs whole messages, and the URL of the socket, which is a secret

_LONGEST_SECTION = 3000
_LONGEST_LABEL = 75
_LONGEST_VALUE = 2000
_MOST_BUTTONS = 25
_MENTION_DELAY_S = 0.3
"""How long a mention waits for its `message` event, which has at least as much: a mention may lack its files."""
_NAMES_S, _MOST_NAMES, _MOST_CACHED = 1.0, 10, 1000
"""How long a message waits for user names, and for how many. Slack expects an acknowledgement within three seconds."""
_MOST_MISSED = 200
_TRIES, _LONGEST_PAUSE_S = 3, 30.0
"""How often, and for how long, Slack may throttle the fetch of one chat's missed messages."""
_MENTIONED_ID = re.compile(r"@([UW][A-Z0-9]+)\b")
_MOST_CURSORS = 120
"""Each needs a request, of which Slack accepts fifty a minute."""
_COMMAND = "/nanobot"
"""The command whose argument is the message. Any other command is passed on by its name."""
_USER_SUBTYPES = frozenset({"", "file_share", "thread_broadcast", "me_message"})
"""Subtypes of messages by people. The others are edits, deletions, joins and messages of bots."""
_UNAVAILABLE_MODES = ("external", "tombstone", "hidden_by_limit")
"""Modes of files that cannot be downloaded."""
_MAX_FILES = 20
_MARK = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackIncoming(Incoming):
    """A message, slash command or button press of a person."""

    message_id: str
    is_group_chat: bool = False
    """Whether it is a private chat of several people."""
    is_mention_event: bool = False
    """Whether it is an `app_mention`, which usually arrives as a `message` event, too, perhaps with more."""


@dataclass(slots=True)
class SlackHistory:
    """What was read, so that messages from while the bot was disconnected can be fetched.

    Slack redelivers an event at once, after one minute and after five, then no more. A timestamp is also a message id.
    """

    bot: str = ""
    cursors: dict[str, str] = field(default_factory=dict)
    """The last message read, by chat, and by "chat:thread" for threads the bot is in."""

    def note(self, message: SlackIncoming, *, accepted: bool) -> None:
        """Record that a message was read. A thread gets a cursor with its first accepted message."""
        chat, thread = message.chat_id, message.thread_id
        keys = [chat] if thread in (None, message.message_id) else []
        if thread is not None and (accepted or f"{chat}:{thread}" in self.cursors):
            keys.append(f"{chat}:{thread}")
        for key in keys if message.sent_at is not None else ():
            put_bounded(self.cursors, key, max(self.cursors.get(key, ""), message.message_id), _MOST_CURSORS)

    def recent(self, now: datetime) -> dict[str, dict[str | None, str]]:
        """What to fetch, by chat: the message to start after, by thread or None for the chat itself."""
        oldest = f"{(now - MAX_AGE).timestamp():.6f}"
        found: dict[str, dict[str | None, str]] = {}
        for key, last in self.cursors.items():
            if last > oldest:
                chat, _, thread = key.partition(":")
                found.setdefault(chat, {})[thread or None] = last
        return found

    def forget(self, chat: str, thread: str | None) -> None:
        """Drop the cursor of a chat or thread that no longer exists."""
        self.cursors.pop(chat if thread is None else f"{chat}:{thread}", None)


class SlackChannel(ChatChannel):
    name = "slack"
    dialect = SLACK
    largest_file = 1024 * 1024 * 1024
    can_edit = True
    can_react = True
    stall_s = 30.0  # the SDK notices a lost connection, and opens another, within 13 s
    ping_s: float = 5.0
    """How often the SDK pings, and looks whether it has to reconnect."""
    connect_s: float = 15.0
    delta_interval_s: ClassVar[float] = 1.5
    """`chat.update` may be called fifty times a minute (docs.slack.dev/apis/web-api/rate-limits, tier 3)."""

    config: SlackConfig

    def __init__(self, config: SlackConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._api = SlackApi(config)
        self._work = asyncio.TaskGroup()
        self._catch_up = CatchUp(self.name)
        self._history = SlackHistory()
        self._messages: dict[tuple[str, str], None] = {}
        """The last `message` events, by chat and timestamp: a mention comes as one, too."""
        self._names: dict[tuple[str, date], str] = {}
        """User names by id and the day they were looked up."""

    async def start(self) -> None:
        async with self._api as api:
            me = await api.log_in()
            self._history = await self.load_state(SlackHistory(me.user))
            async with self.state_file.keep_saved(self._history), task_group() as self._work:
                await self._serve(api)

    async def _serve(self, api: SlackApi) -> None:
        url, sdk = await api.socket_url(), AsyncWebClient(base_url=api.base, retry_handlers=[], logger=_sdk_log)
        client = SocketModeClient(api.app_token, _sdk_log, sdk, proxy=sdk.proxy, ping_interval=self.ping_s)
        client.wss_uri = url
        client.message_listeners.append(self._on_message)
        try:
            try:
                async with asyncio.timeout(self.connect_s):
                    await client.connect()  # type: ignore[no-untyped-call]
            except TimeoutError:
                raise NotConnectedError("Slack opens no WebSocket; behind a proxy, set HTTPS_PROXY") from None
            while True:
                if await client.is_connected():
                    self.status.touch()
                await asyncio.sleep(self.ping_s)
        finally:
            await client.aiohttp_client_session.close()  # first: a dead connection answers no goodbye for ten seconds
            await client.close()  # type: ignore[no-untyped-call]

    async def check_login(self) -> str:
        async with self._api as api:
            me = await api.log_in()
            await api.socket_url()
        return f"The tokens work. Your bot is @{me.name}: write `/invite @{me.name}` in a channel."

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk in its thread: Slack has no quotes, replies are threads."""
        blocks = _blocks(chunk, options.buttons) if options.buttons else None
        return await self._api.post(to.chat_id, to.thread_id, chunk.text, blocks=blocks)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        chat_id = await self._api.chat_id_of(to.chat_id)
        await self._api.ask("chat.update", channel=chat_id, ts=platform_id, text=chunk.text)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file. For a URL Slack shows the picture itself."""
        if file.path is None:
            return await self._api.post(to.chat_id, to.thread_id, file.url or file.name, unfurl_links=1, unfurl_media=1)
        return await self._api.upload(to.chat_id, to.thread_id, file.path, file)

    post_url = post_file

    async def react(self, to: Address, message_id: str, emoji: str) -> str:
        """Add a reaction to a message; `emoji` is its name in Slack, such as eyes."""
        name = emoji.strip(":")
        try:
            await self._api.ask("reactions.add", channel=to.chat_id, timestamp=message_id, name=name)
        except UndeliverableError as error:
            if "already_reacted" not in str(error):
                raise
        return name

    async def take_back(self, to: Address, message_id: str, reaction: str) -> None:
        await self._api.ask("reactions.remove", channel=to.chat_id, timestamp=message_id, name=reaction)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment)

    async def _on_message(self, client: Any, message: dict[str, Any], _: str | None = None) -> None:
        """Start processing what arrived; the SDK calls this for one message after the other."""
        if message.get("type") == "hello":  # the first of each connection
            self.mark_up()
            for chat, cursors in self._history.recent(self.services.clock.now()).items():
                self._work.create_task(self._process_missed(chat, cursors))
        elif (request := SocketModeRequest.from_dict(message)) is not None:
            self._work.create_task(self._process(client, request))

    async def _process(self, client: SocketModeClient, request: SocketModeRequest) -> None:
        """Process a request and acknowledge it, unless it could not be journaled: then Slack sends it again."""
        incoming = self._read(request)
        if incoming is not None and incoming.is_mention_event:
            await asyncio.sleep(_MENTION_DELAY_S)
            if (incoming.chat_id, incoming.message_id) in self._messages:
                incoming = None
        elif incoming is not None:
            put_bounded(self._messages, (incoming.chat_id, incoming.message_id), None, _MOST_CACHED)
        try:
            if incoming is not None and (self.config.dm.enabled or not incoming.is_group_chat):
                async with self._catch_up.lock_of(incoming.chat_id):
                    await self._receive(incoming)
        except StorageError as error:
            log.warning("slack: a message could not be journaled, and is not acknowledged to Slack: %s", error)
            return
        try:
            await client.send_socket_mode_response(SocketModeResponse(request.envelope_id))
        except (aiohttp.ClientError, OSError):
            log.debug("slack: the connection was lost before an acknowledgement; a duplicate will be dropped")

    def _read(self, request: SocketModeRequest) -> SlackIncoming | None:
        match request.type:
            case "events_api":
                event = Payload.of(request.payload).part("event")
                if event.text("type") in ("tokens_revoked", "app_uninstalled"):  # the next login says what to do
                    raise ConnectionResetError("the app was removed from the workspace")
                return read_event(event, self._api.me, reply_in_thread=self.config.reply_in_thread)
            case "slash_commands":
                return read_command(request.payload)
            case "interactive":
                return read_press(request.payload)
        return None

    async def _process_missed(self, chat: str, cursors: Mapping[str | None, str]) -> None:
        """Process the messages of a chat and its threads after these cursors, before any new ones."""
        missed: dict[str, SlackIncoming] = {}
        async with self._catch_up.missed(chat):
            for thread, last in cursors.items():
                for message in await self._fetch_missed(chat, thread, last):
                    event = {**message, "type": "message", "channel": chat}
                    incoming = read_event(event, self._api.me, reply_in_thread=self.config.reply_in_thread)
                    if incoming is not None:
                        missed[incoming.message_id] = incoming
            for _, incoming in sorted(missed.items()):
                await self._receive(incoming)

    async def _fetch_missed(self, chat: str, thread: str | None, last: str) -> Sequence[Payload]:
        """The messages of a chat or thread after this one, oldest first: at most the last two hundred."""
        method = "conversations.history" if thread is None else "conversations.replies"
        for tries_left in reversed(range(_TRIES)):
            try:
                answer = await self._api.ask(method, channel=chat, oldest=last, limit=_MOST_MISSED, ts=thread)
                later = [message for message in answer.parts("messages") if message.text("ts") != last]
                return sorted(later, key=lambda message: message.text("ts"))
            except RateLimitedError as error:
                if not tries_left or error.retry_after_s > _LONGEST_PAUSE_S:
                    raise
                await asyncio.sleep(error.retry_after_s)
            except UndeliverableError as error:
                log.debug("slack: missed messages in %s are not fetched any more: %s", chat, error)
                self._history.forget(chat, thread)
                break
        return ()

    async def _receive(self, incoming: SlackIncoming) -> None:
        """Process a message, with the names of the people whom it mentions, and of a stranger who may be paired."""
        sender = incoming.sender_id
        is_allowed = self.services.access.is_allowed(sender)
        is_for_bot = incoming.is_private or incoming.is_mentioned or self.config.group_policy != "mention"
        people = [*dict.fromkeys(_MENTIONED_ID.findall(incoming.text))] if is_allowed and is_for_bot else []
        people = [sender] if incoming.is_private and not is_allowed else people
        today = self.services.clock.now().date()
        with suppress(TimeoutError, SendError):  # then an id stays an id
            async with asyncio.timeout(_NAMES_S):
                for user in people[:_MOST_NAMES]:
                    if (user, today) not in self._names:
                        put_bounded(self._names, (user, today), await self._api.name_of(user), _MOST_CACHED)
        names = {user: name for user in people if (name := self._names.get((user, today)))}
        text = _MENTIONED_ID.sub(
            lambda match: f"@{names[match[1]]} ({match[1]})" if match[1] in names else match[0], incoming.text
        )
        name = "" if is_allowed else names.get(sender, "")
        accepted = await self.receive(replace(incoming, text=text, sender_name=name))
        self._history.note(incoming, accepted=accepted)


def _blocks(chunk: Chunk, buttons: Sequence[Button]) -> list[dict[str, Any]]:
    """A text with buttons below it (docs.slack.dev/reference/block-kit/block-elements/button-element).

    Each button contains its value, so that a press can be read after a restart. The label replaces a value that is too
    long.
    """
    texts = [chunk.text]
    if len(chunk.text) > _LONGEST_SECTION:
        texts = [part.text for part in split_message(chunk.content, SLACK, _LONGEST_SECTION)]
    sections = [{"type": "section", "text": {"type": "mrkdwn", "text": text}} for text in texts]
    elements = []
    for number, button in enumerate(buttons[:_MOST_BUTTONS]):
        label = button.label[:_LONGEST_LABEL]
        value = button.value if 0 < len(button.value) <= _LONGEST_VALUE else Button(label, "").choice
        text = {"type": "plain_text", "text": label, "emoji": True}
        elements.append({"type": "button", "action_id": f"say-{number}", "text": text, "value": value})
    return [*sections, {"type": "actions", "elements": elements}]


def read_event(data: Mapping[str, Any], me: BotIdentity, *, reply_in_thread: bool) -> SlackIncoming | None:
    """Read a message event; None for other events and for messages of bots, including our own."""
    event = Payload.of(data)
    is_mention = event.get("type") == "app_mention"
    if not is_mention and (event.get("type") != "message" or event.text("subtype") not in _USER_SUBTYPES):
        return None
    user, chat, ts = event.text("user"), event.text("channel"), event.text("ts")
    if not (user and chat and ts) or user in (me.user, "USLACKBOT") or event.get("bot_id") or event.get("hidden"):
        return None
    text = event.text("text")
    shares = [share for share in event.parts("attachments") if share.get("is_share") or share.get("is_msg_unfurl")]
    files = [file for payload in (event, *shares) for file in payload.parts("files")]
    away = [file for file in files if file.get("mode") in _UNAVAILABLE_MODES]
    lines = [to_plain_text(text, me.user, me.name)]
    for share in shares:
        if shared := share.text("text"):
            author = share.text("author_name") or share.text("author_id")
            lines.append(f"[forwarded{' from ' + author if author else ''}]\n{to_plain_text(shared, me.user, me.name)}")
    for file in away:  # a link if it is stored elsewhere, else a note
        where = file.text("url_private") if file.get("mode") == "external" else "is not to be had"
        lines.append(f"[file: {file.text('name') or 'a file'} {where}]")
    kind, thread = _kind(event, chat), event.text("thread_ts")
    is_named = _mention_of(me.user).search(text) is not None
    return SlackIncoming(
        user,
        chat,
        "\n".join(line for line in lines if line),
        message_id=ts,
        thread_id=thread or (ts if reply_in_thread and kind != "im" else None),
        is_private=kind == "im",
        is_group_chat=kind == "mpim",
        is_mentioned=is_mention or is_named or event.get("parent_user_id") == me.user,
        attachments=tuple(describe_file(file) for file in files if file not in away and file.text("id"))[:_MAX_FILES],
        quotes_others=bool(shares),
        sent_at=event.time("ts", ticks_per_s=1),
        is_mention_event=is_mention,
    )


def read_command(data: Mapping[str, Any]) -> SlackIncoming | None:
    """Read a slash command of the app: `/nanobot what is new` is "what is new", `/stop` is "/stop"."""
    payload = Payload.of(data)
    user, chat = payload.text("user_id"), payload.text("channel_id")
    command, trigger = payload.text("command"), payload.text("trigger_id")
    if not (user and chat and command and trigger):
        return None
    words = payload.text("text").strip()
    text = (words or "/help") if command == _COMMAND else f"{command} {words}".strip()
    kind = "im" if payload.get("channel_name") == "directmessage" else _kind(payload, chat)
    is_private, is_group = kind == "im", kind == "mpim"
    return SlackIncoming(
        user, chat, text, message_id=trigger, is_private=is_private, is_group_chat=is_group, is_mentioned=True
    )


def read_press(data: Mapping[str, Any]) -> SlackIncoming | None:
    """Read a button press as a message with the button's value, in the chat of the button."""
    payload = Payload.of(data)
    action = next((action for action in payload.parts("actions") if action.get("type") == "button"), Payload())
    user, chat = payload.text("user", "id"), payload.text("channel", "id") or payload.text("container", "channel_id")
    value, pressed = action.text("value"), action.text("action_ts") or payload.text("trigger_id")
    if payload.get("type") != "block_actions" or not (user and chat and value and pressed):
        return None
    return SlackIncoming(
        user,
        chat,
        value,
        message_id=pressed,
        thread_id=payload.text("message", "thread_ts") or payload.text("container", "thread_ts") or None,
        is_private=_kind(Payload(), chat) == "im",
        is_mentioned=True,
        sent_at=Payload(ts=pressed).time("ts", ticks_per_s=1),
    )


def _kind(payload: Payload, chat: str) -> str:
    return payload.text("channel_type") or ("im" if chat.startswith("D") else "channel")


def _mention_of(user: str) -> "re.Pattern[str]":
    return re.compile(rf"<@{re.escape(user)}(?:\|[^<>]*)?>")


def to_plain_text(text: str, me: str, my_name: str) -> str:
    """The plain text, without a mention of the bot at its start."""
    own = re.compile(rf"\A(?:\s*{_mention_of(me).pattern}[ \t]*[,:]?)+\s*")
    plain = _MARK.sub(lambda match: _read(match, me, my_name), own.sub("", text))
    return plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip()


def _read(match: "re.Match[str]", me: str, my_name: str) -> str:
    sign, target, label = match[1], match[2], match[3]
    if sign == "@":
        return f"@{my_name if target == me else label or target}"
    if sign == "#":
        return f"#{label or target}"
    if sign == "!":  # <!here>, <!subteam^S1|@team>, <!date^1^{date}|1 May>
        return label or f"@{target.partition('^')[0]}"
    if not label or _bare(label) == _bare(target):
        return target.removeprefix("mailto:").removeprefix("tel:")
    return f"{label} ({target})"


def _bare(address: str) -> str:
    """An address as people write it, without scheme: Slack makes every address a link."""
    return re.sub(r"\A(?:mailto:|tel:)?(?:https?://)?|/\Z", "", address).lower()
