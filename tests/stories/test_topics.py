"""Old topics and new ones, over the wire: what was finished is not begun again, and what was asked is known.

The model knows nothing but the request that it is sent.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import Calls, FakeModels, Fitting, Say, Step
from tests.support.home import Home

BULK = "word " * 300


class Worker:
    """Writes one file a task, and asks before the next. It trusts what it is shown: what seems undone, it does."""

    def __init__(self, *, sums_up: bool) -> None:
        self.wrote: list[str] = []
        self.requests: list[str] = []
        self._sums_up = sums_up

    def __call__(self, body: dict[str, Any]) -> Step:
        rows = [(row["role"], str(row["content"] or "")) for row in body["messages"]]
        if [one["function"]["name"] for one in body.get("tools", ())] == ["save_memory"]:
            return Calls(("save_memory", _remembered(rows[-1][1]))) if self._sums_up else Say("I cannot do that.")
        self.requests.append("\n".join(text for _, text in rows))
        at = max(at for at, (role, _) in enumerate(rows) if role == "user")
        said, steps = rows[at][1], sum(role == "tool" for role, _ in rows[at:])
        if said.startswith("go on") and "look for it with session_search" in rows[0][1] and not steps:
            return Calls(("session_search", {"query": "written"}))
        if "read" in said and steps < 3:
            return Calls(("read_file", {"path": f"big-{steps}.md"}))
        found = re.match(r"Created (\w+\.txt)", rows[-1][1])
        if found is not None:
            return Say(f"{found[1]} is written. Shall I go on with {_after(found[1])}?")
        if (wanted := _wanted(said, self.requests[-1])) is None:
            return Say("Hm.")
        self.wrote.append(wanted)
        return Calls(("write_file", {"path": wanted, "content": "x"}))


def _wanted(said: str, shown: str) -> str | None:
    """The file that this is about: named, or asked about last, or the first that is not written."""
    if named := re.match(r"do (\w+\.txt)", said):
        return named[1]
    if said.startswith("yes"):
        return str(re.findall(r"Shall I go on with (\w+\.txt)\?", shown)[-1])
    done = re.findall(r"(\w+\.txt) is written", shown)
    tasks = ("a.txt", "b1.txt", "b2.txt", "b3.txt")
    return next(name for name in tasks if name not in done) if said.startswith("go on") else None


def _after(name: str) -> str:
    return "b1.txt" if name == "a.txt" else f"b{int(name[1]) + 1}.txt"


def _remembered(material: str) -> dict[str, str]:
    """What an honest summariser says."""
    done = [f"{name} is written." for name in dict.fromkeys(re.findall(r"(\w+\.txt) is written", material))]
    asked = re.findall(r"Shall I go on with \w+\.txt\?", material)[-1:]
    return {"history_entry": "Talked.", "memory_update": "- Works.", "handover": " ".join([*done, *asked])}


@pytest.mark.parametrize("sums_up", [True, False], ids=["summed up", "by no model"])
async def test_behind_a_compaction_between_two_tasks_the_next_call_belongs_to_the_second(tmp_path: Path, sums_up: bool):
    """A is finished and B begun; the window is cut in a turn of B's. What then stands in it is all the model knows."""
    worker = Worker(sums_up=sums_up)
    with FakeModels(default=Fitting(worker)) as server:
        model = {"provider": "custom", "model": "stand-in", "contextWindowTokens": 12_000, "maxTokens": 1_000}
        home = Home(
            tmp_path,
            agents={"defaults": model},
            providers={"custom": {"apiKey": "k", "apiBase": server.v1}},
            tools={"approval": "off"},
        )
        home.workspace.mkdir(parents=True)
        for number in range(3):
            (home.workspace / f"big-{number}.md").write_text((BULK[:200] + "\n") * 60, encoding="utf-8")
        async with home.hasty() as bot:
            await bot.say(f"do a.txt {BULK}")
            for _ in range(8):
                await bot.say(f"a word between {BULK}")
            before = len(worker.requests)
            await bot.say(f"do b1.txt, and read the big ones first {BULK}")
            in_the_turn = worker.requests[before:]
            await bot.settled()
            told = [(await bot.say(words)).result.text for words in ("yes", "go on")]
            status = (await bot.say("/status")).result.text

    assert worker.wrote == ["a.txt", "b1.txt", "b2.txt", "b3.txt"]
    assert told == [f"b{number}.txt is written. Shall I go on with b{number + 1}.txt?" for number in (2, 3)]
    assert "do a.txt" in in_the_turn[0]
    assert not [request for request in in_the_turn[1:] if "do a.txt" in request]
    assert all("do b1.txt, and read the big ones first" in request for request in in_the_turn)
    assert ("consolidation failed" in status) is not sums_up
