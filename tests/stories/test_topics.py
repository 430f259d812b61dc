"""Old topics and new ones, over the wire: what was finished is not begun again, what was asked is known, what was reset
is gone from every request and can be brought back.

The model knows nothing but the request that it is sent.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.fake_models import Calls, FakeModels, Fitting, Say, Step
from tests.stories.homes import Home, using

BULK = "word " * 300


class Worker:
    """Writes one file a task, and asks before the next. It trusts what it is shown: what seems undone, it does."""

    def __init__(self) -> None:
        self.wrote: list[str] = []
        self.requests: list[str] = []

    def __call__(self, body: dict[str, Any]) -> Step:
        rows = [(row["role"], str(row["content"] or "")) for row in body["messages"]]
        shown = "\n".join(text for _, text in rows)
        if [one["function"]["name"] for one in body.get("tools", ())] == ["save_memory"]:
            return Calls(("save_memory", _remembered(rows[-1][1])))
        self.requests.append(shown)
        at = max(at for at, (role, _) in enumerate(rows) if role == "user")
        steps = sum(role == "tool" for role, _ in rows[at:])
        wanted = self._wanted(rows[at][1], "\n".join(text for _, text in rows[:at]))
        if wanted is None:
            return Say("Hm.")
        if steps < 3 and "read" in rows[at][1]:
            return Calls(("read_file", {"path": f"big-{steps}.md"}))
        if steps in (0, 3) and not rows[-1][1].startswith("Created"):
            self.wrote.append(wanted)
            return Calls(("write_file", {"path": wanted, "content": "x"}))
        return Say(f"{wanted} is written. Shall I go on with {_after(wanted)}?")

    def _wanted(self, said: str, before: str) -> str | None:
        """The file that this is about: named, or asked about last, or the first that is not written."""
        if named := re.match(r"do (\w+\.txt)", said):
            return named[1]
        if said.startswith("yes"):
            return re.findall(r"Shall I go on with (\w+\.txt)\?", before)[-1]
        if said.startswith("go on"):
            done = re.findall(r"(\w+\.txt) is written", before)
            return next(name for name in ("a.txt", "b1.txt", "b2.txt", "b3.txt") if name not in done)
        return None


def _after(name: str) -> str:
    return "b1.txt" if name == "a.txt" else f"b{int(name[1]) + 1}.txt"


def _remembered(material: str) -> dict[str, str]:
    """What an honest summariser says."""
    done = [f"{name} is written." for name in dict.fromkeys(re.findall(r"(\w+\.txt) is written", material))]
    asked = re.findall(r"Shall I go on with \w+\.txt\?", material)[-1:]
    return {"history_entry": "Talked.", "memory_update": "- Works.", "handover": " ".join([*done, *asked])}


@pytest.mark.parametrize("word", ["yes", "go on"])
async def test_behind_a_compaction_between_two_tasks_the_next_call_belongs_to_the_second(tmp_path: Path, word: str):
    """A is finished and B begun; then the window is cut, in a turn of B's and between two of them."""
    worker = Worker()
    with FakeModels(default=Fitting(worker)) as server:
        home = Home(tmp_path, **using("custom", "stand-in", apiKey="k", apiBase=server.v1))
        defaults = {**using("custom", "stand-in")["agents"]["defaults"], "contextWindowTokens": 12_000, "maxTokens": 1_000}
        home.configure(
            **using("custom", "stand-in", apiKey="k", apiBase=server.v1) | {"agents": {"defaults": defaults}},
            tools={"approval": "off"},
        )
        home.workspace.mkdir(parents=True)
        for number in range(3):
            (home.workspace / f"big-{number}.md").write_text((BULK[:200] + "\n") * 60, encoding="utf-8")
        async with home.hasty() as bot:
            await bot.say(f"do a.txt {BULK}")
            for _ in range(8):
                await bot.say(f"a word between {BULK}")
            await bot.say(f"do b1.txt, and read the big ones first {BULK}")
            in_the_turn = [request for request in worker.requests[-5:] if "do a.txt" not in request]
            await bot.runtime.upkeep.tidying.settled()
            told = await bot.say(word)
            last = await bot.say(word)

    print([(len(r), "do a.txt" in r, r.count("\n"), r[-80:]) for r in worker.requests]); assert worker.wrote == ["a.txt", "b1.txt", "b2.txt", "b3.txt"]
    assert told.result.text == "b2.txt is written. Shall I go on with b3.txt?"
    assert last.result.text == "b3.txt is written. Shall I go on with b4.txt?"
    assert in_the_turn
    assert all("do b1.txt, and read the big ones first" in request for request in worker.requests[-9:-4])
