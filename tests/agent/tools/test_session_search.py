"""The tool that finds what was said before, and the command."""

from pathlib import Path

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, calls, open_bot
from tests.support.tools import call_in_turn


async def asked(bot: Bot, **arguments: object) -> ChatMessage:
    """The tool's row of a turn that calls it so."""
    return await call_in_turn(bot, "session_search", "look for the canary, please", **arguments)


async def test_what_was_said_in_another_session_is_found(bot: Bot):
    bot.provider.script("Noted.")
    await bot.say("The canary is called Piet", session="cli:other")

    row = await asked(bot, query="canary")

    assert "cli:other, " in str(row["content"])
    assert ", user: The canary is called Piet" in str(row["content"])
    assert "look for the canary, please" not in str(row["content"])  # the question is no answer
    assert row["provenance"] == Provenance.TOOL


async def test_more_of_a_hit_is_shown_around_it(bot: Bot):
    bot.provider.script("It sings at dawn.")
    await bot.say("What does the canary do?", session="cli:other")
    first = str((await asked(bot, query="dawn"))["content"])
    number = int(first.split("[")[1].split("]")[0])

    row = await asked(bot, query="", around=number)

    assert "What does the canary do?" in str(row["content"])
    assert "In chronological order" in str(row["content"])
    assert "There is no result with the number 9999" in str((await asked(bot, query="", around=9999))["content"])


@pytest.mark.parametrize("told", [Provenance.MAIL, Provenance.PERSON])
async def test_words_stay_whose_they_were(tmp_path: Path, told: Provenance):
    async with open_bot(tmp_path) as bot:
        session = (sessions := SessionManager(bot.workspace)).get_or_create("cli:mails")
        session.add_message("tool", "canary for sale", tool_call_id="c", name="inbox", provenance=told)
        sessions.save(session)

        row = await asked(bot, query="canary")

    assert row["provenance"] == told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"query": "canary", "since": "yesterday"}, "is not a date"), ({"query": "?!"}, "Nothing was found")],
)
async def test_what_cannot_be_looked_for_says_so(bot: Bot, arguments: dict[str, object], said: str):
    assert said in str((await asked(bot, **arguments))["content"])


async def test_an_index_that_cannot_be_kept_fails_the_call_alone(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        (bot.home / "state" / "search.db").mkdir(parents=True)

        row = await asked(bot, query="canary")

    assert str(row["content"]).startswith("Error")


async def test_the_command_shows_it_to_a_person(bot: Bot):
    bot.provider.script("Noted.")
    await bot.say("Treffen in 東京 um acht", session="cli:other")

    assert await bot.say("/search") == "Nothing to search for. For example: /search dentist"
    assert (await bot.say("/search 京")).endswith(", user: Treffen in 東京 um acht")
    assert await bot.say("/search Oslo") == "No match for 'Oslo'."
    assert "No message has all of these words" in await bot.say("/search Treffen Oslo")


async def test_people_in_private_and_a_group_never_hear_of_each_other(tmp_path: Path):
    telegram = {"enabled": True, "token": "1:a", "allowFrom": ["*"]}
    config = Config.model_validate({"channels": {"telegram": telegram}})
    people = {"7": "seven", "8": "eight", "-100": "group"}
    async with open_bot(tmp_path, config=config) as bot:
        for chat, word in people.items():
            bot.provider.script("Noted.")
            await bot.run_turn(message_from(chat, f"the canary is {word}"))

        for chat in people:
            bot.provider.script(calls(("session_search", {"query": "canary"})), "done")
            await bot.run_turn(message_from(chat, "what is it?"))
            request = "\n".join(text_of(row["content"]) for row in bot.provider.requests[-1])

            assert f"the canary is {people[chat]}" in request
            assert all(f"the canary is {word}" not in request for other, word in people.items() if other != chat)


def message_from(chat: str, text: str) -> InboundMessage:
    return InboundMessage("telegram", chat if chat != "-100" else "7", chat, text)
