"""What is kept of an account on disk."""

import json
import stat
import sys

import pytest

from nanobot.errors import StorageError
from nanobot.providers.accounts.store import Account, AccountStore

ALICE = Account("openai_codex", "https://auth.example", grant="g", access_token="t", expires_at=12.5, name="alice")


@pytest.fixture
def store(tmp_path):
    return AccountStore.in_state(tmp_path / "state")


def test_an_account_comes_back_as_it_was_kept(store):
    store.save(ALICE)

    assert store.load("openai_codex") == ALICE
    assert list(store.all()) == [ALICE]


def test_nobody_is_logged_in_where_there_is_no_file(store):
    assert store.load("openai_codex") is None
    assert list(store.all()) == []
    assert store.delete("openai_codex") is False


@pytest.mark.skipif(sys.platform == "win32", reason="modes are a POSIX thing")
def test_the_file_is_for_its_owner_alone_even_where_it_was_not(store):
    store.save(ALICE)
    store.path("openai_codex").chmod(0o644)

    store.save(ALICE)

    assert stat.S_IMODE(store.path("openai_codex").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.path("openai_codex").parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"grant": 1}', '{"grant": "g"}', "\x00", "[" * 5000])
def test_a_damaged_file_is_reported_with_the_way_out_and_kept(store, text):
    store.save(ALICE)
    store.path("openai_codex").write_text(text)

    with pytest.raises(StorageError, match="nanobot provider login openai-codex"):
        store.load("openai_codex")

    assert list(store.all()) == []
    assert store.path("openai_codex").read_text() == text


def test_what_a_later_release_added_is_passed_over(store):
    store.save(ALICE)
    path = store.path("openai_codex")
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": [1]}))

    assert store.load("openai_codex") == ALICE
