"""What an owner says about pairing in a chat. (Who may say it: tests/agent/test_slash_commands.py.)"""

import pytest

from nanobot.bus.events import InboundMessage
from nanobot.config.paths import DataPaths
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import MAX_PENDING, PairingStore
from nanobot.testing import Bot


@pytest.fixture
def store(bot: Bot) -> PairingStore:
    return PairingStore(DataPaths(bot.home))


def code_for(store: PairingStore, sender_id: str, name: str = "") -> str:
    asked = store.ask("discord", Sender.of(sender_id), name)
    assert asked is not None
    return asked.code


async def test_strangers_are_let_in_listed_forgotten_and_denied_and_no_word_makes_an_owner(bot: Bot, store):
    code = code_for(store, "42", "Bob (@bob)")
    other = code_for(store, "43").lower()

    said = [
        await bot.say(f"/pairing {words}")
        for words in ("LIST", f"approve {code} --owner", f"approve {code}", f"deny {other}", f"approve {other}", "",
                      "revoke Discord 42", "list")
    ]  # fmt: skip

    assert f"discord: 42 Bob (@bob) waits with {code}, since 0 s" in said[0]
    assert "is not pending" in said[1]
    assert said[2:4] == ["Bob (@bob) on discord may talk to me now.", "43 on discord is denied."]
    assert "is not pending" in said[4]
    assert said[5:] == [
        "discord: 42 Bob (@bob)",
        "42 on discord is no longer paired (was: person).",
        "Nobody has paired, and no code is pending.",
    ]


@pytest.mark.parametrize("argument", ["approve", "approves X", "revoke telegram", "list all", "approve  "])
async def test_half_a_command_is_answered_with_the_whole_ones(bot: Bot, argument: str):
    assert "/pairing approve CODE" in await bot.say(f"/pairing {argument}")


async def test_who_is_no_owner_is_invited_once_and_not_where_there_is_one_or_no_code_left(bot: Bot, store):
    async def refusal(channel: str, sender: str = "1") -> str:
        return (await bot.run_turn(InboundMessage(channel, sender, sender, "/pairing"))).text

    for number in range(MAX_PENDING):
        code_for(store, str(number + 100))
    store.admit("slack", "2", owner=True)

    assert "approve " in await refusal("telegram")
    assert "still valid" in await refusal("telegram")
    assert await refusal("slack") == "Only an owner may use /pairing."
    assert "Too many codes" in await refusal("discord", "newcomer")

    store.path.write_text("{", encoding="utf-8")
    assert "cannot be used" in await refusal("telegram")
    assert "cannot be used" in await bot.say("/pairing list")
