"""Reads back what tools wrote, and compares it with what the arguments meant.

The expected content is computed from the arguments and the previous content, not from what the tool reports. A file
that changed after the tool closed it was changed by somebody else, and is reported so. The content itself is not
quoted: only `read_file` knows its provenance.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.disk import FILE_ERRORS, opener
from nanobot.agent.tools.notebook import NotebookCell, cells_of
from nanobot.agent.tools.textfile import NotTextError, TextFile, replace_text
from nanobot.errors import NanobotError
from nanobot.messages.types import ToolFailure
from nanobot.security.files.open import Stamp, stamp_of
from nanobot.security.files.paths import PathPolicy
from nanobot.security.redaction import redact_known
from nanobot.utils.text import count_noun

MAX_BYTES = 32 * 1024 * 1024
"""Larger files are not read back."""
_VERIFIED = "(Read back: as meant.)"
_CHANGED_SINCE = "(Read back: somebody else has changed {target} since: {difference}. Look at it before you go on.)"
_MISSING = "it is not there"
_JOB_MISSING = "the job is not in there"
_JOB_MAY_HAVE_RUN = "(Read back: the job is not in the store any more; it may have run by now.)"
_NOT_VERIFIED = "(It could not be read back.)"
_MISMATCH = "{name} said that all went well, but read back, {target} is not as meant: {difference}. Look at it again."


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job as stored."""

    message: str
    enabled: bool
    next_run_at_ms: int | None


StoredJobs = Callable[[], Mapping[str, StoredJob]]
"""Returns the stored jobs by id. Blocks; raises NanobotError."""
_Arguments = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _FileState:
    """A file as it is; `data` is None if there is none."""

    data: bytes | None
    stamp: Stamp | None = None


