"""Who else than the owner may write, as pairing and the lists of a channel say."""

import json
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.scope import Scope
from nanobot.bus.events import InboundMessage
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.messages.types import Origin, Provenance
from nanobot.pairing.store import PairingStore
from nanobot.runtime.audience import has_other_writers, is_owners_own, scope_of
from nanobot.session.manager import Session, SessionManager
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
    places = DataPaths(tmp_path)
    if allowed == ["*"]:
        places.pairing.write_text(json.dumps({"owners": {"telegram": ["9"]}}), encoding="utf-8")
    pairing = PairingStore(places, FrozenClock(datetime(2026, 3, 1)))

    found = await scope_of(
        config_with(allowed), pairing, SessionManager(tmp_path), InboundMessage(channel, sender, chat, "hi")
    )

    assert found == Scope(scope)


async def test_who_has_written_alone_is_no_owner_for_that(tmp_path: Path):
    pairing, sessions = PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1))), SessionManager(tmp_path)
    session = sessions.get_or_create("telegram:7")
    session.add_message("user", "hi", sender_id="7")
    sessions.save(session)

    found = await scope_of(config_with(["7", "8"]), pairing, sessions, InboundMessage("telegram", "7", "7", "hi"))

    assert found == Scope("telegram:7")


async def test_a_group_that_only_the_message_tells_of_is_no_place_for_the_owners_memory(tmp_path: Path):
    pairing, sessions = PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1))), SessionManager(tmp_path)
    said = InboundMessage("discord", "7", "55", "hi", provenance=Provenance.OWNER, in_group=True)
    session = sessions.get_or_create("discord:55")
    session.add_message("user", "hi", in_group=True)
    sessions.save(session)
    due = InboundMessage("discord", "cron", "55", "due", origin=Origin.CRON, provenance=Provenance.OWNER)

    config = Config.model_validate({"channels": {"discord": {"enabled": True, "token": "x", "allowFrom": ["7"]}}})

    assert [await scope_of(config, pairing, sessions, one) for one in (said, due)] == [Scope("discord:55")] * 2
    sessions.archive("discord:55")
    assert await scope_of(config, pairing, sessions, due) == Scope("discord:55")  # also once it was begun afresh


async def test_a_report_is_told_in_the_scope_it_was_worked_in_whatever_is_known_of_the_chat_by_then(tmp_path: Path):
    """After `/new` nothing says any more that others read in that channel of Discord."""
    pairing = PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1)))
    config = Config.model_validate({"channels": {"discord": {"enabled": True, "token": "a", "allowFrom": ["7"]}}})
    report = InboundMessage("discord", "7", "5", "done", origin=Origin.SUBAGENT, scope="discord:5")

    found = await scope_of(config, pairing, SessionManager(tmp_path), InboundMessage.from_json(report.to_json()))

    assert found == Scope("discord:5")


async def test_where_nobody_is_known_as_owner_a_stranger_who_writes_alone_is_not_told_the_owners(tmp_path: Path):
    pairing = PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1)))
    sessions, message = SessionManager(tmp_path), InboundMessage("telegram", "7", "7", "hi")
    session = sessions.get_or_create("telegram:7")
    session.add_message("user", "hello", sender_id="7")
    sessions.save(session)

    everybody = config_with(["*"])

    assert await scope_of(everybody, pairing, sessions, message) == Scope("telegram:7")
    assert not is_owners_own(everybody, pairing, sessions, message.address)
    assert is_owners_own(config_with(["7"]), pairing, sessions, message.address)


class CountingSessions(SessionManager):
    """Counts how often a whole session is read."""

    reads = 0

    def read(self, path_or_key: Path | str) -> Session | None:
        self.reads += 1
        return super().read(path_or_key)


async def test_job_in_a_chat_reads_its_whole_session_once_and_never_again(tmp_path: Path):
    pairing = PairingStore(DataPaths(tmp_path), FrozenClock(datetime(2026, 3, 1)))
    due = InboundMessage("telegram", "cron", "7", "due", origin=Origin.CRON, provenance=Provenance.OWNER)
    config, reads, scopes = config_with(["7"]), [], []

    for sender in ("7", "7", "8"):
        sessions = CountingSessions(tmp_path)
        scopes.append(await scope_of(config, pairing, sessions, due))
        reads.append(sessions.reads)
        session = sessions.get_or_create("telegram:7")
        session.add_message("user", "hi", sender_id=sender, **({"in_group": True} if sender == "8" else {}))
        sessions.save(session)
    last = CountingSessions(tmp_path)

    assert reads == [1, 0, 0]
    assert scopes == [Scope("")] * 3
    assert await scope_of(config, pairing, last, due) == Scope("telegram:7")
    assert last.audience("telegram:7").senders == {"7", "8"}
    assert last.reads == 0


def config_with(allowed: list[str]) -> Config:
    return Config.model_validate({"channels": {"telegram": {"enabled": True, "token": "1:a", "allowFrom": allowed}}})
