"""The disk as the file and search tools meet it: which folders they leave out, and what its errors mean for a model."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from nanobot.agent.scope import apart
from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.textfile import NotTextError
from nanobot.security.opening import Opener
from nanobot.security.paths import PathDeniedError, PathPolicy, Want
from nanobot.utils.text import nearest

NOISE = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".idea", ".cache", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".nanobot"}
)
"""Names that are listed but not entered: what is in there is rarely what anybody asks for."""


def opener(paths: PathPolicy, ctx: ToolContext | None) -> Opener:
    """What opens files for a call of this turn; outside of a turn nothing is granted."""
    return Opener(within(paths, ctx), ctx.granted if ctx is not None else frozenset())


def within(paths: PathPolicy, ctx: ToolContext | None) -> PathPolicy:
    """These policies for a call of this turn: where others read along, without what was told in private."""
    return paths if ctx is None else apart(paths, ctx.scope)


async def asked_for(look: Callable[[], list[Want]]) -> list[Reach]:
    """What the owner may be asked before a path is touched. What no yes would give is not asked about."""
    try:
        wants = await asyncio.to_thread(look)
    except PathDeniedError:
        return []
    return [Reach(ReachKind(want.kind), str(want.place), want.beyond, want.detail) for want in wants]


def explained(error: OSError, path: str, files: Opener) -> str:
    """What an error of the disk means for this path, and what to do, for a model."""
    if error.errno in {errno.ENOENT, errno.ENOTDIR}:
        return _not_there(path, files)
    template = _EXPLAINED.get(error.errno or 0)
    return template.format(path=path) if template else f"{path}: {error.strerror or error}."


_EXPLAINED = {
    errno.EACCES: "No permission for {path}. Choose another place, or ask the owner to change its permissions.",
    errno.EPERM: "The system does not allow that on {path}. Choose another place, or ask the owner.",
    errno.EISDIR: "{path} is a folder, not a file. Use list_dir to see what is in it.",
    errno.EEXIST: "A part of {path} is a file, so that no folder can be made there. Choose another path.",
    errno.ENOSPC: "The disk is full: {path} was not written, what was there is unchanged. Free some space first.",
    errno.EDQUOT: "The disk quota is used up: {path} was not written. Free some space first.",
    errno.EROFS: "{path} is on a read-only file system. Choose another place.",
    errno.ENAMETOOLONG: "The path {path:.80}... is too long for the file system. Choose a shorter name.",
    errno.ELOOP: "{path} is a link that leads back to itself.",
}


REFUSALS = (PathDeniedError, NotTextError, OSError)
"""What the policy, the file or the disk raises."""


async def in_thread(path: str, files: Opener, work: Callable[[], ToolResult]) -> ToolResult:
    """Do the work off the event loop; what the disk or the policy refuses becomes a result."""

    def guarded() -> ToolResult:
        try:
            return work()
        except REFUSALS as error:
            return refused(error, path, files)

    return await asyncio.to_thread(guarded)


def refused(error: Exception, path: str, files: Opener) -> ToolResult:
    """A refusal as a result. Blocking."""
    if isinstance(error, OSError):
        return ToolResult.failed(explained(error, path, files))
    return ToolResult.failed(str(error).replace("{path}", path))


@asynccontextmanager
async def held(opened: Callable[[], tuple[Path, BinaryIO]]) -> AsyncIterator[tuple[Path, BinaryIO]]:
    """A file that is opened off the event loop and closed at the end, whatever ends it. Raises what opening raises."""
    opening = asyncio.create_task(asyncio.to_thread(opened))
    try:
        real, file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(*REFUSALS):
            (await opening)[1].close()
        raise
    with file:
        yield real, file


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


def _not_there(path: str, files: Opener) -> str:
    """That it is not there, and what is near."""
    try:
        real = files.policy.readable(path, files.granted)
        with files.folder(real.parent) as folder:
            near = nearest(real.name, [entry.name for entry in folder.entries()])
    except PathDeniedError:
        return f"There is no {path}."
    except OSError:
        standing = next((place for place in real.parents if place.exists()), Path("/"))
        if real.parent.exists() or not standing.is_dir():
            return f"There is no {path}: a part of it is a file, not a folder."
        return f"There is no {path}, nor its folder. The last part that exists is {standing}."
    hint = f" Near it: {', '.join(near)}." if near else f" Use list_dir on {real.parent} to see what is."
    return f"There is no {path}.{hint}"
