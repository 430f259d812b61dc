"""Conversations whose summaries go wrong, each in a way of its own, over the wire: nobody waits for one, no message is
lost, each says so in `/status`, and the memory is byte for byte what it was.
"""

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

from nanobot.testing.model_server import (
    Calls,
    CutStream,
    Fail,
    FakeModels,
    Fitting,
    Garbage,
    Hang,
    Plain,
    Reset,
    Say,
    Step,
)
from tests.support.home import POSIX, Home, fill, small_disk

FACTS = "".join(f"- Knows the number {number} by heart.\n" for number in range(20))


def saved(entry: Any = "Talked.", update: Any = FACTS) -> Calls:
    return Calls(("save_memory", {"history_entry": entry, "memory_update": update}))


WRONG: dict[str, Step] = {
    "error-text": saved("Error: 502 Bad Gateway"),
    "error-page": Garbage(),
    "server-error": Fail(500, "upstream failed"),
    "refusal": Say("I'm sorry, but I can't help with that."),
    "refusal-kept": saved("I'm sorry, I cannot summarise this."),
    "wrong-type": saved(None, 7),
    "no-call": Say("I have saved it all."),
    "another-call": Calls(("remember", {"text": "all"})),
    "two-calls": Calls(*[("save_memory", {"history_entry": "Talked.", "memory_update": FACTS})] * 2),
    "cut-json": Calls(("save_memory", '{"history_entry": "Tal')),
    "cut-stream": CutStream(),
    "cut-line": Reset(),
    "cut-reply": Plain(Say("", finish="length")),
    "bulk-loss": saved(update="- Knows the number 3 by heart.\n"),
    "nothing-left": saved(update=""),
}


def model(body: dict[str, Any]) -> Step:
    if [one["function"]["name"] for one in body.get("tools", ())] != ["save_memory"]:
        return Say("Fine.")
    found = re.search(r"word \d+ of ([\w-]+)\.", str(body["messages"][-1]["content"]))
    assert found is not None
    return Hang() if found[1] == "never" else WRONG.get(found[1], saved())


def configured(folder: Path, server: FakeModels) -> Home:
    home = Home(
        folder,
        agents={"defaults": {"provider": "custom", "model": "m", "memoryWindow": 14}},
        providers={"custom": {"apiKey": "k", "apiBase": server.v1}},
    )
    (home.workspace / "memory").mkdir(parents=True)
    (home.workspace / "memory" / "MEMORY.md").write_text(FACTS, encoding="utf-8")
    return home


def session(home: Home, name: str) -> list[dict[str, Any]]:
    text = (home.workspace / "sessions" / f"cli_{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def is_whole(home: Home, name: str, words: int) -> bool:
    """Whether each word is still there, and none of them left the prompt."""
    head, *rows = session(home, name)
    said = [row["content"] for row in rows if row.get("role") == "user"]
    return head["last_consolidated"] == 0 and said == [f"word {number} of {name}." for number in range(words)]


async def test_however_a_summary_goes_wrong_no_message_is_lost_nobody_waits_and_it_is_told(tmp_path: Path):
    with FakeModels(default=Fitting(model)) as server:
        home = configured(tmp_path, server)
        async with home.hasty() as bot:
            bot.consolidate_after(0)

            async def speaks(name: str, first: int, last: int) -> float:
                began = time.monotonic()
                for number in range(first, last):
                    told = await bot.say(f"word {number} of {name}.", f"cli:{name}")
                    assert told.result.text == "Fine."
                return time.monotonic() - began

            for name in WRONG:  # one by one: failures in a row would pause the model
                await speaks(name, 0, 9)
                async with asyncio.timeout(20):
                    await bot.settled()
            status = {name: (await bot.say("/status", f"cli:{name}")).result.text for name in WRONG}
            await speaks("never", 0, 9)
            asked = len(server.chats)
            waited = [await speaks(name, 9, 10) for name in ("never", *WRONG)]

    assert [name for name in ("never", *WRONG) if not is_whole(home, name, 10)] == []
    assert [name for name, text in status.items() if "failed 1 time in a row" not in text] == []
    assert (home.workspace / "memory" / "MEMORY.md").read_text(encoding="utf-8") == FACTS
    assert not (home.workspace / "memory" / "HISTORY.md").exists()
    assert max(waited) < 10
    last = [str(chat.json["messages"]) for chat in server.chats[asked:]]
    assert [name for name in WRONG if not any(f"word 0 of {name}." in one for one in last)] == []


@POSIX
async def test_a_disk_that_is_full_when_the_summary_comes_loses_nothing_and_is_told(tmp_path: Path):
    with FakeModels(default=Fitting(model)) as server:
        home = configured(tmp_path / "home", server)
        for file in (folder := home.workspace / "memory").iterdir():
            file.unlink()
        folder.rmdir()
        with small_disk(folder, "64k") as disk:
            (disk / "MEMORY.md").write_text(FACTS, encoding="utf-8")
            full = fill(disk)
            async with home.hasty() as bot:
                bot.consolidate_after(0)
                for number in range(9):
                    assert (await bot.say(f"word {number} of well.", "cli:well")).result.text == "Fine."
                await bot.settled()
                status = (await bot.say("/status", "cli:well")).result.text
                kept = is_whole(home, "well", 9)
            full.unlink()
            memory = (disk / "MEMORY.md").read_text(encoding="utf-8")

    assert "No space left on device" in status
    assert kept
    assert memory == FACTS
