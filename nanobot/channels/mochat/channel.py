"""The Mochat channel: an agent's chats (sessions) and the text panels of its group.

Chats have cursors: what comes behind them is sent again on a subscription and in a poll, so they are saved after the
journal. Panels have none: their last messages are read again, and the journal drops those it knows. Messages from
before the first start are ignored.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import Allowed
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import MAX_AGE, load_state
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.incoming import Incoming
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.mochat.api import MochatApi
from nanobot.channels.mochat.incoming import merge, read_message, read_users
from nanobot.channels.mochat.socket import Socket, SocketLostError, open_socket
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.payload import Payload
from nanobot.config.channels import MochatConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import MOCHAT
from nanobot.utils.aio import finish
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_ALL = "*"
_SESSION = "session_"
"""How ids of chats begin; other ids are those of panels."""
_PREFIXES = ("mochat:", "group:", "channel:", "panel:")
_TEXT_PANEL = 0
_MOST_PAGES = 10
"""How many pages of a panel's messages are read at once."""
_MOST_REMEMBERED = 2000
_EVER_S = 1e9
_LONGEST_REFRESH_S = 60.0
"""A refresh is a sign of life, without which the channel is restarted."""
_LOOK_BACK = timedelta(minutes=5)
"""At the first start: the owner's first message may have been written while the channel was set up."""


@dataclass(slots=True)
class MochatState:
    """What is saved of one agent."""

    since: datetime | None = None
    """Since when messages are answered."""
    cursors: dict[str, int] = field(default_factory=dict)
    """By chat."""
    read: dict[str, datetime] = field(default_factory=dict)
    """When the last message was written that is journaled or ignored, by panel."""


