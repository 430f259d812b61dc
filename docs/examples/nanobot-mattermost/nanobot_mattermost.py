"""Mattermost as a channel of nanobot: a bot account over REST and WebSocket.

Source: developers.mattermost.com/api-documentation. Mattermost repeats no event, so after each connection the
posts since the last one that was journaled are read.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE
from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.config.channels import ChannelConfig, GroupPolicy
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DISCORD

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""With other errors of the connection the request may have arrived."""
_TIMEOUT = httpx.Timeout(60, connect=10)
_PRIVATE = "D"
"""The type of a channel between two people; O and P are channels of a team, G is a group of people."""
_FIRST_LOOK_BACK_MS = 5 * 60 * 1000
_MOST_CAUGHT_UP = 200
"""Posts of one channel that are read after an outage."""
_KINDS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}
_EMOJI_NAMES = {"👀": "eyes", "👍": "+1", "✅": "white_check_mark", "⏳": "hourglass_flowing_sand"}


class MattermostConfig(ChannelConfig):
    """The section `channels.mattermost`."""

    server_url: str = ""
    token: str = ""
    group_policy: GroupPolicy = "mention"
    streaming: bool = True
    react_emoji: str = "👀"


@dataclass
class MattermostState:
    """What is saved."""

    since: int = 0
    """Since when posts are answered, in milliseconds."""
    read: dict[str, int] = field(default_factory=dict)
    """When the last post was written that was journaled or ignored, by channel."""


