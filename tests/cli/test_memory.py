"""`nanobot memory`: what is remembered, to see, to explain, to forget and to take back."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.agent.memory import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.cli.main import app

TEXT = "# Memory\n\n- Likes green tea.\n- Has a dog named Rex.\n"


@pytest.fixture
def memory() -> MemoryStore:
    store = MemoryStore(Path.home() / ".nanobot" / "workspace")
    store.write_long_term(TEXT)
    store.append_history("[2026-02-26 13:21] Spoke of Rex.")
    return store


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words])


def test_facts_are_shown_with_their_ids_in_the_text_as_it_is_and_explained(memory: MemoryStore):
    memory.of(Scope("telegram:-100")).write_long_term("- Meets on Fridays.\n")
    shown = run("show")
    facts = json.loads(run("show", "--json").stdout)["facts"]

    assert shown.exit_code == 0
    assert [fact["text"] for fact in facts] == ["Likes green tea.", "Has a dog named Rex."]
    assert f"- Likes green tea.  [{facts[0]['id']}]" in shown.stdout
    assert "2 facts" in shown.stderr
    assert json.loads(run("why", "rex", "--json").stdout) == facts[1:]
    assert "written by hand" in run("why", "rex").stdout
    assert run("why", "cat").exit_code == 1
    assert "Fridays" in run("show", "--chat", "telegram:-100").stdout
    assert "Fridays" not in shown.stdout


def test_fact_is_forgotten_by_id_only_after_unpin_and_undo_leaves_every_byte(memory: MemoryStore):
    fact = json.loads(run("show", "--json").stdout)["facts"][1]
    assert run("pin", fact["id"]).stdout == "Pinned: Has a dog named Rex.\n"
    refused = run("forget", fact["id"])
    run("unpin", "rex")
    forgotten = run("forget", fact["id"])
    without = memory.read_long_term()
    undone = run("undo")

    assert refused.exit_code == 1 and "nanobot memory unpin" in refused.stderr
    assert forgotten.stdout == "Forgotten: Has a dog named Rex.\n"
    assert without == "# Memory\n\n- Likes green tea.\n"
    assert "Undone" in undone.stdout
    assert memory.read_long_term() == TEXT
    by = re.findall(r"\((?:now|\d+ s ago)\)  (\w+)", run("log").stdout)
    assert by == ["undo", "forget", "pin", "pin", "hand"]
    assert [change["by"] for change in json.loads(run("log", "--json").stdout)] == by


def test_search_finds_facts_and_log_and_says_by_its_code_where_there_is_nothing(memory: MemoryStore):
    assert run("search", "rex").stdout.splitlines() == [
        "MEMORY.md\t4\t- Has a dog named Rex.",
        "HISTORY.md\t1\t[2026-02-26 13:21] Spoke of Rex.",
    ]
    assert run("search", "cat").exit_code == 1


def test_where_nothing_is_remembered_that_is_said():
    shown = run("show")

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "Nothing is remembered yet" in shown.stderr
    assert "no change to undo" in run("undo").stderr
