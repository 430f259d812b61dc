"""`nanobot memory dream`: tidied at once by a model over HTTP, shown, and taken back."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.agent.memory.revisions import ChangeSource
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.cli.main import app
from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.memory import FACTS, OVER, learn, replace_


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels() as server:
        yield server


@pytest.fixture
def memory(server: FakeModels) -> MemoryStore:
    home = Path.home() / ".nanobot"
    home.mkdir(parents=True)
    config = {
        "agents": {"defaults": {"model": "m", "provider": "custom"}},
        "providers": {"custom": {"apiKey": "k", "apiBase": f"{server.url}/v1"}},
    }
    (home / "config.json").write_text(json.dumps(config), encoding="utf-8")
    store = MemoryStore(home / "workspace")
    learn(store, "[2026-02-26 13:21] Spoke of home.", FACTS, ChangeSource("cli:direct"))
    return store


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words])


def test_it_tidies_now_shows_what_changed_and_takes_it_back(memory: MemoryStore, server: FakeModels):
    server.script(Calls(("tidy_memory", {"edits": [replace_("f1 f2", "Lives in Berlin."), OVER]})))

    told = run("dream")
    tidied, archived = memory.read_long_term(), memory.archive_file.read_bytes()
    again = run("dream")
    log = json.loads(run("dream-log", "--json").stdout)
    shown = run("dream-log")
    back = run("dream-restore", "1")

    assert told.exit_code == 0
    assert "  - Home: Berlin.\n  + Lives in Berlin.\n" in told.stdout
    assert "no model was called" in again.stdout
    assert len(server.chats) == 1
    assert [(one["number"], one["outcome"], len(one["edits"])) for one in log] == [(1, "changed", 2)]
    assert "Pass 1" in shown.stdout
    assert "before pass 1" in back.stdout
    assert memory.read_long_term() == FACTS
    assert not memory.archive_file.exists()
    assert "(restored)" in run("dream-log").stdout
    assert run("undo").exit_code == 0
    assert (memory.read_long_term(), memory.archive_file.read_bytes()) == (tidied, archived)
    assert "(restored)" not in run("dream-log").stdout


def test_a_failure_is_said_and_changes_nothing(memory: MemoryStore, server: FakeModels):
    server.script(Say("I'm sorry, I can't help with that."))

    told = run("dream")

    assert told.exit_code == 1
    assert "failed, nothing changed" in told.stdout
    assert memory.read_long_term() == FACTS


def test_a_chat_has_passes_of_its_own(memory: MemoryStore, server: FakeModels):
    learn(memory.of(Scope("telegram:-100")), "Met.", "- Meets on Fridays.\n")
    server.script(Calls(("tidy_memory", {"edits": []})))

    told = run("dream", "--chat", "telegram:-100")

    assert "nothing to change" in told.stdout
    assert "Berlin" not in str(server.chats[0].body)
    assert "No Dream pass has run here yet" in run("dream-log").stderr
    assert run("dream-restore", "--chat", "telegram:-100").exit_code == 1
