"""Signal as a channel of nanobot: one account of `signal-cli daemon --http`, by JSON-RPC and server-sent events.

Source: signal-cli-jsonrpc(5) and signal-cli(1) of github.com/AsamK/signal-cli. A message of Signal is named by the time
at which it was sent, in milliseconds, together with its author.
"""

import base64
import binascii
import logging
import mimetypes
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import Field

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import as_send_errors
from nanobot.config.channels import ChannelConfig, GroupPolicy
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import TELEGRAM, utf8_bytes
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_TIMEOUT = httpx.Timeout(120, connect=10)
_MOST_EDITS = 10
"""How often an app lets somebody edit a message."""
_MOST_SENT, _MOST_GROUPS = 256, 64
_STYLES = {
    "bold": "BOLD", "italic": "ITALIC", "strikethrough": "STRIKETHROUGH", "code": "MONOSPACE", "pre": "MONOSPACE",
}  # fmt: skip
_USER_ERROR, _UNTRUSTED_KEY, _RATE_LIMIT, _INVALID_PARAMS = -1, -4, -5, -32602
"""Error codes of JSON-RPC; the first three are exit codes of signal-cli, negated."""
_FAILED_FOR_GOOD = {
    "UNREGISTERED_FAILURE": "who is not on Signal",
    "IDENTITY_FAILURE": "whose safety number has changed. Verify it with them, then: signal-cli trust",
}


class SignalConfig(ChannelConfig):
    """The section `channels.signal`."""

    phone_number: str = ""
    daemon_host: str = "127.0.0.1"
    daemon_port: int = 8080
    group_policy: GroupPolicy = "mention"
    group_allow_from: list[str] = Field(default_factory=list)
    group_message_buffer_size: int = 0
    streaming: bool = False
    react_emoji: str = "👀"


@dataclass
class SignalState:
    """What is saved."""

    bot: str
    last_event_id: str = ""
    """Of the last event that was journaled or ignored. Older releases of signal-cli give events no id."""


@dataclass
class _Sent:
    """A message that may be edited."""

    text: str
    latest: str
    """The timestamp of its latest revision, which is what the next edit has to name."""
    edits: int = 0