class MochatChannel(ChatChannel):
    """The chats and panels of one agent."""

    name = "mochat"
    dialect = MOCHAT

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, MochatConfig) else MochatConfig.model_validate(config)
        self._refresh_s = min(max(0.05, self._settings.refresh_interval_ms / 1000), _LONGEST_REFRESH_S)
        self._agent_id = self._settings.agent_user_id.strip()
        self._api = MochatApi(self._settings)
        self._socket: Socket | None = None
        self._state = MochatState()
        self._others: dict[str, set[str]] = {}
        """Who else is in a chat, as far as it is known."""
        self._panels: dict[str, str] = {}
        """Panels with their names."""
        self._converses: set[str] = set()
        """Other ids of the chats, by which notifications name them."""
        self._caught_up: set[str] = set()
        """Panels whose messages were read since the socket is open."""
        self._held: dict[str, list[Incoming]] = {}
        """Messages that do not mention the bot and wait until their panel is silent. A crash does not lose them: they
        are behind what is saved as read.
        """
        self._due: dict[str, float] = {}
        """When they are let go, by panel."""
        self._taken: dict[str, None] = {}
        """Ids of messages of panels that are held or journaled: a duplicate must not join those that are held."""
        self._refresh_at = 0.0

    async def start(self) -> None:
        """Receive messages over a socket, by polling while there is none, until Mochat cannot be reached."""
        for remembered in (self._held, self._due, self._taken):
            remembered.clear()
        async with self._api as api:
            await api.token()
            if self._state.since is None:
                self._state = await asyncio.to_thread(load_state, self.state_path, MochatState)
            if self._state.since is None:
                self._state.since = self.services.clock.now() - _LOOK_BACK
                await self.save_state(self._state)
            await self._refresh()
            self.mark_up()
            failures = 0
            while True:
                try:
                    async with open_socket(self._settings) as self._socket:
                        self._caught_up.clear()
                        await self._refresh()
                        failures = 0
                        await self._listen(self._socket)
                except SocketLostError as error:
                    log.debug("mochat: polling, because the socket is lost: %s", error)
                finally:
                    self._socket = None
                failures += 1
                await self._poll(self._pause_s(failures))

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Test the token. Raises ChannelSetupError; SendError if Mochat is unreachable."""
        async with self._api as api:
            listed = await api.ask("sessions/list", {})
        count = len(listed.parts("sessions"))
        show(LoginStep(f"The token works. The agent is in {count} chats; write to it in one of them."))
        return True

    # connection

    async def _listen(self, socket: Socket) -> None:
        """Process events until the socket is lost, which raises SocketLostError."""
        while True:
            event = await socket.next_event(self._idle_s())
            if event is not None:
                self.status.touch()
                await self._process(*event)
            await self._do_what_is_due()

    async def _process(self, name: str, data: object) -> None:
        payload = Payload.of(data)
        if name == "claw.session.events":
            await self._take_events(payload)
        elif name == "claw.panel.events":
            panel = payload.line("sessionId")
            for event in payload.parts("events"):
                if event.get("type") == "message.add":
                    await self._take(_message_of(event), panel)
        elif name == "notify:chat.message.add":
            await self._take(payload, payload.line("converseId") or payload.line("panelId"))
        elif name == "notify:chat.inbox.append":  # has no whole text; a subscription sends what is behind the cursor
            notice = payload.part("payload")
            if notice.line("converseId") not in self._converses:
                self._refresh_at = 0.0
            elif self._socket is not None:
                await self._subscribe(self._socket)

    async def _poll(self, for_s: float) -> None:
        """Poll every chat and panel for that long."""
        until = self._now + for_s
        polls: dict[str, asyncio.Task[None]] = {}
        try:
            while (left_s := until - self._now) > 0:
                for chat in {*self._sessions(), *self._panels} - polls.keys():
                    polls[chat] = asyncio.create_task(self._watch(chat), name=f"poll {chat}")
                pause_s = min(left_s, self._idle_s())
                if polls:
                    done, _ = await asyncio.wait(polls.values(), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        task.result()
                else:
                    await asyncio.sleep(pause_s)
                await self._do_what_is_due()
        finally:
            for task in polls.values():
                task.cancel()
            if polls:
                await finish(asyncio.wait(polls.values()))

    async def _watch(self, chat: str) -> None:
        """Poll one chat or panel until cancelled."""
        while True:
            try:
                if chat in self._panels:
                    await self._read_panel(chat)
                    await asyncio.sleep(self._refresh_s)
                    continue
                body = {
                    "sessionId": chat,
                    "cursor": self._state.cursors.get(chat, 0),
                    "timeoutMs": self._settings.watch_timeout_ms,
                    "limit": self._settings.watch_limit,
                }
                await self._take_events(
                    await self._api.ask("sessions/watch", body, waits_s=self._settings.watch_timeout_ms / 1000)
                )
            except (SendError, ChannelSetupError) as error:  # `_refresh` finds out whether all of Mochat is away
                log.debug("mochat: polling %s failed: %s", chat, error)
                is_lasting = isinstance(error, (UndeliverableError, RateLimitedError))
                await asyncio.sleep(self._refresh_s if is_lasting else max(0.1, self._settings.retry_delay_ms / 1000))

    def _pause_s(self, failures: int) -> float:
        """How long to poll before the next attempt to open a socket."""
        settings = self._settings
        if settings.max_retry_attempts and failures > settings.max_retry_attempts:
            log.warning("mochat: no socket after %d attempts; polling until a restart", settings.max_retry_attempts)
            return _EVER_S
        longest = max(settings.socket_max_reconnect_delay_ms, settings.socket_reconnect_delay_ms)
        return max(0.01, float(min(settings.socket_reconnect_delay_ms * 2 ** min(failures - 1, 20), longest)) / 1000)

    def _idle_s(self) -> float:
        """How long nothing is due."""
        return max(0.0, min([self._refresh_at, *self._due.values()]) - self._now)

    async def _do_what_is_due(self) -> None:
        for panel in [panel for panel, due in self._due.items() if due <= self._now]:
            await self._let_go(panel)
        if self._refresh_at <= self._now:
            try:
                await self._refresh()
            except RateLimitedError as error:
                self._refresh_at = self._now + min(error.retry_after_s, _LONGEST_REFRESH_S)

    async def _refresh(self) -> None:
        """Look for new chats and panels, and subscribe to all; so what a subscription has missed comes, too."""
        self._refresh_at = self._now + self._refresh_s
        listed = await self._api.ask("sessions/list", {})
        self.status.touch()
        for session in listed.parts("sessions"):
            if session_id := session.line("sessionId"):
                self._others[session_id] = read_users(session.get("participants")) - {self._agent_id}
                self._converses.add(session.line("converseId"))
        configured = [panel.strip() for panel in self._settings.panels]
        self._panels.update({panel: self._panels.get(panel, "") for panel in configured if panel != _ALL})
        if not configured or _ALL in configured:
            group = await self._api.ask("groups/get", {})
            for panel in group.parts("panels"):
                panel_id = panel.line("id") or panel.line("_id")
                if panel_id and panel.get("type", _TEXT_PANEL) == _TEXT_PANEL:
                    self._panels[panel_id] = panel.line("name")
        if self._socket is not None:
            await self._subscribe(self._socket)

    async def _subscribe(self, socket: Socket) -> None:
        """Subscribe to all chats and panels, and take what they had before."""
        limit = self._settings.watch_limit
        is_full = bool(sessions := self._sessions())
        while is_full:
            before = dict(self._state.cursors)
            cursors = {session: before.get(session, 0) for session in sessions}
            body = {"sessionIds": sessions, "cursors": cursors, "limit": limit}
            answer = await socket.call("com.claw.im.subscribeSessions", body)
            listed = answer if isinstance(answer, list) else Payload.of(answer).get("sessions", [answer])
            batches = Payload(sessions=listed).parts("sessions")
            for batch in batches:
                await self._take_events(batch)
            is_full = before != self._state.cursors and any(len(batch.parts("events")) >= limit for batch in batches)
        if self._panels:
            await socket.call("com.claw.im.subscribePanels", {"panelIds": sorted(self._panels)})
        for panel in self._panels.keys() - self._caught_up:
            await self._read_panel(panel)
            self._caught_up.add(panel)

    def _sessions(self) -> list[str]:
        """The chats to receive messages of."""
        configured = {session.strip() for session in self._settings.sessions}
        is_all = not configured or _ALL in configured
        return sorted((configured - {_ALL}) | (self._others.keys() if is_all else set()))

    # receiving

    async def _take_events(self, batch: Payload) -> None:
        """Take the events of a chat, then save the cursor behind them."""
        session = batch.line("sessionId")
        if session not in self._sessions():
            return
        cursor = self._state.cursors.get(session, 0)
        for event in batch.parts("events"):
            if event.get("type") == "message.add":
                await self._take(_message_of(event), session)
            if isinstance(seq := event.get("seq"), int):
                cursor = max(cursor, seq)
        if isinstance(given := batch.get("cursor"), int):
            cursor = given  # it may go back: the journal drops what comes twice
        if cursor != self._state.cursors.get(session):
            self._state.cursors[session] = cursor
            await self.save_state(self._state)

    async def _read_panel(self, panel: str) -> None:
        """Take the messages of a panel since the last one that is known, oldest first."""
        limit = min(100, self._settings.watch_limit)
        found: list[Payload] = []
        body: dict[str, Any] = {"panelId": panel, "limit": limit}
        for _ in range(_MOST_PAGES):
            answer = await self._api.ask("groups/panels/messages", body)
            page = answer.parts("messages")  # newest first
            found += [Payload({"groupId": answer.get("groupId"), **message}) for message in page]
            oldest = page[-1].line("messageId") if len(page) >= limit else ""
            incoming = self._read(page[-1], panel) if oldest else None
            if not oldest or (incoming is not None and self._is_old(incoming)):
                break
            body["beforeMessageId"] = oldest
        for message in reversed(found):
            await self._take(message, panel)

    def _read(self, message: Payload, chat: str) -> Incoming | None:
        is_private = chat not in self._panels and len(self._others.get(chat, ())) <= 1
        return read_message(message, chat, self._agent_id, is_private=is_private)

    def _is_old(self, incoming: Incoming) -> bool:
        """Whether it is from before the first start, or known."""
        oldest = self.services.clock.now() - MAX_AGE
        floors = [oldest, self._state.since or oldest, self._state.read.get(incoming.chat_id, oldest)]
        return incoming.sent_at is not None and incoming.sent_at < max(floors)

    async def _take(self, message: Payload, chat: str) -> None:
        """Journal a message, or hold it until its panel is silent. Raises StorageError: it comes again then."""
        is_panel = chat in self._panels
        if not is_panel and chat not in self._sessions():
            return
        incoming = self._read(message, chat)
        if incoming is None or self._is_old(incoming) or not self._concerns(incoming):
            return
        if not is_panel:
            await self.receive(incoming)
        elif incoming.message_id not in self._taken and isinstance(
            await self.services.access.decide(incoming), Allowed
        ):
            if incoming.message_id is not None:
                put_bounded(self._taken, incoming.message_id, None, _MOST_REMEMBERED)
            self._held.setdefault(chat, []).append(incoming)
            if incoming.is_mentioned or self._settings.reply_delay_mode == "off":
                await self._let_go(chat)
            else:
                self._due[chat] = self._now + self._settings.reply_delay_ms / 1000

    def _concerns(self, incoming: Incoming) -> bool:
        """Whether it is private, mentions the bot, or need not do so there."""
        rules = self._settings.groups
        keys = (*incoming.parent_ids, incoming.chat_id, _ALL)
        rule = next((rules[key].require_mention for key in keys if key in rules), None)
        required = self._settings.mention.require_in_groups if rule is None else rule
        return incoming.is_private or incoming.is_mentioned or not required

    async def _let_go(self, panel: str) -> None:
        """Journal what is held of a panel, as one message."""
        self._due.pop(panel, None)
        if not (held := self._held.pop(panel, [])):
            return
        await self.receive(merge(held))
        if (sent_at := held[-1].sent_at) is not None:
            self._state.read[panel] = max(sent_at, self._state.read.get(panel, sent_at))
            await self.save_state(self._state)

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
        """Send the URL of a file, or say that Mochat takes no files."""
        text = file.url or f"({file.name}: files cannot be sent on Mochat.)"
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


def _message_of(event: Payload) -> Payload:
    """The message of an event, which has the time beside it."""
    return Payload({"createdAt": event.get("timestamp"), **event.part("payload")})
