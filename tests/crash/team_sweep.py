"""A goal with two subagents, one of which tells the other something again and again, killed at random: run as a
program, it prints what became of each word.

Each round is a fresh home. Lives are killed anywhere between the first word and its reading; the last one lives until
the goal is reached.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.providers.base import LLMResponse
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.testing import calls
from tests.crash.driver import FittingModel, send, sweep
from tests.support.work import open_tasks, reported_tasks

WORDS = ("It is in euros.", "The page is gone.", "Take the other one.", "Never mind.")
STEPS = 13
LONGEST_S = 0.25


class Model(FittingModel):
    """What it says fits what it is shown."""

    def answer(self, messages: Sequence[ChatMessage]) -> str | LLMResponse:
        return _answer(messages)


def _answer(messages: Sequence[ChatMessage]) -> str | LLMResponse:
    ended = [text_of(row["content"]) for row in messages if row["role"] == "tool"]
    known = [text for text in ended if "Outcome unknown" not in text]
    said = "\n".join(text_of(row["content"]) for row in messages if row["role"] == "user")
    if "Your task:\nspeak" in said:
        return "all is said" if len(known) == len(WORDS) else _tell(WORDS[len(known)])
    if "Your task:\nlisten" in said:
        heard = all(word in said for word in WORDS) or len(ended) == STEPS
        return "all is heard" if heard else calls(("list_dir", {"path": ".", "max_entries": len(ended) + 1}))
    results = "\n".join(known)
    if not ("all is heard" in results and "all is said" in results):
        return calls(*(("spawn", {"task": label, "label": label}) for label in ("listen", "speak")))
    if "page.md" not in results:
        return calls(("write_file", {"path": "page.md", "content": "x"}))
    return "TOLD" if "The check passed" in results else calls(("goal", {"action": "finish", "check": "file: page.md"}))


def _tell(word: str) -> LLMResponse:
    return calls(("tell", {"to": "listen", "text": word}))


async def live(home: Path, is_last: bool) -> None:
    """One life: serve, send, and be killed; or end when nothing is left to do."""
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(
            Config(), data_dir=home, workspace=home / "workspace", provider=Model(), environ={}, bus=bus
        ) as runtime,
    ):
        loop = asyncio.create_task(runtime.loop.run())
        on_the_way: list[str] = []
        sending = asyncio.create_task(send(bus, home / "sent", on_the_way))
        goal = InboundMessage("toy", "7", "7", "/goal a page", message_id="1", provenance=Provenance.OWNER)
        await bus.publish_inbound(goal)  # in every life but the first the journal has it
        quiet = 0
        while quiet < 5 or not is_last:
            await asyncio.sleep(0.01)
            assert not sending.done()
            quiet = 0 if on_the_way or _is_busy(runtime, home) else quiet + 1
        loop.cancel()
        sending.cancel()
        await asyncio.wait((loop, sending))


def _is_busy(runtime: Runtime, home: Path) -> bool:
    bus = runtime.bus
    waits = bus.inbound_size or bus.unsettled() or bus.outbound_size or runtime.status.running
    return bool(waits or runtime.background.list_running() or open_tasks(home))


def look(home: Path) -> list[str]:
    """What is wrong with what was heard, and with the end."""
    sent = home / "sent"
    lines = [json.loads(line) for line in sent.read_text("utf-8").splitlines()] if sent.exists() else []
    told = {content for _, content in lines if content.startswith("TOLD")}
    problems = [] if len(told) == 1 else [f"told {told}"]
    tasks = reported_tasks(home)
    found = {task["label"]: task for task in tasks}
    if sorted(task["label"] for task in tasks) != ["listen", "speak"]:
        return [*problems, f"tasks {[task['label'] for task in tasks]}"]
    problems += [f"{task['label']} is in no team" for task in tasks if not task["goal"]]
    listener, speaker = (_rows(home, found[label]["id"]) for label in ("listen", "speak"))
    for word in WORDS:
        read = sum(row["role"] == "user" and word in str(row["content"]) for row in listener)
        unread = found["listen"]["result"].count(word)
        if read + unread > 1 or (read + unread < 1 and _was_sent(speaker, word)):
            problems.append(f"{word!r}: read {read} times, {unread} times left unread")
    return problems


def _rows(home: Path, task: str) -> list[dict[str, Any]]:
    (path,) = (home / "workspace/sessions").glob(f"subagent_{task}*.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in rows if "role" in row]


def _was_sent(rows: Sequence[dict[str, Any]], word: str) -> bool:
    """Whether the speaker heard that this was sent."""
    for at, row in enumerate(rows):
        if any(word in call["function"]["arguments"] for call in row.get("tool_calls") or ()):
            brought = [str(one["content"]) for one in rows[at + 1 : at + 2]]
            if any(text.startswith(("Sent to", "listen (")) for text in brought):
                return True
    return False


if __name__ == "__main__":
    sweep(live, look, LONGEST_S, has_begun=lambda home: bool(open_tasks(home)))
