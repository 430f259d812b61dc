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
    MAX_PENDING,
    NOBODY,
    REPLACEABLE_AFTER_S,
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


def code_for(store: PairingStore, channel: str, sender: Sender) -> str:
    asked = store.ask(channel, sender)
    assert asked is not None
    return asked.code


def role(store: PairingStore, channel: str, sender: Sender) -> Role | None:
    return store.people(channel).role_of(sender)


def test_the_file_has_the_shape_of_the_formats_page(store: PairingStore):
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


@pytest.mark.skipif(os.name == "nt", reason="modes are POSIX")
def test_the_file_is_for_its_owner_alone_even_if_it_was_not(store: PairingStore):
    store.path.write_text("{}", encoding="utf-8")
    store.path.chmod(0o644)

    store.ask("telegram", ANNA)

    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600


def test_who_is_known_by_id_is_let_in_without_a_code(store: PairingStore):
    store.admit("telegram", "111", owner=True)
    store.admit("telegram", "222")

    people = store.people("telegram")

    assert (people.role_of(ANNA), people.role_of(BEN)) == (Role.OWNER, Role.PERSON)
    assert told(store)["owners"] == {"telegram": ["111"]}


def test_reading_makes_nothing(store: PairingStore):
    assert store.people("telegram").role_of(ANNA) is None
    assert store.load().pending == {}
    assert list(store.path.parent.iterdir()) == []


def test_a_code_can_be_read_out_and_is_never_the_same(store: PairingStore):
    codes = {code_for(store, f"channel{number}", ANNA) for number in range(50)}

    assert len(codes) == 50
    assert all(len(code) == LENGTH and set(code) <= set(ALPHABET) for code in codes)
    assert not set("01ILO") & set(ALPHABET)


def test_a_code_is_taken_in_any_case_with_blanks_and_dashes(store: PairingStore):
    code = code_for(store, "telegram", ANNA).lower()

    store.approve(f" {code[:4]}-{code[4:]} ")

    assert role(store, "telegram", ANNA) is Role.PERSON


@pytest.mark.parametrize("end", ["approve", "deny"])
def test_a_code_is_good_once(store: PairingStore, end: str):
    code = code_for(store, "telegram", ANNA)
    getattr(store, end)(code)

    for again in (store.approve, store.deny):
        with pytest.raises(UnknownCodeError, match="pairing list"):
            again(code)
    assert told(store)["pending"] == {}


def test_a_code_is_good_for_ten_minutes(store: PairingStore, clock: FrozenClock):
    code = code_for(store, "telegram", ANNA)
    clock.advance(VALID_S)

    with pytest.raises(UnknownCodeError):
        store.approve(code)
    assert role(store, "telegram", ANNA) is None
    assert store.load().pending == {}


def test_a_clock_that_is_set_back_makes_no_code_last_longer(store: PairingStore, clock: FrozenClock):
    code = code_for(store, "telegram", ANNA)
    clock.advance(-7_200)

    with pytest.raises(UnknownCodeError):
        store.approve(code)


def test_who_has_a_code_gets_no_second_one(store: PairingStore):
    code_for(store, "telegram", ANNA)

    assert store.ask("telegram", Sender.of("111|renamed")) is None
    assert [one.sender_id for one in store.pending("telegram")] == ["111"]
    assert store.pending("slack") == []


def test_who_has_no_id_gets_no_code(store: PairingStore):
    assert store.ask("telegram", Sender.of("")) is None
    assert not store.path.exists()


def test_a_crowd_of_strangers_pushes_nobody_out_and_leaves_the_file_small(store: PairingStore):
    code = code_for(store, "telegram", ANNA)

    given = [store.ask("telegram", Sender.of(str(number))) for number in range(1_000, 1_200)]

    assert len([one for one in given if one]) == MAX_PENDING - 1
    assert len(told(store)["pending"]) == MAX_PENDING
    store.approve(code)
    assert role(store, "telegram", ANNA) is Role.PERSON
    assert store.ask("slack", BEN) is not None


def test_newcomer_gets_the_place_of_a_code_that_nobody_used(store: PairingStore, clock: FrozenClock):
    crowd = [code_for(store, "telegram", Sender.of(str(number))) for number in range(1_000, 1_000 + MAX_PENDING)]
    clock.advance(REPLACEABLE_AFTER_S)

    code = code_for(store, "telegram", ANNA)

    with pytest.raises(UnknownCodeError):
        store.approve(crowd[0])
    store.approve(crowd[1])
    store.approve(code)
    assert role(store, "telegram", ANNA) is Role.PERSON


