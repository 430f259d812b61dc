"""Tasks on disk: what subagents were asked to do and how it ended, one small file each. The fields are its keys.

A task stays open until its end was reported; then it moves to `done/`. A process that works on open tasks holds the
lock of its lease. When it dies the system releases the lock, and another process may take over its tasks.
"""

import json
import logging
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.bus.events import Address
from nanobot.messages.types import Origin, Provenance
from nanobot.utils.files import make_private_folder, remove_all_stale_temps, remove_stale_temps, write_atomic
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import strict_json

log = logging.getLogger(__name__)

_ORPHAN_AGE_S = 3600.0
"""Age after which unreferenced files belong to a killed process."""


class TaskState(StrEnum):
    """The state of a task. Set by code, never from a model's claim alone."""

    WAITING = "waiting"
    """Waits for a free slot."""
    RUNNING = "running"
    DONE = "done"
    LIMIT = "limit"
    """Reached its limit of steps, time or money."""
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        return self not in (TaskState.WAITING, TaskState.RUNNING)


@dataclass(slots=True)
class Task:
    """One task. The facts about the parent are those of the time it asked."""

    id: str
    task: str
    label: str
    parent: str
    """The session that started it and gets the report."""
    address: Address
    asker: Provenance = Provenance.OWNER
    """Provenance of the request."""
    origin: Origin = Origin.CLI
    """Origin of the turn that asked."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS
    turn_id: str = ""
    root: str = ""
    """The session at the top if a subagent asked, else the parent."""
    depth: int = 1
    quiet: bool = False
    """Whether the turn that asked sends nothing; then the report is not sent either."""
    waited: bool = False
    """Whether the turn that asked waits for the result."""
    life: str = ""
    """The lease of the process that works on it."""
    state: TaskState = TaskState.WAITING
    created_at: float = 0.0
    began_at: float | None = None
    ended_at: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    result: str = ""
    seen: Provenance = Provenance.TOOL
    """The least trusted content the subagent read."""
    reported: bool = False
    role: TaskRole = TaskRole.WORKER
    goal: str = ""
    """Id of the goal whose turn asked, if any."""

    @property
    def session_key(self) -> str:
        """Session of the subagent, with its transcript."""
        return f"{SUBAGENT_SESSION}{self.id}"

    @property
    def journal_key(self) -> str:
        """Key of the report, so that it is delivered once."""
        return f"{SUBAGENT_SESSION}{self.id}:report"

    def to_json(self) -> dict[str, Any]:
        data = {field_info.name: getattr(self, field_info.name) for field_info in fields(self)}
        address = self.address
        return data | {"address": [address.channel, address.chat_id, address.thread_id], "scope": self.scope.chat}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Task":
        """Parse a stored task. Raises ValueError, TypeError or KeyError if it is invalid."""
        known = {field_info.name for field_info in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        values["address"] = Address(*data["address"])
        values["scope"] = Scope(str(data.get("scope", "")))
        converters = {"asker": Provenance, "seen": Provenance, "origin": Origin, "state": TaskState, "role": TaskRole}
        return cls(**values | {name: kind(data[name]) for name, kind in converters.items() if name in data})


class TaskStore:
    """The tasks on disk. Methods block and raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._open = folder
        self._done = folder / "done"
        self._lives = folder / "lives"

    @property
    def exists(self) -> bool:
        """Whether there has ever been a task."""
        return self._open.is_dir()

    def save(self, task: Task) -> None:
        """Save the task; a reported one moves to `done/`."""
        folder = self._done if task.reported else self._open
        make_private_folder(folder)
        write_atomic(folder / f"{task.id}.json", strict_json(task.to_json()))
        if task.reported:
            (self._open / f"{task.id}.json").unlink(missing_ok=True)

    def open_tasks(self) -> list[Task]:
        """Return the tasks that run, wait or are not reported yet, oldest first."""
        return sorted(_tasks_in(self._open), key=lambda task: task.created_at)

    def done_tasks(self, *, since: float = 0.0) -> list[Task]:
        """Return the reported tasks saved after `since`, oldest first."""
        return sorted(_tasks_in(self._done, since=since), key=lambda task: task.created_at)

    def sweep(self, *, before: float) -> list[str]:
        """Delete tasks done before this time and files of killed processes. Return the session keys of the tasks."""
        self._sweep_lives()
        for folder in (self._open, self._done):
            remove_all_stale_temps(folder, older_than_s=_ORPHAN_AGE_S)
        deleted = []
        for path in self._done.glob("*.json") if self._done.is_dir() else ():
            with suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    deleted.append(f"{SUBAGENT_SESSION}{path.stem}")
        return deleted

    def sweep_half_saved(self, task: Task) -> None:
        """Delete temporary files of this task. Only its new owner may call this. Never raises."""
        for folder in (self._open, self._done):
            remove_stale_temps(folder / f"{task.id}.json", older_than_s=0)

    def _sweep_lives(self) -> None:
        used = {task.life for task in self.open_tasks()}
        for path in self._lives.glob("*.lock") if self._lives.is_dir() else ():
            with suppress(OSError):
                is_old = time.time() - path.stat().st_mtime > _ORPHAN_AGE_S  # a new file may be about to be locked
                if is_old and path.stem not in used and not _is_alive(self, path.stem):
                    path.unlink()

    def lock_of(self, life: str) -> ProcessLock:
        """Return the lock that a process holds as long as it lives."""
        return ProcessLock(self._lives / f"{life}.lock")

    def delete_lock(self, life: str) -> None:
        """Delete the lock file of an ended process."""
        with suppress(OSError):
            (self._lives / f"{life}.lock").unlink(missing_ok=True)


