"""When memories are tidied from what is new: at its hour while a gateway runs, and whenever somebody says so.

One timer and no model without news. Nothing of it is imported before it is needed.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.desk import Asked, CommandEntry
from nanobot.agent.memory import MemoryStore
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.slash_commands import TYPED, is_from_owner
from nanobot.agent.vitals import Vitals
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.session.manager import SessionManager
from nanobot.session.stems import key_of
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    from nanobot.agent.consolidation import Models
    from nanobot.agent.dream import Dream, DreamOutcome, DreamRun
    from nanobot.agent.dream_log import Pass
    from nanobot.cron.types import CronSchedule

log = logging.getLogger(__name__)

_NIGHTLY = "0 4 * * *"
_FIRST_S = 60.0
"""After a start, before what was slept over is done."""
_LONGEST_S = 3600.0
"""A timer stands still while the machine sleeps: so often it is looked at the clock on the wall."""
_BUSY_S, _MOST_BUSY = 300.0, 12
"""While somebody is served it waits, but not for ever."""
_MOST_SHOWN = 20

Sleep = Callable[[float], Awaitable[object]]


class Dreams:
    """Dream over every memory of one bot."""

    def __init__(
        self,
        config: Config,
        places: Places,
        memory: MemoryStore,
        models: "Models",
        sessions: SessionManager,
        vitals: Vitals,
        clock: Clock,
        *,
        memory_of: Callable[[Scope], MemoryStore],
        noted: Callable[[Scope], Awaitable[None]],
    ) -> None:
        """`noted` writes down who changed the memory of a scope since somebody looked last."""
        self._settings = config.agents.defaults.dream
        self._background_model = config.agents.defaults.background_model
        self._memory = memory
        self._models = models
        self._sessions = sessions
        self._vitals = vitals
        self._clock = clock
        self._memory_of = memory_of
        self._noted = noted
        self._dreams: dict[str, Dream] = {}
        self._file = places.state / "dream.json"
        self._looked_at = 0.0
        self.problem: str | None = None
        """What went wrong at the last look, in a line."""

    @property
    def enabled(self) -> bool:
        """Whether the gateway does it by itself."""
        return self._settings.enabled

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """Tidy whenever it is time, until cancelled. Never raises for a model or the disk."""
        await sleep(_FIRST_S)
        while True:
            due = await asyncio.to_thread(self._due)
            while (left := due - self._now()) > 0:
                await sleep(min(left, _LONGEST_S))
            for _ in range(_MOST_BUSY):
                if not self._vitals.running:
                    break
                await sleep(_BUSY_S)
            await self.tidy_all()

    async def tidy_all(self) -> "list[DreamRun]":
        """Tidy every memory that has something new, one after the other."""
        from nanobot.agent.dream import DreamOutcome

        await asyncio.to_thread(self._looked)
        failed, runs = (DreamOutcome.FAILED, DreamOutcome.RESTING), []
        for scope in await asyncio.to_thread(self._scopes):
            run = await self._dream_of(scope).run()
            if run.passes:
                log.info("Dream over %s: %s", scope.chat or "the owner's memory", run.passes[-1].outcome.value)
            runs.append(run)
        self.problem = next((f"Dream: {run.reason}" for run in runs if run.outcome in failed), None)
        return runs

    async def tidy(self, scope: Scope, who: str = "", command: str = "/dream") -> "tuple[DreamOutcome, str]":
        """Tidy this memory now; how that ended, and what a person is told. Never raises for a model or the disk."""
        from nanobot.agent.dream_words import told_run

        dream = self._dream_of(scope)
        run = await dream.run(who=who, by_hand=True)
        last = next(iter(await asyncio.to_thread(dream.log.passes)), None)
        return run.outcome, told_run(run, last, command)

    def log_of(self, scope: Scope, most: int) -> str:
        """The last passes over this memory, for a person. Blocks; raises StorageError."""
        from nanobot.agent.dream_words import told_log

        dream = self._dream_of(scope)
        dream.changes.mend()
        return told_log(dream.log.passes()[:most], dream.changes.standing()) or "Dream has tidied nothing here yet."

    def restore(self, scope: Scope, number: int | None, who: str, may: "Callable[[Pass], bool]") -> str:
        """Take the memory back to before a pass; what a person is told. Blocks; raises NanobotError."""
        one = self._dream_of(scope).changes.restore(number, who=who, may=may)
        return (
            f"The memory is as it was before pass {one.number}, and what was changed otherwise since stays. "
            "/memory undo takes this back."
        )

    def state(self, scope: Scope) -> str | None:
        """What is wrong with it here, in a line."""
        folder = self._memory_of(scope).book.folder
        if not (folder / "dream.json").exists():
            return None
        from nanobot.agent.dream_words import told_state

        return told_state(self._dream_of(scope).state())

    async def clear(self, scope: Scope) -> None:
        """This memory begins afresh: what the log says by now is not new to it any more. Raises StorageError."""
        store = self._memory_of(scope)
        if scope.folder in self._dreams or store.history_file.exists():
            await self._dream_of(scope).clear()

    async def close(self) -> None:
        """Break off what waits for a model, and finish what is being written."""
        for dream in self._dreams.values():
            await dream.break_off()

    def commands(self) -> dict[str, CommandEntry]:
        """What a chat may ask of it."""
        return {
            "dream": CommandEntry(self._answer, "tidy the memory from what is new, and show what changed"),
            "dream-log": CommandEntry(self._answer_log, "the last times it was tidied, and what changed", "N"),
            "dream-restore": CommandEntry(self._answer_restore, "take the memory back to before that", "ID"),
        }

    async def _answer(self, asked: Asked) -> str:
        if asked.message.origin not in TYPED:
            return "/dream has to be typed by a person."
        return (await self.tidy(asked.scope, _who(asked)))[1]

    async def _answer_log(self, asked: Asked) -> str:
        count = asked.argument or "3"
        if not count.isdecimal() or not int(count):
            return f"How many? For example /dream-log 5; {asked.argument[:60]!r} is no number."
        try:
            return await asyncio.to_thread(self.log_of, asked.scope, min(int(count), _MOST_SHOWN))
        except NanobotError as error:
            return str(error)

    async def _answer_restore(self, asked: Asked) -> str:
        if asked.message.origin not in TYPED:
            return "/dream-restore has to be typed by a person."
        number = asked.argument.lstrip("#")
        if number and not number.isdecimal():
            return f"Which pass? For example /dream-restore 3; {asked.argument[:60]!r} is none. /dream-log lists them."
        by_owner, who = asked.scope.is_owners or is_from_owner(asked.message), _who(asked)
        try:
            return await asyncio.to_thread(
                self.restore, asked.scope, int(number) if number else None, who, lambda one: by_owner or one.who == who
            )
        except NanobotError as error:
            return str(error)

    def _dream_of(self, scope: Scope) -> "Dream":
        if scope.folder not in self._dreams:
            from nanobot.agent.dream import Dream, DreamPolicy  # most processes never dream

            settings = self._settings
            policy = DreamPolicy(
                settings.model_override or self._background_model,
                settings.max_batch_size,
                settings.max_iterations,
                settings.max_tokens,
                settings.annotate_line_ages,
            )
            self._dreams[scope.folder] = Dream(
                self._memory_of(scope), self._models, self._clock, policy, noted=lambda: self._noted(scope)
            )
        return self._dreams[scope.folder]

    def _scopes(self) -> list[Scope]:
        """The owner, and every chat of which there is a memory."""
        folder = self._memory.memory_dir / "chats"
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        chats = [scope for name in names if (scope := _scope_named(name)) is not None]
        if len(chats) < len(names):
            known = {Path(scope.folder).name for scope in chats}
            keys = {key for one in self._sessions.list_sessions() for key in _heads_of(one["key"])}
            chats += [Scope(key) for key in sorted(keys) if Path(Scope(key).folder).name in {*names} - known]
        return [OWNERS, *chats]

    def _due(self) -> float:
        """When it is next time: by the clock on the wall, from when it was looked last; what was missed is due now."""
        from nanobot.cron.schedule import next_instant, to_ms

        now, looked = self._clock.now(), self._last_look()
        if not 0 < looked <= now.timestamp():  # never, or the clock was put back
            self._looked()
            looked = now.timestamp()
        zone = now.tzinfo
        assert zone is not None  # noqa: S101 a Clock says so
        due = next_instant(self._schedule(), round(looked * 1000), zone=zone, anchor_ms=round(looked * 1000))
        return due / 1000 if due is not None else to_ms(now) / 1000 + 366 * 86_400

    def _schedule(self) -> "CronSchedule":
        from nanobot.cron.schedule import check
        from nanobot.cron.types import CronError, CronSchedule

        if self._settings.cron is None and self._settings.interval_h is not None:
            return CronSchedule("every", every_ms=max(round(self._settings.interval_h * 3_600_000), 60_000))
        wanted = CronSchedule("cron", expr=self._settings.cron or _NIGHTLY)
        try:
            check(wanted)
        except CronError as error:
            log.warning("agents.defaults.dream.cron: %s Until then it is %s.", error, _NIGHTLY)
            return CronSchedule("cron", expr=_NIGHTLY)
        return wanted

    def _looked(self) -> None:
        """It was looked now whether something is new; so a restart waits for the next time, and no longer."""
        self._looked_at = self._now()
        try:
            make_private_folder(self._file.parent)
            write_atomic(self._file, json.dumps({"lookedAt": self._looked_at}) + "\n")
        except OSError as error:
            log.warning("%s cannot be kept: %s", self._file, error)

    def _last_look(self) -> float:
        with suppress(OSError, ValueError, TypeError, KeyError):
            self._looked_at = max(
                self._looked_at, float(json.loads(self._file.read_text(encoding="utf-8"))["lookedAt"])
            )
        return self._looked_at

    def _now(self) -> float:
        return self._clock.now().timestamp()


def _who(asked: Asked) -> str:
    return asked.message.sender_id or "terminal"


def _scope_named(folder: str) -> Scope | None:
    """The chat whose folder has this name, where the name tells it."""
    stem, dash, _ = folder.rpartition("-")
    scope = Scope(key_of(stem)) if dash and stem else None
    return scope if scope is not None and Path(scope.folder).name == folder else None


def _heads_of(key: str) -> list[str]:
    """The chats whose session this may be: a thread may be named behind the chat."""
    parts = key.split(":")
    return [":".join(parts[:end]) for end in range(2, len(parts) + 1)]
