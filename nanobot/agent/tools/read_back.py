"""What a call wrote is read back and compared with what it meant: by code, of the tools that write here.

What was meant is worked out from the arguments and from what stood there before, not from what the tool says of itself.
A file that was touched after the tool had let go of it is somebody else's doing, and told as that. Nothing of what is
found there is quoted: whose words it holds is for `read_file` to say.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.disk import REFUSALS, opener
from nanobot.agent.tools.notebook import CellSeen, cells_of
from nanobot.agent.tools.textfile import NotTextError, TextFile, replaced
from nanobot.errors import NanobotError
from nanobot.messages.types import ToolFailure
from nanobot.security.opening import Stamp, stamp_of
from nanobot.security.paths import PathPolicy
from nanobot.security.vault import masked
from nanobot.utils.text import counted

LARGEST = 32 * 1024 * 1024
"""More than this is not read back."""
_AS_MEANT = "(Read back: as meant.)"
_SOMEBODY_ELSE = "(Read back: somebody else has changed {what} since: {instead}. Look at it before you go on.)"
_NOT_THERE = "it is not there"
_GONE = "the job is not in there"
_MAY_HAVE_RUN = "(Read back: the job is not in the store any more; it may have run by now.)"
_UNREAD = "(It could not be read back.)"
_NOT_AS_MEANT = "{name} said that all went well, but read back, {what} is not as meant: {instead}. Look at it again."


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as its store has it."""

    message: str
    enabled: bool
    next_run_at_ms: int | None


StoredJobs = Callable[[], Mapping[str, StoredJob]]
"""The jobs by id, read from the disk. Blocks; raises NanobotError."""
_Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it stands: None for its bytes where there is none."""

    data: bytes | None
    stamp: Stamp | None = None


class ReadBack:
    """Sees calls of tools that write through. Calls for one file come one after the other."""

    def __init__(self, paths: PathPolicy, stored_jobs: StoredJobs) -> None:
        self._paths = paths
        self._stored_jobs = stored_jobs
        self._busy: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def see_through(
        self, name: str, arguments: _Arguments, ctx: ToolContext | None, run: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """The result of the call, with what was found. A call that failed by its own word is not looked at again."""
        if name == "cron":
            return await self._job(arguments, run)
        wrong = _WRONG.get(name)
        return await run() if wrong is None else await self._file(name, wrong, arguments, ctx, run)

    async def _file(
        self,
        name: str,
        wrong: "_Wrong",
        arguments: _Arguments,
        ctx: ToolContext | None,
        run: Callable[[], Awaitable[ToolResult]],
    ) -> ToolResult:
        path = str(arguments["path"])
        async with self._alone(self._place_of(path)):
            before = await asyncio.to_thread(self._stands, path, ctx)
            result = await run()
            if result.error:
                return result
            after = await asyncio.to_thread(self._stands, path, ctx)
            if after is None:
                return _with(result, _UNREAD)
            try:
                instead = await asyncio.to_thread(wrong, arguments, before.data if before else None, after.data)
            except (NotTextError, ValueError, IndexError):  # half a character, or no text before: nothing to compare
                return _with(result, _UNREAD)
            if not instead:
                return _with(result, _AS_MEANT)
            if result.left is not None and result.left != after.stamp:
                return _with(result, _SOMEBODY_ELSE.format(what=path, instead=instead))
            return _failed(name, path, instead, result)

    def _place_of(self, path: str) -> str:
        return os.path.normpath(self._paths.workspace / path)

    def _stands(self, path: str, ctx: ToolContext | None) -> _File | None:
        """The file behind the walls that its writing has; None where it may not be read, or is too large."""
        try:
            with opener(self._paths, ctx).place(path) as place, place.read() as file:
                data = file.read(LARGEST + 1)
                return _File(data, stamp_of(os.fstat(file.fileno()))) if len(data) <= LARGEST else None
        except FileNotFoundError:
            return _File(None)
        except REFUSALS:
            return None

    async def _job(self, arguments: _Arguments, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        action = arguments.get("action")
        if action not in ("add", "remove", "enable", "disable"):
            return await run()
        async with self._alone("the jobs"):
            before = await self._jobs()
            result = await run()
            if result.error:
                return result
            after = await self._jobs()
            if before is None or after is None:
                return _with(result, _UNREAD)
            instead = _job_added(arguments, before, after) if action == "add" else _job_changed(arguments, after)
            if instead == _GONE and arguments.get("at"):
                return _with(result, _MAY_HAVE_RUN)
            return _failed("cron", "the store of jobs", instead, result) if instead else _with(result, _AS_MEANT)

    async def _jobs(self) -> Mapping[str, StoredJob] | None:
        with suppress(NanobotError):
            return await asyncio.to_thread(self._stored_jobs)
        return None

    def _alone(self, what: str) -> asyncio.Lock:
        return self._busy.setdefault(what, asyncio.Lock())


def _with(result: ToolResult, remark: str) -> ToolResult:
    return replace(result, content=f"{result.content} {remark}") if isinstance(result.content, str) else result


def _failed(name: str, what: str, instead: str, result: ToolResult) -> ToolResult:
    failed = ToolResult.failed(_NOT_AS_MEANT.format(name=name, what=what, instead=instead), ToolFailure.ENDED_BADLY)
    return replace(failed, provenance=result.provenance, display=result.display)


# --- what is there instead of what was meant: nothing, where it is the same

_Wrong = Callable[[_Arguments, bytes | None, bytes | None], str]


def _wrong_writing(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    return _instead(str(arguments["content"]).encode(errors="replace"), after)


def _wrong_edit(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    """Line endings are the file's, whatever the arguments have."""
    if before is None:
        raise ValueError("nobody knows what was there")
    if after is None:
        return _NOT_THERE
    old, new = _plain(str(arguments["old_text"])), _plain(str(arguments["new_text"]))
    new.encode()
    was = TextFile.parse(before)
    try:
        now = TextFile.parse(after)
    except NotTextError:
        return "it is no text any more"
    if (was.bom, was.encoding) != (now.bom, now.encoding) and (was.bom or now.bom):
        return f"it is {now.encoding.upper()} now and was {was.encoding.upper()}"
    every, found = bool(arguments.get("replace_all")), _plain(now.text)
    meant = _plain(_plain(was.text).replace(old, new, -1 if every else 1))
    if meant == found:
        return ""
    by_the_tool, _ = replaced(was.text, str(arguments["old_text"]), str(arguments["new_text"]), every=every)
    if "\r" in _plain(was.text) + old + new and by_the_tool == now.text:
        return ""  # with odd line endings only the tool's own reading says where they stand
    return _instead(meant.encode(errors="surrogateescape"), found.encode(errors="surrogateescape"))


