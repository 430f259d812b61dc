"""The heartbeat service: when it checks HEARTBEAT.md, when it asks a model, and what it does with the decision.

While HEARTBEAT.md has an open task, a model is asked at every interval; without one a check costs a few system calls.
The model may name a later time: then it is asked earlier only if the file, a file that it names, or the day changes.
Decisions and recent runs are kept across restarts.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanobot.errors import BudgetExceededError, NanobotError
from nanobot.heartbeat.decision import HEARTBEAT, Decision, decision_prompt, is_heartbeat_ok, parse_decision
from nanobot.heartbeat.tasks import parse_tasks
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import CallContext, LLMProvider, call_context_scope
from nanobot.providers.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    QuotaExceededError,
)
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import open_nonblocking, write_in_place
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

SESSION = "heartbeat"
DEFAULT_INTERVAL_S = 30 * 60
_MAX_BYTES = 256 * 1024
_FILE_NAME = re.compile(r"[\w./~-]+\.\w{1,8}\b")
_MAX_WATCHED = 50
_MAX_RUNS = 5
_MAX_RUN_CHARS = 200
"""Limit of the description of a run in later prompts."""

_PERMANENT_ERRORS = (
    AuthenticationError,
    QuotaExceededError,
    ModelNotFoundError,
    InvalidRequestError,
    BudgetExceededError,
)
"""Errors that a retry does not fix."""

Execute = Callable[[str], Awaitable[str]]
"""Runs the tasks and returns the text of the result."""
Notify = Callable[[str], Awaitable[None]]
"""Sends the owner the result of a run, or why the heartbeat is paused."""

_PAUSED = """\
The heartbeat is paused since {time}: {error}
The open tasks of HEARTBEAT.md are not looked at meanwhile. It tries again tomorrow, when HEARTBEAT.md changes, or at \
the next start of the gateway."""


@dataclass(slots=True)
class _State:
    """The last decision and the recent runs, as stored in the state file."""

    fingerprint: str = ""
    asked_at: float = 0.0
    again_at: float | None = None
    runs: tuple[tuple[str, str], ...] = ()
    """(time, tasks), oldest first."""


class HeartbeatService:
    """Checks HEARTBEAT.md at intervals."""

    def __init__(
        self,
        workspace: Path,
        provider: LLMProvider,
        model: str | None = None,
        on_execute: Execute | None = None,
        on_notify: Notify | None = None,
        interval_s: float = DEFAULT_INTERVAL_S,
        enabled: bool = True,
        *,
        clock: Clock | None = None,
        state_file: Path | None = None,
        opener: Callable[[str, int], int] = open_nonblocking,
    ) -> None:
        """`state_file` stores decisions; without it the model is asked again after a restart. `opener` is passed to
        `open` and decides where HEARTBEAT.md may lead if it is a link.
        """
        self.heartbeat_file = workspace / "HEARTBEAT.md"
        self.enabled = enabled
        self.interval_s = interval_s
        self.last_check: datetime | None = None
        self.paused = ""
        """Why no model is asked although there is a task; empty if not paused."""
        self._workspace = workspace
        self._opener = opener
        self._provider = provider
        self._model = model
        self._on_execute = on_execute
        self._on_notify = on_notify
        self._clock = clock or SystemClock()
        self._state_file = state_file
        self._state = _load(state_file)
        self._refused_fingerprint = ""
        """The fingerprint at the last permanent error: no model is asked again until it changes."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the background task and return. Does nothing if it runs already or is not enabled."""
        if self.enabled and self._task is None:
            self._task = asyncio.create_task(self.run(), name="heartbeat")

    def stop(self) -> None:
        """Stop, and cancel a run in progress."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def run(self) -> None:
        """Check at intervals until cancelled. Never raises for a failure of a model or the disk."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.check()
            except NanobotError as error:
                log.warning("The heartbeat failed: %s", error)
            except Exception:  # a failed check must not stop later ones
                log.exception("the heartbeat failed")

    async def check(self) -> str | None:
        """Check once. Return the reported result, or None if there was none. Raises the errors of the model."""
        self.last_check = self._clock.now()
        text = await asyncio.to_thread(self._read)
        tasks = parse_tasks(text)
        if not tasks:
            self.paused = ""
            return None
        now = self._clock.now()
        fingerprint = await asyncio.to_thread(self._fingerprint, text, now)
        if not self._is_due(fingerprint, now):
            return None
        with call_context_scope(CallContext("heartbeat", SESSION)):
            try:
                decision = await self._ask(tasks, now)
            except _PERMANENT_ERRORS as error:
                await self._pause(fingerprint, now, error)
                raise
        self.paused = self._refused_fingerprint = ""
        result = await self._execute(decision.tasks) if decision.tasks else None
        # changes made by the run itself, such as a ticked task, do not trigger the next one
        fingerprint_after = (
            await asyncio.to_thread(lambda: self._fingerprint(self._read(), now)) if decision.tasks else fingerprint
        )
        await self._save_state(fingerprint_after, now, decision)
        return result

    async def trigger_now(self) -> str | None:
        """Ask the model now, whatever it decided before, and run what is due. Return None if there was nothing."""
        self._state, self._refused_fingerprint = replace(self._state, again_at=None), ""
        return await self.check()

    def status(self) -> dict[str, Any]:
        """Status for the health endpoint and `/status`."""
        return {
            "enabled": self.enabled,
            "lastLook": self.last_check and self.last_check.isoformat(timespec="seconds"),
            "paused": self.paused,
        }

    def _is_due(self, fingerprint: str, now: datetime) -> bool:
        if fingerprint == self._refused_fingerprint:
            return False
        again_at = self._state.again_at
        return again_at is None or fingerprint != self._state.fingerprint or now.timestamp() >= again_at

    async def _pause(self, fingerprint: str, now: datetime, error: NanobotError) -> None:
        """Stop asking until something changes, and notify the owner once."""
        is_first = not self.paused
        self._refused_fingerprint, self.paused = fingerprint, f"the model refuses: {error}"
        if is_first and self._on_notify is not None:
            await self._on_notify(_PAUSED.format(time=f"{now:%Y-%m-%d %H:%M}", error=error))

    async def _ask(self, tasks: list[str], now: datetime) -> Decision:
        messages: list[ChatMessage] = decision_prompt(tasks, now, self.interval_s, self._state.runs)
        response = await self._provider.chat(messages, [HEARTBEAT], self._model, 512, 0.0)
        return parse_decision(response, tasks)

    async def _execute(self, tasks: str) -> str | None:
        if self._on_execute is None:
            return None
        result = await self._on_execute(tasks)
        if is_heartbeat_ok(result):
            return None
        if self._on_notify is not None:
            await self._on_notify(result)
        return result

    def _read(self) -> str:
        try:
            with open(self.heartbeat_file, encoding="utf-8", errors="replace", opener=self._opener) as file:
                return file.read(_MAX_BYTES)
        except OSError:
            return ""

    def _fingerprint(self, text: str, now: datetime) -> str:
        """Hash of the tasks, the day, and the size and time of workspace files that the text names."""
        watched = [f"{now:%Y-%m-%d}", *parse_tasks(text)]
        for name in dict.fromkeys(_FILE_NAME.findall(text)):
            with suppress(OSError, ValueError, RuntimeError):
                stat = (self._workspace / Path(name).expanduser()).stat()
                watched.append(f"{name} {stat.st_size} {stat.st_mtime_ns}")
            if len(watched) > _MAX_WATCHED:
                break
        return sha256("\0".join(watched).encode("utf-8", "surrogatepass")).hexdigest()

    async def _save_state(self, fingerprint: str, now: datetime, decision: Decision) -> None:
        again_at = None if decision.again_in_s is None else now.timestamp() + decision.again_in_s
        runs = self._state.runs
        if decision.tasks:
            done = clip_line(" ".join(decision.tasks.split()), _MAX_RUN_CHARS)
            runs = (*runs, (f"{now:%Y-%m-%d %H:%M}", done))[-_MAX_RUNS:]
        self._state = _State(fingerprint, now.timestamp(), again_at, runs)
        if self._state_file is not None:
            try:
                await asyncio.to_thread(write_in_place, self._state_file, json.dumps(asdict(self._state)))
            except OSError as error:
                log.warning("cannot store the state of the heartbeat: %s", error)


def _load(state_file: Path | None) -> _State:
    if state_file is None:
        return _State()
    try:
        payload = json.loads(state_file.read_text(encoding="utf-8"))
        again_at = payload.get("again_at")
        runs = tuple((str(when), str(what)) for when, what in payload.get("runs", ()))
        next_at = None if again_at is None else float(again_at)
        return _State(str(payload["fingerprint"]), float(payload["asked_at"]), next_at, runs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _State()
