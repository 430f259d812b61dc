"""Mochat: the chats (sessions) of an agent and the text panels of its group. It has no specification: its agent skill
(github.com/HKUDS/MoChat, skills) shows the requests.

Everything is read with requests: a chat from its cursor on, a panel since its last message that is known. The cursor is
saved behind the journal, which drops what is read twice. The socket only tells where there is something to read;
without it, Mochat holds the requests for chats back until there is, and panels are read by the clock. Messages from
before the first start are ignored.
"""

import asyncio
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf
from typing import Any

import socketio
from socketio.exceptions import SocketIOError

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import Allowed
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE
from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCodes,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.rest import RestClient
from nanobot.config.channels import MochatConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import MOCHAT
from nanobot.net.http import proxy_for, ssl_context
from nanobot.utils.aio import finish, task_group
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)
_wire = logging.getLogger(f"{__name__}.wire")
_wire.setLevel(logging.CRITICAL)  # it would log the token, and whole messages

_ALL = "*"
_SESSION = "session_"
"""How ids of chats begin; other ids are those of panels."""
_PREFIXES = ("mochat:", "group:", "channel:", "panel:")
_TEXT_PANEL = 0
_ANSWER_S, _CALL_S, _CLOSE_S = 30.0, 10.0, 1.0
_GLANCE_MS = 1000
"""How long Mochat may hold a request back where the socket tells of news."""
_MOST_PAGES = 10
"""How many pages of a panel's messages are read at once."""
_LONGEST_REFRESH_S = 60.0
"""A refresh is a sign of life, without which the channel is restarted."""
_LOOK_BACK = timedelta(minutes=5)
"""At the first start: the owner's first message may have been written while the channel was set up."""
_MENTION_LISTS = ("mentions", "mentionIds", "mentionedUserIds", "mentionedUsers")
_USER_IDS = ("id", "userId", "_id")
_WRONG_CREDENTIALS = (
    "Mochat does not take channels.mochat.clawToken ({text}). Copy the token again that the agent got when it was "
    "registered, or register a new agent."
)


class MochatApi(RestClient):
    """The requests of one agent. Each is a POST; an answer is `{"code": 200, "data": {...}}`, or has another code."""

    codes = ErrorCodes(
        "Mochat",
        dict.fromkeys((400, 403, 404, 410, 413, 422), "{text}"),
        setup={401: _WRONG_CREDENTIALS},
        limited=(429,),
        accepted=range(200, 300),
    )
    token_header = ("X-Claw-Token", "")

    def __init__(self, section: MochatConfig) -> None:
        super().__init__(f"{section.base_url.strip().rstrip('/')}/api/claw")
        self._section = section

    async def fetch_token(self) -> tuple[str, float]:
        section = self._section
        return require_settings("mochat", clawToken=section.claw_token, agentUserId=section.agent_user_id)[0], inf

    async def ask(self, path: str, body: Mapping[str, Any], *, waits_s: float = 0.0) -> Payload:
        """Send a request and return the data of the answer, which Mochat may hold back for `waits_s`."""
        answer = await self.call("POST", f"/{path}", json=body, timeout=_ANSWER_S + waits_s)
        return answer.part("data") if isinstance(answer.get("code"), int) else answer


@dataclass(slots=True)
class MochatState:
    since: datetime | None = None
    """Since when messages are answered."""
    cursors: dict[str, int] = field(default_factory=dict)
    """By chat."""
    read: dict[str, datetime] = field(default_factory=dict)
    """When the last message was written that is journaled or ignored, by panel."""


