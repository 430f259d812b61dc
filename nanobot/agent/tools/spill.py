"""Results that are too long for a request: head and tail go to the model, the whole goes to a file.

Spill files live in the workspace, where the file tools can read them, for a week. Secrets are redacted.
"""

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from nanobot.agent.tools.base import ToolContext
from nanobot.messages.types import Provenance, is_outside
from nanobot.security.secrets import RedactedOutput
from nanobot.utils.files import remove_old_files, write_whole
from nanobot.utils.open_no_follow import open_own, own_folder
from nanobot.utils.text import clip, human_size

SPILL_CAP = 64 * 1024 * 1024
SPILL_FOLDER = Path(".nanobot", "spill")
"""In the workspace."""
_RETENTION_DAYS = 7
_MAX_NUMBER = 10_000


class SpillFile:
    """A file that takes bytes up to a cap and only counts the rest. Disk errors are recorded, not raised.

    Blocking and thread-safe.
    """

    def __init__(
        self, workspace: Path, turn_id: str, cap: int = SPILL_CAP, provenance: Provenance = Provenance.TOOL
    ) -> None:
        """`provenance`: of the content. The file name shows it if it is untrusted."""
        self.size = 0
        """Bytes that came, including those beyond the cap."""
        self.problem: str | None = None
        self.path: Path | None = None
        self._cap = cap
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._redacted = RedactedOutput()
        try:
            self._descriptor, self.path = _new_file(workspace, turn_id, provenance)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def write(self, data: bytes) -> None:
        with self._lock:
            room = max(0, self._cap - self.size)
            self.size += len(data)
            self._write(self._redacted.feed(data[:room]) if room else b"")

    @property
    def full(self) -> bool:
        """Whether further bytes are only counted."""
        return self.size >= self._cap or self.problem is not None

    def close(self) -> None:
        with self._lock:
            self._write(self._redacted.end())
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _write(self, data: bytes) -> None:
        if self._descriptor is None or self.problem is not None or not data:
            return
        try:
            write_whole(self._descriptor, memoryview(data))
        except OSError as error:
            self.problem = error.strerror or str(error)

    @property
    def note(self) -> str:
        """Where the file is and how to read it, for a model."""
        if self.path is None:
            return f"The rest could not be saved ({self.problem})."
        how = "read_file with offset and limit, or grep, shows more of it"
        if self.problem is not None:
            return f"The beginning is in {self.path}; then writing failed ({self.problem})."
        if self.size > self._cap:
            return f"The first {human_size(self._cap)} of {human_size(self.size)} are in {self.path}; {how}."
        return f"All {human_size(self.size)} are in {self.path}; {how}."


def clip_result(text: str, limit: int, ctx: ToolContext, provenance: Provenance = Provenance.TOOL) -> str:
    """Return the text if it fits into `limit` characters; else head and tail, and the path of a file with all of it.

    Never raises for disk errors: the text reports them. Blocks if the text is too long: call it in a thread then.
    """
    if len(text) <= limit:
        return text
    spill = SpillFile(ctx.workspace, ctx.turn_id, provenance=provenance)
    spill.write(text.encode(errors="replace"))
    spill.close()
    return clip(text, limit, "{left_out} characters left out. " + spill.note.replace("{", "(").replace("}", ")"))


def _new_file(workspace: Path, turn_id: str, provenance: Provenance) -> tuple[int, Path]:
    """Create a file for this turn; return its descriptor and path. Removes files older than a week.

    Commands may write in the same folder, so no link in its path is followed.
    """
    folder = Path(os.path.realpath(workspace)) / SPILL_FOLDER
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", turn_id)[:80] or "turn"
    if is_outside(provenance):
        stem += f"-{provenance}"
    with own_folder(folder) as pinned:
        remove_old_files(
            folder if pinned.descriptor is None else pinned.descriptor, older_than_s=_RETENTION_DAYS * 86_400
        )
    for number in range(1, _MAX_NUMBER):
        name = f"{stem}-{number}.txt"
        with suppress(FileExistsError):
            return open_own(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), workspace / SPILL_FOLDER / name
    raise FileExistsError(f"There are too many files of {stem}")
