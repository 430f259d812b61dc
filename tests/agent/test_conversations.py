"""Slash commands about conversations: listing, reopening, asking again, compacting."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import Provenance
from nanobot.testing import Bot, Pause, calls, open_bot

TELEGRAM = Config.model_validate({"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": ["*"]}}})
SAVED = calls(("save_memory", {"history_entry": "They talked about plums.", "memory_update": "- Likes plums."}))


async def from_telegram(bot: Bot, text: str, chat: str = "5", sender: str = "5") -> str:
    return (await bot.run_turn(InboundMessage("telegram", sender, chat, text, provenance=Provenance.PERSON))).text


async def test_sessions_lists_conversations_by_their_first_words_and_resume_reopens_an_archived_one(bot: Bot):
    bot.provider.script("Rome it is.", "Meow.", "Still Rome.")
    await bot.say("Plan a trip to Rome")
    await bot.say("/new")
    await bot.say("Tell me about cats")

    listed = await bot.say("/sessions")
    reopened = await bot.say("/resume 2")
    await bot.say("Where do we go?")

    assert "1. Tell me about cats (2 messages, just now)" in listed
    assert "2. Plan a trip to Rome (2 messages, just now)" in listed
    assert "Rome it is." in reopened
    assert "Plan a trip to Rome" in str(bot.requests[-1])
    assert "cats" not in str(bot.requests[-1])
    assert "Tell me about cats" in await bot.say("/sessions")


async def test_a_chat_lists_its_own_conversations_only_and_reopens_none(tmp_path: Path):
    async with open_bot(tmp_path, "a", "b", "c", config=TELEGRAM) as bot:
        await bot.say("A secret of the owner")
        await from_telegram(bot, "Hello from five")
        await from_telegram(bot, "Hello from the group", chat="-100")

        listed = await from_telegram(bot, "/sessions")
        in_group = await from_telegram(bot, "/sessions", chat="-100")

        assert "Hello from five" in listed
        assert "nanobot sessions show" in await from_telegram(bot, "/resume 1")
    assert "Hello from the group" in in_group
    for text in (listed, in_group):
        assert "secret" not in text
    assert "five" not in in_group


async def test_retry_asks_the_last_message_again_with_its_files_and_keeps_the_first_answer(bot: Bot):
    bot.provider.script("first", "second")
    photo = bot.home / "media" / "plum.txt"
    photo.parent.mkdir()
    photo.write_text("a plum", encoding="utf-8")
    message = InboundMessage("cli", "owner", "direct", "What is this?", media=[str(photo)], provenance=Provenance.OWNER)

    await bot.run_turn(message)
    again = await bot.run_turn(InboundMessage("cli", "owner", "direct", "/retry", provenance=Provenance.OWNER))

    rows = bot.session("cli:direct").messages
    assert again.text == "second"
    assert [row["content"] for row in rows if row["role"] == "assistant"] == ["first", "second"]
    assert [row["media"] for row in rows if row["role"] == "user"] == [[str(photo)]] * 2
    assert "/retry" not in str(bot.requests)


async def test_retry_after_a_failed_turn_and_without_a_message(bot: Bot):
    bot.provider.script(ConnectionError("broken"), "at last")

    nothing = await bot.say("/retry")
    await bot.say("hello there")

    assert "no message" in nothing
    assert await bot.say("/retry") == "at last"


async def test_retry_in_a_group_repeats_only_what_its_sender_wrote(tmp_path: Path):
    async with open_bot(tmp_path, "to ann", "to bob", "again", config=TELEGRAM) as bot:
        await from_telegram(bot, "I am Ann", chat="-100", sender="1")
        await from_telegram(bot, "I am Bob", chat="-100", sender="2")

        await from_telegram(bot, "/retry", chat="-100", sender="1")

        assert "I am Ann" in str(bot.requests[-1][-1]["content"])


async def test_compact_moves_old_messages_into_memory_and_says_what_it_freed(bot: Bot):
    for number in range(8):
        bot.provider.script("Plums. " * 200)
        await bot.say(f"plum number {number} " * 100)
    bot.provider.script(SAVED)

    reply = await bot.say("/compact")

    counted = re.search(r"Moved \d+ messages .* ([\d,]+) tokens before, now ([\d,]+) of", reply)
    assert counted is not None
    before, after = (int(count.replace(",", "")) for count in counted.groups())
    assert after < before * 0.9
    assert "Likes plums" in (bot.workspace / "memory" / "MEMORY.md").read_text(encoding="utf-8")
    assert "Nothing was moved" in await bot.say("/compact")


async def test_a_reopened_conversation_does_not_go_on_with_the_interrupted_turn_of_the_other(tmp_path: Path):
    pause = Pause()
    async with open_bot(tmp_path, "Rome it is.", pause) as bot:
        await bot.say("Plan a trip to Rome")
        await bot.say("/new")
        turn = asyncio.create_task(bot.say("Tell me about cats"))
        await pause.reached.wait()
        await bot.shut_down()
        await turn

    async with open_bot(tmp_path, "Rome.") as bot:
        await bot.say("/resume 2")
        await bot.say("And now?")

        users = [row["content"] for row in bot.session().messages if row["role"] == "user"]
    assert users == ["Plan a trip to Rome", "And now?"]


@pytest.mark.parametrize("wanted", ["9", "nothing", "../../config"])
async def test_resume_of_what_is_not_listed_says_so(bot: Bot, wanted: str):
    bot.provider.script("hi")
    await bot.say("hello")

    assert "There is no conversation" in await bot.say(f"/resume {wanted}")


async def test_sessions_list_has_no_commands_and_survives_damaged_files(bot: Bot):
    bot.provider.script("hi")
    await bot.say("/status")
    await bot.say("hello")
    (bot.workspace / "sessions" / "cli_odd.jsonl").write_text(json.dumps({"role": "user"}) + "\n{", encoding="utf-8")

    listed = await bot.say("/sessions")

    assert "hello" in listed
    assert "/status" not in listed
