"""What became of each instant, in lines beside jobs.json: ran, skipped with the reason, or failed with the error.

Written once, kept in two files: when the first is full it takes the place of the second.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NotRequired, TypedDict, cast

from nanobot.utils.files import line_end, open_lines, sync_data, write_whole
from nanobot.utils.text import json_objects

Outcome = Literal["ran", "skipped", "failed"]
_FULL_BYTES = 2_000_000


class HistoryRow(TypedDict):
    """How one instant of a job ended; where `count` is above 1, all of them up to `untilMs`."""

    jobId: str
    name: str
    dueAtMs: int
    outcome: Outcome
    trigger: Literal["schedule", "manual"]
    runAtMs: NotRequired[int]
    durationMs: NotRequired[int]
    lateMs: NotRequired[int]
    reason: NotRequired[str]
    untilMs: NotRequired[int]
    count: NotRequired[int]


class History:
    """The two files of a folder. Who appends holds the store's lock."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "history.jsonl"
        self._older = folder / "history.old.jsonl"

    def append(self, rows: Sequence[HistoryRow]) -> None:
        """Add rows, seen to the disk. Raises OSError."""
        if not rows:
            return
        with suppress(FileNotFoundError):
            if self.path.stat().st_size > _FULL_BYTES:
                os.replace(self.path, self._older)
        lines = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
        descriptor = open_lines(self.path)
        try:
            write_whole(descriptor, line_end(descriptor) + lines.encode("utf-8", "backslashreplace"))
            sync_data(descriptor)
        finally:
            os.close(descriptor)

    def rows(self, job_id: str | None = None) -> list[HistoryRow]:
        """All that is kept, the oldest first; of one job, where it is named. Damaged lines are passed over.

        Raises OSError.
        """
        found = [row for path in (self._older, self.path) if path.exists() for row in json_objects(path.read_bytes())]
        sound = [cast("HistoryRow", row) for row in found if _is_row(row)]
        return [row for row in sound if job_id is None or row["jobId"] == job_id]


def _is_row(row: dict[str, object]) -> bool:
    return (
        isinstance(row.get("jobId"), str)
        and isinstance(row.get("name"), str)
        and row.get("outcome") in ("ran", "skipped", "failed")
        and all(type(row.get(key, 0)) is int for key in ("runAtMs", "durationMs", "lateMs", "untilMs", "count"))
        and type(row.get("dueAtMs")) is int
    )
