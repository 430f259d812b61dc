"""A stream of a command while it runs: a head and a tail for the model, the whole in a file once it is long.

However much comes, it costs a bounded amount of memory; what nobody will read is read slowly.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nanobot.agent.tools.spill import SpillFile
from nanobot.messages.types import Provenance
from nanobot.security.vault import masked
from nanobot.utils.text import counted, decode

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Colours, moves of the cursor, window titles."""

_KEPT = 256 * 1024
"""Bytes of a stream that are held before a file is begun."""
_HEAD_CHARS = 5_000
_TAIL_CHARS = 9_000
_PROGRESS_S = 2.0
_PACE_S = 0.001


class Capture:
    """One stream: all of it while it is short, then its head and its tail, and a file with the whole."""

    def __init__(
        self,
        workspace: Path,
        turn_id: str,
        cap: int,
        progress: "Progress | None",
        words: Provenance = Provenance.TOOL,
    ) -> None:
        """`words`: whose they are."""
        self._words = words
        self._workspace = workspace
        self._turn_id = turn_id
        self._cap = cap
        self._progress = progress
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._spill: SpillFile | None = None

    async def fill(self, stream: asyncio.StreamReader) -> None:
        """Read until the stream ends. While it is not read the command waits, so endless output costs little."""
        while chunk := await stream.read(_KEPT):
            if self._progress is not None:
                self._progress.heard(chunk)
            await self._take(chunk)

    async def _take(self, chunk: bytes) -> None:
        if self._spill is None and len(self._head) + len(chunk) <= _KEPT:
            self._head += chunk
            return
        if self._spill is None:
            self._spill = await asyncio.to_thread(SpillFile, self._workspace, self._turn_id, self._cap, self._words)
            await asyncio.to_thread(self._spill.write, bytes(self._head))
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) > _KEPT:
            self._tail_size -= len(self._tail.popleft())
        if self._spill.full:
            self._spill.write(chunk)  # only counts
            await asyncio.sleep(_PACE_S)  # nobody will read this: leave the processor to others
        else:
            await asyncio.to_thread(self._spill.write, chunk)

    @property
    def is_short(self) -> bool:
        """Whether all of it is shown: then it has no file, and closing it touches no disk."""
        return self._spill is None and len(self._head) <= _HEAD_CHARS + _TAIL_CHARS

    def close(self) -> None:
        """No more will come. What is too long for a result, but was held so far, goes to a file now."""
        if self._spill is None and not self.is_short:
            self._spill = SpillFile(self._workspace, self._turn_id, self._cap, self._words)
            self._spill.write(bytes(self._head))
        if self._spill is not None:
            self._spill.close()

    def text(self) -> str:
        """What a model is shown."""
        if self._spill is None:
            return _cleaned(bytes(self._head))
        head = _cleaned(bytes(self._head))
        tail = _cleaned(b"".join(self._tail)) if self._tail else head
        if not self._tail and len(head) <= _HEAD_CHARS + _TAIL_CHARS:
            return head
        left_out = f"{counted(self._spill.size, 'byte')} in all"
        return (
            f"{head[:_HEAD_CHARS]}\n\n[The middle is left out, {left_out}. {self._spill.note}]\n\n{tail[-_TAIL_CHARS:]}"
        )


class Progress:
    """The last line of the output, told now and then."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._next = time.monotonic() + _PROGRESS_S

    def heard(self, chunk: bytes) -> None:
        """Tell of it, if it is time again."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_S
            lines = masked(decode(chunk)).strip().splitlines()[-1:]
            if lines:
                self._emit(lines[-1][:200])


def _cleaned(data: bytes) -> str:
    """Text without what only a terminal understands, and without secrets: it may be cut in the middle of one."""
    return masked(_ESCAPES.sub("", decode(data)).replace("\r\n", "\n").rstrip())