class WriteVerifier:
    """Wraps calls of tools that write. Calls for one file run one after the other."""

    def __init__(self, paths: PathPolicy, stored_jobs: StoredJobs) -> None:
        self._paths = paths
        self._stored_jobs = stored_jobs
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def verify(
        self, name: str, arguments: _Arguments, ctx: ToolContext | None, run: Callable[[], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Run the call and return its result, with what the comparison showed. A failed call is not verified."""
        if name == "cron":
            return await self._verify_job(arguments, run)
        compare = _COMPARISONS.get(name)
        return await run() if compare is None else await self._verify_file(name, compare, arguments, ctx, run)

    async def _verify_file(
        self,
        name: str,
        compare: "_Comparison",
        arguments: _Arguments,
        ctx: ToolContext | None,
        run: Callable[[], Awaitable[ToolResult]],
    ) -> ToolResult:
        path = str(arguments["path"])
        async with self._lock(self._normalize(path)):
            before = await asyncio.to_thread(self._read, path, ctx)
            result = await run()
            if result.error:
                return result
            after = await asyncio.to_thread(self._read, path, ctx)
            if after is None:
                return _with_remark(result, _NOT_VERIFIED)
            try:
                difference = await asyncio.to_thread(compare, arguments, before.data if before else None, after.data)
            except (NotTextError, ValueError, IndexError):  # invalid text, or none before: nothing to compare
                return _with_remark(result, _NOT_VERIFIED)
            if not difference:
                return _with_remark(result, _VERIFIED)
            if result.stamp is not None and result.stamp != after.stamp:
                return _with_remark(result, _CHANGED_SINCE.format(target=path, difference=difference))
            return _mismatch(name, path, difference, result)

    def _normalize(self, path: str) -> str:
        return os.path.normpath(self._paths.workspace / path)

    def _read(self, path: str, ctx: ToolContext | None) -> _FileState | None:
        """Read the file under the path policy of the write; None if it may not be read or is too large."""
        try:
            with opener(self._paths, ctx).place(path) as place, place.read() as file:
                data = file.read(MAX_BYTES + 1)
                return _FileState(data, stamp_of(os.fstat(file.fileno()))) if len(data) <= MAX_BYTES else None
        except FileNotFoundError:
            return _FileState(None)
        except FILE_ERRORS:
            return None

    async def _verify_job(self, arguments: _Arguments, run: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
        action = arguments.get("action")
        if action not in ("add", "remove", "enable", "disable"):
            return await run()
        async with self._lock("the jobs"):
            before = await self._jobs()
            result = await run()
            if result.error:
                return result
            after = await self._jobs()
            if before is None or after is None:
                return _with_remark(result, _NOT_VERIFIED)
            difference = _job_added(arguments, before, after) if action == "add" else _job_changed(arguments, after)
            if difference == _JOB_MISSING and arguments.get("at"):
                return _with_remark(result, _JOB_MAY_HAVE_RUN)
            return (
                _mismatch("cron", "the store of jobs", difference, result)
                if difference
                else _with_remark(result, _VERIFIED)
            )

    async def _jobs(self) -> Mapping[str, StoredJob] | None:
        with suppress(NanobotError):
            return await asyncio.to_thread(self._stored_jobs)
        return None

    def _lock(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())


def _with_remark(result: ToolResult, remark: str) -> ToolResult:
    return replace(result, content=f"{result.content} {remark}") if isinstance(result.content, str) else result


def _mismatch(name: str, target: str, difference: str, result: ToolResult) -> ToolResult:
    text = _MISMATCH.format(name=name, target=target, difference=difference)
    failed = ToolResult.failed(text, ToolFailure.ENDED_BADLY)
    return replace(failed, provenance=result.provenance, display=result.display)


# --- Comparisons return how the file differs from what was meant; empty if it does not.

_Comparison = Callable[[_Arguments, bytes | None, bytes | None], str]


def _compare_file(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    return _describe_difference(str(arguments["content"]).encode(errors="replace"), after)


def _compare_edit(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    """Compare with line endings normalized: they are the file's, not the arguments'."""
    if before is None:
        raise ValueError("the previous content is unknown")
    if after is None:
        return _MISSING
    old, new = _with_lf(str(arguments["old_text"])), _with_lf(str(arguments["new_text"]))
    new.encode()
    old_file = TextFile.parse(before)
    try:
        new_file = TextFile.parse(after)
    except NotTextError:
        return "it is not text any more"
    if (old_file.bom, old_file.encoding) != (new_file.bom, new_file.encoding) and (old_file.bom or new_file.bom):
        return f"it is {new_file.encoding.upper()} now and was {old_file.encoding.upper()}"
    every, actual = bool(arguments.get("replace_all")), _with_lf(new_file.text)
    expected = _with_lf(_with_lf(old_file.text).replace(old, new, -1 if every else 1))
    if expected == actual:
        return ""
    tool_result, _ = replace_text(old_file.text, str(arguments["old_text"]), str(arguments["new_text"]), every=every)
    if "\r" in _with_lf(old_file.text) + old + new and tool_result == new_file.text:
        return ""  # with mixed line endings, only the tool's own replacement defines the result
    return _describe_difference(expected.encode(errors="surrogateescape"), actual.encode(errors="surrogateescape"))


def _compare_cells(arguments: _Arguments, before: bytes | None, after: bytes | None) -> str:
    if before is None:
        raise ValueError("the previous content is unknown")
    if after is None:
        return _MISSING
    source, kind, mode = arguments.get("source") or "", arguments.get("cell_type"), arguments.get("mode") or "replace"
    source.encode()
    cells = cells_of(before)
    try:
        actual = [(cell.kind, cell.source) for cell in cells_of(after)]
    except NotTextError:
        return "it is no valid notebook any more"
    expected = [(cell.kind, cell.source) for cell in cells]
    index = _cell_index(arguments.get("cell"), cells)
    if mode == "delete":
        del expected[index]
    elif mode == "insert":
        expected.insert(index + 1, (kind or "code", source))
    else:
        expected[index] = (kind or expected[index][0], source)
    if len(actual) != len(expected):
        return f"it has {count_noun(len(actual), 'cell')}, not {len(expected)}"
    return next(
        (f"cell {n} differs" for n, (cell, other) in enumerate(zip(expected, actual, strict=True)) if cell != other), ""
    )


def _cell_index(wanted: str | None, cells: list[NotebookCell]) -> int:
    """Return the index of a cell by its id or number; -1 to insert at the top. Raises ValueError."""
    if wanted is None:
        return -1
    ids = [cell.id for cell in cells]
    return ids.index(wanted) if wanted in ids else int(wanted)


def _job_added(arguments: _Arguments, before: Mapping[str, StoredJob], after: Mapping[str, StoredJob]) -> str:
    message = redact_known(str(arguments.get("message") or ""))
    new = [job for job_id, job in after.items() if job_id not in before and job.message == message]
    if not new:
        return _JOB_MISSING
    return "" if any(job.enabled and job.next_run_at_ms is not None for job in new) else "it is in there, without a run"


def _job_changed(arguments: _Arguments, after: Mapping[str, StoredJob]) -> str:
    action, job = str(arguments["action"]), after.get(str(arguments.get("job_id")))
    if action == "remove":
        return "the job is still in there" if job is not None else ""
    if job is None:
        return _JOB_MISSING
    if job.enabled != (action == "enable"):
        return f"the job is switched {'on' if job.enabled else 'off'}"
    return "it has no next run" if job.enabled and job.next_run_at_ms is None else ""


def _with_lf(text: str) -> str:
    return text.replace("\r\n", "\n")


def _describe_difference(expected: bytes, actual: bytes | None) -> str:
    if actual is None:
        return _MISSING
    if actual == expected:
        return ""
    size = f"it has {count_noun(len(actual), 'byte')}, not {len(expected)}; " if len(actual) != len(expected) else ""
    lines, actual_lines = expected.split(b"\n"), actual.split(b"\n")
    pairs = enumerate(zip(lines, actual_lines, strict=False))
    same = next((n for n, (line, other) in pairs if line != other), min(len(lines), len(actual_lines)))
    return f"{size}it differs from line {same + 1} on"


_COMPARISONS: Mapping[str, _Comparison] = {
    "write_file": _compare_file,
    "edit_file": _compare_edit,
    "notebook_edit": _compare_cells,
}
