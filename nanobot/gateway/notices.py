"""Tells the owner, and the agent, what they would not see: undeliverable messages, and who asks to talk to the bot."""

import asyncio
import logging
from collections import deque

from nanobot.bus.events import Button, DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.channels.base import UNIFIED_SESSION
from nanobot.channels.registry import find
from nanobot.errors import StorageError
from nanobot.gateway.channels import GatewayChannels
from nanobot.messages.types import ChatMessage, Origin, Provenance
from nanobot.pairing.store import VALID_S, Pending
from nanobot.runtime.build import Runtime
from nanobot.utils.clock import timestamp
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

MAX_NOTICES = 4
"""Maximum number of pairing notices to an owner in an hour."""
_HOUR_S = 3600.0
_EXCERPT_CHARS = 300
_MAX_QUEUED = 1_000
"""Unreported dead letters; further ones are only in the log and the journal."""


async def report_pairing_codes(channels: GatewayChannels, codes: "asyncio.Queue[Pending]") -> None:
    """Tell an owner of each new code, with buttons to decide, until cancelled. At most MAX_NOTICES an hour;
    `/pairing list` has the others.
    """
    sent_at: deque[float] = deque(maxlen=MAX_NOTICES)
    while True:
        entry, now = await codes.get(), channels.runtime.clock.monotonic()
        if len(sent_at) == MAX_NOTICES and now - sent_at[0] < _HOUR_S:
            continue
        spec, code = find(entry.channel), entry.code
        text = (
            f"{entry.name or entry.sender_id} on {spec.title if spec else entry.channel} wants to talk to me.\n"
            f"Press a button, or write /pairing approve {code} (or deny) within {VALID_S // 60} minutes. "
            "/pairing list shows everybody who waits."
        )
        buttons = (Button("Let in", f"/pairing approve {code}"), Button("No", f"/pairing deny {code}"))
        try:
            if await channels.tell_owner(text, [*dict.fromkeys([entry.channel, *channels.manager.names])], buttons):
                sent_at.append(now)
        except StorageError as error:
            log.warning("the request of %s to pair cannot be shown to an owner: %s", entry, error)


class DeadLetters:
    """A queue of dead letters. The channel manager calls `put`; `run` is a supervised task."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[OutboundMessage, DeliveryFailedError]] = asyncio.Queue(_MAX_QUEUED)
        self._notices: deque[OutboundMessage] = deque(maxlen=20)
        self.count = 0

    async def put(self, message: OutboundMessage, error: DeliveryFailedError) -> None:
        """Queue a dead letter. Never blocks or raises."""
        if any(message is notice for notice in self._notices):  # do not report undeliverable reports
            return
        self.count += 1
        log.error("%s", error)
        if not self._queue.full():
            self._queue.put_nowait((message, error))

    async def run(self, channels: GatewayChannels) -> None:
        """Report dead letters to the agent, and to an owner on another channel that is connected, until cancelled."""
        while True:
            message, error = await self._queue.get()
            excerpt = clip_line(" ".join(message.content.split()), _EXCERPT_CHARS)
            try:
                await _tell_agent(channels.runtime, message, f"[{error} The user has not seen it. It began: {excerpt}]")
                others = [name for name in channels.names if name != message.channel and channels.is_running(name)]
                if chat := await channels.owners_chat(others):
                    text = f"{error}\nIt said: {excerpt}"
                    notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
                    self._notices.append(notice)
                    await channels.runtime.bus.publish_outbound(notice)
            except StorageError as storage_error:
                log.warning("a dead letter cannot be reported: %s", storage_error)


async def _tell_agent(runtime: Runtime, message: OutboundMessage, text: str) -> None:
    """Add a system row to the session of the chat, for the model's next turn."""
    key = await asyncio.to_thread(_session_of, runtime, message)
    if key is not None:
        row: ChatMessage = {
            "role": "user",
            "content": text,
            "origin": Origin.SYSTEM,
            "provenance": Provenance.SYSTEM,
            "timestamp": timestamp(runtime.clock),
        }
        async with runtime.loop.lane(key), runtime.sessions.hold(key) as session:
            await runtime.sessions.append(session, row)


def _session_of(runtime: Runtime, message: OutboundMessage) -> str | None:
    """Return the session key of the message's chat, or None if there is no session. Blocking.

    The unified session takes precedence if the chat has written in it.
    """
    chat = f"{message.channel}:{message.chat_id}"
    own = [f"{chat}:{message.thread_id}", chat] if message.thread_id else [chat]
    if runtime.config.agents.defaults.unified_session and (all_chats := runtime.sessions.read(UNIFIED_SESSION)):
        if any(str(row.get("inbound", "")).startswith(f"{chat}:") for row in all_chats.messages):
            return UNIFIED_SESSION
        own.append(UNIFIED_SESSION)
    return next((key for key in own if runtime.sessions.find(key) is not None), None)
