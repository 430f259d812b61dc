"""Who else than the owner may write, as pairing and the lists of a channel say."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.scope import Scope
from nanobot.bus.events import InboundMessage
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.messages.types import Origin, Provenance
from nanobot.pairing.store import PairingStore
from nanobot.runtime.audience import ChatPrivacy, has_other_writers
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import FrozenClock


@pytest.mark.parametrize(
    ("allowed", "session", "others"),
    [
        (["7"], "telegram:7", False),
        (["*"], "telegram:7", True),
        (["7", "8"], "telegram:7", True),
        (["-100"], "telegram:-100", True),
        (["*"], "unified:default", True),
        (["7"], "unified:default", False),
        (["*"], "cli:direct", False),
    ],
)
def test_what_somebody_says_is_the_owners_only_where_nobody_else_is_let_in(
    tmp_path: Path, allowed: list[str], session: str, *, others: bool
):
    config, pairing = config_with(allowed), PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1)))

    assert has_other_writers(config, pairing, session) is others


@pytest.mark.parametrize(
    ("allowed", "channel", "sender", "chat", "scope"),
    [
        (["*"], "cli", "owner", "direct", ""),
        (["7"], "telegram", "7", "7", ""),  # the only one who is let in is the owner
        (["7"], "telegram", "7", "-100", "telegram:-100"),  # but others read in a group
        (["7", "8"], "telegram", "7", "7", "telegram:7"),  # nobody knows which of the two it is
        (["*"], "telegram", "9", "9", ""),  # 9 is written down as the owner
        (["*"], "telegram", "9", "-100", "telegram:-100"),
        (["*"], "telegram", "8", "8", "telegram:8"),
    ],
)
async def test_the_owners_memory_is_told_where_nobody_else_reads(
    tmp_path: Path, allowed: list[str], channel: str, sender: str, chat: str, scope: str
):
    if allowed == ["*"]:
        written = json.dumps({"owners": {"telegram": ["9"]}})
        DataPaths(tmp_path).pairing.write_text(written, encoding="utf-8")

    assert await in_home(tmp_path, allowed).scope_of(InboundMessage(channel, sender, chat, "hi")) == Scope(scope)


async def test_who_has_written_alone_is_no_owner_for_that(tmp_path: Path):
    privacy, message = in_home(tmp_path, ["7", "8"]), InboundMessage("telegram", "7", "7", "hi")
    keep(privacy.sessions, "telegram:7", sender_id="7")
    everybody, alone = in_home(tmp_path, ["*"]), in_home(tmp_path, ["7"])

    assert await privacy.scope_of(message) == Scope("telegram:7")
    assert await everybody.scope_of(message) == Scope("telegram:7")
    assert not everybody.is_owners_own(message.address)
    assert alone.is_owners_own(message.address)


async def test_a_group_that_only_the_message_tells_of_is_no_place_for_the_owners_memory(tmp_path: Path):
    privacy = in_home(tmp_path, ["7"], "discord")
    keep(privacy.sessions, "discord:55", in_group=True)
    said = InboundMessage("discord", "7", "55", "hi", provenance=Provenance.OWNER, in_group=True)
    due = InboundMessage("discord", "cron", "55", "due", origin=Origin.CRON, provenance=Provenance.OWNER)

    assert [await privacy.scope_of(one) for one in (said, due)] == [Scope("discord:55")] * 2
    privacy.sessions.archive("discord:55")
    assert await privacy.scope_of(due) == Scope("discord:55")  # also once it was begun afresh


async def test_a_report_is_told_in_the_scope_it_was_worked_in_whatever_is_known_of_the_chat_by_then(tmp_path: Path):
    """After `/new` nothing says any more that others read in that channel of Discord."""
    report = InboundMessage("discord", "7", "5", "done", origin=Origin.SUBAGENT, scope="discord:5")

    found = await in_home(tmp_path, ["7"], "discord").scope_of(InboundMessage.from_json(report.to_json()))

    assert found == Scope("discord:5")


def in_home(home: Path, allowed: list[str], channel: str = "telegram") -> ChatPrivacy:
    pairing = PairingStore(DataPaths(home), FrozenClock(datetime(2026, 3, 1)))
    return ChatPrivacy(config_with(allowed, channel), pairing, SessionManager(home))


def keep(sessions: SessionManager, key: str, **said: Any) -> None:
    session = sessions.get_or_create(key)
    session.add_message("user", "hi", **said)
    sessions.save(session)


def config_with(allowed: list[str], channel: str = "telegram") -> Config:
    return Config.model_validate({"channels": {channel: {"enabled": True, "token": "1:a", "allowFrom": allowed}}})
