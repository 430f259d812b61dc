"""Goals on disk: one small file per session, holding its current or last goal.

The process that works on a goal holds the lock file beside it. The system releases it when the process dies.
"""

import json
import logging
import os
from contextlib import suppress
from pathlib import Path

from nanobot.agent.goals.goal import Goal
from nanobot.session.file_names import hashed_stem
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import strict_json

log = logging.getLogger(__name__)


class GoalStore:
    """The goals of a bot. Methods block and raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def exists(self) -> bool:
        """Whether there has ever been a goal."""
        return self._folder.is_dir()

    def has(self, session_key: str) -> bool:
        """Whether this session has ever had a goal. Costs one stat."""
        return self._file_of(session_key).is_file()

    def load(self, session_key: str) -> Goal | None:
        """Return the session's last goal, or None. An unreadable file is renamed to `.corrupt`."""
        return self._read(self._file_of(session_key))

    def save(self, goal: Goal) -> None:
        make_private_folder(self._folder)
        write_atomic(self._file_of(goal.session_key), strict_json(goal.to_json()))

    def forget(self, session_key: str) -> None:
        """Delete the session's goal, if any."""
        self._file_of(session_key).unlink(missing_ok=True)

    def all(self) -> list[Goal]:
        """Return the goals of all sessions, oldest first."""
        goals = [self._read_or_log(path) for path in self._folder.glob("*.json")] if self.exists else []
        return sorted((goal for goal in goals if goal is not None), key=lambda goal: goal.created_at)

    def lock_of(self, session_key: str) -> ProcessLock:
        """Return the lock held by the process that works on the session's goal."""
        return ProcessLock(self._file_of(session_key).with_suffix(".lock"))

    def _file_of(self, session_key: str) -> Path:
        return self._folder / f"{hashed_stem(session_key)}.json"

    def _read_or_log(self, path: Path) -> Goal | None:
        """Read one of several goals. An unreadable one must not hide the others."""
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
