"""/undo restores what the file tools changed, and nothing that somebody else did."""

import os
from pathlib import Path

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Provenance
from nanobot.testing import Bot, calls


async def change(bot: Bot, *requested: tuple[str, dict[str, str]]) -> None:
    bot.provider.script(calls(*requested), "done")
    await bot.say("Change the files please")


async def test_undo_restores_changed_files_deletes_new_ones_and_names_commands(bot: Bot):
    notes, new = bot.workspace / "notes.txt", bot.workspace / "new.txt"
    notes.write_bytes(b"one\r\ntwo\r\n")
    await change(
        bot,
        ("edit_file", {"path": "notes.txt", "old_text": "one", "new_text": "1"}),
        ("write_file", {"path": "new.txt", "content": "new"}),
    )
    bot.provider.script("You are welcome.")
    await bot.say("thanks")

    reply = await bot.say("/undo")

    assert notes.read_bytes() == b"one\r\ntwo\r\n"
    assert not new.exists()
    assert "Change the files please" in reply
    assert f"{notes}: restored" in reply
    assert f"{new}: deleted" in reply
    assert "nothing to undo" in await bot.say("/undo")


async def test_several_changes_of_a_turn_go_back_to_before_the_turn(bot: Bot):
    notes = bot.workspace / "notes.txt"
    notes.write_text("one", encoding="utf-8")
    bot.provider.script(calls(("write_file", {"path": "notes.txt", "content": "two"})))
    bot.provider.script(calls(("write_file", {"path": "./notes.txt", "content": "three"})))
    bot.provider.script(calls(("exec", {"command": "echo made it"})), "done")
    await bot.say("go")

    reply = await bot.say("/undo")

    assert notes.read_text(encoding="utf-8") == "one"
    assert "not undone:\n- echo made it" in reply


async def test_a_file_that_was_changed_since_is_left_alone(bot: Bot):
    await change(bot, ("write_file", {"path": "a.txt", "content": "by the bot"}))
    (bot.workspace / "a.txt").write_text("by hand", encoding="utf-8")

    reply = await bot.say("/undo")

    assert "changed since" in reply
    assert (bot.workspace / "a.txt").read_text(encoding="utf-8") == "by hand"


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a privilege there")
async def test_a_link_that_took_the_place_of_a_file_is_not_followed(bot: Bot, tmp_path: Path):
    await change(bot, ("write_file", {"path": "a.txt", "content": "by the bot"}))
    other = tmp_path / "other.txt"
    other.write_text("by the bot", encoding="utf-8")
    (bot.workspace / "a.txt").unlink()
    (bot.workspace / "a.txt").symlink_to(other)

    reply = await bot.say("/undo")

    assert "not restored" in reply
    assert other.read_text(encoding="utf-8") == "by the bot"


async def test_only_an_owner_undoes(bot: Bot):
    await change(bot, ("write_file", {"path": "a.txt", "content": "by the bot"}))

    message = InboundMessage("telegram", "5", "5", "/undo", provenance=Provenance.PERSON)
    message.session_key_override = "cli:direct"
    reply = (await bot.run_turn(message)).text

    assert "Only an owner" in reply
    assert (bot.workspace / "a.txt").exists()


async def test_a_file_too_large_to_keep_is_said_not_to_be_restored(bot: Bot):
    (bot.workspace / "big.txt").write_text("plum " * 300_000, encoding="utf-8")
    await change(bot, ("write_file", {"path": "big.txt", "content": "small"}))

    reply = await bot.say("/undo")

    assert "too large" in reply
    assert sum(path.stat().st_size for path in (bot.home / "state" / "undo").iterdir()) < 1_000_000
