"""The history of runs, as JSON lines beside jobs.json: ran, skipped with a reason, or failed with an error.

Two files: when the current one is full, it replaces the older one.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from nanobot.utils.files import missing_newline, sync_data, sync_folder, write_whole
from nanobot.utils.open_no_follow import open_own, read_own, rename_own
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import json_objects

Outcome = Literal["ran", "skipped", "failed"]
_FULL_BYTES = 2_000_000


class HistoryRow(TypedDict):
    """The result of one due instant; with `count` above 1, of all instants up to `untilMs`."""

    jobId: str
    name: str
    dueAtMs: int
    outcome: Outcome
    trigger: Literal["schedule", "manual", "retry"]
    runAtMs: NotRequired[int]
    durationMs: NotRequired[int]
    lateMs: NotRequired[int]
    reason: NotRequired[str]
    untilMs: NotRequired[int]
    count: NotRequired[int]


class History:
    """The history files of a folder. Callers of `append` hold the store's lock. Methods raise StorageError."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "history.jsonl"
        self._older = folder / "history.old.jsonl"

    def append(self, rows: Sequence[HistoryRow]) -> None:
        """Append rows durably."""
        if not rows:
            return
        lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
        try:
            with suppress(FileNotFoundError):
                if self._path.stat().st_size > _FULL_BYTES:
                    rename_own(self._path, self._older)
            descriptor = open_own(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            try:
                is_new = os.fstat(descriptor).st_size == 0
                write_whole(descriptor, missing_newline(descriptor) + lines.encode("utf-8", "backslashreplace"))
                sync_data(descriptor)
                if is_new:
                    sync_folder(self._path.parent)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be written", error) from error

    def rows(self, job_id: str | None = None) -> list[HistoryRow]:
        """All rows, or those of one job, oldest first. Damaged lines are skipped."""
        try:
            data = b"\n".join(read_own(path) for path in (self._older, self._path) if path.exists())
        except OSError as error:
            raise storage_error(f"{self._path} cannot be read", error) from error
        rows = [cast("HistoryRow", row) for row in json_objects(data) if _is_row(row)]
        return [row for row in rows if job_id is None or row["jobId"] == job_id]


def _is_row(row: dict[str, object]) -> bool:
    return (
        isinstance(row.get("jobId"), str)
        and isinstance(row.get("name"), str)
        and row.get("outcome") in ("ran", "skipped", "failed")
        and all(type(row.get(key, 0)) is int for key in ("runAtMs", "durationMs", "lateMs", "untilMs", "count"))
        and type(row.get("dueAtMs")) is int
    )
