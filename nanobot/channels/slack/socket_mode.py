"""The Socket Mode connections: opened, kept alive, and replaced before Slack closes them.

https://docs.slack.dev/apis/events-api/using-socket-mode. The SDK's own client takes up to ten seconds to notice a lost
connection and reconnects silently; this one raises the reason, and the supervisor reconnects.
"""

import asyncio
import json
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import aiohttp

from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.slack.web_api import APPS, SlackApi
from nanobot.errors import StorageError

log = logging.getLogger(__name__)

LONGEST_PING_S = 10.0
LEAVING_S = 15.0
"""How long to read from a connection that Slack is about to close, beside the new one."""
_SHORTEST_LIFE_S = 1.0
_LEAVING = ("warning", "refresh_requested")
_FRAMES = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG)


@dataclass(frozen=True, slots=True)
class Envelope:
    """An event that Slack sends until it is acknowledged."""

    id: str
    kind: str
    """events_api, interactive or slash_commands."""
    payload: Mapping[str, Any]

    @property
    def chat(self) -> str:
        """The chat within which it must stay in order."""
        event = self.payload.get("event")
        channel = (event if isinstance(event, Mapping) else self.payload).get("channel")
        channel_id = channel.get("id") if isinstance(channel, Mapping) else channel
        return str(channel_id or self.payload.get("channel_id") or "")


@dataclass(frozen=True, slots=True)
class SocketModeCallbacks:
    """`on_arrival` is called at once for each envelope, in order; `process` after those before it in the same chat.

    An envelope is acknowledged when `process` has returned.
    """

    on_arrival: Callable[[Envelope], None]
    process: Callable[[Envelope], Awaitable[None]]
    touch: Callable[[], None]
    mark_up: Callable[[], None]
    stall_s: Callable[[], float]


class SocketModeConnections:
    """Successive connections; each is open before the previous one is closed."""

    def __init__(self, api: SlackApi, callbacks: SocketModeCallbacks) -> None:
        self._api = api
        self._callbacks = callbacks
        self._chat_locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._work: asyncio.TaskGroup = asyncio.TaskGroup()
        self._has_failed = False

    async def run(self, missed: Mapping[str, Callable[[], Awaitable[None]]] = MappingProxyType({})) -> None:
        """Serve until a connection fails. Raises the reason; ChannelSetupError if the owner has to act.

        `missed` processes the missed messages of each chat, before any new ones of that chat.
        """
        try:
            async with self._work:
                self._work.create_task(self._raise_refusal())
                for chat, process in missed.items():
                    self._work.create_task(self._process_missed(chat, process))
                while True:
                    connection = await self._api.connect(await self._api.socket_address())
                    leaving = asyncio.Event()
                    self._work.create_task(self._serve(connection, leaving))
                    await leaving.wait()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _raise_refusal(self) -> None:
        await asyncio.shield(self._api.refused)  # the API owns this future

    async def _process_missed(self, chat: str, process: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._lock_of(chat):
                await process()
        except StorageError as error:
            log.warning("slack: missed messages in %s could not be journaled; they are fetched again: %s", chat, error)

    def _lock_of(self, chat: str) -> asyncio.Lock:
        return self._chat_locks.setdefault(chat, asyncio.Lock())

    async def _serve(self, connection: aiohttp.ClientWebSocketResponse, leaving: asyncio.Event) -> None:
        """Process the frames of a connection until it is closed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pinging = asyncio.create_task(self._ping(connection))
        try:
            async with asyncio.timeout(None) as deadline:
                while (frame := await connection.receive()).type in _FRAMES:
                    self._callbacks.mark_up()
                    self._callbacks.touch()
                    if frame.type is aiohttp.WSMsgType.PING:
                        with suppress(aiohttp.ClientError, OSError):  # then the next frame is the close
                            await connection.pong(frame.data)
                    if frame.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    data = _object(frame.data)
                    if data.get("type") == "disconnect":
                        _check_reason(str(data.get("reason")), loop.time() - began)
                        leaving.set()
                        deadline.reschedule(loop.time() + LEAVING_S)
                    self._on_frame(connection, data)
        except TimeoutError:
            pass  # the new connection is open by now
        finally:
            pinging.cancel()
            await connection.close()
        if not leaving.is_set():
            raise ConnectionResetError(f"Slack closed the connection ({connection.close_code})")

    async def _ping(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        """Send pings, so that silence means a dead connection. The first pong shows that it is up."""
        try:
            while True:
                await connection.ping()
                await asyncio.sleep(min(self._callbacks.stall_s() / 3, LONGEST_PING_S))
        except (aiohttp.ClientError, OSError):
            return  # the reader fails as well

    def _on_frame(self, connection: aiohttp.ClientWebSocketResponse, data: Mapping[str, Any]) -> None:
        envelope_id, payload = data.get("envelope_id"), data.get("payload")
        if not isinstance(envelope_id, str):
            return
        envelope = Envelope(envelope_id, str(data.get("type")), payload if isinstance(payload, Mapping) else {})
        self._callbacks.on_arrival(envelope)
        self._work.create_task(self._process(connection, envelope, self._lock_of(envelope.chat)))

    async def _process(
        self, connection: aiohttp.ClientWebSocketResponse, envelope: Envelope, chat_lock: asyncio.Lock
    ) -> None:
        """Process an envelope and acknowledge it, unless it could not be journaled: then Slack sends it again."""
        try:
            async with chat_lock:
                await self._callbacks.process(envelope)
        except StorageError as error:
            if not self._has_failed:
                log.warning("slack: a message could not be journaled, and is not acknowledged to Slack: %s", error)
            self._has_failed = True
            return
        self._has_failed = False
        try:
            await connection.send_str(json.dumps({"envelope_id": envelope.id}))
        except (aiohttp.ClientError, OSError):
            log.debug("slack: the connection was lost before an acknowledgement; a duplicate will be dropped")


def _check_reason(reason: str, age_s: float) -> None:
    """Raise the reason of a disconnect, unless the next connection may be opened at once."""
    if reason == "link_disabled":
        raise ChannelSetupError(f"Socket Mode is disabled for this app. Enable it at {APPS}, Socket Mode.")
    if reason not in _LEAVING or age_s < _SHORTEST_LIFE_S:
        raise ConnectionResetError(f"Slack closes the connection ({reason})")


def _object(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, Mapping) else {}
