"""Who may speak, asked for a code, or met with silence; and what the owner finds in the log."""

import asyncio
import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nanobot.channels.access import (
    MAX_LOG_LINES,
    AccessControl,
    AccessPolicy,
    Allowed,
    Ignored,
    PairingOffered,
    Unknown,
    decide,
    is_still_allowed,
)
from nanobot.channels.incoming import Incoming
from nanobot.config.channels import ChannelsConfig, DiscordConfig
from nanobot.config.paths import DataPaths
from nanobot.errors import ConfigError
from nanobot.messages.types import Provenance
from nanobot.pairing.store import MAX_PENDING, NOBODY, REPLACEABLE_AFTER_S, VALID_S, PairedUsers, PairingStore
from nanobot.utils.clock import FrozenClock

OWNER, PERSON = Allowed(Provenance.OWNER), Allowed(Provenance.PERSON)
PAIRED = PairedUsers(frozenset({"number:1"}), frozenset({"number:1", "number:2"}))


def privately(sender_id: str, **other: Any) -> Incoming:
    return Incoming(sender_id, sender_id, is_private=True, **other)


def in_group(sender_id: str, chat_id: str = "-100", *, mentioned: bool = True, **other: Any) -> Incoming:
    return Incoming(sender_id, chat_id, is_private=False, is_mentioned=mentioned, **other)


@pytest.mark.parametrize(
    ("section", "sender", "still"),
    [
        ({}, "2", True),
        ({}, "3", False),
        ({"allowFrom": ["@carl"]}, "3|carl", True),
        ({"allowFrom": ["-100"]}, "3", True),
        ({"allowFrom": ["*"]}, "3", True),
        ({"dm": {"policy": "allowlist", "allowFrom": ["3"]}}, "3", True),
        ({"dm": {"policy": "allowlist", "allowFrom": ["4"]}}, "3", False),
    ],
)
def test_whoever_wrote_once_may_speak_as_long_as_they_or_their_group_are_let_in(
    section: dict[str, Any], sender: str, still: bool
):
    assert is_still_allowed(AccessPolicy.of("slack", section), PAIRED, sender, "-100") is still


def outcome_of(section: dict[str, Any], message: Incoming, paired: PairedUsers = PAIRED) -> str:
    """The decision in one word."""
    decision = decide(AccessPolicy.of("telegram", section), paired, message)
    if isinstance(decision, Allowed):
        return str(decision.provenance)
    return type(decision).__name__.lower()


@pytest.mark.parametrize(
    ("section", "message", "outcome"),
    [
        # in private
        ({}, privately("1|anna"), "owner"),
        ({}, privately("2"), "person"),
        ({}, privately("3"), "unknown"),
        ({}, privately(""), "ignored"),
        ({"allowFrom": ["3"]}, privately("3|carl"), "person"),
        ({"allowFrom": [3]}, privately("3"), "person"),
        ({"allow_from": ["@carl"]}, privately("3|Carl"), "person"),
        ({"allowFrom": ["3"]}, privately("4|3"), "unknown"),
        ({"allowFrom": ["*"]}, privately("4"), "person"),
        ({"allowFrom": ["*"]}, privately("1"), "owner"),
        ({"allowFrom": ["*"]}, privately(""), "person"),
        ({"allowFrom": None}, privately("4"), "unknown"),
        ({"allowFrom": ["+49151"]}, privately("77@lid", alternate_ids=("49151@s.whatsapp.net",)), "person"),
        ({}, privately("77@lid", alternate_ids=("1@s.whatsapp.net",)), "owner"),
        # unverified senders
        ({"allowFrom": ["3"]}, privately("3", is_verified=False), "ignored"),
        ({}, privately("1", is_verified=False), "ignored"),
        ({"allowFrom": ["*"]}, privately("1", is_verified=False), "person"),
        ({"allowFrom": ["3"], "groupPolicy": "open"}, in_group("3", is_verified=False), "ignored"),
        # dm settings
        ({"allowFrom": ["3"], "dm": {"enabled": False}}, privately("3"), "ignored"),
        ({"allowFrom": ["*"], "dm": {"enabled": False}}, privately("1"), "ignored"),
        ({"dm": {"policy": "open", "allowFrom": ["3"]}}, privately("3"), "person"),
        ({"dm": {"policy": "open"}}, privately("3"), "unknown"),
        ({"allowFrom": ["3"], "dm": {"policy": "allowlist"}}, privately("3"), "ignored"),
        ({"allowFrom": ["*"], "dm": {"policy": "allowlist"}}, privately("3"), "ignored"),
        ({"dm": {"policy": "allowlist", "allowFrom": ["3"]}}, privately("3"), "person"),
        ({"dm": {"policy": "allowlist", "allowFrom": ["*"]}}, privately("3"), "person"),
        ({"dm": {"policy": "allowlist"}}, privately("2"), "person"),
        ({"dm": {"policy": "open", "allowFrom": ["3"]}}, in_group("3"), "ignored"),
        # in groups: who
        ({}, in_group("1"), "owner"),
        ({}, in_group("2"), "person"),
        ({}, in_group("3"), "ignored"),
        ({"allowFrom": ["3"]}, in_group("3"), "person"),
        ({"allowFrom": ["*"]}, in_group("3"), "person"),
        ({"allowFrom": ["-100"]}, in_group("3"), "person"),
        ({"allowFrom": ["-100"]}, in_group("3", "-200"), "ignored"),
        ({"allowFrom": ["-100"]}, in_group("3", "-200", parent_ids=("-100",)), "person"),
        # in groups: when
        ({}, in_group("1", mentioned=False), "ignored"),
        ({"groupPolicy": "open"}, in_group("1", mentioned=False), "owner"),
        ({"groupPolicy": "open"}, in_group("3"), "ignored"),
        ({"group_policy": "open"}, in_group("2", mentioned=False), "person"),
        ({"allowFrom": ["-100"]}, in_group("3", mentioned=False), "ignored"),
        # in groups: where
        ({"groupPolicy": "allowlist"}, in_group("1"), "ignored"),
        ({"groupPolicy": "allowlist", "groupAllowFrom": ["-100"]}, in_group("1", mentioned=False), "owner"),
        ({"groupPolicy": "allowlist", "groupAllowFrom": ["-100"]}, in_group("3"), "ignored"),
        ({"groupPolicy": "allowlist", "groupAllowFrom": ["*"]}, in_group("2", mentioned=False), "person"),
        ({"groupPolicy": "allowlist", "allowFrom": ["-100"]}, in_group("3", mentioned=False), "person"),
        ({"groupPolicy": "allowlist", "allowFrom": ["*"]}, in_group("3"), "ignored"),
        ({"allowChannels": ["-100"]}, in_group("1"), "owner"),
        ({"allowChannels": ["-100"]}, in_group("1", "-200"), "ignored"),
        ({"allowChannels": ["-100"]}, in_group("1", "-200", parent_ids=("-100",)), "owner"),
        ({"allowChannels": ["-100"]}, in_group("3"), "ignored"),
        ({"allowChannels": ["-200"], "groupPolicy": "open"}, in_group("1"), "ignored"),
    ],
)
def test_the_policy(section: dict[str, Any], message: Incoming, outcome: str):
    assert outcome_of(section, message) == outcome