def _wrong_cell(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    if before is None:
        raise ValueError("nobody knows what was there")
    if after is None:
        return _NOT_THERE
    source, kind, mode = arguments.get("source") or "", arguments.get("cell_type"), arguments.get("mode") or "replace"
    source.encode()
    cells = cells_of(before)
    try:
        found = [(cell.kind, cell.source) for cell in cells_of(after)]
    except NotTextError:
        return "it is no notebook any more"
    meant = [(cell.kind, cell.source) for cell in cells]
    at = _number_of(arguments.get("cell"), cells)
    if mode == "delete":
        del meant[at]
    elif mode == "insert":
        meant.insert(at + 1, (kind or "code", source))
    else:
        meant[at] = (kind or meant[at][0], source)
    if len(found) != len(meant):
        return f"it has {counted(len(found), 'cell')}, not {len(meant)}"
    return next(
        (f"cell {n} is another" for n, (one, two) in enumerate(zip(meant, found, strict=True)) if one != two), ""
    )


def _number_of(wanted: str | None, cells: list[CellSeen]) -> int:
    """The number of a cell by its id or its number; -1 before the first. Raises ValueError."""
    if wanted is None:
        return -1
    ids = [cell.id for cell in cells]
    return ids.index(wanted) if wanted in ids else int(wanted)


def _job_added(arguments: _Arguments, before: Mapping[str, StoredJob], after: Mapping[str, StoredJob]) -> str:
    message = masked(str(arguments.get("message") or ""))
    new = [job for job_id, job in after.items() if job_id not in before and job.message == message]
    if not new:
        return _GONE
    return "" if any(job.enabled and job.next_run_at_ms is not None for job in new) else "it is in there, without a run"


def _job_changed(arguments: _Arguments, after: Mapping[str, StoredJob]) -> str:
    action, job = str(arguments["action"]), after.get(str(arguments.get("job_id")))
    if action == "remove":
        return "the job is still in there" if job is not None else ""
    if job is None:
        return _GONE
    if job.enabled != (action == "enable"):
        return f"the job is switched {'on' if job.enabled else 'off'}"
    return "it has no next run" if job.enabled and job.next_run_at_ms is None else ""


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _instead(meant: bytes, found: bytes | None) -> str:
    if found is None:
        return _NOT_THERE
    if found == meant:
        return ""
    size = f"it has {counted(len(found), 'byte')}, not {len(meant)}; " if len(found) != len(meant) else ""
    here, there = meant.split(b"\n"), found.split(b"\n")
    same = next(
        (n for n, (one, two) in enumerate(zip(here, there, strict=False)) if one != two), min(map(len, (here, there)))
    )
    return f"{size}it differs from line {same + 1} on"


_WRONG: Mapping[str, _Wrong] = {
    "write_file": _wrong_writing,
    "edit_file": _wrong_edit,
    "notebook_edit": _wrong_cell,
}
