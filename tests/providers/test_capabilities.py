"""What was learned is kept, and damage costs no more than learning it again."""

import pytest

from nanobot.providers.capabilities import CapabilityStore, EndpointCapabilities


def test_what_was_learned_is_known_to_the_next_process(tmp_path):
    path = tmp_path / "state" / "capabilities.json"
    CapabilityStore(path).learn("http://x/v1/", "m", drop="temperature")
    CapabilityStore(path).learn("http://x/v1", "m", rename=("max_tokens", "max_completion_tokens"))

    known = CapabilityStore(path)

    assert known.get("http://x/v1", "m") == EndpointCapabilities(
        frozenset({"temperature"}), {"max_tokens": "max_completion_tokens"}
    )
    assert known.get("http://x/v1", "other") == EndpointCapabilities()


def test_learning_the_same_twice_is_nothing_new():
    store = CapabilityStore()

    assert store.learn("b", "m", drop="x")
    assert not store.learn("b", "m", drop="x")


def test_two_stores_do_not_forget_what_the_other_learned(tmp_path):
    first, second = CapabilityStore(tmp_path / "c.json"), CapabilityStore(tmp_path / "c.json")
    first.get("b", "m"), second.get("b", "m")

    first.learn("b", "m1", drop="x")
    second.learn("b", "m2", drop="y")

    assert CapabilityStore(tmp_path / "c.json").get("b", "m1").dropped == {"x"}


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b'{"b m": 7}', b'{"b m": {"dropped": 3, "renamed": []}}', b"\xff\xfe"]
)
def test_a_damaged_file_counts_as_nothing_learned(tmp_path, damage):
    path = tmp_path / "c.json"
    path.write_bytes(damage)

    store = CapabilityStore(path)

    assert store.get("b", "m") == EndpointCapabilities()
    assert store.learn("b", "m", drop="x")


def test_a_folder_that_cannot_be_written_is_no_failure(tmp_path):
    (tmp_path / "file").write_text("")

    assert CapabilityStore(tmp_path / "file" / "c.json").learn("b", "m", drop="x")


def test_what_two_processes_learn_of_one_model_is_kept(tmp_path):
    path = tmp_path / "capabilities.json"
    CapabilityStore(path).learn("https://a.test", "m", drop="temperature")
    first, second = CapabilityStore(path), CapabilityStore(path)
    first.get("https://a.test", "m")
    second.learn("https://a.test", "m", drop="stream_options")

    learned = first.learn("https://a.test", "n", need="reasoning_content")

    assert learned
    assert CapabilityStore(path).get("https://a.test", "m").dropped == {"temperature", "stream_options"}
    assert first.learn("https://a.test", "m", drop="max_tokens")
    assert CapabilityStore(path).get("https://a.test", "m").dropped == {"temperature", "stream_options", "max_tokens"}
