"""A session that grew too large or too old goes to the archive, and a fresh one goes on where it stood."""

from pathlib import Path

import pytest

from nanobot.agent.events import Notice
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, text_of
from nanobot.session.manager import SessionManager
from nanobot.testing import calls, open_bot


def config(**defaults: int) -> Config:
    return Config.model_validate({"agents": {"defaults": defaults}})


def fill(home: Path, key: str = "cli:direct") -> None:
    """A session of a bit more than a megabyte, with a canary at its beginning; most of it is in memory already."""
    sessions = SessionManager(home / "workspace")
    session = sessions.get_or_create(key)
    session.metadata["handover"] = "The tiles are ordered."
    session.add_message("user", "question 0 canary")
    session.add_message("assistant", "answer 0 " + "x" * 1_100_000)
    session.last_consolidated = 2
    session.add_message("user", "Shall the door be red or green?")
    session.add_message("assistant", "Green, I would say. Shall I order it?")
    sessions.save(session)


def said_in(request: list[ChatMessage]) -> str:
    return "\n".join(text_of(row["content"]) for row in request)


async def test_a_session_that_is_too_large_goes_on_in_a_fresh_one(tmp_path: Path):
    async with open_bot(tmp_path, "Ordered.", config=config(sessionMaxMb=1)) as bot:
        fill(tmp_path)

        reply = await bot.say("yes")

        request = bot.provider.requests[0]
        session = bot.session("cli:direct")
        archived = [row for row in SessionManager(bot.workspace).list_sessions() if row["archived"]]
        assert reply == "Ordered."
        assert "Shall I order it?" in said_in(request)
        assert "canary" not in said_in(request)
        assert text_of(request[-1]["content"]).splitlines()[-1] != ""
        assert [row["messages"] for row in archived] == [4]
        assert session.message_count == 3
        assert session.metadata["handover"] == "The tiles are ordered."
        assert [event.text for event in bot.sink.events if isinstance(event, Notice)] == [
            "This conversation became long, so it goes on in a fresh session. The old one is kept: "
            f"nanobot sessions show {Path(archived[0]['path']).stem}"
        ]


async def test_what_was_said_in_the_old_one_is_found(tmp_path: Path):
    async with open_bot(tmp_path, config=config(sessionMaxMb=1)) as bot:
        fill(tmp_path)
        bot.provider.script("Ordered.", calls(("session_search", {"query": "canary"})), "It was there.")
        await bot.say("yes")

        await bot.say("who sang?")

        assert "question 0 canary" in said_in(bot.provider.requests[-1])


async def test_the_note_is_no_word_of_a_person(tmp_path: Path):
    async with open_bot(tmp_path, "Ordered.", config=config(sessionMaxMb=1)) as bot:
        fill(tmp_path)
        await bot.say("yes")

        assert await bot.say("/history") == "you: yes\nbot: Ordered."


@pytest.mark.parametrize("limits", [{}, {"sessionMaxMb": 0}, {"sessionMaxMb": 2}, {"sessionMaxDays": 3650}])
async def test_a_session_within_its_limits_stays(tmp_path: Path, limits: dict[str, int]):
    async with open_bot(tmp_path, "Ordered.", config=config(**limits)) as bot:
        fill(tmp_path)

        await bot.say("yes")

        assert bot.session("cli:direct").message_count == 6


async def test_a_session_that_is_too_old_goes_on_in_a_fresh_one(tmp_path: Path):
    async with open_bot(tmp_path, "one", "two", "three", config=config(sessionMaxDays=2)) as bot:
        await bot.say("first")
        sessions = SessionManager(bot.workspace)
        session = sessions.get_or_create("cli:direct")
        session.created_at = session.created_at.replace(year=session.created_at.year - 1)
        session.metadata["model"] = "scripted"
        sessions.save(session)

        await bot.say("second")
        await bot.say("third")

        rows = bot.session("cli:direct").messages
        assert [row["content"] for row in rows[1:]] == ["second", "two", "third", "three"]
        assert text_of(rows[0]["content"]).endswith("assistant: one")
        assert session.metadata["model"] == "scripted"


async def test_a_session_that_cannot_be_put_away_goes_on(tmp_path: Path):
    async with open_bot(tmp_path, "Ordered.", config=config(sessionMaxMb=1)) as bot:
        fill(tmp_path)
        (bot.workspace / "sessions" / "archive").write_text("in the way", encoding="utf-8")

        assert await bot.say("yes") == "Ordered."
        assert bot.session("cli:direct").message_count == 6
