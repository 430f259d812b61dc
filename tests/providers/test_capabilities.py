"""What was learned is kept, and damage costs no more than learning it again."""

import pytest

from nanobot.providers.capabilities import CapabilityStore


def test_what_was_learned_is_known_to_the_next_process(tmp_path):
    path = tmp_path / "state" / "capabilities.json"
    CapabilityStore(path).learn("http://x/v1/", "m", "drop temperature")
    CapabilityStore(path).learn("http://x/v1", "m", "need merged_users")

    known = CapabilityStore(path)

    assert known.get("http://x/v1", "m") == {"drop temperature", "need merged_users"}
    assert known.get("http://x/v1", "other") == set()
    assert not known.learn("http://x/v1", "m", "drop temperature"), "nothing new"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"b m": 7}', b'{"b m": null}', b"\xff\xfe"])
def test_a_damaged_file_counts_as_nothing_learned(tmp_path, damage):
    path = tmp_path / "c.json"
    path.write_bytes(damage)

    store = CapabilityStore(path)

    assert store.get("b", "m") == set()
    assert store.learn("b", "m", "drop x")


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path):
    (tmp_path / "file").write_text("")

    assert CapabilityStore(tmp_path / "file" / "c.json").learn("b", "m", "drop x")


def test_what_two_processes_learn_is_kept(tmp_path):
    path = tmp_path / "capabilities.json"
    first, second = CapabilityStore(path), CapabilityStore(path)
    first.get("b", "m"), second.get("b", "m")

    assert first.learn("b", "m", "drop x")
    assert second.learn("b", "n", "drop y")
    assert second.learn("b", "m", "drop z")

    assert CapabilityStore(path).get("b", "m") == {"drop x", "drop z"}
    assert CapabilityStore(path).get("b", "n") == {"drop y"}
