"""A bot with subagents that is killed again and again: run as a program, it prints what became of each task.

Each round is a fresh home: somebody asks for something that a subagent does in several steps. Lives are killed at a
random moment of the turn that asks, the subagent, its report or the sending of it; the last one lives until all is
quiet.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.providers.base import LLMResponse
from nanobot.runtime.build import build_runtime
from nanobot.testing import calls
from tests.crash.driver import FittingModel, send, sweep
from tests.support.work import open_tasks, reported_tasks

STEPS = 3
LONGEST_S = 0.35


class Model(FittingModel):
    """What it says fits what it is shown."""

    def __init__(self, *, waits: bool) -> None:
        super().__init__()
        self._waits = waits

    def answer(self, messages: Sequence[ChatMessage]) -> str | LLMResponse:
        tools = [text_of(row["content"]) for row in messages if row["role"] == "tool"]
        said = [text_of(row["content"]) for row in messages if row["role"] == "user"]
        if any("Your task:" in text for text in said):
            done = sum("Outcome unknown" not in text for text in tools)
            step = calls(("write_file", {"path": f"{done}.txt", "content": "x"}))
            return step if done < STEPS else "found it"
        if any("[A subagent has ended" in text for text in said):
            return "TOLD " + ("found" if any("found it" in text for text in said) else "nothing")
        if any("found it" in text for text in tools):
            return "TOLD found"
        if any("Outcome unknown" not in text for text in tools):
            return "on it"
        return calls(("spawn", {"task": "find it", "wait": self._waits}))


async def live(home: Path, is_last: bool) -> None:
    """One life: serve, send, and be killed; or end when nothing is left to do. In every third home the turn waits."""
    waits = int(home.name) % 3 == 2 if home.name.isdigit() else False
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(
            Config(), data_dir=home, workspace=home / "workspace", provider=Model(waits=waits), environ={}, bus=bus
        ) as runtime,
    ):
        loop = asyncio.create_task(runtime.loop.run())
        on_the_way: list[str] = []
        sending = asyncio.create_task(send(bus, home / "sent", on_the_way))
        asked = InboundMessage("toy", "7", "7", "find it", message_id="1", provenance=Provenance.OWNER)
        await bus.publish_inbound(asked)
        quiet = 0
        while quiet < 5 or not is_last:
            await asyncio.sleep(0.01)
            assert not sending.done()
            busy = on_the_way or bus.inbound_size or bus.unsettled() or bus.outbound_size or runtime.status.running
            quiet = 0 if busy or runtime.subagents.labels_of() or open_tasks(home) else quiet + 1
        loop.cancel()
        sending.cancel()
        await asyncio.wait((loop, sending))


def look(home: Path) -> list[str]:
    """What is wrong with what the person has read, and with what is left."""
    sent = home / "sent"
    lines = [json.loads(line) for line in sent.read_text("utf-8").splitlines()] if sent.exists() else []
    turns = dict(lines)  # a line that was sent as the kill came may be sent again
    told = [text for text in turns.values() if text.startswith("TOLD")]
    problems = [] if told == ["TOLD found"] else [f"told {told} in {sorted(turns.values())}"]
    states = [task["state"] for task in reported_tasks(home)]
    problems += [] if states == ["done"] else [f"tasks {states}"]
    problems += [f"an open task: {task}" for task in open_tasks(home)]
    left = [*(home / "state/turns").rglob("*.jsonl")]
    problems += [f"left over: {path.name}" for path in left]
    transcripts = list((home / "workspace/sessions").glob("subagent_*.jsonl"))
    return problems + ([] if len(transcripts) == 1 else [f"{len(transcripts)} transcripts"])


if __name__ == "__main__":
    sweep(live, look, LONGEST_S)
