"""pairing.json: its shape, its codes, other processes at the same file, and files that cannot be read."""

import json
import os
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.config.paths import DataPaths
from nanobot.errors import StorageError
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import (
    ALPHABET,
    LENGTH,
    NOBODY,
    VALID_S,
    NotPairedError,
    PairingStore,
    Role,
    UnknownCodeError,
)
from nanobot.utils.clock import FrozenClock

ANNA, BEN = Sender.of("111|anna"), Sender.of("222")
NOON = datetime(2026, 2, 26, 12, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(NOON)


@pytest.fixture
def store(tmp_path: Path, clock: FrozenClock) -> PairingStore:
    return PairingStore(DataPaths(tmp_path), clock)


def told(store: PairingStore) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(store.path.read_text(encoding="utf-8"))
    return found


def write(path: Path, value: object) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def code_for(store: PairingStore, channel: str, sender: Sender) -> str:
    asked = store.ask(channel, sender)
    assert asked is not None
    return asked.code


def role(store: PairingStore, channel: str, sender: Sender) -> Role | None:
    return store.people(channel).role_of(sender)


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_the_file_has_the_shape_of_the_formats_page_and_is_for_its_owner_alone(store: PairingStore):
    store.path.write_text("{}", encoding="utf-8")
    store.path.chmod(0o644)
    store.approve(code_for(store, "telegram", ANNA), owner=True)
    store.approve(code_for(store, "slack", Sender.of("U1")))
    code = code_for(store, "telegram", BEN)

    noon = NOON.timestamp()
    assert told(store) == {
        "owners": {"telegram": ["111"]},
        "approved": {"telegram": ["111"], "slack": ["U1"]},
        "pending": {
            code: {"channel": "telegram", "sender_id": "222", "created_at": noon, "expires_at": noon + VALID_S}
        },
    }
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_a_code_can_be_read_out_and_is_never_the_same(store: PairingStore):
    codes = {code_for(store, f"channel{number}", ANNA) for number in range(50)}

    assert len(codes) == 50
    assert all(len(code) == LENGTH and set(code) <= set(ALPHABET) for code in codes)
    assert not set("01ILO") & set(ALPHABET)


@pytest.mark.parametrize("end", ["approve", "deny"])
def test_a_code_is_good_once_in_any_case_with_blanks_and_dashes(store: PairingStore, end: str):
    code = code_for(store, "telegram", ANNA)
    getattr(store, end)(f" {code[:4].lower()}-{code[4:]} ")

    for again in (store.approve, store.deny):
        with pytest.raises(UnknownCodeError, match="pairing list"):
            again(code)
    assert (role(store, "telegram", ANNA), told(store)["pending"]) == (Role.PERSON if end == "approve" else None, {})


@pytest.mark.parametrize("later_s", [VALID_S, -7_200], ids=["after ten minutes", "a clock that is set back"])
def test_a_code_is_good_for_ten_minutes(store: PairingStore, clock: FrozenClock, later_s: float):
    code = code_for(store, "telegram", ANNA)
    clock.advance(later_s)

    with pytest.raises(UnknownCodeError):
        store.approve(code)
    assert role(store, "telegram", ANNA) is None
    assert store.load().pending == {}


def test_who_has_a_code_gets_no_second_one_and_who_has_no_id_none(store: PairingStore):
    assert store.ask("telegram", Sender.of("")) is None
    assert not store.path.exists()
    code_for(store, "telegram", ANNA)

    assert store.ask("telegram", Sender.of("111|renamed")) is None
    assert [one.sender_id for one in store.pending("telegram")] == ["111"]
    assert store.pending("slack") == []


def test_a_person_becomes_owner_with_another_code_of_that_channel(store: PairingStore):
    for owner in (False, True):
        store.approve(code_for(store, "telegram", ANNA), owner=owner)

    assert role(store, "telegram", ANNA) is Role.OWNER
    assert role(store, "discord", ANNA) is None
    assert told(store)["approved"] == {"telegram": ["111"]}


def test_who_is_revoked_is_a_stranger_however_they_are_spelled(store: PairingStore):
    store.approve(code_for(store, "whatsapp", Sender.of("4915112345678@s.whatsapp.net")), owner=True)

    code = code_for(store, "whatsapp", Sender.of("4915112345678"))  # asked again

    assert store.revoke("whatsapp", "+49 151 12345678") is Role.OWNER
    assert store.people("whatsapp") == NOBODY
    with pytest.raises(UnknownCodeError):
        store.approve(code)
    with pytest.raises(NotPairedError, match=r"'112' has not paired on whatsapp\. `nanobot pairing list`"):
        store.revoke("whatsapp", "112")


def test_a_name_on_the_list_lets_no_other_id_in(store: PairingStore):
    write(store.path, {"owners": {"telegram": ["111|anna"]}})

    assert role(store, "telegram", Sender.of("111|renamed")) is Role.OWNER
    assert role(store, "telegram", Sender.of("999|anna")) is None


def test_what_people_and_other_releases_write_is_read_and_kept(store: PairingStore):
    later = datetime.fromtimestamp(NOON.timestamp() + 300, UTC).isoformat()
    waiting = {"channel": "telegram", "sender_id": 222, "created_at": NOON.isoformat(), "expires_at": later}
    data = {"approved": {"telegram": [111]}, "pending": {"ab-cd": waiting}, "note": [1]}
    write(store.path, "\ufeff" + json.dumps(data))

    store.approve("ABCD")

    assert role(store, "telegram", ANNA) is Role.PERSON
    assert told(store)["approved"] == {"telegram": ["111", "222"]}
    assert told(store)["note"] == [1]


# --- files that cannot be used

DAMAGED: dict[str, Any] = {
    "nothing": "",
    "half": '{"owners": {"telegram": ["1',
    "a list": [],
    "null": "null",
    "owners is a list": {"owners": ["1"]},
    "ids are one text": {"approved": {"telegram": "111"}},
    "an id is a list": {"approved": {"telegram": [["111"]]}},
    "an id is true": {"approved": {"telegram": [True]}},
    "an id is null": {"owners": {"telegram": [None]}},
    "pending is a list": {"pending": []},
    "a code of nobody": {"pending": {"X": {"channel": "telegram"}}},
    "no time": {"pending": {"X": {"channel": "a", "sender_id": "b", "created_at": 1, "expires_at": "soon"}}},
    "no number": '{"pending": {"X": {"channel": "a", "sender_id": "b", "created_at": 1, "expires_at": NaN}}}',
    "too deep": "[" * 100_000,
    "too long a number": f'{{"owners": {"1" * 5_000}}}',
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_lets_nobody_in_and_stays_as_it_is(
    store: PairingStore, damage: object, caplog: pytest.LogCaptureFixture
):
    store.approve(code_for(store, "telegram", ANNA), owner=True)
    code = code_for(store, "telegram", BEN)
    assert role(store, "telegram", ANNA) is Role.OWNER
    write(store.path, damage)
    before = store.path.read_bytes()

    assert role(store, "telegram", ANNA) is None
    assert role(store, "telegram", ANNA) is None
    for change in (lambda: store.ask("telegram", BEN), lambda: store.approve(code), lambda: store.revoke("a", "b")):
        with pytest.raises(StorageError, match="cannot be used"):
            change()
    assert store.path.read_bytes() == before
    assert str(store.path) in store.problem
    assert len(caplog.records) == 1


def test_a_file_that_was_mended_counts_at_once(store: PairingStore):
    for ids in (None, ["111"], ["112"], ["111"], ["113"]):
        write(store.path, "{" if ids is None else {"approved": {"telegram": ids}})

        assert (role(store, "telegram", ANNA) is Role.PERSON, bool(store.problem)) == (ids == ["111"], ids is None)


@given(st.binary(max_size=300) | st.from_regex(r'\{"(owners|approved|pending)": .{0,40}\}').map(str.encode))
def test_whatever_stands_there_reading_never_raises(store: PairingStore, data: bytes):
    store.path.write_bytes(data)

    assert role(store, "telegram", ANNA) is None


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4))
def test_any_id_that_a_channel_says_is_kept_as_itself(store: PairingStore, ids: list[str]):
    store.path.unlink(missing_ok=True)
    senders = {Sender.of(one).key: Sender.of(one) for one in ids}

    for sender in senders.values():
        store.approve(code_for(store, "irc", sender))

    again = PairingStore(DataPaths(store.path.parent)).people("irc")
    assert all(again.role_of(sender) is Role.PERSON for sender in senders.values())
    assert len(again.approved) == len(senders)


