"""The folder of a workspace's sessions: which file belongs to which key, and the archive beside them.

A key asks for the stem of its name; where another key has that file, or was promised it, the later one gets another.
"""

import os
import shutil
from collections.abc import Iterator
from datetime import datetime
from glob import escape
from pathlib import Path

from nanobot.session.records import owner_of
from nanobot.session.stems import other_stem_of, stem_of
from nanobot.utils.files import make_private_folder, sync_folder
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal


class SessionFolder:
    """The files of all sessions. `old` is where earlier releases kept them: each is moved here on first use."""

    def __init__(self, workspace: Path | str, old: Path | None = None) -> None:
        self.path = Path(workspace).expanduser() / "sessions"
        self.write_lock = self.path / ".locks" / "write.lock"
        """Held by whoever writes, in any process, for that moment."""
        self._archive = self.path / "archive"
        self._old = old
        self._promised: dict[str, str] = {}

    def file_of(self, key: str) -> Path:
        """The file of a key, there or not; its name is the key's own from now on. Raises StorageError."""
        path = self._choose(key)
        self._promised[path.stem.casefold()] = key
        return path

    def turn_lock_of(self, key: str) -> Path:
        """What a turn of this key holds."""
        return self.write_lock.with_name(f"{self.file_of(key).stem}.lock")

    def find(self, key_or_stem: str) -> Path | None:
        """The file of a live session by its key, or of any session by the stem of its file."""
        path = self._choose(key_or_stem)
        if path.is_file():
            return path
        return next((path for path, _ in self.files() if path.stem == key_or_stem), None)

    def files(self) -> Iterator[tuple[Path, bool]]:
        """Every file, and whether it is archived. Raises StorageError."""
        places = [(self.path, False), (self._archive, True)]
        if self._old is not None and self._old != self.path:
            places.append((self._old, False))
        seen = set()
        for folder, archived in places:
            try:
                there = [path for path in sorted(folder.glob("*.jsonl")) if path.is_file()] if folder.is_dir() else []
            except OSError as error:
                raise refusal(f"{folder} cannot be read", error) from error
            for path in there:
                if (path.name, archived) not in seen:
                    seen.add((path.name, archived))
                    yield path, archived

    def lost_to_another(self, path: Path, key: str) -> bool:
        """Whether another process gave this name to another key since it was promised here."""
        owner = owner_of(path)
        if owner in {None, key}:
            return False
        self._promised[path.stem.casefold()] = str(owner)
        return True

    def to_archive(self, path: Path) -> Path | None:
        """Move a file to the archive. Where it went, None if there was nothing. Raises OSError."""
        if not path.exists():
            return None
        with locked(self.write_lock):
            target = self._free_place(path)
            os.replace(path, target)
            sync_folder(target.parent)
            sync_folder(path.parent)
        return target

    def copy_to_archive(self, path: Path) -> None:
        """The same, with the file left where it is for who replaces it. Raises OSError."""
        target = self._free_place(path)
        try:
            os.link(path, target)
        except OSError:  # no links on this file system
            shutil.copy2(path, target)

    def sweep(self, path: Path) -> None:
        """Remove what a process killed in the middle of replacing this file left. Only under the write lock."""
        for stray in self.path.glob(f".{escape(path.name[:80])}.*.tmp"):
            stray.unlink()

    def _choose(self, key: str) -> Path:
        path = self.path / f"{stem_of(key)}.jsonl"
        other = self.path / f"{other_stem_of(key)}.jsonl"
        try:
            if self._is_taken(path, key) or (other.exists() and not path.exists()):
                path = other
            if self._old is not None and not path.exists():
                self._fetch(self._old / path.name, path, key)
        except OSError as error:
            raise refusal(f"Session {key} cannot be opened", error) from error
        return path

    def _is_taken(self, path: Path, key: str) -> bool:
        """Whether another key has this file, or, where there is none yet, was promised its name."""
        promised = self._promised.get(path.stem.casefold())
        if promised == key:
            return False
        owner = owner_of(path) if path.exists() else promised
        return owner not in {None, key}

    def _fetch(self, old: Path, path: Path, key: str) -> None:
        if old.is_file() and owner_of(old) in {None, key}:
            try:
                make_private_folder(path.parent)
                shutil.move(old, path)
            except OSError as error:
                raise refusal(f"{old} could not be moved to {path}", error) from error

    def _free_place(self, path: Path) -> Path:
        """A name in the archive that nobody has: the file's own with the time behind it."""
        make_private_folder(self._archive)
        stem = f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}.jsonl", *(f"{stem}-{number}.jsonl" for number in range(2, 10_000)))
        return next(place for name in names if not (place := self._archive / name).exists())
