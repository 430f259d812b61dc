"""`nanobot memory`: what is remembered, to see, to explain, to forget, to tidy and to take back."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.home import using

TEXT = "# Memory\n\n- Likes green tea.\n- Has a dog named Rex.\n"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["memory", *words])


def write_memory(text: str = TEXT, *chat: str) -> Path:
    file = Path(json.loads(run("show", "--json", *chat).stdout)["file"])
    file.parent.mkdir(parents=True)
    file.with_name("HISTORY.md").write_text("[2026-02-26 13:21] Spoke of Rex.\n\n", encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    return file


def test_facts_are_shown_with_their_ids_found_and_explained():
    write_memory()

    shown = run("show")
    facts = json.loads(run("show", "--json").stdout)["facts"]
    found = run("search", "rex")

    assert shown.exit_code == 0
    assert [fact["text"] for fact in facts] == ["Likes green tea.", "Has a dog named Rex."]
    assert f"- Likes green tea.  [{facts[0]['id']}]" in shown.stdout
    assert "2 facts" in shown.stderr
    assert found.stdout.splitlines() == [
        "MEMORY.md\t4\t- Has a dog named Rex.",
        "HISTORY.md\t1\t[2026-02-26 13:21] Spoke of Rex.",
    ]
    assert "written by hand" in run("why", "rex").stdout
    assert json.loads(run("why", "rex", "--json").stdout) == [facts[1]]
    assert [run(word, "cat").exit_code for word in ("search", "why")] == [1, 1]


def test_forget_by_id_and_undo_leave_every_byte():
    memory = write_memory()
    fact = json.loads(run("show", "--json").stdout)["facts"][1]

    forgotten = run("forget", fact["id"])
    without = memory.read_text()
    undone = run("undo")

    assert forgotten.stdout == "Forgotten: Has a dog named Rex.\n"
    assert without == "# Memory\n\n- Likes green tea.\n"
    assert "Undone" in undone.stdout
    assert memory.read_text() == TEXT
    assert re.findall(r"\((?:now|\d+ s ago)\)  (\w+)", run("log").stdout) == ["undo", "forget", "hand"]


def test_a_pinned_fact_is_marked_and_forgotten_only_after_unpin():
    write_memory()

    pinned, refused = run("pin", "rex"), run("forget", "rex")
    run("unpin", "rex")

    assert pinned.stdout == "Pinned: Has a dog named Rex.\n"
    assert (refused.exit_code, "nanobot memory unpin" in refused.stderr) == (1, True)
    assert run("forget", "rex").exit_code == 0


def test_where_nothing_is_remembered_that_is_said():
    shown = run("show")

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "Nothing is remembered yet" in shown.stderr
    assert "no change to undo" in run("undo").stderr


def configured(server: FakeModels) -> None:
    config = Path.home() / ".nanobot" / "config.json"
    config.write_text(json.dumps(using("custom", "m", apiKey="k", apiBase=server.v1)), encoding="utf-8")


def test_dream_tidies_now_shows_what_changed_and_takes_it_back():
    before = "# Memory\n\n- Home: Berlin.\n- Has a dog.\n- Flies to Oslo on 2026-01-05.\n"
    memory = write_memory(before)
    archive = memory.with_name("ARCHIVE.md")
    tidy = Calls((
        "tidy_memory",
        {"edits": [{"action": "replace", "ids": ["f1"], "text": "Lives in Berlin."},
                   {"action": "archive", "ids": ["f3"], "why": "over"}]},
    ))  # fmt: skip
    with FakeModels() as server:
        configured(server)
        server.script(tidy)
        told = run("dream")
        tidied, archived = memory.read_text(), archive.read_bytes()
        again = run("dream")
        calls = len(server.chats)

    log = json.loads(run("dream-log", "--json").stdout)
    shown, back = run("dream-log"), run("dream-restore", "1")

    assert told.exit_code == 0
    assert "  - Home: Berlin.\n  + Lives in Berlin.\n" in told.stdout
    assert ("no model was called" in again.stdout, calls) == (True, 1)
    assert [(one["number"], one["outcome"], len(one["edits"])) for one in log] == [(1, "changed", 2)]
    assert "Pass 1" in shown.stdout and "before pass 1" in back.stdout
    assert (memory.read_text(), archive.exists()) == (before, False)
    assert "(restored)" in run("dream-log").stdout
    assert run("undo").exit_code == 0
    assert (memory.read_text(), archive.read_bytes()) == (tidied, archived)
    assert "(restored)" not in run("dream-log").stdout


def test_a_dream_that_fails_says_so_and_changes_nothing():
    memory = write_memory()
    with FakeModels(default=Say("I'm sorry, I can't help with that.")) as server:
        configured(server)
        told = run("dream")

    assert told.exit_code == 1
    assert "failed, nothing changed" in told.stdout
    assert memory.read_text() == TEXT


def test_a_chat_has_a_memory_and_passes_of_its_own():
    write_memory()
    write_memory("- Meets on Fridays.\n", "--chat", "telegram:-100")
    with FakeModels() as server:
        configured(server)
        server.script(Calls(("tidy_memory", {"edits": []})))
        told = run("dream", "--chat", "telegram:-100")
        asked = str(server.chats[0].body)

    assert "Fridays" in run("show", "--chat", "telegram:-100").stdout
    assert "Fridays" not in run("show").stdout
    assert "nothing to change" in told.stdout
    assert "Fridays" in asked and "green tea" not in asked
    assert "No Dream pass has run here yet" in run("dream-log").stderr
    assert run("dream-restore", "--chat", "telegram:-100").exit_code == 1
