"""A bot with subagents that is killed again and again: run as a program, it prints what became of each task.

Each round is a fresh home: somebody asks for something that a subagent does in several steps. Lives are killed at a
random moment of the turn that asks, the subagent, its report or the sending of it; the last one lives until all is
quiet. One process imports everything once and forks the lives.
"""

import asyncio
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.providers.base import LLMResponse
from nanobot.runtime.build import build_runtime
from nanobot.testing import calls
from tests.crash.driver import FittingModel
from tests.support.tasks import open_tasks, reported_tasks

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


async def live(home: Path, sent: Path, *, waits: bool, until_quiet: bool) -> None:
    """One life: serve, send, and be killed; or end when nothing is left to do."""
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(
            Config(), data_dir=home, workspace=home / "workspace", provider=Model(waits=waits), environ={}, bus=bus
        ) as runtime,
    ):
        loop = asyncio.create_task(runtime.loop.run())
        on_the_way: list[str] = []
        sending = asyncio.create_task(send(bus, sent, on_the_way))
        asked = InboundMessage("toy", "7", "7", "find it", message_id="1", provenance=Provenance.OWNER)
        await bus.publish_inbound(asked)
        quiet = 0
        while quiet < 5 or not until_quiet:
            await asyncio.sleep(0.01)
            assert not sending.done()
            busy = on_the_way or bus.inbound_size or bus.unsettled() or bus.outbound_size or runtime.status.running
            quiet = 0 if busy or runtime.subagents.labels_of() or open_tasks(home) else quiet + 1
        loop.cancel()
        sending.cancel()
        await asyncio.wait((loop, sending))


async def send(bus: MessageBus, sent: Path, on_the_way: list[str]) -> None:
    """A platform: what it has is on the disk."""
    while (message := await bus.consume_outbound()) is not None:
        on_the_way.append(message.content)
        await bus.record_sending(message)
        with sent.open("a", encoding="utf-8") as file:
            file.write(json.dumps([message.turn_id, message.content]) + "\n")
        await bus.record_sent(message, ("1",))
        on_the_way.clear()


def look(home: Path, sent: Path) -> list[str]:
    """What is wrong with what the person has read, and with what is left."""
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


def main() -> None:
    """`killed_tasks HOME ROUNDS SEED`"""
    homes, rounds, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    with tempfile.TemporaryDirectory() as warm:  # what a life loads is loaded once
        asyncio.run(live(Path(warm), Path(warm) / "sent", waits=False, until_quiet=True))
    gc.freeze()
    kills, problems = 0, []
    for number in range(rounds):
        home, waits = homes / str(number), number % 3 == 2
        home.mkdir()
        sent = home / "sent"
        deaths = chance.randrange(1, 4)
        for death in range(deaths + 1):
            last = death == deaths
            child = os.fork()
            if not child:
                status: Any = 9
                try:
                    asyncio.run(asyncio.wait_for(live(home, sent, waits=waits, until_quiet=last), 15))
                    status = 0
                finally:
                    os._exit(status)
            if not last:
                time.sleep(chance.uniform(0, LONGEST_S))
                os.kill(child, signal.SIGKILL)
                kills += 1
            _, ended = os.waitpid(child, 0)
            if last and ended != 0:
                problems.append(f"round {number}: the last life ended with {ended}")
        problems += [f"round {number} ({'waits' if waits else 'beside'}): {one}" for one in look(home, sent)]
    print(json.dumps({"kills": kills, "problems": problems[:20]}))


if __name__ == "__main__":
    main()