@given(st.text(max_size=30), st.text(max_size=30), st.booleans(), st.booleans())
def test_without_a_list_and_without_pairing_nobody_is_let_in(sender: str, chat: str, private: bool, mentioned: bool):
    message = Incoming(
        sender, chat, is_private=private, is_mentioned=mentioned, parent_ids=(chat,), alternate_ids=(sender,)
    )

    for group_policy in ("mention", "open", "allowlist"):
        decision = decide(AccessPolicy.of("telegram", {"groupPolicy": group_policy}), NOBODY, message)
        assert isinstance(decision, Unknown if private and sender else Ignored)


@pytest.mark.parametrize("name", [name for name, field in ChannelsConfig().model_dump().items() if type(field) is dict])
def test_every_channel_of_the_config_is_closed_at_first(name: str):
    policy = AccessPolicy.of(name, getattr(ChannelsConfig(), name))

    assert isinstance(decide(policy, NOBODY, privately("3")), Unknown)
    assert isinstance(decide(policy, NOBODY, in_group("3")), Ignored)


def test_a_section_of_the_config_means_what_its_json_means():
    section = DiscordConfig.model_validate({"allowFrom": [3], "groupPolicy": "open", "allowChannels": [77]})

    policy = AccessPolicy.of("discord", section)

    assert decide(policy, NOBODY, in_group("3", "77", mentioned=False)) == PERSON
    assert isinstance(decide(policy, NOBODY, in_group("3", "78", mentioned=False)), Ignored)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"allowFrom": "*"}, "channels.irc.allowFrom"),
        ({"allowFrom": {"3": True}}, "channels.irc.allowFrom"),
        ({"allowFrom": [True]}, "channels.irc.allowFrom"),
        ({"groupPolicy": "all"}, "channels.irc.groupPolicy"),
        ({"dm": {"policy": "everybody"}}, "channels.irc.dm.policy"),
        ({"dm": "open"}, "channels.irc.dm"),
        ({"dm": {"allowFrom": "*"}}, "channels.irc.dm.allowFrom"),
    ],
)
def test_what_a_plugins_section_cannot_mean_is_an_error_and_never_an_open_door(section: dict[str, Any], key: str):
    with pytest.raises(ConfigError, match=re.escape(key)):
        AccessPolicy.of("irc", section)


