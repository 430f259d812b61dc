"""Whatever happens to the files, an index that was there all the time finds what one finds that was just made."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from nanobot.session.folder import SessionFolder
from nanobot.session.manager import SessionManager
from nanobot.session.search.index import SearchIndex
from nanobot.session.search.update import sources_of


class Life:
    """A workspace in which something happens."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.chance = chance
        self.files = SessionFolder(folder)
        self.count = 0
        (folder / "sessions").mkdir()
        (folder / "memory").mkdir()

    @property
    def happenings(self) -> list[Callable[[], None]]:
        return [self.talk, self.talk, self.talk, self.put_away, self.mend, self.delete, self.clear, self.edit,
                self.cut, self.rename, self.remember, self.log, self.crash]  # fmt: skip

    def word(self) -> str:
        self.count += 1
        return f"canary {self.count}"

    def open(self) -> tuple[SessionManager, str]:
        return SessionManager(self.folder), f"cli:{self.chance.randrange(4)}"

    def talk(self) -> None:
        manager, key = self.open()
        session = manager.get_or_create(key)
        for _ in range(self.chance.randrange(1, 30)):
            session.add_message("user", self.word(), timestamp="2026-01-01T00:00:00")
        manager.save(session)

    def put_away(self) -> None:
        manager, key = self.open()
        manager.archive(key)

    def mend(self) -> None:
        manager, key = self.open()
        session = manager.get_or_create(key)
        if session.messages:
            at = self.chance.randrange(len(session.messages))
            session.messages[at] = {**session.messages[at], "content": self.word()}
            manager.save(session)

    def delete(self) -> None:
        manager, key = self.open()
        manager.delete(key)

    def clear(self) -> None:
        manager, key = self.open()
        session = manager.get_or_create(key)
        session.clear()
        session.add_message("user", self.word())
        manager.save(session)

    def edit(self) -> None:
        for path in self.some_file():
            data = path.read_bytes()
            path.write_bytes(data.replace(b"canary", b"canary, edited", 1))

    def cut(self) -> None:
        for path in self.some_file():
            data = path.read_bytes()
            path.write_bytes(data[: self.chance.randrange(len(data) + 1)])

    def rename(self) -> None:
        for path in self.some_file():
            os.replace(path, path.with_name(f"other_{self.count}.jsonl"))

    def crash(self) -> None:
        for path in self.some_file():
            half = json.dumps({"role": "user", "content": self.word()})[:-3].encode()
            path.write_bytes(path.read_bytes() + half)

    def remember(self) -> None:
        (self.folder / "memory" / "MEMORY.md").write_text(f"{self.word()}\n\n{self.word()}\n", encoding="utf-8")

    def log(self) -> None:
        with open(self.folder / "memory" / "HISTORY.md", "a", encoding="utf-8") as file:
            file.write(f"[2026-01-01 10:00] {self.word()}\n\n")

    def some_file(self) -> list[Path]:
        files = [path for path, _ in self.files.files()]
        return [self.chance.choice(files)] if files else []

    def found(self, index: Path) -> list[tuple[str, str]]:
        recall = SearchIndex(index, lambda: sources_of(self.files, self.folder / "memory"), timeout_s=60)
        return sorted((hit.time, hit.text) for hit in recall.search("canary", lambda file: True, limit=9_999).hits)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 43))])
def test_an_old_index_finds_what_a_new_one_finds(tmp_path: Path, seed: int):
    chance = random.Random(seed)
    life = Life(tmp_path, chance)

    for step in range(30):
        chance.choice(life.happenings)()
        if chance.random() < 0.4:
            assert life.found(tmp_path / "old.db") == life.found(tmp_path / f"new-{step}.db")
