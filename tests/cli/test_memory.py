"""`nanobot memory`: what is remembered, to see, to explain, to forget and to take back."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.agent.memory.store import MemoryStore
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


def test_facts_are_shown_with_their_ids_in_the_text_as_it_is(memory: MemoryStore):
    shown = run("show")
    facts = json.loads(run("show", "--json").stdout)["facts"]

    assert shown.exit_code == 0
    assert [fact["text"] for fact in facts] == ["Likes green tea.", "Has a dog named Rex."]
    assert f"- Likes green tea.  [{facts[0]['id']}]" in shown.stdout
    assert "2 facts" in shown.stderr


def test_forget_by_id_and_undo_leave_every_byte(memory: MemoryStore):
    fact = json.loads(run("show", "--json").stdout)["facts"][1]

    forgotten = run("forget", fact["id"])
    without = memory.read_long_term()
    undone = run("undo")

    assert forgotten.stdout == "Forgotten: Has a dog named Rex.\n"
    assert without == "# Memory\n\n- Likes green tea.\n"
    assert "Undone" in undone.stdout
    assert memory.read_long_term() == TEXT
    assert re.findall(r"\((?:now|\d+ s ago)\)  (\w+)", run("log").stdout) == ["undo", "forget", "hand"]


def test_a_search_finds_facts_and_log_and_says_by_its_code_where_there_is_nothing(memory: MemoryStore):
    found = run("search", "rex")

    assert found.stdout.splitlines() == [
        "MEMORY.md\t4\t- Has a dog named Rex.",
        "HISTORY.md\t1\t[2026-02-26 13:21] Spoke of Rex.",
    ]
    assert run("search", "cat").exit_code == 1


def test_why_says_what_is_known(memory: MemoryStore):
    assert "written by hand" in run("why", "rex").stdout
    assert run("why", "cat").exit_code == 1


def test_why_for_programs_has_the_same_fields_as_show(memory: MemoryStore):
    fact = json.loads(run("show", "--json").stdout)["facts"][1]

    assert json.loads(run("why", "rex", "--json").stdout) == [fact]


def test_the_memory_of_a_chat_is_shown_by_its_name(memory: MemoryStore):
    memory.of(Scope("telegram:-100")).write_long_term("- Meets on Fridays.\n")

    assert "Fridays" in run("show", "--chat", "telegram:-100").stdout
    assert "Fridays" not in run("show").stdout


def test_where_nothing_is_remembered_that_is_said():
    shown = run("show")

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "Nothing is remembered yet" in shown.stderr
    assert "no change to undo" in run("undo").stderr


def test_a_pinned_fact_is_marked_and_forgotten_only_after_unpin(memory: MemoryStore):
    pinned = run("pin", "rex")
    refused = run("forget", "rex")
    run("unpin", "rex")

    assert pinned.stdout == "Pinned: Has a dog named Rex.\n"
    assert refused.exit_code == 1
    assert "nanobot memory unpin" in refused.stderr
    assert run("forget", "rex").exit_code == 0