class SignalChannel(ChatChannel):
    """The private chats and groups of one account."""

    name = "signal"
    dialect = replace(TELEGRAM, name="signal", limit=2000, measure=utf8_bytes, quote="> ", schemes=())
    can_edit = True
    can_react = True
    largest_file = 14 * 1024 * 1024
    """In base64 it has to fit into one text of JSON, of which the parser of signal-cli takes 20 million characters."""
    stall_s = 60.0
    """signal-cli sends an empty comment every 15 seconds."""
    delta_interval_s = 3.0

    def __init__(self, config: Any, bus: MessageBus) -> None:
        section = SignalConfig.model_validate(config)
        super().__init__(section, bus)
        self._settings = section
        self._me = section.phone_number.strip()
        self._client: httpx.AsyncClient | None = None
        self._state = SignalState(self._me)
        self._sent: dict[str, _Sent] = {}
        self._unread: dict[str, deque[str]] = {}
        """Messages of groups that did not address the bot."""

    async def start(self) -> None:
        """Receive events until the connection breaks."""
        self._state = await self.load_state(SignalState(self._me))
        async with self._open() as client, self.state_file.keep_saved(self._state):
            self._client = client
            try:
                with as_send_errors("signal-cli"):
                    await self._receive_events(client)
            finally:
                self._client = None

    async def login(self, force: bool = False) -> bool:
        """Test the settings. Raises ChannelSetupError; SendError if signal-cli is unreachable."""
        async with self._open() as self._client:
            await self._call("listGroups", {})
        print(f"signal-cli answers. Write to {self._me}, or add it to a group and mention it.")
        return True

    def _open(self) -> httpx.AsyncClient:
        if not self._me:
            raise MissingSettingsError("signal", "phoneNumber")
        if "group" in (self._settings.model_extra or {}):
            raise ChannelSetupError(
                "channels.signal.group is not read here. Write what it says into channels.signal.groupPolicy (mention, "
                "open or allowlist) and channels.signal.groupAllowFrom (IDs of groups), and delete it."
            )
        host = f"[{self._settings.daemon_host}]" if ":" in self._settings.daemon_host else self._settings.daemon_host
        url = f"http://{host}:{self._settings.daemon_port}/api/v1/"
        return httpx.AsyncClient(base_url=url, timeout=_TIMEOUT, trust_env=False)

    # receiving

    async def _receive_events(self, client: httpx.AsyncClient) -> None:
        headers = {"Last-Event-ID": self._state.last_event_id} if self._state.last_event_id else {}
        async with client.stream("GET", "events", params={"account": self._me}, headers=headers) as response:
            if response.status_code == httpx.codes.BAD_REQUEST:
                raise self._no_account()
            if response.status_code != httpx.codes.OK:
                raise NotConnectedError(f"signal-cli answered {response.status_code}")
            self.mark_up()
            event_id, data = "", ""
            async for line in _read_lines(response):
                self.status.touch()
                name, _, value = line.partition(":")
                if name == "id":
                    event_id = value.strip()
                elif name == "data":
                    data = value
                elif not line and data:
                    await self._take(Payload.parse(data))
                    self._state.last_event_id, data = event_id, ""
        raise NotConnectedError("signal-cli has closed the connection")

    async def _take(self, event: Payload) -> None:
        """Journal the message of an event, if it is one for the bot."""
        envelope = event.part("envelope")
        message = envelope.part("dataMessage")
        number = envelope.text("sourceNumber")
        sender = envelope.text("sourceUuid") or number
        if problem := event.line("exception", "message"):
            log.warning("signal: a message of %s cannot be read: %s", number or sender, problem)
        text, files, sent_at = message.text("message"), message.parts("attachments"), int(message.number("timestamp"))
        if not sender or not sent_at or self._me in (sender, number) or not (text or files):
            return  # also reactions, receipts and news about groups
        group, name = message.text("groupInfo", "groupId"), envelope.line("sourceName")
        text, is_mentioned = self._resolve_mentions(text, message.parts("mentions"))
        quoted = message.part("quote")
        quotes_bot = self._me in (quoted.text("authorNumber"), quoted.text("authorUuid"))
        above = []
        if group and not (is_mentioned or quotes_bot) and self._settings.group_policy == "mention":
            self._remember(group, f"{name or number or sender}: {text}")
        elif group:
            above = [*self._unread.pop(group, ())]
        quotes_others = bool(above)
        if words := quoted.text("text"):
            above.append(quoted_lines(words, "you" if quotes_bot else "a message"))
            quotes_others = quotes_others or not (quotes_bot or quoted.text("authorUuid") == sender)
        await self.receive_until_journaled(
            Incoming(
                sender,
                group or sender,
                text if text.startswith("/") else "\n".join([*above, text]),
                f"{sent_at}:{sender}",
                is_private=not group,
                is_mentioned=is_mentioned or quotes_bot,
                alternate_ids=(number,) if number else (),
                sender_name=name,
                attachments=tuple(_read_attachment(file) for file in files if file.text("id")),
                quotes_others=quotes_others and not text.startswith("/"),
                sent_at=message.time("timestamp"),
            )
        )

    def _remember(self, group: str, line: str) -> None:
        if size := self._settings.group_message_buffer_size:
            lines = self._unread.get(group) or deque(["[earlier in this group]"], maxlen=size + 1)
            if len(lines) > size:
                del lines[1]
            lines.append(line)
            put_bounded(self._unread, group, lines, _MOST_GROUPS)

    def _resolve_mentions(self, text: str, mentions: Sequence[Payload]) -> tuple[str, bool]:
        """Write names where Signal has placeholders, and nothing for the bot. Return whether it was among them."""
        units = text.encode("utf-16-le", "surrogatepass")  # positions count UTF-16 units
        is_mentioned = False
        for mention in sorted(mentions, key=lambda mention: mention.number("start"), reverse=True):
            is_me = self._me in (mention.text("number"), mention.text("uuid"))
            is_mentioned = is_mentioned or is_me
            name = "" if is_me else f"@{mention.line('name') or mention.text('number') or 'somebody'}"
            start = 2 * int(mention.number("start"))
            units = units[:start] + name.encode("utf-16-le") + units[start + 2 * int(mention.number("length")) :]
        return units.decode("utf-16-le", "replace").strip(), is_mentioned

    async def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Fetch a file that signal-cli has stored."""
        answer = await self._call("getAttachment", {"id": attachment.source})
        try:
            yield base64.b64decode(answer.text("data"), validate=True)
        except binascii.Error:
            raise MediaError("signal-cli sent no base64") from None

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Send a message, with what it quotes."""
        params: dict[str, Any] = {"message": chunk.text, "textStyle": _styles(chunk)}
        timestamp, _, author = (options.reply_to or "").partition(":")
        if timestamp.isdecimal() and author:
            params |= {"quoteTimestamp": int(timestamp), "quoteAuthor": author, "quoteMessage": ""}
        sent = await self._send(to, params)
        put_bounded(self._sent, sent, _Sent(chunk.text, sent), _MOST_SENT)
        return sent

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message. The last edits that apps accept are left for `finish`."""
        if self._find_sent(platform_id).edits < _MOST_EDITS - 2:
            await self._edit(to, platform_id, chunk)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Show the whole text, if edits of it were left out."""
        if self._find_sent(platform_id).text != chunk.text:
            await self._edit(to, platform_id, chunk)

    async def _edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        sent = self._find_sent(platform_id)
        if sent.edits >= _MOST_EDITS:
            raise UndeliverableError(f"Signal takes no more than {_MOST_EDITS} edits of a message")
        params = {"message": chunk.text, "textStyle": _styles(chunk), "editTimestamp": int(sent.latest)}
        sent.latest, sent.text = await self._send(to, params), chunk.text
        sent.edits += 1

    def _find_sent(self, platform_id: str) -> _Sent:
        if platform_id not in self._sent:
            raise UndeliverableError("the latest revision of a message from before the restart is not known")
        return self._sent[platform_id]

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file."""
        data = base64.b64encode(await read_outgoing(file)).decode()
        content_type = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
        uri = f"data:{content_type};filename={quote(file.name, safe='')};base64,{data}"
        return await self._send(to, {"attachment": [uri]})

    async def show_typing(self, to: Address) -> None:
        """Show for 15 seconds that the bot types."""
        await self._call("sendTyping", _target(to))

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Add a reaction."""
        timestamp, _, author = message_id.partition(":")
        target = {"emoji": emoji, "targetAuthor": author, "targetTimestamp": int(timestamp)}
        await self._call("sendReaction", _target(to) | target)

    async def _send(self, to: Address, params: dict[str, Any]) -> str:
        """Send and return the timestamp. Raises SendError if nobody gets it."""
        result = await self._call("send", _target(to) | params)
        self._check(result.parts("results"))
        return str(int(result.number("timestamp")))

    def _check(self, results: Sequence[Payload]) -> None:
        """Raise SendError if there are recipients, and none of them gets the message."""
        kinds = [result.text("type") for result in results]
        if not kinds or "SUCCESS" in kinds:
            return
        if "RATE_LIMIT_FAILURE" in kinds:
            pause_s = max(result.number("retryAfterSeconds") for result in results)
            raise RateLimitedError("Signal takes no more messages for now", pause_s or -1)
        if reason := _FAILED_FOR_GOOD.get(kinds[0]):
            raise UndeliverableError(f"Signal cannot deliver to somebody {reason}")
        raise SendError(f"Signal could not deliver: {kinds[0]}")

    # requests

    async def _call(self, method: str, params: dict[str, Any]) -> Payload:
        """Call a command of signal-cli. Raises SendError, ChannelSetupError."""
        if self._client is None:
            raise NotConnectedError("signal-cli is not connected")
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"account": self._me, **params}}
        with as_send_errors("signal-cli"):
            response = await self._client.post("rpc", json=request)
        answer = Payload.parse(response.content)
        error = answer.part("error")
        if response.is_success and not error:
            return answer.part("result")
        code, reason = error.get("code"), error.line("message") or f"HTTP {response.status_code}"
        self._check(error.parts("data", "response", "results"))
        words = f"signal-cli answered: {reason} ({code})"
        if code == _INVALID_PARAMS and "account" in reason:
            raise self._no_account()
        if code == _RATE_LIMIT:
            raise RateLimitedError(words, -1)
        if code in (_USER_ERROR, _UNTRUSTED_KEY, _INVALID_PARAMS):
            raise UndeliverableError(words)
        raise SendError(words)

    def _no_account(self) -> ChannelSetupError:
        return ChannelSetupError(
            f"signal-cli has no account {self._me}. Correct channels.signal.phoneNumber (as +4915112345678), or link "
            "the account again: signal-cli link."
        )


def _target(to: Address) -> dict[str, Any]:
    """The parameters that name a chat. The id of a group is base64 of 16 or 32 bytes, so it ends with =."""
    return {"groupId": to.chat_id} if to.chat_id.endswith("=") else {"recipient": [to.chat_id]}


def _styles(chunk: Chunk) -> list[str]:
    entities = [entity for entity in chunk.entities if entity.type in _STYLES]
    return [f"{entity.offset}:{entity.length}:{_STYLES[entity.type]}" for entity in entities]


def _read_attachment(file: Payload) -> Attachment:
    content_type, source = file.text("contentType") or None, file.text("id")
    size = int(file.number("size")) or None
    return Attachment(MediaKind.of_type(content_type), source, file.line("filename"), content_type, size, source)


async def _read_lines(response: httpx.Response) -> AsyncIterator[str]:
    """Lines as server-sent events end them. `aiter_lines` of httpx also ends them within JSON, as at U+2028."""
    rest = b""
    async for chunk in response.aiter_bytes():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode("utf-8", "replace")
