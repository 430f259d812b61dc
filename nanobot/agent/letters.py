"""Letters on disk: what subagents of one goal have told each other, a file of lines a goal that only grows.

A letter is on the disk before who wrote it hears that it was sent. Who has read which is not kept here: the rows of the
reader's own session say it, by the key of each letter.
"""

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanobot.messages.types import Provenance, least_trusted
from nanobot.utils.files import line_end, make_private_folder, open_lines, sync_data, sync_folder, write_whole
from nanobot.utils.text import json_objects, sound_json

_KEY = "letter:"


@dataclass(frozen=True, slots=True)
class Letter:
    """A few words of one subagent to others of the same goal."""

    id: str
    by: str
    """The task whose subagent wrote it."""
    label: str
    """What that task is called."""
    to: tuple[str, ...]
    """The tasks that are meant."""
    text: str
    provenance: Provenance
    """The least trusted words that it may be made of."""

    @property
    def journal_key(self) -> str:
        """What its row is known by in the session of each who reads it, so that it is read once."""
        return f"{_KEY}{self.id}"

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Letter":
        """The letter back. Raises KeyError or TypeError where it is none."""
        to, words = tuple(map(str, told["to"])), least_trusted([str(told["provenance"])])
        return cls(str(told["id"]), str(told["by"]), str(told["label"]), to, str(told["text"]), words)


def is_letter(journal_key: str | None) -> bool:
    """Whether what is known by this key is one."""
    return journal_key is not None and journal_key.startswith(_KEY)


class LetterBox:
    """The letters of all goals. Its methods block, and raise OSError where the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def letters(self, goal: str) -> list[Letter]:
        """Those of this goal, oldest first. A line that a crash cut off is none: nobody heard that it was sent."""
        try:
            data = self._file_of(goal).read_bytes()
        except FileNotFoundError:
            return []
        found = []
        for told in json_objects(data):
            with suppress(KeyError, TypeError):
                found.append(Letter.from_json(told))
        return found

    def add(self, goal: str, letter: Letter) -> None:
        """One more, on the disk when this returns; where it raises there is none more."""
        path = self._file_of(goal)
        make_private_folder(self._folder)
        is_new = not path.exists()
        descriptor = open_lines(path)
        try:
            end = os.fstat(descriptor).st_size
            try:
                write_whole(descriptor, line_end(descriptor) + sound_json(asdict(letter)).encode() + b"\n")
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
        """Let go of those of goals in which nothing was written since, but for these goals. Never raises."""
        for path in self._folder.glob("*.jsonl") if self._folder.is_dir() else ():
            with suppress(OSError):
                if path.stem not in but_for and path.stat().st_mtime < before:
                    path.unlink()

    def _file_of(self, goal: str) -> Path:
        return self._folder / f"{goal}.jsonl"
