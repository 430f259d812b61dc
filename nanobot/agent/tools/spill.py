"""Results that are too long for a request: the head and the tail go to the model, the whole goes to a file.

Spill files live in the workspace, so that the file tools can read them, and go after a week. They hold no secret.
"""

import os
import re
import threading
from contextlib import suppress
from pathlib import Path

from nanobot.agent.tools.base import ToolContext
from nanobot.messages.types import Provenance, is_outside
from nanobot.security.vault import MaskedStream
from nanobot.utils.files import O_BINARY, PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder, remove_old, write_whole
from nanobot.utils.no_links import make_folder
from nanobot.utils.text import clip, human_size

SPILL_CAP = 64 * 1024 * 1024
SPILL_FOLDER = Path(".nanobot", "spill")
"""In the workspace."""
_KEPT_DAYS = 7
_NAMES_TRIED = 10_000


class SpillFile:
    """A file that takes bytes up to a cap and only counts the rest. A disk that refuses is noted, not raised.

    Blocking, and safe to use from several threads.
    """

    def __init__(
        self, workspace: Path, turn_id: str, cap: int = SPILL_CAP, words: Provenance = Provenance.TOOL
    ) -> None:
        """`words`: whose they are. Where that is somebody outside, the name of the file says it."""
        self.size = 0
        """Bytes that came, whether there was room for them or not."""
        self.problem: str | None = None
        self.path: Path | None = None
        self._cap = cap
        self._descriptor: int | None = None
        self._lock = threading.Lock()
        self._masked = MaskedStream()
        try:
            self._descriptor, self.path = _new_file(workspace, turn_id, words)
        except OSError as error:
            self.problem = error.strerror or str(error)

    def write(self, data: bytes) -> None:
        """Take what there is room for."""
        with self._lock:
            room = max(0, self._cap - self.size)
            self.size += len(data)
            self._keep(self._masked.passed(data[:room]) if room else b"")

    @property
    def full(self) -> bool:
        """Whether nothing more is kept."""
        return self.size >= self._cap or self.problem is not None

    def close(self) -> None:
        """No more will come."""
        with self._lock:
            self._keep(self._masked.end())
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _keep(self, data: bytes) -> None:
        if self._descriptor is None or self.problem is not None or not data:
            return
        try:
            write_whole(self._descriptor, memoryview(data))
        except OSError as error:
            self.problem = error.strerror or str(error)

    @property
    def note(self) -> str:
        """Where the whole is and how to read it, for a model."""
        if self.path is None:
            return f"The rest could not be kept ({self.problem})."
        how = "read_file with offset and limit, or grep, shows more of it"
        if self.problem is not None:
            return f"The beginning is in {self.path}; then the disk refused ({self.problem})."
        if self.size > self._cap:
            return f"The first {human_size(self._cap)} of {human_size(self.size)} are in {self.path}; {how}."
        return f"All {human_size(self.size)} are in {self.path}; {how}."


def clip_result(text: str, limit: int, ctx: ToolContext, words: Provenance = Provenance.TOOL) -> str:
    """The text where it fits in `limit` characters; else head and tail, and the path of a file with all of it.

    `words`: whose they are, which the name of the file says. Never raises for a disk that refuses: then the text says
    so. Touches the disk only where the text is too long, so call it in a thread then.
    """
    if len(text) <= limit:
        return text
    spill = SpillFile(ctx.workspace, ctx.turn_id, words=words)
    spill.write(text.encode(errors="replace"))
    spill.close()
    return clip(text, limit, "{left_out} characters left out. " + spill.note.replace("{", "(").replace("}", ")"))


def _new_file(workspace: Path, turn_id: str, words: Provenance) -> tuple[int, Path]:
    """A new file of this turn, open for writing, and its path. What is older than a week goes.

    Commands may write beside it. So the folder is held open while that is done, and no link on the way is followed.
    """
    place = workspace / SPILL_FOLDER
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", turn_id)[:80] or "turn"
    if is_outside(words):
        stem += f"-{words}"
    if os.name == "nt":
        descriptor, name = _first_free(make_private_folder(place), None, stem)
        return descriptor, place / name
    folder = make_folder(Path(os.path.realpath(workspace)) / SPILL_FOLDER, PRIVATE_FOLDER)
    try:
        descriptor, name = _first_free(Path(), folder, stem)
        return descriptor, place / name
    finally:
        os.close(folder)


def _first_free(place: Path, folder: int | None, stem: str) -> tuple[int, str]:
    """A new file there, open for writing, and its name."""
    remove_old(place if folder is None else folder, older_than_s=_KEPT_DAYS * 86_400)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY | getattr(os, "O_NOFOLLOW", 0)
    for number in range(1, _NAMES_TRIED):
        name = f"{stem}-{number}.txt"
        with suppress(FileExistsError):
            return os.open(place / name, flags, PRIVATE_FILE, dir_fd=folder), name
    raise FileExistsError(f"There are too many files of {stem}")