class ProcessLease:
    """The lease of this process, and how it takes over tasks of dead processes."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.name = secrets.token_hex(6)
        self._lock = store.lock_of(self.name)
        self._is_held = False

    def begin(self) -> None:
        """Acquire the lease. Blocks; raises OSError."""
        if not self._is_held:
            self._is_held = self._lock.try_acquire()

    def end(self) -> None:
        """Release the lease; open tasks may then be taken over."""
        if self._is_held:
            if all(task.life != self.name for task in self._store.open_tasks()):
                self._store.delete_lock(self.name)  # else an heir needs the lock for exclusion
            self._lock.release()
            self._is_held = False

    def inherit(self, parent: str | None = None) -> list[Task]:
        """Take over and return the open tasks of dead processes, of one parent or all. Blocks; raises OSError.

        Two concurrent callers never get the same task.
        """
        self.begin()
        inherited: list[Task] = []
        lives = {task.life for task in self._open_tasks_of(parent)} - {self.name}
        for life in sorted(lives):
            lock = self._store.lock_of(life)
            if not lock.try_acquire():
                continue
            try:
                for task in [task for task in self._open_tasks_of(parent) if task.life == life]:
                    task.life = self.name
                    self._store.sweep_half_saved(task)
                    self._store.save(task)
                    inherited.append(task)
                if all(task.life != life for task in self._store.open_tasks()):
                    self._store.delete_lock(life)
            finally:
                lock.release()
        return inherited

    def _open_tasks_of(self, parent: str | None) -> Iterable[Task]:
        return [task for task in self._store.open_tasks() if parent is None or parent in (task.parent, task.root)]


def _tasks_in(folder: Path, *, since: float = 0.0) -> Iterator[Task]:
    for path in folder.glob("*.json") if folder.is_dir() else ():
        try:
            if path.stat().st_mtime < since:
                continue
            yield Task.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:  # moved to `done/` meanwhile
            continue
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the task in %s cannot be read; it is kept as %s.corrupt: %r", path, path.name, error)
            with suppress(OSError):
                os.replace(path, path.with_name(f"{path.name}.corrupt"))


def task_counts(folder: Path) -> tuple[int, int]:
    """Return how many tasks run and wait. Tasks of dead processes count as neither."""
    store = TaskStore(folder)
    tasks = [task for task in store.open_tasks() if not task.state.is_over]
    alive = {life for life in {task.life for task in tasks} if _is_alive(store, life)}
    living = [task.state for task in tasks if task.life in alive]
    return living.count(TaskState.RUNNING), living.count(TaskState.WAITING)


def _is_alive(store: TaskStore, life: str) -> bool:
    lock = store.lock_of(life)
    try:
        if not lock.try_acquire():
            return True
    except OSError:
        return False
    lock.release()
    return False
