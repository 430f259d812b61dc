"""File access of the file and search tools: which folders they skip, and what errors mean for a model."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from nanobot.agent.scope import restrict_paths
from nanobot.agent.tools.base import Access, AccessKind, Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.textfile import NotTextError
from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from nanobot.security.provenance import ProvenanceStore

SKIPPED_FOLDERS = frozenset(
    {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".idea", ".cache", ".mypy_cache"}
    | {".ruff_cache", ".pytest_cache", ".nanobot"}
)
"""Names of folders that are listed but not entered: their content is rarely what anybody wants."""


def opener(paths: PathPolicy, ctx: ToolContext | None) -> Opener:
    """Return what opens files for a call of this turn; outside of a turn nothing is granted."""
    return Opener(limit_to_scope(paths, ctx), ctx.granted if ctx is not None else frozenset())


def limit_to_scope(paths: PathPolicy, ctx: ToolContext | None) -> PathPolicy:
    """Return the path policy for this turn: where others read along, without what was said in private."""
    return paths if ctx is None else restrict_paths(paths, ctx.scope)


class FileTool(Tool):
    """A tool that reads or writes what its argument `path` names."""

    def __init__(self, paths: PathPolicy, marks: "ProvenanceStore | None" = None) -> None:
        """`marks` knows which files contain untrusted content."""
        self._paths = paths
        self._marks = marks

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return what needs approval: to read nanobot's own state and places with keys; to write also folders outside
        of the workspace, and files that later turns read. Nothing if no approval would allow it.
        """
        paths, path = limit_to_scope(self._paths, ctx), arguments.get("path", ".")
        find_requests = paths.permissions_to_read if self.effect is Effect.READ else paths.permissions_to_write
        try:
            requests = await asyncio.to_thread(find_requests, path)
        except PathDeniedError:
            return []
        return [
            Access(AccessKind(request.kind), str(request.place), request.needs_approval, request.detail)
            for request in requests
        ]

    async def in_thread(self, path: str, ctx: ToolContext | None, work: Callable[[Opener], ToolResult]) -> ToolResult:
        """Run blocking work in a thread, with what opens files for this turn; errors of disk and path policy become a
        result.
        """
        files = opener(self._paths, ctx)

        def run() -> ToolResult:
            try:
                return work(files)
            except FILE_ERRORS as error:
                return file_error_result(error, path, files)

        return await asyncio.to_thread(run)

    def provenance_of(self, real: Path, own: Provenance = Provenance.FILE) -> Provenance:
        """Return the less trusted of what such a file is by itself (`own`) and what its content is. Blocking."""
        return least_trusted([own, (self._marks.of(real) if self._marks is not None else None) or own])


def explain_error(error: OSError, path: str, files: Opener) -> str:
    """Explain an error of the disk on this path and what to do, for a model."""
    if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
        template = _EXPLANATIONS.get(error.errno or 0)
        return template.format(path=path) if template else f"{path}: {error.strerror or error}."
    try:
        real = files.policy.resolve_readable(path, files.granted)
        with files.folder(real.parent) as folder:
            near = nearest(real.name, [entry.name for entry in folder.entries()])
    except PathDeniedError:
        return f"There is no {path}."
    except OSError:
        existing = next((parent for parent in real.parents if parent.exists()), Path("/"))
        if real.parent.exists() or not existing.is_dir():
            return f"There is no {path}: a part of it is a file, not a folder."
        return f"There is no {path}, nor its folder. The last part that exists is {existing}."
    hint = f" Near it: {', '.join(near)}." if near else f" Use list_dir on {real.parent} to see what is there."
    return f"There is no {path}.{hint}"


_EXPLANATIONS = {
    errno.EACCES: "No permission for {path}. Choose another place, or ask the owner to change its permissions.",
    errno.EPERM: "The system does not allow that for {path}. Choose another place, or ask the owner.",
    errno.EISDIR: "{path} is a folder, not a file. Use list_dir to see what is in it.",
    errno.EEXIST: "A part of {path} is a file, so that no folder can be made there. Choose another path.",
    errno.ENOSPC: "The disk is full: {path} was not written, what was there is unchanged. Free some space first.",
    errno.EDQUOT: "The disk quota is used up: {path} was not written. Free some space first.",
    errno.EROFS: "{path} is on a read-only file system. Choose another place.",
    errno.ENAMETOOLONG: "The path {path:.80}... is too long for the file system. Choose a shorter name.",
    errno.ELOOP: "{path} is a link that leads back to itself.",
}


FILE_ERRORS = (PathDeniedError, NotTextError, OSError)
"""What the path policy, the file's content or the disk raises."""


def file_error_result(error: Exception, path: str, files: Opener) -> ToolResult:
    """Make a result of such an error. Blocking."""
    if isinstance(error, OSError):
        return ToolResult.failed(explain_error(error, path, files))
    return ToolResult.failed(str(error).replace("{path}", path))


@asynccontextmanager
async def hold_file(open_file: Callable[[], tuple[Path, BinaryIO]]) -> AsyncIterator[tuple[Path, BinaryIO]]:
    """Open a file off the event loop, and close it at the end, whatever happens. Raises what opening raises."""
    opening = asyncio.create_task(asyncio.to_thread(open_file))
    try:
        real, file = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(*FILE_ERRORS):
            (await opening)[1].close()
        raise
    with file:
        yield real, file


def new_file_mode() -> int:
    """Return the mode of new files by the user's umask: they are the user's, not secrets of nanobot."""
    if os.name == "nt":
        return 0o666
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        umask = next(int(line.split()[1], 8) for line in status.splitlines() if line.startswith("Umask:"))
    except (OSError, StopIteration):
        umask = os.umask(0o022)  # reading it requires setting it
        os.umask(umask)
    return 0o666 & ~umask
