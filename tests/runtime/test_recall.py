"""Who is told what was said: a chat of itself, the owner of all but what others said alone with the bot."""

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.scope import OWNERS, Scope
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.runtime.archive import ScopedArchive
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import FrozenClock

GROUP, GUEST = Scope("telegram:-100"), Scope("telegram:8")


def archive(folder: Path, *, owners: dict[str, list[str]], allowed: list[str], on: bool = True) -> ScopedArchive:
    places = DataPaths(folder / "data")
    places.data.mkdir()
    places.pairing.write_text(json.dumps({"owners": owners}), encoding="utf-8")
    told = {name: {"enabled": on, "allowFrom": allowed, "token": "1:a"} for name in ("telegram", "discord")}
    return ScopedArchive(
        Config.model_validate({"channels": told}),
        PairingStore(places, FrozenClock(datetime(2026, 3, 1))),
        places,
        folder,
        opener=os.open,
        provenance_of=lambda path: None,
    )


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Three people in private, two groups, two jobs, and what memory has of some of them."""
    sessions = SessionManager(tmp_path)

    def say(key: str, *senders: str, provenance: str = "person", **more: Any) -> None:
        session = sessions.get_or_create(key)
        for sender in senders:
            session.add_message("user", f"canary of {key}", sender_id=sender, provenance=provenance, **more)
        sessions.save(session)

    say("cli:direct", "owner", provenance="owner", origin="cli")
    say("telegram:9", "9", provenance="owner", origin="user")
    say("telegram:8", "8", origin="user")
    say("telegram:88", "88|ann", "88|anna", origin="user")
    say("telegram:-100", "8", "9", origin="user")
    say("telegram:-100:5", "8", origin="user")
    say("telegram:-1001", "8", origin="user")
    say("discord:77", "4", "5", origin="user")
    say("cron:aa", "9", provenance="owner", origin="cron")
    say("cron:bb", "8", origin="cron")
    for scope in (OWNERS, GROUP, GUEST):
        folder = tmp_path / "memory" / scope.folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "HISTORY.md").write_text(f"[2026-01-01 10:00] canary of memory {scope.chat}\n\n", encoding="utf-8")
    (tmp_path / "memory" / "SHARED.md").write_text("canary of all\n", encoding="utf-8")
    (tmp_path / "memory" / GUEST.folder / "SHARED.md").write_text("canary of memory telegram:8\n", encoding="utf-8")
    return tmp_path


def told(archive: ScopedArchive, scope: Scope) -> set[str]:
    found = archive.search(scope, "canary", limit=100)
    return {hit.text.rpartition("canary of ")[2] for hit in found.hits}


def test_each_is_told_of_their_own(workspace: Path):
    found = archive(workspace, owners={"telegram": ["9"], "discord": ["4"]}, allowed=["*"])

    assert told(found, OWNERS) == {
        "cli:direct", "telegram:9", "telegram:-100", "telegram:-100:5", "telegram:-1001", "discord:77", "cron:aa",
        "memory", "all",
    }  # fmt: skip
    assert told(found, GROUP) == {"telegram:-100", "telegram:-100:5", "memory telegram:-100", "all"}
    assert told(found, GUEST) == {"telegram:8", "memory telegram:8", "all"}


def test_a_subagent_s_words_are_told_where_it_worked_for(workspace: Path):
    """The owner's also where a page was in them; a guest's own to nobody else; a group's to it and the owner."""
    sessions = SessionManager(workspace)
    for key, provenance, scope in (
        ("subagent:own", "owner", {}),
        ("subagent:web", "web", {}),
        ("subagent:group", "person", {"scope": GROUP.chat}),
        ("subagent:guest", "person", {"scope": GUEST.chat}),
    ):
        session = sessions.get_or_create(key)
        session.add_message("user", f"canary of {key}", provenance=provenance, origin="subagent", **scope)
        sessions.save(session)
    found = archive(workspace, owners={"telegram": ["9"]}, allowed=["*"])

    by_subagents = [{name for name in told(found, scope) if name.startswith("sub")} for scope in (OWNERS, GROUP, GUEST)]

    assert by_subagents == [{"subagent:own", "subagent:web", "subagent:group"}, {"subagent:group"}, {"subagent:guest"}]


@pytest.mark.parametrize(
    ("owners", "allowed", "on", "shown", "hidden"),
    [
        ({}, ["*"], True, set(), {"telegram:9", "telegram:8", "telegram:88"}),
        ({"telegram": ["9"]}, ["*"], False, {"telegram:9"}, {"telegram:8", "telegram:88", "cron:bb"}),
        ({}, ["9"], True, {"telegram:9"}, set()),
    ],
    ids=["nobody is known as the owner", "the channel was switched off", "the one person who is let in"],
)
def test_of_private_chats_the_owner_is_told_their_own(
    workspace: Path, owners: dict[str, list[str]], allowed: list[str], on: bool, shown: set[str], hidden: set[str]
):
    seen = told(archive(workspace, owners=owners, allowed=allowed, on=on), OWNERS)

    assert (shown - seen, hidden & seen) == (set(), set())


def test_what_stands_beside_a_hit_is_told_to_the_same_people(workspace: Path):
    found = archive(workspace, owners={"telegram": ["9"]}, allowed=["*"])
    number = next(hit.number for hit in found.search(GUEST, "canary").hits if hit.name == "telegram:8")

    assert found.around(GROUP, number).hits == []
    assert found.around(OWNERS, number).hits == []
    assert found.around(GUEST, number).hits != []
