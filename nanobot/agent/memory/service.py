"""`MemoryService`: everything one bot does for its memory: consolidation, Dream, lessons, revisions and commands.

Heavy modules are imported on first use.
"""

import asyncio
import importlib
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.approval.taint import repeated_row
from nanobot.agent.command import CommandCall, CommandEntry
from nanobot.agent.memory.dream_schedule import DreamScheduler
from nanobot.agent.memory.schedule import ConsolidationScheduler
from nanobot.agent.memory.store import MemoryStore, file_stamp
from nanobot.agent.models import SessionModels
from nanobot.agent.scope import Scope
from nanobot.agent.status import AgentStatus
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import Consolidator
    from nanobot.agent.memory.lessons import Lessons


log = logging.getLogger(__name__)

_WRITERS = frozenset({"write_file", "edit_file", "exec", "notebook_edit"})
"""Tools that may change a memory file."""
_MAX_TURN_ROWS = 400
"""Rows of a turn that are reviewed for failures."""


@dataclass(eq=False)
class MemoryService:
    """Maintains the memories of one bot."""

    config: Config
    places: DataPaths
    memory: MemoryStore
    sessions: SessionManager
    models: SessionModels
    status: AgentStatus
    clock: Clock
    others_write: Callable[[str], bool]
    """Whether people other than the owner may write in a session."""
    scope_of: Callable[[str, ChatMessage], Scope]
    """Returns the memory a stored message of a session belongs to."""
    _lessons_checked: date | None = None
    """The day on which old lessons were last removed."""
    _recorded: dict[Scope, tuple[object, ...]] = field(default_factory=dict)
    """By scope, the stamps of its files when they were last recorded."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        defaults, database = self.config.agents.defaults, self.places.database

        async def open_consolidator() -> "Consolidator":
            await asyncio.to_thread(importlib.import_module, "nanobot.agent.memory.consolidation")
            return self._consolidator

        idle_s = defaults.idle_compact_after_minutes * 60
        self.consolidation = ConsolidationScheduler(
            open_consolidator, self.sessions, self.clock, defaults.memory_window, database, idle_s
        )
        self.dreams = DreamScheduler(defaults, self.models, self.sessions, self.clock, self.memory)

    @cached_property
    def _consolidator(self) -> "Consolidator":
        from nanobot.agent.memory.consolidation import Consolidator  # not needed by most turns

        return Consolidator(
            self.memory,
            self.sessions,
            self.models,
            self.status,
            self.clock,
            background_model=lambda: self.config.agents.defaults.background_model,
            others_write=self.others_write,
            scope_of=self.scope_of,
        )

    @cached_property
    def _lessons(self) -> "Lessons":
        from nanobot.agent.memory.lessons import Lessons  # not needed by most turns

        return Lessons(self.memory, others_write=self.others_write)

    def on_session_released(self, session: Session, scope: Scope) -> None:
        """Process a saved turn: consolidate if due, learn from failures, record changes of the memory."""
        if "subagent" not in session.metadata:  # those are not consolidated
            self.consolidation.on_session_saved(session)
        rows = _last_turn(session)
        if scope.is_owners:  # old lessons leave once a day while nanobot runs
            today = self.clock.now().date()
            checked, self._lessons_checked = self._lessons_checked, today
            if any("failure" in row for row in rows) or checked not in (None, today):
                parent = session.metadata.get("subagent", {}).get("parent")
                self._in_background(lambda: self._lessons.learn(str(parent or session.key), rows))
        if scope in self._recorded and self._recorded[scope] != self._stamps(scope):  # by a call that failed, perhaps
            self._in_background(lambda: self._record(scope, session.key, rows))

    def _in_background(self, work: Callable[[], None]) -> None:
        task = asyncio.create_task(finish(asyncio.to_thread(work)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Hook on tool calls: record the memory before a tool may change it, and report untrusted memory repeated in
        the arguments. Never denies a call.
        """
        context = planned.context
        if planned.call.name in _WRITERS and self._recorded.get(context.scope) != self._stamps(context.scope):
            rows = [row for row in planned.rows if row.get("turn_id") == context.turn_id]
            await finish(asyncio.to_thread(self._record, context.scope, context.session_key, rows))
        verdict = await asyncio.to_thread(self._check_repetition, planned) if planned.required_access else Verdict()
        if planned.call.name in _WRITERS:
            return replace(verdict, on_success=(partial(self._after_call, planned),))
        return verdict

    def _after_call(self, planned: PlannedCall) -> None:
        """Attribute what a writing call has changed to the agent."""
        context = planned.context
        if self._recorded.get(context.scope) != self._stamps(context.scope):
            rows = [row for row in planned.rows if row.get("turn_id") == context.turn_id]
            self._record(context.scope, context.session_key, rows, by_agent=True)

    def _check_repetition(self, planned: PlannedCall) -> Verdict:
        """Taint a call whose arguments repeat a remembered fact that did not come from the owner."""
        memory = self.memory.of(planned.context.scope)
        if planned.context.scope.is_owners:
            trusts = {
                key: str(origin.details["provenance"])
                for key, origin in memory.revisions.origins().items()
                if is_outside(str(origin.details.get("provenance", Provenance.OWNER)))
            }
            if not trusts:
                return Verdict()
            from nanobot.agent.memory.facts import parse_facts  # most memories have no such fact

            facts = [fact for fact in parse_facts(memory.read_long_term()) if fact.key in trusts]
            text, provenance = "\n".join(fact.text for fact in facts), least_trusted(trusts[fact.key] for fact in facts)
        else:
            text, provenance = memory.read_long_term(), Provenance.PERSON
        if not text.strip():
            return Verdict()
        memory_row: ChatMessage = {"role": "tool", "name": "memory", "content": text, "provenance": provenance}
        rows = [memory_row, *(row for row in planned.rows if row["role"] == "user")]
        repeated = repeated_row(planned.call.arguments, rows, planned.context.turn_id, planned.context.session_key)
        return (
            Verdict() if repeated is not memory_row else Verdict(entered=provenance, source="what is remembered here")
        )

    def _record(self, scope: Scope, session_key: str, rows: Sequence[ChatMessage], *, by_agent: bool = False) -> None:
        """Record the memory as a revision: by the agent if a tool of the turn with these rows may have changed it, also
        one that failed; else by hand. Blocks.
        """
        from nanobot.agent.memory.revisions import ChangedBy, ChangeSource

        stamps = self._stamps(scope)
        try:
            if by_agent or any(row["role"] == "tool" and row.get("name") in _WRITERS for row in rows):
                self.memory.of(scope).revisions.record(ChangedBy.AGENT, ChangeSource(session_key, rows=rows))
            else:
                self.memory.of(scope).revisions.record()
        except NanobotError as error:
            log.warning("The memory revision could not be recorded: %s", error)
        self._recorded[scope] = stamps

    def _stamps(self, scope: Scope) -> tuple[object, ...]:
        store = self.memory.of(scope)
        return tuple(file_stamp(os.fspath(path)) for path in store.prompt_files)

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        await self.consolidation.on_session_archived(session_key, file)

    def state(self, session: Session, scope: Scope) -> list[str]:
        """Return status lines: size of the memory, and failures."""
        from nanobot.agent.memory.editor import MemoryEditor  # only needed for the status

        failures = self.consolidation.failure_count(session)
        failed = f"; consolidation failed {count_noun(failures, 'time')} in a row" if failures else ""
        lines = [f"Long-term memory: {MemoryEditor(self.memory.of(scope)).state()}{failed}"]
        return [*lines, dream] if (dream := self.dreams.state(scope)) else lines

    async def clear(self, call: CommandCall) -> tuple[list[str], Callable[[], Awaitable[object]] | None]:
        """Remove this scope's memory from every prompt. Return what was cleared, and a function that restores it."""
        from nanobot.agent.memory.editor import MemoryEditor

        key = call.session.key
        self.consolidation.forget(key)
        editor = MemoryEditor(self.memory.of(call.scope), call.message.sender_id or "terminal")
        await self.dreams.break_off(call.scope)
        waiting = await self.consolidation.forget_archived(key)
        cleared = await asyncio.to_thread(editor.clear)
        restore = (lambda: asyncio.to_thread(editor.undo)) if cleared else None
        if waiting:
            cleared.append(f"{count_noun(waiting, 'earlier conversation')} waiting for consolidation (still archived)")
        return cleared, restore

    def commands(self) -> dict[str, CommandEntry]:

        async def answer(name: str, call: CommandCall) -> str:
            from nanobot.agent.memory.editor import answer_command  # most turns have no command

            return await answer_command(name, call, self.memory.of(call.scope), self.dreams)

        return {
            name: CommandEntry(partial(answer, name), description, usage)
            for name, description, usage in (
                ("memory", "show and change what is remembered", "[why|forget|pin|unpin|undo|share|search|log] ..."),
                ("dream", "tidy the memory, show what changed", ""),
                ("dream-log", "the last Dream passes", "N"),
                ("dream-restore", "restore the memory before a pass", "ID"),
            )
        }

    async def close(self) -> None:
        """Stop; unfinished consolidations resume at the next start."""
        await self.consolidation.close()
        await self.dreams.close()
        await self.wait_done()

    async def wait_done(self) -> None:
        """Wait until no session is being consolidated, and what turns brought is learned and recorded."""
        await self.consolidation.wait_done(archived=True)
        while self._tasks:
            await asyncio.wait(self._tasks)


def _last_turn(session: Session) -> list[ChatMessage]:
    """Return the rows of the session's last turn, as far as they are loaded."""
    last = session.last_message
    turn_id = last.get("turn_id") if last is not None else None
    rows = session.since(session.message_count - min(session.rows_in_memory, _MAX_TURN_ROWS)) if turn_id else []
    begin = next((at for at, row in enumerate(rows) if row.get("turn_id") == turn_id), len(rows))
    return rows[begin:]
