"""What an owner says about pairing in a chat, and what others are told."""

import re
from pathlib import Path

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.config.paths import DataPaths
from nanobot.pairing.commands import PairingCommands
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import MAX_PENDING, PairingStore


@pytest.fixture
def store(tmp_path: Path) -> PairingStore:
    return PairingStore(DataPaths(tmp_path))


@pytest.fixture
def words(store: PairingStore) -> PairingCommands:
    return PairingCommands(store, MessageBus())


def code_for(store: PairingStore, channel: str, sender_id: str, name: str = "") -> str:
    asked = store.ask(channel, Sender.of(sender_id), name)
    assert asked is not None
    return asked.code


async def test_a_stranger_is_let_in_listed_and_forgotten(store: PairingStore, words: PairingCommands):
    code = code_for(store, "discord", "42", "Bob (@bob)")

    said = [await words.answer(one) for one in ("", f"approve {code}", "LIST", "revoke Discord 42", "list")]

    assert said == [
        f"discord: 42 Bob (@bob) waits with {code}, since 0 s",
        "Bob (@bob) on discord may talk to me now.",
        "discord: 42 Bob (@bob)",
        "42 on discord is no longer paired (was: person).",
        "Nobody has paired, and no code is pending.",
    ]


async def test_a_stranger_is_denied(store: PairingStore, words: PairingCommands):
    code = code_for(store, "discord", "42")

    assert "is denied" in await words.answer(f"deny {code.lower()}")
    assert "is not pending" in await words.answer(f"approve {code}")


@pytest.mark.parametrize("argument", ["approve", "approves X", "revoke telegram", "list all", "approve  "])
async def test_half_a_command_is_answered_with_the_whole_ones(words: PairingCommands, argument: str):
    assert "/pairing approve CODE" in await words.answer(argument)


async def test_no_word_in_a_chat_makes_an_owner(store: PairingStore, words: PairingCommands):
    code = code_for(store, "discord", "42")

    await words.answer(f"approve {code} --owner")

    assert not store.people("discord").owners


async def test_a_damaged_file_is_told_and_not_raised(store: PairingStore, words: PairingCommands):
    store.path.write_text("{", encoding="utf-8")

    assert "cannot be used" in await words.answer("list")
    assert "cannot be used" in await words.refuse("telegram", "1", "restart")


async def test_the_first_owner_of_a_channel_is_made_with_a_code_in_the_terminal(
    store: PairingStore, words: PairingCommands
):
    invited = await words.refuse("telegram", "1|anna", "restart")
    again = await words.refuse("telegram", "1|anna", "restart")
    code = re.search(r"approve (\w{8}) --owner", invited)
    assert code is not None
    store.approve(code[1], owner=True)
    other = await words.refuse("telegram", "2", "restart")

    assert "still valid" in again
    assert other == "Only an owner may use /restart."
    assert "--owner" not in other
    assert store.load().pending == {}


async def test_when_too_many_codes_are_out_nobody_is_invited(store: PairingStore, words: PairingCommands):
    for number in range(MAX_PENDING):
        code_for(store, "telegram", str(number))

    assert "Too many codes" in await words.refuse("telegram", "newcomer", "pairing")
