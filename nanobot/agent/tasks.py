"""Tasks: what subagents were asked to do, and how it ended; a small file each, so that no crash loses one.

A task lies open until its end was reported, then among the done ones. The process that works on open tasks holds the
lock of its life; when it dies, the system lets go of it, and another process may take its tasks on.
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

from nanobot.agent.roles import Role
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.base import SUBAGENT_SESSION
from nanobot.bus.events import Address
from nanobot.messages.types import Origin, Provenance
from nanobot.utils.files import make_private_folder, sweep_all_temps, sweep_temps, write_atomic
from nanobot.utils.locks import ProcessLock
from nanobot.utils.text import sound_json

log = logging.getLogger(__name__)

_FORGOTTEN_S = 3600.0
"""After so long, what no task tells of belongs to a life that was killed."""


class TaskState(StrEnum):
    """How far a task is. Set by code, never by what a model says of itself."""

    WAITING = "waiting"
    """Others run; it is its turn when they have ended."""
    RUNNING = "running"
    DONE = "done"
    LIMIT = "limit"
    """It came to its limit of steps, time or money."""
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more."""
        return self not in (TaskState.WAITING, TaskState.RUNNING)


@dataclass(slots=True)
class Task:
    """One task. What is said of the parent is as it was when the parent asked."""

    id: str
    task: str
    label: str
    parent: str
    """The session that asked, and is told."""
    address: Address
    asker: Provenance = Provenance.OWNER
    """How far the words are trusted that the task came of."""
    origin: Origin = Origin.CLI
    """Why the turn existed that asked."""
    sender_id: str | None = None
    attended: bool = False
    scope: Scope = OWNERS
    turn_id: str = ""
    root: str = ""
    """The session at the top, where a subagent asked; else the parent."""
    depth: int = 1
    quiet: bool = False
    """Whether nothing of the turn that asked is sent to anybody, nor of the report then."""
    waited: bool = False
    """Whether the turn that asked waits for the result."""
    life: str = ""
    """The life of a process that works on it."""
    state: TaskState = TaskState.WAITING
    created_at: float = 0.0
    began_at: float | None = None
    ended_at: float | None = None
    tries: int = 0
    cost_usd: float | None = None
    tokens: int = 0
    result: str = ""
    seen: Provenance = Provenance.TOOL
    """The least trusted words that the subagent has seen."""
    reported: bool = False
    role: Role = Role.WORKER
    goal: str = ""
    """The goal that a turn worked for which asked, by its id."""

    @property
    def session_key(self) -> str:
        """The subagent's own session: its transcript."""
        return f"{SUBAGENT_SESSION}{self.id}"

    @property
    def journal_key(self) -> str:
        """What the report is known by, so that it comes once."""
        return f"{SUBAGENT_SESSION}{self.id}:report"

    def to_json(self) -> dict[str, Any]:
        """The task as JSON keeps it."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        here = self.address
        return told | {"address": [here.channel, here.chat_id, here.thread_id], "scope": self.scope.chat}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> "Task":
        """The task back. Raises ValueError, TypeError or KeyError where it is none."""
        known = {one.name for one in fields(cls)}
        given = {name: value for name, value in told.items() if name in known}
        given["address"] = Address(*told["address"])
        given["scope"] = Scope(str(told.get("scope", "")))
        kinds = {"asker": Provenance, "seen": Provenance, "origin": Origin, "state": TaskState, "role": Role}
        return cls(**given | {name: kind(told[name]) for name, kind in kinds.items() if name in told})


class TaskStore:
    """The tasks on disk. Its methods block, and raise OSError where the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self._open = folder
        self._done = folder / "done"
        self._lives = folder / "lives"

    @property
    def is_there(self) -> bool:
        """Whether there has ever been a task."""
        return self._open.is_dir()

    def save(self, task: Task) -> None:
        """Put it on the disk as it is now; among the done ones, once it was reported."""
        place = self._done if task.reported else self._open
        make_private_folder(place)
        write_atomic(place / f"{task.id}.json", sound_json(task.to_json()))
        if task.reported:
            (self._open / f"{task.id}.json").unlink(missing_ok=True)

    def open_tasks(self) -> list[Task]:
        """Those that run, wait, or whose end nobody was told, oldest first."""
        return sorted(_tasks_in(self._open), key=lambda task: task.created_at)

    def done_tasks(self, *, since: float = 0.0) -> list[Task]:
        """Those whose end was told, oldest first; none that were filed before `since`."""
        return sorted(_tasks_in(self._done, since=since), key=lambda task: task.created_at)

    def sweep(self, *, before: float) -> list[str]:
        """Let go of what was done before, and of what lives left that were killed; the sessions of these tasks."""
        self._sweep_lives()
        for place in (self._open, self._done):
            sweep_all_temps(place, older_than_s=_FORGOTTEN_S)
        gone = []
        for path in self._done.glob("*.json") if self._done.is_dir() else ():
            with suppress(OSError):
                if path.stat().st_mtime < before:
                    path.unlink()
                    gone.append(f"{SUBAGENT_SESSION}{path.stem}")
        return gone

    def sweep_half_saved(self, task: Task) -> None:
        """Delete what a kill left of the saves of this task. Only who has taken it on may. Never raises."""
        for place in (self._open, self._done):
            sweep_temps(place / f"{task.id}.json", older_than_s=0)

    def _sweep_lives(self) -> None:
        used = {task.life for task in self.open_tasks()}
        for path in self._lives.glob("*.lock") if self._lives.is_dir() else ():
            with suppress(OSError):
                is_old = time.time() - path.stat().st_mtime > _FORGOTTEN_S  # a young one may be about to be locked
                if is_old and path.stem not in used and not _is_alive(self, path.stem):
                    path.unlink()

    def lock_of(self, life: str) -> ProcessLock:
        """Held as long as that life lasts."""
        return ProcessLock(self._lives / f"{life}.lock")

    def forget_life(self, life: str) -> None:
        """It is over, and nothing is left of it."""
        with suppress(OSError):
            (self._lives / f"{life}.lock").unlink(missing_ok=True)


