"""When the heartbeat looks, when it asks a model, and what becomes of the answer.

A look costs a few calls to the system. A model is asked only when there is a task and something that is watched has
changed since it was asked last: the file, a file that it names, the day; or when the model itself wanted to be asked
again by now. What was decided outlives a restart.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanobot.errors import BudgetExceededError, NanobotError, ProviderError
from nanobot.heartbeat.decision import HEARTBEAT, Decision, decision_of, is_nothing, question
from nanobot.heartbeat.tasks import tasks_in
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import CallContext, LLMProvider, calling_for
from nanobot.providers.errors import (
    AuthenticationError,
    InvalidRequestError,
    ModelNotFoundError,
    QuotaExceededError,
)
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import without_waiting, write_in_place

log = logging.getLogger(__name__)

SESSION = "heartbeat"
USUAL_INTERVAL_S = 30 * 60
ALONE_S = 24 * 3600
"""How long nobody may have written before it pauses: who is away reads nothing."""
_LARGEST = 256 * 1024
_NAMED = re.compile(r"[\w./~-]+\.\w{1,8}\b")
_MOST_WATCHED = 50

_FOR_GOOD = (AuthenticationError, QuotaExceededError, ModelNotFoundError, InvalidRequestError, BudgetExceededError)
"""Failures that asking again does not mend."""

Execute = Callable[[str], Awaitable[str]]
"""Works on the tasks; the text of the result."""
Notify = Callable[[str], Awaitable[None]]
"""Sends the result to the owner."""


@dataclass(slots=True)
class _Last:
    """When a model was asked last, about what, and when it wants to be asked again."""

    fingerprint: str = ""
    asked_at: float = 0.0
    again_at: float | None = None


class HeartbeatService:
    """Looks at HEARTBEAT.md from time to time."""

    def __init__(
        self,
        workspace: Path,
        provider: LLMProvider,
        model: str | None = None,
        on_execute: Execute | None = None,
        on_notify: Notify | None = None,
        interval_s: float = USUAL_INTERVAL_S,
        enabled: bool = True,
        *,
        clock: Clock | None = None,
        state_file: Path | None = None,
        last_user: Callable[[], datetime | None] = lambda: None,
        opener: Callable[[str, int], int] = without_waiting,
    ) -> None:
        """`last_user` says when a person wrote last; None where that is not known, and then nothing pauses for it.

        `state_file` is where it remembers what was decided; without one a restart asks again. `opener` is handed to
        `open`: it says where HEARTBEAT.md may lead, should it be a link.
        """
        self.heartbeat_file = workspace / "HEARTBEAT.md"
        self.enabled = enabled
        self.interval_s = interval_s
        self.last_look: datetime | None = None
        self.paused = ""
        """Why no model is asked although there is a task; empty where nothing is in the way."""
        self._workspace = workspace
        self._opener = opener
        self._provider = provider
        self._model = model
        self._on_execute = on_execute
        self._on_notify = on_notify
        self._clock = clock or SystemClock()
        self._state_file = state_file
        self._last_user = last_user
        self._last = _load(state_file)
        self._refused = ""
        """The fingerprint at which a model refused for the key or the quota: it is not asked about that again."""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to look; returns at once. Starting twice is harmless, as is starting what is not enabled."""
        if self.enabled and self._task is None:
            self._task = asyncio.create_task(self.run(), name="heartbeat")

    def stop(self) -> None:
        """Look no more; what it set going is cancelled."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def run(self) -> None:
        """Look from time to time until this is cancelled. Never raises for a failure of a model or the disk."""
        while True:
            await asyncio.sleep(self.interval_s)
            try:
                await self.look()
            except NanobotError as error:
                log.warning("The heartbeat did not get to its end: %s", error)
            except Exception:  # a wall: the next look may go well
                log.exception("the heartbeat broke")

    async def look(self) -> str | None:
        """Look once: what was done and told, or None where nothing was. Raises what a model raises."""
        self.last_look = self._clock.now()
        text = await asyncio.to_thread(self._read)
        tasks = tasks_in(text)
        if not tasks:
            self.paused = ""
            return None
        now = self._clock.now()
        fingerprint = await asyncio.to_thread(self._fingerprint, text, now)
        if not self._is_due(fingerprint, now):
            return None
        with calling_for(CallContext("heartbeat", SESSION)):
            try:
                decision = await self._ask(tasks, now)
            except ProviderError as error:
                if isinstance(error, _FOR_GOOD):
                    self._refused, self.paused = fingerprint, f"the model refuses: {error}"
                raise
        self.paused = self._refused = ""
        told = await self._execute(decision.tasks) if decision.tasks else None
        # What the run itself changed (a task that is ticked off) is no news.
        changed = (
            await asyncio.to_thread(lambda: self._fingerprint(self._read(), now)) if decision.tasks else fingerprint
        )
        await self._remember(changed, now, decision)
        return told

    async def trigger_now(self) -> str | None:
        """Ask and act at once, whatever was decided before; None where there is nothing to do or to say."""
        self._last, self._refused = _Last(), ""
        return await self.look()

    def status(self) -> dict[str, Any]:
        """For health and `/status`."""
        return {
            "enabled": self.enabled,
            "lastLook": self.last_look and self.last_look.isoformat(timespec="seconds"),
            "paused": self.paused,
        }

    def _is_due(self, fingerprint: str, now: datetime) -> bool:
        if fingerprint == self._refused:
            return False
        wanted = self._last.again_at is not None and now.timestamp() >= self._last.again_at
        if fingerprint == self._last.fingerprint and not wanted:
            return False
        heard = self._last_user()
        if heard is not None and now - heard > timedelta(seconds=ALONE_S):
            self.paused = f"nobody has written since {heard:%Y-%m-%d %H:%M}"
            return False
        return True

    async def _ask(self, tasks: list[str], now: datetime) -> Decision:
        messages: list[ChatMessage] = question(tasks, now)
        response = await self._provider.chat(messages, [HEARTBEAT], self._model, 512, 0.0)
        return decision_of(response, tasks)

    async def _execute(self, tasks: str) -> str | None:
        if self._on_execute is None:
            return None
        result = await self._on_execute(tasks)
        if is_nothing(result):
            return None
        if self._on_notify is not None:
            await self._on_notify(result)
        return result

    def _read(self) -> str:
        try:
            with open(self.heartbeat_file, encoding="utf-8", errors="replace", opener=self._opener) as file:
                return file.read(_LARGEST)
        except OSError:
            return ""

    def _fingerprint(self, text: str, now: datetime) -> str:
        """Of everything that is watched: the tasks, the day, and the files of the workspace that the text names."""
        watched = [f"{now:%Y-%m-%d}", *tasks_in(text)]
        for name in dict.fromkeys(_NAMED.findall(text)):
            with suppress(OSError, ValueError, RuntimeError):
                found = (self._workspace / Path(name).expanduser()).stat()
                watched.append(f"{name} {found.st_size} {found.st_mtime_ns}")
            if len(watched) > _MOST_WATCHED:
                break
        return sha256("\0".join(watched).encode("utf-8", "surrogatepass")).hexdigest()

    async def _remember(self, fingerprint: str, now: datetime, decision: Decision) -> None:
        again_at = None if decision.again_in_s is None else now.timestamp() + decision.again_in_s
        self._last = _Last(fingerprint, now.timestamp(), again_at)
        if self._state_file is not None:
            try:
                await asyncio.to_thread(write_in_place, self._state_file, json.dumps(asdict(self._last)))
            except OSError as error:
                log.warning("What the heartbeat decided is not kept: %s", error)


def _load(state_file: Path | None) -> _Last:
    if state_file is None:
        return _Last()
    try:
        told = json.loads(state_file.read_text(encoding="utf-8"))
        again_at = told.get("again_at")
        return _Last(str(told["fingerprint"]), float(told["asked_at"]), None if again_at is None else float(again_at))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Last()
