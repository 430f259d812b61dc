"""The folder of a workspace's sessions: which file belongs to which key, and the archive.

A key gets the file named after it, or a name with a hash if another key has that file. Old files of the archive are in
`archive/YYYY-MM.zip`, one for each month, unchanged; one that somebody asks for is taken out again.
"""

import codecs
import errno
import logging
import os
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from glob import escape
from io import BytesIO
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from nanobot.session.file import owner_of
from nanobot.session.file_format import hashed_stem, stem_of
from nanobot.utils.locks import ProcessLock, file_lock
from nanobot.utils.open_no_follow import move_in, open_own, own_folder, read_own, rename_own, replace_own, unlink_own
from nanobot.utils.storage_error import storage_errors

if TYPE_CHECKING:
    from zipfile import ZipFile, ZipInfo

log = logging.getLogger(__name__)


class SessionFolder:
    """The files of all sessions. Sessions of earlier releases are moved here from `old` on first use.

    Paths are resolved and files are opened without following links, since a command may create links in the workspace.
    """

    def __init__(self, workspace: Path | str, old: Path | None = None) -> None:
        self.path = Path(os.path.realpath(Path(workspace).expanduser())) / "sessions"
        self.write_lock = self.path / ".locks" / "write.lock"
        self._archive = self.path / "archive"
        self._old = None if old is None else Path(os.path.realpath(old))
        self._reserved: dict[str, str] = {}
        """The keys of this process by the names of their files, which may not exist yet."""

    def file_of(self, key: str) -> Path:
        """Return the file of a key, existing or not, and reserve its name for the key. Raises StorageError."""
        path = self._choose(key)
        self._reserved[path.stem.casefold()] = key
        return path

    def claim(self, path: Path, key: str) -> Path:
        """Return the file to create for a key that reserved `path`: another process may have created that meanwhile."""
        self._reserved.pop(path.stem.casefold(), None)
        return self.file_of(key)

    def write_locked(self) -> AbstractContextManager[None]:
        """Lock against writers in all processes, for the time of one write. Raises OSError."""
        return file_lock(self.write_lock, open_own)

    def turn_lock(self, key: str) -> ProcessLock:
        """Return the lock held during a turn of this key."""
        return ProcessLock(self.write_lock.with_name(f"{self.file_of(key).stem}.lock"), open_own)

    def find(self, key_or_stem: str) -> Path | None:
        """Return the file of a live session by its key, or of any session by its file stem; None if there is none."""
        path = self._choose(key_or_stem)
        if path.is_file():
            return path
        return next((path for path, _ in self.files() if path.stem == key_or_stem), None) or self._unpack(key_or_stem)

    def archived(self, stem: str) -> Path | None:
        """Return the archived file of this stem, None if there is none. Raises StorageError."""
        path = self._archive / f"{stem}.jsonl"
        return path if path.is_file() else self._unpack(stem)

    def files(self) -> Iterator[tuple[Path, bool]]:
        """Yield every file, and whether it is archived. Raises StorageError."""
        seen = set()
        for folder in filter(None, (self.path, self._archive, self._old)):
            archived = folder == self._archive
            with storage_errors(f"{folder} cannot be read"):
                paths = [path for path in sorted(folder.glob("*.jsonl")) if path.is_file()] if folder.is_dir() else []
            for path in paths:
                if (path.name, archived) not in seen:
                    seen.add((path.name, archived))
                    yield path, archived

    def convert_utf16(self, path: Path) -> Path | None:
        """Convert a file that an editor saved in UTF-16 to UTF-8. Return the copy of the original, None for others.

        Raises OSError.
        """
        with self.write_locked():
            data = read_own(path)
            for encoding, mark in (("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE)):
                if data.removeprefix(mark).startswith('{"'.encode(encoding)):
                    copy = path.with_name(f"{path.name}.utf-16")
                    replace_own(copy, data)
                    replace_own(path, data.decode(encoding, "replace").removeprefix("\ufeff"))
                    return copy
        return None

    # --- the archive

    def move_to_archive(self, path: Path) -> Path | None:
        """Move a file to the archive. Return its new path, None if there was no file. Raises OSError."""
        if not path.exists():
            return None
        with self.write_locked():
            target = self._free_path(path)
            rename_own(path, target)
        return target

    def move_from_archive(self, archived: Path, path: Path) -> None:
        """Move an archived file to the place of a live session, which must be free. Raises OSError."""
        with self.write_locked():
            if path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            rename_own(archived, path)

    def copy_to_archive(self, path: Path) -> None:
        """Put a copy into the archive, for a caller that replaces the file. Raises OSError."""
        replace_own(self._free_path(path), read_own(path))

    def pack(self, month: str, paths: list[Path]) -> None:
        """Move archived files into the archive of a month, such as `2026-10`. Raises OSError.

        After a crash a file may be in both; the next call puts that right.
        """
        with self.write_locked():
            contents = {path.name: read_own(path) for path in paths}
            _rewrite(self._archive / f"{month}.zip", leave_out=contents, add=contents)
            for path in paths:
                unlink_own(path)

    def packed(self, prefix: str = "") -> Iterator[tuple[Path, "ZipInfo"]]:
        """Yield the files in the archives of the months whose names begin like this, each with its archive. Archives
        that cannot be read are left out.
        """
        for path in sorted(self._archive.glob("*.zip")):
            try:
                with open_packed(path) as packed:
                    members = {info.filename: info for info in packed.infolist()}
            except OSError as error:
                log.warning("%s cannot be read: %s", path, error)
                continue
            for name, info in members.items():
                if name.startswith(prefix) and name.endswith(".jsonl") and Path(name).name == name:
                    yield path, info

    def discard_packed(self, stem: str) -> None:
        """Delete a file from the archive of its month, if it is in one. Requires the write lock. Raises OSError."""
        name = f"{stem}.jsonl"
        for path in {path for path, info in self.packed(name) if info.filename == name}:
            _rewrite(path, leave_out={name})

    def _unpack(self, stem: str) -> Path | None:
        """Take a file out of the archive of its month. Return its path, None if it is in none. Raises StorageError."""
        name = f"{stem}.jsonl"
        source = next((path for path, info in self.packed(name) if info.filename == name), None)
        if source is None:
            return None
        with storage_errors(f"{name} cannot be taken out of {source}"), self.write_locked():
            with open_packed(source) as packed:
                replace_own(self._archive / name, packed.read(name))
            self.discard_packed(stem)
        return self._archive / name

    def sweep(self, path: Path) -> None:
        """Remove temporary files of a process killed while replacing this file. Requires the write lock."""
        for stray in self.path.glob(f".{escape(path.name[:80])}.*.tmp"):
            stray.unlink()

    def _choose(self, key: str) -> Path:
        """Return the file of a key: the one named after it, or one with a hash if that belongs to another key."""
        path, other = (self.path / f"{stem}.jsonl" for stem in (stem_of(key), hashed_stem(key)))
        with storage_errors(f"Session {key} cannot be opened"):
            exists, owner = path.exists(), self._reserved.get(path.stem.casefold())
            if owner != key:
                owner = (owner_of(path) if exists else None) or owner or key
            if owner != key or (not exists and other.exists()):
                return other
            if not exists and self._old is not None:
                old = self._old / path.name
                if old.is_file() and owner_of(old) in {None, key}:
                    with storage_errors(f"{old} could not be moved to {path}"):
                        move_in(old, path)
        return path

    def _free_path(self, path: Path) -> Path:
        """Return an unused path in the archive: the file's name with the time appended."""
        with own_folder(self._archive):
            pass
        stem = f"{path.stem}-{datetime.now():%Y%m%d-%H%M%S}"
        names = (f"{stem}{f'-{number}' if number > 1 else ''}.jsonl" for number in count(1))
        return next(target for name in names if not (target := self._archive / name).exists())


@contextmanager
def open_packed(path: Path) -> "Iterator[ZipFile]":
    """Open the archive of a month to read it. Raises OSError, also for what is damaged, encrypted or not in it."""
    from zipfile import BadZipFile, ZipFile  # most processes never read one

    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file, ZipFile(file) as packed:
            yield packed
    except (BadZipFile, KeyError, RuntimeError, zlib.error) as error:
        raise OSError(errno.EINVAL, str(error), str(path)) from error


def _rewrite(path: Path, *, leave_out: Collection[str], add: Mapping[str, bytes] = MappingProxyType({})) -> None:
    """Write the archive of a month without some files and with others, or delete it if none is left. Raises OSError."""
    from zipfile import ZIP_DEFLATED, ZipFile

    data = BytesIO()
    with ZipFile(data, "w", ZIP_DEFLATED) as new:
        if path.exists():
            with open_packed(path) as old:
                for info in old.infolist():
                    if info.filename not in leave_out:
                        new.writestr(info, old.read(info))
        for name, content in add.items():
            new.writestr(name, content)
        is_empty = not new.infolist()
    if is_empty:
        unlink_own(path)
    else:
        replace_own(path, data.getvalue())
