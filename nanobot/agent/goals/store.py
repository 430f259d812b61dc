"""Goals on disk: a small file a session, with the one it works at or has worked at last.

Whoever works at it holds the lock beside it; when that process dies the system lets go, and another one may go on.
"""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from nanobot.agent.goals.goal import Goal
from nanobot.session.stems import other_stem_of
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import sound_json

log = logging.getLogger(__name__)


class GoalStore:
    """The goals of a bot. Its methods block, and raise OSError where the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def is_there(self) -> bool:
        """Whether there has ever been a goal."""
        return self._folder.is_dir()

    def has(self, session_key: str) -> bool:
        """Whether this session has ever had one. A stat."""
        return self._file_of(session_key).is_file()

    def load(self, session_key: str) -> Goal | None:
        """The last goal of this session; None where it never had one. One that cannot be read is put aside."""
        return self._read(self._file_of(session_key))

    def save(self, goal: Goal) -> None:
        """Put it on the disk as it is now."""
        make_private_folder(self._folder)
        write_atomic(self._file_of(goal.session_key), sound_json(goal.to_json()))

    def forget(self, session_key: str) -> None:
        """Delete it. Harmless where there is none."""
        self._file_of(session_key).unlink(missing_ok=True)

    def all(self) -> list[Goal]:
        """The goals of all sessions, oldest first."""
        found = [self._found(path) for path in self._folder.glob("*.json")] if self.is_there else []
        return sorted((goal for goal in found if goal is not None), key=lambda goal: goal.created_at)

    def lock_of(self, session_key: str) -> ProcessLock:
        """Held by who works at it."""
        return ProcessLock(self._file_of(session_key).with_suffix(".lock"))

    def _file_of(self, session_key: str) -> Path:
        return self._folder / f"{other_stem_of(session_key)}.json"

    def _found(self, path: Path) -> Goal | None:
        """One of many: where the disk refuses it, the others are there all the same."""
        try:
            return self._read(path)
        except OSError as error:
            log.warning("the goal in %s cannot be read: %s", path, error)
            return None

    def _read(self, path: Path) -> Goal | None:
        try:
            return Goal.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            log.warning("the goal in %s cannot be read; it is kept as %s.corrupt: %r", path, path.name, error)
            with suppress(OSError):
                os.replace(path, path.with_name(f"{path.name}.corrupt"))
            return None
