"""Captures a command's output stream while it runs: head and tail for the model, the whole in a file if it is long.

Memory use is bounded however much comes; output beyond the file's cap is read slowly.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from nanobot.agent.tools.spill import SpillFile
from nanobot.messages.types import Provenance
from nanobot.security.redaction import redact_known
from nanobot.utils.text import count_noun, decode

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Colours, cursor movements, window titles."""

_BUFFER_BYTES = 256 * 1024
"""Bytes of a stream that are buffered before a file is created."""
_HEAD_CHARS = 5_000
_TAIL_CHARS = 9_000
_PROGRESS_S = 2.0
_PACE_S = 0.001


class Capture:
    """One stream: all of it while it is short, else its head and tail, and a file with the whole."""

    def __init__(
        self,
        workspace: Path,
        turn_id: str,
        cap: int,
        progress: "CaptureProgress | None",
        provenance: Provenance = Provenance.TOOL,
    ) -> None:
        """`provenance`: of the output."""
        self._provenance = provenance
        self._workspace = workspace
        self._turn_id = turn_id
        self._cap = cap
        self._progress = progress
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._spill: SpillFile | None = None

    async def read_from(self, stream: asyncio.StreamReader) -> None:
        """Read until the stream ends. A command waits while it is not read, so endless output costs little."""
        while chunk := await stream.read(_BUFFER_BYTES):
            if self._progress is not None:
                self._progress.report(chunk)
            await self._add(chunk)

    async def _add(self, chunk: bytes) -> None:
        if self._spill is None and len(self._head) + len(chunk) <= _BUFFER_BYTES:
            self._head += chunk
            return
        if self._spill is None:
            self._spill = await asyncio.to_thread(
                SpillFile, self._workspace, self._turn_id, self._cap, self._provenance
            )
            await asyncio.to_thread(self._spill.write, bytes(self._head))
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) > _BUFFER_BYTES:
            self._tail_size -= len(self._tail.popleft())
        if self._spill.full:
            self._spill.write(chunk)  # only counts
            await asyncio.sleep(_PACE_S)  # the data is dropped: leave the CPU to others
        else:
            await asyncio.to_thread(self._spill.write, chunk)

    @property
    def is_short(self) -> bool:
        """Whether the result shows all of it: then it has no file, and closing it does not touch the disk."""
        return self._spill is None and len(self._head) <= _HEAD_CHARS + _TAIL_CHARS

    def close(self) -> None:
        """End the capture. Writes buffered output that is too long for a result to a file."""
        if self._spill is None and not self.is_short:
            self._spill = SpillFile(self._workspace, self._turn_id, self._cap, self._provenance)
            self._spill.write(bytes(self._head))
        if self._spill is not None:
            self._spill.close()

    def text(self) -> str:
        """Return what the model sees."""
        if self._spill is None:
            return _clean(bytes(self._head))
        head = _clean(bytes(self._head))
        tail = _clean(b"".join(self._tail)) if self._tail else head
        if not self._tail and len(head) <= _HEAD_CHARS + _TAIL_CHARS:
            return head
        left_out = f"{count_noun(self._spill.size, 'byte')} in all"
        return (
            f"{head[:_HEAD_CHARS]}\n\n[The middle is left out, {left_out}. {self._spill.note}]\n\n{tail[-_TAIL_CHARS:]}"
        )


class CaptureProgress:
    """Reports the last line of the output every few seconds."""

    def __init__(self, emit: Callable[[str], None]) -> None:
        self._emit = emit
        self._next = time.monotonic() + _PROGRESS_S

    def report(self, chunk: bytes) -> None:
        """Report the last line, if it is time again."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_S
            lines = redact_known(decode(chunk)).strip().splitlines()[-1:]
            if lines:
                self._emit(lines[-1][:200])


def _clean(data: bytes) -> str:
    """Return the text without escape sequences and secrets. Redacts first: the text may be cut within a secret."""
    return redact_known(_ESCAPES.sub("", decode(data)).replace("\r\n", "\n").rstrip())