def test_a_disk_that_refuses_is_an_error_and_changes_nothing(store: PairingStore):
    store.approve(code_for(store, "telegram", ANNA))
    before = store.path.read_bytes()
    lock = store.path.parent / "state" / "pairing.lock"
    lock.unlink()
    lock.mkdir()

    with pytest.raises(StorageError, match="cannot be changed"):
        store.ask("telegram", BEN)

    assert store.path.read_bytes() == before
    assert role(store, "telegram", ANNA) is Role.PERSON


# --- other processes

PAIR = """
import sys
from pathlib import Path
from nanobot.config.paths import DataPaths
from nanobot.pairing.senders import Sender
from nanobot.pairing.store import PairingStore
store = PairingStore(DataPaths(Path(sys.argv[1])))
for number in range(int(sys.argv[3])):
    asked = store.ask(sys.argv[2], Sender.of(f"{sys.argv[2]}{number}"))
    store.approve(asked.code)
    print(number, flush=True)
"""


def pair(folder: Path, name: str, count: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", PAIR, str(folder), name, str(count)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def test_processes_that_write_at_once_or_are_killed_lose_nobody(tmp_path: Path, store: PairingStore):
    assert store.people("a") == NOBODY
    *writers, killed = [pair(tmp_path, name, count) for name, count in (("a", 20), ("b", 20), ("c", 1_000))]
    assert killed.stdout is not None
    done = [killed.stdout.readline() for _ in range(8)]
    killed.kill()
    for writer in (*writers, killed):
        writer.communicate()

    approved = store.load().approved
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(approved["c"]) >= len(done)
    assert role(store, "a", Sender.of("a7")) is Role.PERSON
    for name, least in (("a", 20), ("b", 20), ("c", len(done))):
        assert approved[name] == [f"{name}{number}" for number in range(max(least, len(approved[name])))]