def test_a_channel_knows_nothing_of_another(store: PairingStore):
    store.approve(code_for(store, "telegram", ANNA), owner=True)

    code_for(store, "discord", ANNA)

    assert role(store, "telegram", ANNA) is Role.OWNER
    assert role(store, "discord", ANNA) is None


def test_a_person_becomes_owner_with_another_code(store: PairingStore):
    store.approve(code_for(store, "telegram", ANNA))

    store.approve(code_for(store, "telegram", ANNA), owner=True)

    assert role(store, "telegram", ANNA) is Role.OWNER
    assert told(store)["approved"] == {"telegram": ["111"]}


def test_who_is_revoked_is_a_stranger_however_they_are_spelled(store: PairingStore):
    number = Sender.of("4915112345678@s.whatsapp.net")
    store.approve(code_for(store, "whatsapp", number), owner=True)

    was = store.revoke("whatsapp", "+49 151 12345678")

    assert was is Role.OWNER
    assert role(store, "whatsapp", number) is None
    assert store.people("whatsapp") == NOBODY


def test_revoking_who_never_paired_says_where_the_list_is(store: PairingStore):
    with pytest.raises(NotPairedError, match=r"'112' has not paired on telegram\. `nanobot pairing list`"):
        store.revoke("telegram", "112")


def test_a_name_on_the_list_lets_no_other_id_in(store: PairingStore):
    write(store.path, {"owners": {"telegram": ["111|anna"]}})

    assert role(store, "telegram", Sender.of("111|renamed")) is Role.OWNER
    assert role(store, "telegram", Sender.of("999|anna")) is None


def write(path: Path, value: object) -> None:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def test_what_people_and_other_releases_write_is_read_and_kept(store: PairingStore, clock: FrozenClock):
    later = datetime.fromtimestamp(NOON.timestamp() + 300, UTC).isoformat()
    waiting = {"channel": "telegram", "sender_id": 222, "created_at": NOON.isoformat(), "expires_at": later}
    write(
        store.path,
        "\ufeff" + json.dumps({"approved": {"telegram": [111]}, "pending": {"ab-cd": waiting}, "note": [1]}),
    )

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
    write(store.path, "{")
    assert role(store, "telegram", ANNA) is None

    write(store.path, {"approved": {"telegram": ["111"]}})

    assert role(store, "telegram", ANNA) is Role.PERSON
    assert store.problem == ""


def test_two_changes_in_one_tick_of_the_file_system_are_both_seen(store: PairingStore):
    for ids in (["111"], ["112"], ["111"], ["113"]):
        before = store.path.stat() if store.path.exists() else None
        write(store.path, {"approved": {"telegram": ids}})
        if before is not None:
            os.utime(store.path, ns=(before.st_atime_ns, before.st_mtime_ns))

        assert (role(store, "telegram", ANNA) is Role.PERSON) == (ids == ["111"])


@pytest.mark.skipif(os.name == "nt", reason="named pipes are POSIX")
def test_a_pipe_in_its_place_is_refused_and_not_waited_for(store: PairingStore):
    os.mkfifo(store.path)

    assert role(store, "telegram", ANNA) is None
    assert "not a regular file" in store.problem


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


def test_two_processes_at_once_lose_nobody_and_a_third_hears_of_all(tmp_path: Path, store: PairingStore):
    assert store.people("a") == NOBODY
    writers = [pair(tmp_path, name, 20) for name in ("a", "b")]
    for writer in writers:
        writer.communicate()

    assert [writer.returncode for writer in writers] == [0, 0]
    for name in ("a", "b"):
        assert role(store, name, Sender.of(f"{name}7")) is Role.PERSON
        assert store.load().approved[name] == [f"{name}{number}" for number in range(20)]


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
def test_a_process_that_is_killed_leaves_everybody_it_let_in(tmp_path: Path):
    writer = pair(tmp_path, "c", 1_000)
    assert writer.stdout is not None
    done = [writer.stdout.readline() for _ in range(8)]
    writer.kill()
    writer.communicate()

    approved = PairingStore(DataPaths(tmp_path)).load().approved["c"]
    assert len(approved) >= len(done)
    assert approved == [f"c{number}" for number in range(len(approved))]