class MattermostChannel(ChatChannel):
    """The private chats and channels of one bot account."""

    name = "mattermost"
    dialect = replace(DISCORD, name="mattermost", limit=16_383, heading_levels=6)
    can_edit = True
    can_react = True
    largest_file = 50 * 1024 * 1024
    dedupe_s = 20.0
    """Mattermost remembers a `pending_post_id` for 30 seconds."""
    stall_s = 60.0
    ping_s: float = 20.0

    def __init__(self, config: Any, bus: MessageBus) -> None:
        section = MattermostConfig.model_validate(config)
        super().__init__(section, bus)
        self._url = section.server_url.strip().rstrip("/")
        self._token = section.token.strip()
        self._client: httpx.AsyncClient | None = None
        self._me: Mapping[str, Any] = {}
        self._types: dict[str, str] = {}
        """Types of channels."""
        self._state = MattermostState()

    async def start(self) -> None:
        """Log in, catch up, and receive posts until the connection breaks."""
        async with self._open() as client:
            self._client = client
            try:
                self._me = await self._call("GET", "users/me")
                if not self._state.since:
                    self._state = await self.state_file.load(MattermostState())
                self._state.since = self._state.since or int(time.time() * 1000) - _FIRST_LOOK_BACK_MS
                async with (
                    self.state_file.keep_saved(self._state),
                    connect(
                        f"{self._url.replace('http', 'ws', 1)}/api/v4/websocket",
                        additional_headers={"Authorization": f"Bearer {self._token}"},
                        ping_interval=None,
                        close_timeout=1,
                    ) as socket,
                ):
                    self.mark_up()
                    await self._catch_up()
                    await self._listen(socket)
            except (OSError, WebSocketException) as error:
                raise NotConnectedError(f"the connection to Mattermost is lost ({type(error).__name__})") from error
            finally:
                self._client = None

    async def login(self, force: bool = False) -> bool:
        """Test the token. Raises ChannelSetupError; SendError if Mattermost is unreachable."""
        async with self._open() as self._client:
            me = await self._call("GET", "users/me")
        print(f"The token works. Write to @{me.get('username')}, or add it to a channel and mention it.")
        return True

    def _open(self) -> httpx.AsyncClient:
        given = {"serverUrl": self._url, "token": self._token}
        if empty := [name for name, value in given.items() if not value]:
            raise MissingSettingsError("mattermost", *empty)
        headers = {"Authorization": f"Bearer {self._token}"}
        return httpx.AsyncClient(base_url=f"{self._url}/api/v4/", headers=headers, timeout=_TIMEOUT)

    # receiving

    async def _listen(self, socket: ClientConnection) -> None:
        for number in count(1):
            try:
                async with asyncio.timeout(self.ping_s):
                    frame = json.loads(await socket.recv())
            except TimeoutError:
                await socket.send(json.dumps({"action": "ping", "seq": number}))
                continue
            self.status.touch()
            if frame.get("event") == "posted":
                data = frame["data"]
                post = json.loads(data["post"])
                self._types[post["channel_id"]] = data.get("channel_type", "")
                await self._take(post, data.get("sender_name", "").removeprefix("@"))

    async def _catch_up(self) -> None:
        """Take the posts since the last one of each channel that is known."""
        for channel in await self._list(f"users/{self._me['id']}/channels"):
            self._types[channel["id"]] = channel["type"]
            floor = self._floor(channel["id"])
            if channel.get("last_post_at", floor + 1) > floor:
                answer = await self._call("GET", f"channels/{channel['id']}/posts", params={"since": floor})
                posts = sorted(answer["posts"].values(), key=lambda post: post["create_at"])  # also older, edited ones
                for post in [post for post in posts if post["create_at"] >= floor][-_MOST_CAUGHT_UP:]:
                    await self._take(post)

    def _floor(self, channel: str) -> int:
        oldest = int((time.time() - MAX_AGE.total_seconds()) * 1000)
        return max(oldest, self._state.since, self._state.read.get(channel, 0))

    async def _take(self, post: Mapping[str, Any], sender_name: str = "") -> None:
        """Journal a post. Raises StorageError: the connection ends then, and the post is read again."""
        channel = post["channel_id"]
        if post["user_id"] != self._me["id"] and not post.get("type"):  # others are the system's: somebody joined
            mention = re.compile(rf"@{re.escape(self._me['username'])}(?![\w-])", re.IGNORECASE)
            files = (post.get("metadata") or {}).get("files") or []
            await self.receive(
                Incoming(
                    post["user_id"],
                    channel,
                    mention.sub("", post["message"]).strip(),
                    post["id"],
                    post.get("root_id") or None,
                    is_private=self._types.get(channel) == _PRIVATE,
                    is_mentioned=mention.search(post["message"]) is not None,
                    sender_handle=sender_name,
                    attachments=tuple(_read_file(file) for file in files),
                    sent_at=datetime.fromtimestamp(post["create_at"] / 1000, UTC),
                )
            )
        self._state.read[channel] = max(post["create_at"], self._state.read.get(channel, 0))

    async def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file of a post."""
        async with self._http.stream("GET", f"files/{attachment.source}") as response:
            if response.status_code != 200:
                raise MediaError(f"Mattermost answered {response.status_code}")
            async for chunk in response.aiter_bytes():
                yield chunk

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Send a post; in a thread, if the message was in one."""
        return await self._post(to, {"message": chunk.text}, options)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a post."""
        await self._call("PUT", f"posts/{platform_id}/patch", json={"message": chunk.text})

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Upload and send a file."""
        data = await read_outgoing(file)
        files = {"files": (file.name, data)}
        uploaded = await self._call("POST", "files", params={"channel_id": to.chat_id}, files=files)
        return await self._post(to, {"message": "", "file_ids": [uploaded["file_infos"][0]["id"]]}, options)

    async def show_typing(self, to: Address) -> None:
        """Show for some seconds that the bot types."""
        body = {"channel_id": to.chat_id, "parent_id": to.thread_id or ""}
        await self._call("POST", f"users/{self._me['id']}/typing", json=body)

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Add a reaction."""
        name = _EMOJI_NAMES.get(emoji, emoji.strip(":"))
        await self._call(
            "POST", "reactions", json={"user_id": self._me["id"], "post_id": message_id, "emoji_name": name}
        )

    async def chat_with(self, sender_id: str) -> str | None:
        """The private chat with somebody, which is opened if needed."""
        return str((await self._call("POST", "channels/direct", json=[self._me["id"], sender_id]))["id"])

    async def _post(self, to: Address, content: Mapping[str, Any], options: SendOptions) -> str:
        body = {"channel_id": to.chat_id, "root_id": to.thread_id or "", **content}
        if options.nonce:
            body["pending_post_id"] = f"{self._me['id']}:{options.nonce}"
        return str((await self._call("POST", "posts", json=body))["id"])

    # requests

    async def _call(self, method: str, path: str, **options: Any) -> Mapping[str, Any]:
        answer = await self._exchange(method, path, **options)
        return answer if isinstance(answer, Mapping) else {}

    async def _list(self, path: str) -> list[Mapping[str, Any]]:
        answer = await self._exchange("GET", path)
        return answer if isinstance(answer, list) else []

    async def _exchange(self, method: str, path: str, **options: Any) -> Any:
        """Send a request and return the answer. Raises SendError, ChannelSetupError."""
        try:
            response = await self._http.request(method, path, **options)
        except _NOT_SENT as error:
            raise NotConnectedError(f"Mattermost cannot be reached: {error}") from error
        except httpx.HTTPError as error:
            raise SendError(f"connection to Mattermost lost: {type(error).__name__}", may_have_arrived=True) from error
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success:
            self.status.touch()
            return answer
        reason = answer.get("message") if isinstance(answer, Mapping) else None
        words = f"Mattermost answered: {reason or 'no reason given'} ({response.status_code})"
        match response.status_code:
            case 401:
                raise ChannelSetupError(
                    "Mattermost does not take channels.mattermost.token. Create another one in the System Console, "
                    "Integrations, Bot Accounts."
                )
            case 429:
                pause_s = response.headers.get("x-ratelimit-reset", "")
                raise RateLimitedError(words, float(pause_s) if pause_s.replace(".", "", 1).isdecimal() else -1)
            case 400 | 403 | 404 | 413:
                raise UndeliverableError(words)
        raise SendError(words)

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            raise NotConnectedError("Mattermost is not connected")
        return self._client


def _read_file(file: Mapping[str, Any]) -> Attachment:
    kind = _KINDS.get(str(file.get("mime_type")).partition("/")[0], MediaKind.FILE)
    return Attachment(kind, file["id"], file.get("name"), file.get("mime_type"), file.get("size"), source=file["id"])
