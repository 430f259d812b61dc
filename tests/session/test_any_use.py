"""Whatever is done to a session, in whatever order and by whom, the disk agrees with a plain list."""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nanobot.session.manager import SessionManager

KEY = "cli:direct"


class SessionUse(RuleBasedStateMachine):
    """One process that does all it may, and another that only appends."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.number = 0
        self.expected: list[str] = []
        self.cursor = 0

    @initialize()
    def begin(self) -> None:
        self.manager = SessionManager(Path(self.folder.name))

    def teardown(self) -> None:
        self.folder.cleanup()

    def text(self) -> str:
        self.number += 1
        return str(self.number)

    def rows(self, count: int) -> list[Any]:
        rows = [{"role": "user" if at % 2 == 0 else "assistant", "content": self.text()} for at in range(count)]
        self.expected += [row["content"] for row in rows]
        return rows

    @rule(count=st.integers(1, 3))
    def add_and_save(self, count: int) -> None:
        session = self.manager.get_or_create(KEY)
        for row in self.rows(count):
            session.add_message(**row)
        self.manager.save(session)

    @rule(count=st.sampled_from([1, 2, 400]))
    def append(self, count: int) -> None:
        async def turn() -> None:
            async with self.manager.hold(KEY) as session:
                await self.manager.append(session, *self.rows(count))

        asyncio.run(turn())

    @rule()
    def somebody_else_appends(self) -> None:
        other = SessionManager(Path(self.folder.name))
        session = other.get_or_create(KEY)
        session.add_message(**self.rows(1)[0])
        other.save(session)

    @rule()
    def damage(self) -> None:
        path = self.manager.find(KEY)
        if path is not None:
            with path.open("ab") as stream:
                stream.write(b'{"role": "user", "content": "ha')

    @rule(keep=st.integers(1, 5))
    def keep_the_last(self, keep: int) -> None:
        session = self.manager.get_or_create(KEY)
        session.messages = session.messages[-keep:]
        session.last_consolidated = self.cursor = 0
        self.expected = self.expected[-keep:]
        self.manager.save(session)

    @rule()
    def edit_one(self) -> None:
        session = self.manager.get_or_create(KEY)
        if session.messages:
            self.expected[0] = self.text()
            session.messages[0] = {**session.messages[0], "content": self.expected[0]}
            self.manager.save(session)

    @rule()
    def consolidate(self) -> None:
        session = self.manager.get_or_create(KEY)
        session.last_consolidated = self.cursor = max(session.message_count - 4, 0)
        self.manager.save(session)

    @rule(clear=st.booleans())
    def begin_afresh(self, clear: bool) -> None:
        session = self.manager.get_or_create(KEY)
        if clear:
            session.clear()
            self.manager.save(session)
        else:
            self.manager.archive(KEY)
        self.expected, self.cursor = [], 0

    @rule()
    def start_again(self) -> None:
        self.manager = SessionManager(Path(self.folder.name))

    @invariant()
    def memory_and_disk_agree(self) -> None:
        fresh = SessionManager(Path(self.folder.name)).get_or_create(KEY)
        history = [row["content"] for row in fresh.get_history()]
        assert self.expected[len(self.expected) - len(history) :] == history
        assert len(history) <= max(len(self.expected) - self.cursor, 0)
        assert fresh.message_count == len(self.expected) or fresh.message_count > 500
        assert [row["content"] for row in fresh.messages] == self.expected
        assert fresh.last_consolidated == self.cursor
        mine = self.manager.get_or_create(KEY)
        assert [row["content"] for row in mine.get_history()] == history


TestSessionUse = SessionUse.TestCase
TestSessionUse.settings = settings(stateful_step_count=15)
