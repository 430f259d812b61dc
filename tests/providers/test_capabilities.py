"""What was learned is kept, and damage costs no more than learning it again."""

import pytest

from nanobot.providers.endpoint import CapabilityStore


@pytest.mark.parametrize("damage", [b"{", b"[]", b'{"b m": 7}', b"\xff\xfe"])
def test_a_damaged_file_counts_as_nothing_learned(tmp_path, damage):
    path = tmp_path / "c.json"
    path.write_bytes(damage)

    store = CapabilityStore(path)

    assert store.get("b", "m") == set()
    assert store.learn("b", "m", "drop x")
    assert CapabilityStore(path / "no folder" / "c.json").learn("b", "m", "drop x")


def test_what_two_processes_learn_is_kept(tmp_path):
    path = tmp_path / "capabilities.json"
    first, second = CapabilityStore(path), CapabilityStore(path)
    first.get("b", "m"), second.get("b", "m")

    assert first.learn("b", "m", "drop x")
    assert second.learn("b", "n", "drop y")
    assert second.learn("b", "m", "drop z")

    assert not second.learn("b/", "m", "drop z"), "nothing new"
    assert CapabilityStore(path).get("b/", "m") == {"drop x", "drop z"}
    assert CapabilityStore(path).get("b", "n") == {"drop y"}
