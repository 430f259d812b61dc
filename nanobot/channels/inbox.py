"""Journals accepted messages, then downloads and transcribes their attachments.

Later messages of a session wait behind one whose attachments are still loading; those that bypass the lane, such as
`/stop`, do not. After a crash or a reconnect, loading resumes: a finished transcription is not paid for again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from nanobot.bus.events import InboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import NotConnectedError
from nanobot.channels.media import Attachment, MediaStore, StoredAttachment, Transcriber, attachment_text
from nanobot.channels.status import ChannelStatus
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, least_trusted
from nanobot.utils import codec
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 30.0
"""Backoff between attempts to save a message."""
_LOST_WAITS_S = (1.0, 2.0, 0.0)
"""Pauses after attempts to download a file without a connection."""


async def until_saved(save: Callable[[], Awaitable[T]], waiting: str) -> T:
    """Repeat while the disk refuses; `waiting` says in the log, once, what waits."""
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return await save()
        except StorageError as error:
            if wait_s == _FIRST_WAIT_S:
                log.error("%s: %s", waiting, error)  # noqa: TRY400 the owner needs no traceback
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


@dataclass(slots=True)
class Inbox:
    """Accepted messages of one channel, in order within each session."""

    channel: str
    bus: MessageBus
    status: ChannelStatus
    media: MediaStore
    download: Callable[[Attachment], AsyncIterator[bytes]]
    transcribe: Transcriber | None = None
    bypasses_lane: Callable[[InboundMessage], bool] = lambda message: False
    """Whether the agent handles a message at once, even while its session is busy."""
    _waiting: dict[str, deque[InboundMessage]] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def put(self, message: InboundMessage, attachments: Sequence[Attachment] = ()) -> bool:
        """Journal a message. Return True once it is on disk, False for a duplicate. Raises StorageError."""
        message.attachments = [asdict(attachment) for attachment in attachments]
        is_free = message.session_key not in self._waiting or self.bypasses_lane(message)
        if is_free and not attachments:
            return await self.bus.publish_inbound(message)
        accepted = await self.bus.publish_inbound(message, is_ready=False)
        if accepted:
            self._add(message)
        return accepted

    def resume(self) -> None:
        """Continue with journaled messages that never reached the agent, oldest first."""
        for message in self.bus.incomplete(self.channel):
            if not message.attachments and self.bypasses_lane(message):
                self.bus.release(message)
            else:
                self._add(message)

    async def close(self) -> None:
        """Stop loading attachments. Unfinished messages stay in the journal for `resume`."""
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()

    def _add(self, message: InboundMessage) -> None:
        key = message.session_key
        if key in self._waiting:
            self._waiting[key].append(message)
            return
        self._waiting[key] = deque([message])
        task = asyncio.create_task(self._serve(key), name=f"{self.channel} attachments")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, key: str) -> None:
        waiting = self._waiting[key]
        while waiting:
            try:
                await self._complete(waiting[0])
            except Exception:  # one bad attachment must not block its session for ever
                log.exception("%s: delivering a message without all of its attachments", self.channel)
            self.bus.release(waiting.popleft())
        del self._waiting[key]

    async def _complete(self, message: InboundMessage) -> None:
        """Add each attachment to the message, saving the message after each one."""
        attachments = [codec.adapter(Attachment).validate_python(one) for one in message.attachments]
        for stored in await asyncio.gather(*map(self._fetch, attachments)):
            try:
                text = await attachment_text(stored, self.transcribe)
            except Exception:  # an SDK may raise anything
                log.exception("%s: a recording could not be transcribed", self.channel)
                text = stored.tag
            message.content = f"{message.content}\n{text}" if message.content else text
            if stored.path is not None:
                message.media.append(str(stored.path))
                if stored.kind.may_quote_others:
                    message.provenance = least_trusted([message.provenance, Provenance.PERSON])
            del message.attachments[0]
            waiting = f"{self.channel}: a message waits until its attachments can be saved"
            await until_saved(lambda: finish(self.bus.save_inbound(message)), waiting)

    async def _fetch(self, attachment: Attachment) -> StoredAttachment:
        if attachment.is_here:
            return StoredAttachment(attachment.kind, None if attachment.path is None else Path(attachment.path))
        for wait_s in _LOST_WAITS_S:  # the connection may break meanwhile, or the channel be replaced
            await self.status.connected.wait()
            try:
                return await self.media.store(attachment, lambda: self.download(attachment))
            except NotConnectedError as error:
                log.warning("%s: a %s could not be downloaded yet: %s", self.channel, attachment.kind, error)
            await asyncio.sleep(wait_s)
        return StoredAttachment(attachment.kind, None)
