"""What is asked of a database is done in order and on the disk; what is asked together shares a commit."""

import asyncio
from pathlib import Path
from sqlite3 import Connection

from nanobot.errors import StorageError
from nanobot.utils.database import Database, open_database

SCHEMA = "CREATE TABLE IF NOT EXISTS words (word TEXT NOT NULL UNIQUE)"


def put(word: str | None):
    return lambda db: db.execute("INSERT INTO words VALUES (?)", (word,)).rowcount


def words(db: Connection) -> list[str]:
    return [word for (word,) in db.execute("SELECT word FROM words ORDER BY rowid")]


async def commits_of(database: Database) -> list[str]:
    """The commits from now on, as they come."""
    said: list[str] = []
    await database.ask(lambda db: db.set_trace_callback(lambda text: said.append(text) if text == "COMMIT" else None))
    said.clear()
    return said


async def test_what_is_asked_in_one_pass_is_done_in_order_and_shares_commits(tmp_path: Path):
    async with open_database(tmp_path / "words.db", SCHEMA) as database:
        commits = await commits_of(database)

        first = database.soon(put("a"))
        others = [f"{number:03}" for number in range(200)]
        await asyncio.gather(*[database.ask(put(word)) for word in others])

        assert first.done()
        assert 1 <= len(commits) < 20
        assert await database.ask(words) == ["a", *others]


async def test_at_the_end_all_that_was_asked_is_on_the_disk(tmp_path: Path):
    async with open_database(tmp_path / "words.db", SCHEMA) as database:
        database.soon(put("a"))
        cut_off = asyncio.create_task(database.ask(put("b")))
        await asyncio.sleep(0)
        cut_off.cancel()

    async with open_database(tmp_path / "words.db", SCHEMA) as database:
        assert await database.ask(words) == ["a", "b"]


async def test_one_that_fails_spoils_no_other_of_its_commit(tmp_path: Path):
    async with open_database(tmp_path / "words.db", SCHEMA) as database:
        asked = await asyncio.gather(*map(database.ask, map(put, ("a", None, "b"))), return_exceptions=True)

        assert [type(one) for one in asked] == [int, StorageError, int]
        assert await database.ask(words) == ["a", "b"]
