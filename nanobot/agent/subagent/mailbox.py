"""Messages between subagents of one goal: one append-only file of lines per goal.

A message is synced before its sender learns that it was sent. What was read is recorded in the readers' sessions, by
message key.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanobot.messages.types import Provenance, least_trusted
from nanobot.utils.files import (
    make_private_folder,
    missing_newline,
    open_for_append,
    sync_data,
    sync_folder,
    write_whole,
)
from nanobot.utils.text import json_objects, strict_json

_KEY = "letter:"


@dataclass(frozen=True, slots=True)
class TeamMessage:
    """A message from one subagent to others of the same goal."""

    id: str
    by: str
    """Id of the sender's task."""
    label: str
    """Label of the sender's task."""
    to: tuple[str, ...]
    """Ids of the recipients' tasks."""
    text: str
    provenance: Provenance
    """The least trusted content it may derive from."""

    @property
    def journal_key(self) -> str:
        """Key of its row in the readers' sessions, so that it is read once."""
        return f"{_KEY}{self.id}"

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TeamMessage":
        """Parse a stored message. Raises KeyError or TypeError if it is invalid."""
        to, provenance = tuple(map(str, data["to"])), least_trusted([str(data["provenance"])])
        return cls(str(data["id"]), str(data["by"]), str(data["label"]), to, str(data["text"]), provenance)


def is_team_message(journal_key: str | None) -> bool:
    return journal_key is not None and journal_key.startswith(_KEY)


class TeamMailbox:
    """The messages of all goals. Methods block and raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def messages(self, goal: str) -> list[TeamMessage]:
        """Return the goal's messages, oldest first. A truncated line is ignored: its sender never got a
        confirmation.
        """
        try:
            content = self._file_of(goal).read_bytes()
        except FileNotFoundError:
            return []
        messages = []
        for data in json_objects(content):
            with suppress(KeyError, TypeError):
                messages.append(TeamMessage.from_json(data))
        return messages

    def add(self, goal: str, message: TeamMessage) -> None:
        """Append and sync a message. On an error nothing is added."""
        path = self._file_of(goal)
        make_private_folder(self._folder)
        is_new = not path.exists()
        descriptor = open_for_append(path)
        try:
            end = os.fstat(descriptor).st_size
            try:
                write_whole(descriptor, missing_newline(descriptor) + strict_json(asdict(message)).encode() + b"\n")
                sync_data(descriptor)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(descriptor, end)
                raise
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self._folder)

    def sweep(self, *, before: float, but_for: Collection[str] = ()) -> None:
        """Delete files not written since `before`, except those of these goals. Never raises."""
        for path in self._folder.glob("*.jsonl") if self._folder.is_dir() else ():
            with suppress(OSError):
                if path.stem not in but_for and path.stat().st_mtime < before:
                    path.unlink()

    def _file_of(self, goal: str) -> Path:
        return self._folder / f"{goal}.jsonl"
