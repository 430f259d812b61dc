"""A week of silence with everything on costs nothing: consolidation, Dream, heartbeat and goals ask no model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.memory.dream_schedule import DreamScheduler
from nanobot.agent.memory.schedule import ConsolidationScheduler
from nanobot.config.loader import load_config
from nanobot.gateway.service import Options, open_gateway
from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.providers.base import Delta
from nanobot.testing import FrozenClock, Line, ScriptedProvider, calls
from tests.support.eventually import eventually
from tests.support.memory import saving, tidying
from tests.support.toy_gateway import Toy, free_port, install_toys, written

DEFAULTS = {"idleCompactAfterMinutes": 30, "memoryWindow": 16, "review": True, "dream": {"cron": "0 4 * * *"}}


class Mind(ScriptedProvider):
    """Says what fits; what it was asked for is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.facts = 0

    async def chat_stream(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSchema] | None = None, *others: Any, **more: Any
    ) -> AsyncIterator[Delta]:
        names = [tool["function"]["name"] for tool in tools or ()]
        self.asked.append(names[0] if len(names) == 1 else "turn")
        self.script(self._line(self.asked[-1], messages))
        async for delta in super().chat_stream(messages, tools, *others, **more):
            yield delta

    def _line(self, wanted: str, messages: Sequence[ChatMessage]) -> Line:
        if wanted == "save_memory":
            self.facts += 1
            return saving("Talked.", "".join(f"- Fact {number}.\n" for number in range(self.facts)))
        if wanted == "tidy_memory":
            return tidying()
        said = next(text_of(row["content"]) for row in reversed(messages) if row["role"] == "user")
        if any("VERDICT" in text_of(row["content"]) for row in messages):
            return "VERDICT: PASS"
        if messages[-1]["role"] == "tool":
            return "Done."
        if "[Goal, turn" in said:
            return calls(("goal", {"action": "finish", "check": "file: HEARTBEAT.md"}))
        return calls(("spawn", {"task": "find it"})) if said.startswith("find") else "Fine."


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits looks at the clock again soon, however long it wanted to wait: the test moves the clock."""
    sleep = asyncio.sleep

    async def soon_again(seconds: float, result: Any = None) -> Any:
        return await sleep(min(seconds, 0.01), result)

    monkeypatch.setattr(asyncio, "sleep", soon_again)
    monkeypatch.setattr(ConsolidationScheduler, "sleep", staticmethod(soon_again))
    monkeypatch.setattr(DreamScheduler.run, "__defaults__", (soon_again,))


async def test_a_week_in_which_nobody_speaks_asks_nothing_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hurried: None
):
    monkeypatch.syspath_prepend(install_toys(tmp_path / "site"))
    toy, mind = Toy(tmp_path / "toy"), Mind()
    clock = FrozenClock(datetime(2026, 2, 26, 9, 0, tzinfo=UTC))
    channel = {"enabled": True, "folder": str(toy.folder), "allowFrom": ["7"]}
    (home := tmp_path / "home").mkdir()
    written(
        home / "config.json",
        {
            "agents": {"defaults": DEFAULTS},
            "channels": {"toy": channel},
            "gateway": {"port": free_port(), "heartbeat": {"intervalS": 60}},
        },
    )

    async def hours(count: int) -> None:
        for _ in range(0, count, 6):
            clock.advance(6 * 3600)
            await asyncio.sleep(0.01)

    async def hears(number: int, text: str, answer: str) -> None:
        before = len(toy.got())
        toy.write(text, message_id=str(number))
        await eventually(lambda: [one for one in toy.got()[before:] if answer in one])

    async def asked(more: Callable[[], bool]) -> None:
        await eventually(lambda: more() and not [*(home / "state" / "turns").glob("*.jsonl")])

    async with open_gateway(
        load_config(home / "config.json"),
        data_dir=home,
        workspace=home / "workspace",
        options=Options(turns_s=0.05),
        provider=mind,
        environ={},
        clock=clock,
    ):
        for number in range(10):
            await hears(number, f"word {number}", "Fine.")
        await hears(20, "find it for me", "Done.")
        await hears(21, "/goal find it all", "Goal reached")
        await hours(1)
        await asked(lambda: "save_memory" in mind.asked)
        await hours(24)
        await asked(lambda: "tidy_memory" in mind.asked)
        await hours(24)
        spoken = len(mind.asked)

        await hours(7 * 24)
        silence = mind.asked[spoken:]
        for number in range(30, 40):
            await hears(number, f"more {number}", "Fine.")
        await hours(30)

        await asked(lambda: {"save_memory", "tidy_memory"} <= {*mind.asked[spoken:]})

    assert silence == []
    assert "heartbeat" not in mind.asked
