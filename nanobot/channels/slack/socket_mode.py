"""The connections of socket mode: opened, kept alive, and replaced before Slack closes them.

https://docs.slack.dev/apis/events-api/using-socket-mode. The SDK's own client takes up to ten seconds to see that a
line is cut, and tries again by itself, silently; this one ends with a reason, and the supervisor goes on.
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
"""How long a connection that Slack is about to close is still listened to beside the new one."""
_SHORTEST_LIFE_S = 1.0
_LEAVING = ("warning", "refresh_requested")
_FRAMES = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG)


@dataclass(frozen=True, slots=True)
class Envelope:
    """What Slack sends until it is told that it arrived."""

    id: str
    kind: str
    """events_api, interactive or slash_commands."""
    payload: Mapping[str, Any]

    @property
    def chat(self) -> str:
        """The chat whose order it belongs to."""
        event = self.payload.get("event")
        channel = (event if isinstance(event, Mapping) else self.payload).get("channel")
        named = channel.get("id") if isinstance(channel, Mapping) else channel
        return str(named or self.payload.get("channel_id") or "")


@dataclass(frozen=True, slots=True)
class SocketModeCallbacks:
    """Who listens. `arrived` is called at once for each envelope, in their order; `take` when those before it in the
    same chat are done. An envelope is acknowledged when `take` has returned.
    """

    arrived: Callable[[Envelope], None]
    take: Callable[[Envelope], Awaitable[None]]
    sign: Callable[[], None]
    up: Callable[[], None]
    stall_s: Callable[[], float]


class SocketModeConnections:
    """One connection after the other, each open before the one before is closed."""

    def __init__(self, web: SlackApi, ears: SocketModeCallbacks) -> None:
        self._web = web
        self._ears = ears
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._work: asyncio.TaskGroup = asyncio.TaskGroup()
        self._refused = False

    async def run(self, missed: Mapping[str, Callable[[], Awaitable[None]]] = MappingProxyType({})) -> None:
        """Listen until a connection ends that should not. Raises why: ChannelSetupError is for the owner to mend.

        `missed` goes before anything that comes now, chat by chat.
        """
        try:
            async with self._work:
                self._work.create_task(self._until_refused())
                for chat, hear in missed.items():
                    self._work.create_task(self._first(chat, hear))
                while True:
                    line = await self._web.connect(await self._web.socket_address())
                    leaving = asyncio.Event()
                    self._work.create_task(self._serve(line, leaving))
                    await leaving.wait()
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _until_refused(self) -> None:
        await asyncio.shield(self._web.refused)  # it is the web's to end

    async def _first(self, chat: str, hear: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._turn_of(chat):
                await hear()
        except StorageError as error:
            log.warning("slack: missed messages in %s could not be journaled; they are fetched again: %s", chat, error)

    def _turn_of(self, chat: str) -> asyncio.Lock:
        return self._turns.setdefault(chat, asyncio.Lock())

    async def _serve(self, line: aiohttp.ClientWebSocketResponse, leaving: asyncio.Event) -> None:
        """Take what comes on this line until it is closed."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        pinging = asyncio.create_task(self._ping(line))
        try:
            async with asyncio.timeout(None) as limit:
                while (frame := await line.receive()).type in _FRAMES:
                    self._ears.up()
                    self._ears.sign()
                    if frame.type is aiohttp.WSMsgType.PING:
                        with suppress(aiohttp.ClientError, OSError):  # then the next frame says that it is closed
                            await line.pong(frame.data)
                    if frame.type is not aiohttp.WSMsgType.TEXT:
                        continue
                    told = _object(frame.data)
                    if told.get("type") == "disconnect":
                        _check_reason(str(told.get("reason")), loop.time() - began)
                        leaving.set()
                        limit.reschedule(loop.time() + LEAVING_S)
                    self._hear(line, told)
        except TimeoutError:
            pass  # the next one has been open for long
        finally:
            pinging.cancel()
            await line.close()
        if not leaving.is_set():
            raise ConnectionResetError(f"Slack closed the connection ({line.close_code})")

    async def _ping(self, line: aiohttp.ClientWebSocketResponse) -> None:
        """Ask often enough that silence means something. The first answer shows that the line is up."""
        try:
            while True:
                await line.ping()
                await asyncio.sleep(min(self._ears.stall_s() / 3, LONGEST_PING_S))
        except (aiohttp.ClientError, OSError):
            return  # whoever reads sees it, too

    def _hear(self, line: aiohttp.ClientWebSocketResponse, told: Mapping[str, Any]) -> None:
        envelope_id, payload = told.get("envelope_id"), told.get("payload")
        if not isinstance(envelope_id, str):
            return
        envelope = Envelope(envelope_id, str(told.get("type")), payload if isinstance(payload, Mapping) else {})
        self._ears.arrived(envelope)
        self._work.create_task(self._take(line, envelope, self._turn_of(envelope.chat)))

    async def _take(self, line: aiohttp.ClientWebSocketResponse, envelope: Envelope, turn: asyncio.Lock) -> None:
        """Hand it on, and say that it arrived; not where it could not be written down: then Slack sends it again."""
        try:
            async with turn:
                await self._ears.take(envelope)
        except StorageError as error:
            if not self._refused:
                log.warning("slack: a message could not be journaled, and is not acknowledged to Slack: %s", error)
            self._refused = True
            return
        self._refused = False
        try:
            await line.send_str(json.dumps({"envelope_id": envelope.id}))
        except (aiohttp.ClientError, OSError):
            log.debug("slack: the connection was lost before an acknowledgement; a duplicate will be dropped")


def _check_reason(reason: str, lived_s: float) -> None:
    """Whether the next connection may be opened at once. Raises where not, with the reason."""
    if reason == "link_disabled":
        raise ChannelSetupError(f"Socket Mode is disabled for this app. Enable it at {APPS}, Socket Mode.")
    if reason not in _LEAVING or lived_s < _SHORTEST_LIFE_S:
        raise ConnectionResetError(f"Slack closes the connection ({reason})")


def _object(text: str) -> Mapping[str, Any]:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, Mapping) else {}
