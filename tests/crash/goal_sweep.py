"""A goal with a planner, two subagents, a reviewer and a person who talks, killed again and again: run as a program, it
prints what became of each.

Each round is a fresh home. Lives are killed at a random moment of the planning, a turn, a subagent, a claim, the review
or the telling; the last one lives until the goal is over.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.providers.base import LLMResponse
from nanobot.runtime.build import build_runtime
from nanobot.testing import calls
from tests.crash.driver import FittingModel, send, sweep
from tests.support.work import goal_of, open_tasks

LONGEST_S = 0.5
SAYS = ("say 1", "say 2")
ONCE = ("main", "kid-1", "kid-2")


class Once(Tool):
    """What must not be done twice."""

    name = "once"
    description = "Does it."
    effect = Effect.ONCE
    parameters = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}  # noqa: RUF012

    def __init__(self, log: Path) -> None:
        self._log = log

    async def execute(self, label: str) -> str:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{label}\n")
        await asyncio.sleep(0.005)
        return f"did {label}"


class Model(FittingModel):
    """What it says fits what it is shown."""

    def answer(self, messages: Sequence[ChatMessage]) -> str | LLMResponse:
        system = text_of(messages[0]["content"])
        said = [text_of(row["content"]) for row in messages if row["role"] == "user"]
        called = {call["function"]["arguments"] for row in messages for call in row.get("tool_calls") or ()}
        if "VERDICT: PASS" in system:
            return "VERDICT: PASS\nIt is there."
        if "- [ ]" in system:
            return "- [ ] first\n- [ ] last"
        if "# Subagent" in system:
            label = "kid-1" if "kid-1" in said[0] else "kid-2"
            return f"found {label}" if called else calls(("once", {"label": label}))
        if "[Goal, turn" not in said[-1] and "say " in said[-1] and messages[-1]["role"] == "user":
            return f"heard {said[-1].split()[1]}"
        words, results = " ".join(called), [text_of(row["content"]) for row in messages if row["role"] == "tool"]
        if '"main"' not in words:
            return calls(("once", {"label": "main"}))
        if "kid-2" not in words:
            return calls(*[("spawn", {"task": f"look for {kid}", "wait": True}) for kid in ONCE[1:]])
        if '"note"' not in words:
            return calls(("goal", {"action": "note", "done": "all but the page"}))
        if not any("Created page.md" in text or "Replaced page.md" in text for text in results):
            return calls(("write_file", {"path": "page.md", "content": "# Hello"}))
        if "The check passed" not in text_of(messages[-1]["content"]):
            return calls(("goal", {"action": "finish", "check": "file: page.md"}))
        return "REACHED"


async def live(home: Path, is_last: bool) -> None:
    """One life: serve, send, hear, and be killed; or end when nothing is left to do."""
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(
            Config(), data_dir=home, workspace=home / "workspace", provider=Model(), environ={}, bus=bus
        ) as runtime,
    ):
        runtime.tools.register(Once(home / "once"))
        loop = asyncio.create_task(runtime.loop.run())
        sending = asyncio.create_task(send(bus, home / "sent", []))
        await hear(bus, "/goal --plan --review make a page", 0)
        for number, text in enumerate(SAYS, 1):
            await asyncio.sleep(0 if is_last else random.uniform(0, LONGEST_S / 2))
            await hear(bus, text, number)
        quiet = 0
        while quiet < 5 or not is_last:
            await asyncio.sleep(0.01)
            assert not sending.done()
            waits = bus.inbound_size or bus.unsettled() or bus.outbound_size
            works = runtime.status.running or runtime.goals.titles() or runtime.subagents.labels_of()
            quiet = 0 if waits or works or open_tasks(home) else quiet + 1
        loop.cancel()
        sending.cancel()
        await asyncio.wait((loop, sending))


async def hear(bus: MessageBus, text: str, number: int) -> None:
    """The platform hands over again what was not taken; what was, is known by its id."""
    message = InboundMessage("toy", "7", "7", text, message_id=str(number), provenance=Provenance.OWNER)
    await bus.publish_inbound(message)


def look(home: Path) -> list[str]:
    """What is wrong with what the person has read, and with what is left."""
    sent = [json.loads(line)[1] for line in (home / "sent").read_text("utf-8").splitlines()]
    told = {text for text in sent if "Goal reached" in text}  # a line that was sent as the kill came may be sent again
    problems = [] if len(told) == 1 else [f"told {len(told)} times: {sent}"]
    done = Counter((home / "once").read_text("utf-8").split())
    problems += [f"{label} ran {times} times" for label, times in done.items() if times > 1]
    goal = goal_of(home)
    problems += [] if goal["state"] == "done" and goal["reported"] else [f"the goal is {goal['state']}"]
    problems += [] if goal["planned"] else ["it was never planned"]
    rows = [json.loads(line) for line in (home / "workspace/sessions/toy_7.jsonl").read_text("utf-8").splitlines()]
    heard = Counter(text_of(row["content"]) for row in rows if row.get("role") == "user")
    problems += [f"{text!r} is there {heard[text]} times" for text in SAYS if heard[text] != 1]
    left = [*(home / "state/turns").rglob("*.jsonl")]
    problems += [f"an open task: {task}" for task in open_tasks(home)]
    return problems + [f"left over: {path.name}" for path in left]


if __name__ == "__main__":
    sweep(live, look, LONGEST_S)