@pytest.mark.parametrize(
    ("section", "message", "paste"),
    [
        ({}, privately("12345|anna"), 'channels.telegram.allowFrom: ["12345"]'),
        ({}, privately("49151:3@s.whatsapp.net"), 'channels.telegram.allowFrom: ["+49151"]'),
        ({}, in_group("12345"), 'channels.telegram.allowFrom: ["12345"]'),
        ({"dm": {"policy": "allowlist"}}, privately("12345"), 'channels.telegram.dm.allowFrom: ["12345"]'),
        ({"groupPolicy": "allowlist"}, in_group("1"), 'channels.telegram.allowFrom: ["-100"]'),
        ({"allowChannels": ["5"]}, in_group("1"), 'channels.telegram.allowChannels: ["-100"]'),
        ({"groupAllowFrom": ["5"]}, in_group("1"), 'channels.telegram.groupAllowFrom: ["-100"]'),
    ],
)
def test_the_reason_holds_what_to_paste_and_pasting_it_lets_them_in(
    section: dict[str, Any], message: Incoming, paste: str
):
    decision = decide(AccessPolicy.of("telegram", section), PAIRED, message)

    assert isinstance(decision, Unknown | Ignored)
    assert decision.reason.endswith(paste)
    *_, key = paste.partition(": [")[0].split(".")
    added = json.loads(paste.partition(": ")[2])
    mended = {**section, "dm": {**section["dm"], key: added}} if "dm" in section else {**section, key: added}
    assert outcome_of(mended, message) in ("owner", "person")


@given(st.text(min_size=1, max_size=60))
@example("5\n2026-02-26 12:00 INFO all is well\x7f\u202e")
def test_no_sender_writes_a_line_of_their_own_into_the_log(sender_id: str):
    decision = decide(AccessPolicy.of("telegram", {}), NOBODY, privately(sender_id))

    assert isinstance(decision, Unknown)
    assert decision.reason.isprintable()
    assert decision.reason.isascii()


# --- the door


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 2, 26, 12, 0, tzinfo=UTC))


@pytest.fixture
def store(tmp_path: Path, clock: FrozenClock) -> PairingStore:
    return PairingStore(DataPaths(tmp_path), clock)


@pytest.fixture
def access(store: PairingStore, clock: FrozenClock) -> AccessControl:
    return AccessControl(AccessPolicy.of("telegram", {}), store, clock)


async def offers(access: AccessControl, *senders: object) -> list[bool]:
    """Whether each of these gets a code, who all write at once."""
    decisions = await asyncio.gather(*[access.decide(privately(str(sender))) for sender in senders])
    return [isinstance(decision, PairingOffered) for decision in decisions]


async def test_a_stranger_is_who_they_are_after_each_change_of_the_file_by_another_process(
    access: AccessControl, store: PairingStore, clock: FrozenClock, tmp_path: Path
):
    offered = await access.decide(privately("5|anna"))
    assert isinstance(offered, PairingOffered)
    other = PairingStore(DataPaths(tmp_path), clock)
    other.approve(offered.code, owner=True)
    later = await access.decide(privately("6"))

    assert await access.decide(privately("5|renamed")) == OWNER
    assert (access.is_allowed("5"), access.is_allowed("6")) == (True, False)
    assert isinstance(later, PairingOffered)
    assert ["--owner" in one.text for one in (offered, later)] == [True, False]

    other.revoke("telegram", "5")
    assert await access.decide(privately("5")) != OWNER

    store.path.write_text("{", encoding="utf-8")
    closed = await access.decide(privately("5"))
    assert isinstance(closed, Ignored)
    assert "cannot be used" in closed.reason


async def test_a_new_code_comes_when_the_first_is_too_old_and_then_ever_more_slowly(
    access: AccessControl, clock: FrozenClock
):
    codes = []
    for _ in range(8):
        codes.append((await offers(access, *["5"] * 4)).count(True))
        clock.advance(VALID_S)

    assert codes == [1, 1, 0, 1, 0, 0, 0, 1]


async def test_a_crowd_that_holds_all_codes_keeps_no_newcomer_out_for_long(access: AccessControl, clock: FrozenClock):
    crowd = range(100, 100 + MAX_PENDING)
    assert all(await offers(access, *crowd))
    late = await access.decide(privately("5"))
    assert isinstance(late, Ignored)
    assert "too many are pending" in late.reason

    clock.advance(REPLACEABLE_AFTER_S)
    assert await offers(access, "6") == [True]
    clock.advance(VALID_S)
    assert all(await offers(access, *crowd))  # they come back for a second code
    clock.advance(VALID_S)
    assert not any(await offers(access, *crowd))  # a third is not due to them yet
    assert await offers(access, "5") == [True]


async def test_a_refusal_is_in_the_log_once_in_ten_minutes_and_a_crowd_does_not_fill_it(
    access: AccessControl, clock: FrozenClock, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)

    for _ in range(5):
        await access.decide(in_group("5", mentioned=False))
        await access.decide(in_group("5"))
    clock.advance(VALID_S)
    await access.decide(in_group("5"))
    lines = [record.getMessage() for record in caplog.records]
    for number in range(MAX_LOG_LINES * 2):
        await access.decide(in_group(str(number)))

    assert len(lines) == 2
    assert lines[0] == 'telegram: blocked sender "5" (not in allowFrom). To allow: channels.telegram.allowFrom: ["5"]'
    assert len(caplog.records) == MAX_LOG_LINES + 1
