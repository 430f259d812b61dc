"""The disk as the file and search tools meet it: which folders they leave out, and what its errors mean for a model."""

import asyncio
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import ToolResult
from nanobot.agent.tools.textfile import NotTextError
from nanobot.security.paths import PathDeniedError
from nanobot.utils.files import O_BINARY
from nanobot.utils.text import nearest

NOISE = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".idea", ".cache", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".nanobot"}
)
"""Names that are listed but not entered: what is in there is rarely what anybody asks for."""


def explained(error: OSError, path: str, real: Path | None = None) -> str:
    """What an error of the disk means for this path, and what to do, for a model."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR} and real is not None:
        return _not_there(path, real)
    template = _EXPLAINED.get(error.errno or 0)
    return template.format(path=path) if template else f"{path}: {error.strerror or error}."


_EXPLAINED = {
    errno.EACCES: "No permission for {path}. Choose another place, or ask the owner to change its permissions.",
    errno.EPERM: "The system does not allow that on {path}. Choose another place, or ask the owner.",
    errno.EISDIR: "{path} is a folder, not a file. Use list_dir to see what is in it.",
    errno.EEXIST: "A part of {path} is a file, so that no folder can be made there. Choose another path.",
    errno.ENOTDIR: "A part of {path} is a file, not a folder. Choose another path.",
    errno.ENOENT: "There is no {path}.",
    errno.ENOSPC: "The disk is full: {path} was not written, what was there is unchanged. Free some space first.",
    errno.EDQUOT: "The disk quota is used up: {path} was not written. Free some space first.",
    errno.EROFS: "{path} is on a read-only file system. Choose another place.",
    errno.ENAMETOOLONG: "The path {path:.80}... is too long for the file system. Choose a shorter name.",
    errno.ELOOP: "{path} is a link that leads back to itself.",
}


async def in_thread(path: str, work: Callable[[], ToolResult]) -> ToolResult:
    """Do the work off the event loop; what the disk or the policy refuses becomes a result."""

    def guarded() -> ToolResult:
        try:
            return work()
        except (PathDeniedError, NotTextError) as error:
            return ToolResult.failed(str(error).replace("{path}", path))
        except OSError as error:
            at = Path(error.filename) if isinstance(error.filename, str) else None
            return ToolResult.failed(explained(error, path, at))

    return await asyncio.to_thread(guarded)


def open_regular(real: Path) -> Any:
    """Open a plain file for reading bytes. Devices, pipes and sockets are refused before they can block us."""
    kind = real.stat().st_mode
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(real))
    if not stat.S_ISREG(kind):
        raise NotTextError("{path} is a device, pipe or socket, not a file. It cannot be read or edited.")
    return open(os.open(real, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | O_BINARY), "rb")


def check_permission(real: Path) -> None:
    """Respect a file that its owner made read-only: replacing it as a whole would not ask."""
    if real.exists() and not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(real))


def new_file_mode() -> int:
    """What the user's umask leaves of rw-rw-rw-: a file of the user's, not a secret of ours."""
    if os.name == "nt":
        return 0o666
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        umask = next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:"))
    except (OSError, StopIteration):
        umask = os.umask(0o022)  # it can only be asked by setting it
        os.umask(umask)
    return 0o666 & ~umask


def _not_there(path: str, real: Path) -> str:
    """That it is not there, and what is near."""
    folder = real.parent
    if folder.is_dir():
        near = nearest(real.name, os.listdir(folder))  # noqa: PTH208 - names are all we want
        hint = f" Near it: {', '.join(near)}." if near else f" Use list_dir on {folder} to see what is."
        return f"There is no {path}.{hint}"
    standing = next((place for place in folder.parents if place.exists()), Path("/"))
    if folder.exists() or not standing.is_dir():
        return f"There is no {path}: a part of it is a file, not a folder."
    return f"There is no {path}, nor its folder. The last part that exists is {standing}."