class MochatChannel(ChatChannel):
    name = "mochat"
    dialect = MOCHAT
    config: MochatConfig

    def __init__(self, config: MochatConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._refresh_s = min(max(0.05, config.refresh_interval_ms / 1000), _LONGEST_REFRESH_S)
        self._agent_id = config.agent_user_id.strip()
        self._api = MochatApi(config)
        self._state = MochatState()
        self._others: dict[str, set[str]] = {}
        """Who else is in a chat, as far as it is known."""
        self._panels: dict[str, str] = {}
        """Panels with their names."""
        self._converses: dict[str, str] = {}
        """Chats by their other ids, by which notifications name them."""
        self._news: dict[str, asyncio.Event] = {}
        """Set where there is something to read, by chat and panel."""
        self._has_socket = False
        """Whether a socket tells of news."""
        self._socket_changed, self._refresh_now = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        async with self._api as api:
            await api.token()
            if self._state.since is None:
                self._state = await self.state_file.load(MochatState())
            if self._state.since is None:
                self._state.since = self.services.clock.now() - _LOOK_BACK
                await self.state_file.save(self._state)
            await self._refresh()
            self.mark_up()
            self._news.clear()
            async with task_group() as work:
                work.create_task(self._keep_socket())
                while True:
                    for chat in {*self._sessions(), *self._panels} - self._news.keys():
                        self._news[chat] = asyncio.Event()
                        follow = self._follow_panel if chat in self._panels else self._follow_chat
                        work.create_task(follow(chat), name=f"mochat {chat}")
                        self._socket_changed.set()  # subscribe to it
                    await _wait(self._refresh_now, self._refresh_s)
                    try:
                        await self._refresh()
                    except RateLimitedError as error:
                        await asyncio.sleep(min(error.retry_after_s, _LONGEST_REFRESH_S))

    async def check_login(self) -> str:
        async with self._api as api:
            count = len((await api.ask("sessions/list", {})).parts("sessions"))
        return f"The token works. The agent is in {count} chats; write to it in one of them."

    async def _refresh(self) -> None:
        listed = await self._api.ask("sessions/list", {})
        self.status.touch()
        for session in listed.parts("sessions"):
            if session_id := session.line("sessionId"):
                self._others[session_id] = _read_users(session.get("participants")) - {self._agent_id}
                self._converses[session.line("converseId")] = session_id
        configured = [panel.strip() for panel in self.config.panels]
        self._panels.update({panel: self._panels.get(panel, "") for panel in configured if panel != _ALL})
        if not configured or _ALL in configured:
            group = await self._api.ask("groups/get", {})
            for panel in group.parts("panels"):
                panel_id = panel.line("id") or panel.line("_id")
                if panel_id and panel.get("type", _TEXT_PANEL) == _TEXT_PANEL:
                    self._panels[panel_id] = panel.line("name")

    def _sessions(self) -> list[str]:
        """The chats to receive messages of."""
        configured = {session.strip() for session in self.config.sessions}
        is_all = not configured or _ALL in configured
        return sorted((configured - {_ALL}) | (self._others.keys() if is_all else set()))

    async def _keep_socket(self) -> None:
        """Keep a socket open, with subscriptions to all chats and panels."""
        config, failures = self.config, 0
        while not config.max_retry_attempts or failures <= config.max_retry_attempts:
            try:
                async with self._open_socket() as socket:
                    while socket.connected:
                        self._socket_changed.clear()
                        await self._subscribe(socket)
                        failures, self._has_socket = 0, True
                        self._look_everywhere()
                        await self._socket_changed.wait()
            except (NotConnectedError, SocketIOError) as error:
                log.debug("mochat: polling, because the socket is lost: %s", error)
            finally:
                self._has_socket = False
                self._look_everywhere()
            failures += 1
            longest = max(config.socket_max_reconnect_delay_ms, config.socket_reconnect_delay_ms)
            pause_ms = min(config.socket_reconnect_delay_ms * 2 ** min(failures - 1, 20), longest)
            await asyncio.sleep(max(0.01, pause_ms / 1000))
        log.warning("mochat: no socket after %d attempts; polling until a restart", config.max_retry_attempts)

    @asynccontextmanager
    async def _open_socket(self) -> AsyncIterator[socketio.AsyncClient]:
        """Connect, and disconnect when the block ends. Raises NotConnectedError."""
        config = self.config
        url = (config.socket_url.strip() or config.base_url.strip()).rstrip("/")
        timeout_s = max(1.0, config.socket_connect_timeout_ms / 1000)
        client = socketio.AsyncClient(
            reconnection=False,
            serializer="default" if config.socket_disable_msgpack else "msgpack",
            logger=_wire,
            engineio_logger=_wire,
            handle_sigint=False,
            request_timeout=_CLOSE_S,
            websocket_extra_options={"ssl": await ssl_context(url), "proxy": proxy_for(url)},
        )
        client.on("*", self._note_event)
        client.on("disconnect", lambda *_: self._socket_changed.set())
        connecting = asyncio.create_task(
            client.connect(
                url,
                auth={"token": config.claw_token.strip()},
                transports=["websocket"],
                socketio_path=config.socket_path.strip().strip("/") or "socket.io",
                wait_timeout=timeout_s,
            ),
            name="mochat socket",
        )
        try:
            await asyncio.wait([connecting], timeout=timeout_s)
            error = connecting.exception() if connecting.done() else TimeoutError()
            if error is not None:  # of any type: the libraries below raise errors of their own
                raise NotConnectedError(f"no connection ({type(error).__name__})")
            yield client
        finally:
            await finish(_close(client, connecting))

    async def _subscribe(self, socket: socketio.AsyncClient) -> None:
        """Have Mochat tell of news in all chats and panels. Raises NotConnectedError, SocketIOError."""
        calls: dict[str, dict[str, Any]] = {}
        if sessions := self._sessions():
            cursors = {session: self._state.cursors.get(session, 0) for session in sessions}
            about = {"sessionIds": sessions, "cursors": cursors, "limit": self.config.watch_limit}
            calls["com.claw.im.subscribeSessions"] = about
        if self._panels:
            calls["com.claw.im.subscribePanels"] = {"panelIds": sorted(self._panels)}
        for name, data in calls.items():
            answer = await _call(socket, name, data)
            if isinstance(answer, Mapping) and not answer.get("result"):
                raise NotConnectedError(f"{name} is refused: {str(answer.get('message'))[:300]}")

    def _note_event(self, name: str, data: object = None) -> None:
        """Look where there is something new; for a chat that is not known, look for new chats."""
        self.status.touch()
        payload = Payload.of(data)
        named = payload.line("sessionId") or payload.line("converseId") or payload.line("panelId")
        named = named or payload.line("payload", "converseId")
        if (news := self._news.get(self._converses.get(named, named))) is not None:
            news.set()
        elif name == "notify:chat.inbox.append" and named not in self._converses:
            self._refresh_now.set()

    def _look_everywhere(self) -> None:
        for news in self._news.values():
            news.set()

    # receiving

    async def _follow_chat(self, chat: str) -> None:
        """Read a chat until cancelled. Raises StorageError: what could not be journaled is read again."""
        while True:
            wait_ms = _GLANCE_MS if self._has_socket else self.config.watch_timeout_ms
            body = {"sessionId": chat, "cursor": self._state.cursors.get(chat, 0), "limit": self.config.watch_limit}
            self._news[chat].clear()
            try:
                batch = await self._api.ask("sessions/watch", {**body, "timeoutMs": wait_ms}, waits_s=wait_ms / 1000)
                await self._take_events(batch, chat)
            except (SendError, ChannelSetupError) as error:  # `_refresh` finds out whether all of Mochat is away
                await self._pause_after(error, chat)
            else:
                if self._has_socket and not batch.parts("events"):
                    await _wait(self._news[chat], self._refresh_s)

    async def _take_events(self, batch: Payload, chat: str) -> None:
        cursor = self._state.cursors.get(chat, 0)
        for event in batch.parts("events"):
            message = Payload({"createdAt": event.get("timestamp"), **event.part("payload")})
            if event.get("type") == "message.add" and (incoming := self._read(message, chat)) is not None:
                await self.receive(incoming)
            if isinstance(seq := event.get("seq"), int):
                cursor = max(cursor, seq)
        if isinstance(given := batch.get("cursor"), int):
            cursor = given  # it may go back: the journal drops what comes twice
        if cursor != self._state.cursors.get(chat):
            self._state.cursors[chat] = cursor
            await self.state_file.save(self._state)

    async def _follow_panel(self, panel: str) -> None:
        """Read a panel until cancelled. Messages that do not mention the bot are held until the panel is silent: a
        crash does not lose them, as they are behind what is saved as read. Raises StorageError like `_follow_chat`.
        """
        held: list[Incoming] = []
        taken: dict[str | None, None] = {}
        """Ids of messages that are held or journaled: a duplicate must not join those that are held."""
        due = inf
        while True:
            self._news[panel].clear()
            messages: list[Incoming] = []
            try:
                messages = await self._read_panel(panel)
            except (SendError, ChannelSetupError) as error:
                await self._pause_after(error, panel)
            for incoming in messages:
                is_new = incoming.message_id is None or incoming.message_id not in taken
                if not is_new or not isinstance(await self.services.access.decide(incoming), Allowed):
                    continue
                put_bounded(taken, incoming.message_id, None)
                held.append(incoming)
                due = self._now + self.config.reply_delay_ms / 1000
                if incoming.is_mentioned or self.config.reply_delay_mode == "off":
                    await self._let_go(held)
            if held and due <= self._now:
                await self._let_go(held)
            await _wait(self._news[panel], min(self._refresh_s, due - self._now if held else inf))

    async def _read_panel(self, panel: str) -> list[Incoming]:
        """The messages of a panel since the last one that is known, oldest first."""
        limit = min(100, self.config.watch_limit)
        found: list[Incoming] = []
        body: dict[str, Any] = {"panelId": panel, "limit": limit}
        for _ in range(_MOST_PAGES):
            answer = await self._api.ask("groups/panels/messages", body)
            page = answer.parts("messages")  # newest first
            for message in page:
                incoming = self._read(Payload({"groupId": answer.get("groupId"), **message}), panel)
                found += [incoming] if incoming is not None else []
            if len(page) < limit or self._is_old(page[-1].iso_time("createdAt"), panel):
                break
            body["beforeMessageId"] = page[-1].line("messageId")
        return found[::-1]

    def _is_old(self, sent_at: datetime | None, chat: str) -> bool:
        """Whether it is from before the first start, or known."""
        oldest = self.services.clock.now() - MAX_AGE
        floors = [oldest, self._state.since or oldest, self._state.read.get(chat, oldest)]
        return sent_at is not None and sent_at < max(floors)

    def _read(self, message: Payload, chat: str) -> Incoming | None:
        """Read a message; None for one that is old, and in a group for one that has to mention the bot."""
        is_private = chat not in self._panels and len(self._others.get(chat, ())) <= 1
        incoming = read_message(message, chat, self._agent_id, is_private=is_private)
        if incoming is None or self._is_old(incoming.sent_at, chat):
            return None
        rules = self.config.groups
        keys = (*incoming.parent_ids, incoming.chat_id, _ALL)
        rule = next((rules[key].require_mention for key in keys if key in rules), None)
        required = self.config.mention.require_in_groups if rule is None else rule
        return incoming if incoming.is_private or incoming.is_mentioned or not required else None

    async def _let_go(self, held: list[Incoming]) -> None:
        await self.receive(merge(held))
        last = held[-1]
        held.clear()
        if last.sent_at is not None:
            self._state.read[last.chat_id] = max(last.sent_at, self._state.read.get(last.chat_id, last.sent_at))
            await self.state_file.save(self._state)

    async def _pause_after(self, error: Exception, chat: str) -> None:
        log.debug("mochat: reading %s failed: %s", chat, error)
        is_lasting = isinstance(error, UndeliverableError | RateLimitedError)
        await asyncio.sleep(self._refresh_s if is_lasting else max(0.1, self.config.retry_delay_ms / 1000))

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        body = {"content": chunk.text} | ({"replyTo": options.reply_to} if options.reply_to else {})
        if to.chat_id.startswith(_SESSION) and to.chat_id not in self._panels:
            path, target = "sessions/send", {"sessionId": to.chat_id}
        else:
            path, target = "groups/panels/send", {"panelId": to.chat_id}
        try:
            answer = await self._api.ask(path, target | body)
        except ChannelSetupError as error:  # the next refresh ends `start`, which tells the owner; the message waits
            raise NotConnectedError(str(error)) from error
        return answer.line("messageId") or answer.line("_id") or secrets.token_hex(8)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        text = f"({file.name}: files cannot be sent on Mochat.)"
        return await self.post(to, split_message(text, self.dialect)[0], options)

    async def find(self, name: str) -> str | None:
        """A chat by its id, or a panel by its id or name; a prefix such as `panel:` may stand before it."""
        prefix = next((one for one in _PREFIXES if name.lower().startswith(one)), "")
        chat = name[len(prefix) :].strip()
        return next((panel for panel, title in self._panels.items() if title and title == chat), chat or None)

    async def chat_with(self, sender_id: str) -> str | None:
        """The chat that this person alone has with the agent."""
        return next((chat for chat, others in self._others.items() if others == {sender_id}), None)

    @property
    def _now(self) -> float:
        return self.services.clock.monotonic()


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until it is set, but not longer than this; then clear it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    event.clear()


async def _call(socket: socketio.AsyncClient, name: str, data: Mapping[str, Any]) -> Any:
    """Send an event and return its answer. The client's own `call` may swallow a cancellation."""
    answered = asyncio.get_running_loop().create_future()

    def take(*values: Any) -> None:
        if not answered.done():  # nobody waits any more
            answered.set_result(values[0] if values else None)

    try:
        async with asyncio.timeout(_CALL_S):
            await socket.emit(name, dict(data), callback=take)
            return await answered
    except TimeoutError:
        raise NotConnectedError(f"{name} has no answer") from None


async def _close(client: socketio.AsyncClient, connecting: asyncio.Task[None]) -> None:
    await asyncio.wait([connecting], timeout=_CLOSE_S)  # cancelled during a handshake, it would leave a connection open
    while not connecting.done():  # it may swallow a cancellation
        connecting.cancel()
        await asyncio.wait([connecting], timeout=0.1)
    await client.disconnect()
    client.eio.ws = None  # in a cycle with its session, a lost connection looks to aiohttp like one that was left open


def read_message(message: Payload, chat_id: str, agent_id: str, *, is_private: bool) -> Incoming | None:
    """Read a message. None for the agent's own, and for one that does not say who wrote it."""
    sender = message.line("author")
    if not sender or sender == agent_id:
        return None
    content = message.get("content")
    text = content if isinstance(content, str) else "" if content is None else json.dumps(content, ensure_ascii=False)
    at = re.compile(rf"<@{re.escape(agent_id)}>|@{re.escape(agent_id)}(?!\w)")
    meta, author, group_id = message.part("meta"), message.part("authorInfo"), message.line("groupId")
    return Incoming(
        sender,
        chat_id,
        at.sub("", text).strip(),
        message.line("messageId") or message.line("_id") or None,
        is_private=is_private and not group_id,
        is_mentioned=(
            meta.get("mentioned") is True
            or meta.get("wasMentioned") is True
            or any(agent_id in _read_users(meta.get(name)) for name in _MENTION_LISTS)
            or at.search(text) is not None
        ),
        parent_ids=(group_id,) if group_id else (),
        sender_name=author.line("nickname") or author.line("email"),
        sent_at=message.iso_time("createdAt"),
    )


def merge(messages: Sequence[Incoming]) -> Incoming:
    """One message for several of a panel, each with its sender's name. It has the ids of the last one."""
    *_, last = messages
    if len(messages) == 1:
        return last
    return replace(
        last,
        text="\n".join(f"{one.display_name or one.sender_id}: {one.text}" for one in messages),
        quotes_others=any(one.sender_id != last.sender_id for one in messages),
    )


def _read_users(value: object) -> set[str]:
    """The ids of a list of users, which are ids or have them."""
    users = value if isinstance(value, list) else []
    named = [Payload.of(user) if isinstance(user, Mapping) else Payload(id=user) for user in users]
    ids = (next(filter(None, (user.line(key) for key in _USER_IDS)), "") for user in named)
    return {user_id for user_id in ids if user_id}