class Life:
    """The life of this process: its lock, and the tasks it takes over from lives that have ended."""

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.name = secrets.token_hex(6)
        self._lock = store.lock_of(self.name)
        self._held = False

    def begin(self) -> None:
        """Hold the lock from here on. Blocks; raises OSError."""
        if not self._held:
            self._held = self._lock.try_acquire()

    def end(self) -> None:
        """Let go: what is open may be taken over."""
        if self._held:
            if all(task.life != self.name for task in self._store.open_tasks()):
                self._store.forget_life(self.name)  # else who inherits needs the lock to be the only one who does
            self._lock.release()
            self._held = False

    def inherit(self, parent: str | None = None) -> list[Task]:
        """The open tasks of lives that have ended, of one parent or of all: they are ours now. Blocks; raises OSError.

        Two that try it at once do not get the same task.
        """
        self.begin()
        inherited: list[Task] = []
        lives = {task.life for task in self._wanted(parent)} - {self.name}
        for life in sorted(lives):
            lock = self._store.lock_of(life)
            if not lock.try_acquire():
                continue
            try:
                for task in [task for task in self._wanted(parent) if task.life == life]:
                    task.life = self.name
                    self._store.sweep_half_saved(task)
                    self._store.save(task)
                    inherited.append(task)
                if all(task.life != life for task in self._store.open_tasks()):
                    self._store.forget_life(life)
            finally:
                lock.release()
        return inherited

    def _wanted(self, parent: str | None) -> Iterable[Task]:
        return [task for task in self._store.open_tasks() if parent is None or parent in (task.parent, task.root)]


def _tasks_in(folder: Path, *, since: float = 0.0) -> Iterator[Task]:
    for path in folder.glob("*.json") if folder.is_dir() else ():
        try:
            if path.stat().st_mtime < since:
                continue
            yield Task.from_json(json.loads(path.read_bytes()))
        except FileNotFoundError:  # it was filed meanwhile
            continue
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.warning("the task in %s cannot be read; it is kept as %s.corrupt: %r", path, path.name, error)
            with suppress(OSError):
                os.replace(path, path.with_name(f"{path.name}.corrupt"))


def counts_of(folder: Path) -> tuple[int, int]:
    """How many tasks run and how many wait, as far as the disk knows: those of a life that has ended do neither."""
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
