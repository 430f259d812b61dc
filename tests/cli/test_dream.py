"""`nanobot memory dream`: tidied at once by a model over HTTP, shown, and taken back."""

import json
from pathlib import Path

from typer.testing import CliRunner, Result

from nanobot.agent.memory import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.cli.main import app
from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.home import Home
from tests.support.memory import FACTS, OVER, learn, replace_


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words])


def test_command_tidies_now_shows_what_changed_and_takes_it_back():
    edits = {"edits": [replace_("f1 f2", "Lives in Berlin."), OVER]}
    with FakeModels() as server:
        server.script(Calls(("tidy_memory", edits)), Say("I'm sorry, I can't help with that."))
        memory = MemoryStore(Home(Path.home(), server).workspace)
        learn(memory, "[2026-02-26 13:21] Spoke of home.", FACTS)
        learn(memory.of(Scope("telegram:-100")), "Met.", "- Meets on Fridays.\n")

        told, again = run("dream"), run("dream")
        tidied, archived = memory.read_long_term(), memory.archive_file.read_bytes()
        refused = run("dream", "--chat", "telegram:-100")

    assert told.exit_code == 0
    assert "  - Home: Berlin.\n  + Lives in Berlin.\n" in told.stdout
    assert "no model was called" in again.stdout
    assert refused.exit_code == 1
    assert "failed, nothing changed" in refused.stdout
    assert "Berlin" not in str(server.chats[1].body)
    [row] = json.loads(run("dream-log", "--json").stdout)
    assert (row["number"], row["outcome"], len(row["edits"])) == (1, "changed", 2)
    assert "before pass 1" in run("dream-restore", "1").stdout
    assert (memory.read_long_term(), memory.archive_file.exists()) == (FACTS, False)
    assert "(restored)" in run("dream-log").stdout
    assert run("undo").exit_code == 0
    assert (memory.read_long_term(), memory.archive_file.read_bytes()) == (tidied, archived)
    assert "(restored)" not in run("dream-log").stdout
    assert run("dream-restore", "--chat", "telegram:-100").exit_code == 1


def test_log_without_a_pass_says_so():
    assert "No Dream pass has run here yet" in run("dream-log").stderr
