"""`/reset --all` while a gateway runs and everything works at the old topic: no request after it holds a word of that,
also after a kill, and what was put away can be brought back.
"""

import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.testing.model_server import Calls, FakeModels, Fitting, Hang, Say, Step
from tests.support.eventually import wait_until
from tests.support.home import POSIX
from tests.support.toy_gateway import GatewayHome
from tests.support.work import open_tasks

pytestmark = POSIX

MEMORY = "- Wants plums.\n\n## Lessons\n\n- [2026-11-20] exec `plum`: no such command (3 times since 2026-11-18)\n"


def about_plums(body: dict[str, Any]) -> Step:
    """Its goal waits for an answer, its subagent never comes to an end; all else it does at once."""
    alone = [one["function"]["name"] for one in body.get("tools", ())]
    rows = [(row["role"], str(row["content"] or "")) for row in body["messages"]]
    at = max(at for at, (role, _) in enumerate(rows) if role == "user")
    said, steps = rows[at][1], len(rows) - at - 1
    if alone == ["save_memory"]:
        material = rows[-1][1]
        memory = material.partition("# MEMORY.md as it stands\n\n")[2].partition("\n\n# ")[0]
        return Calls(("save_memory", {"history_entry": "Plums.", "memory_update": memory, "handover": "Doing: plums."}))
    if alone == ["tidy_memory"]:
        return Calls(("tidy_memory", {"edits": []}))
    if "[Goal, turn" in said:
        note, ask = (
            {"action": "note", "doing": "plums", "next": "more plums"},
            {"action": "ask", "text": "Which plums?"},
        )
        return [Calls(("goal", note)), Calls(("goal", ask)), Say("Which plums?")][min(steps // 2, 2)]
    if said.startswith("Your task:"):
        return Hang()
    if said.startswith("send") and not steps:
        return Calls(("spawn", {"task": "count the plums"}))
    return Say("Plums are fine." if "plum" in said else "Hello.")


def test_after_reset_all_no_request_holds_a_word_of_the_old_topic_and_it_can_be_brought_back(tmp_path: Path):
    with FakeModels(default=Fitting(about_plums)) as server:
        home = GatewayHome(tmp_path, server)
        home.change(agents={"defaults": {**home.config["agents"]["defaults"], "memoryWindow": 12}})
        memory = home.workspace / "memory" / "MEMORY.md"
        memory.parent.mkdir(parents=True)
        memory.write_text(MEMORY, encoding="utf-8")
        (memory.parent / "HISTORY.md").write_text("[2026-11-20 10:00] Spoke of plums.\n\n", encoding="utf-8")
        (memory.parent / f"{datetime.now().astimezone().date()}.md").write_text("Plum jam.\n", encoding="utf-8")
        numbers = iter(range(100))

        def says(text: str, answer: str) -> str:
            before = len(home.toy.got())
            home.toy.write(text, message_id=f"{next(numbers):03}")
            return wait_until(lambda: next((one for one in home.toy.got()[before:] if answer in one), ""))

        with home.gateway():
            for number in range(9):
                says(f"plum number {number}", "Plums are fine.")
            wait_until(lambda: "Doing: plums." in (home.sessions / "toy_7.jsonl").read_text(encoding="utf-8"))
            says("send somebody to count plums", "Plums are fine.")
            says("/goal pick plums", "I will work on this")
            wait_until(lambda: any("Your task" in str(chat.body) for chat in server.chats))
            wait_until(lambda: any("Which plums?" in one for one in home.toy.got()))
            says("how far are you with the plums?", "Plums are fine.")
            shown = str(server.chats[-1].json["messages"])
            remembered = memory.read_bytes()
            cleared = says("/reset --all", "Cleared")
            asked = len(server.chats)
            says("hello", "Hello.")
            says("/dream", "no model was called")
            says("/status", "Long-term memory")
        with home.gateway() as process:
            says("hello again", "Hello.")
            after = [chat.body.decode().lower() for chat in server.chats[asked:]]
            says("/memory undo", "Undone")
            process.send_signal(signal.SIGTERM)
            process.wait(20)

        kept = re.findall(r"nanobot sessions show (\S+?)\)", cleared)
        archived = home.run("sessions", "show", *kept)

    assert all(
        word in shown for word in ("Wants plums", "Plum jam.", "exec `plum`", "Doing: plums.", "Next: more plums")
    )
    for what in (
        "this conversation",
        "its session summary",
        "MEMORY.md",
        "today's notes",
        "its goal (pick plums)",
        "background tasks: count the plums",
    ):
        assert what in cleared
    assert [body for body in after if "plum" in body] == []
    assert len(after) == 2
    assert memory.read_bytes() == remembered
    assert "plum number 8" in archived.out
    assert [file for file in memory.parent.glob("*.md") if "Plum jam." in file.read_text(encoding="utf-8")]
    assert not open_tasks(home.data)
