"""A week of a bot that remembers: what was said is consolidated and tidied, then nobody speaks and nothing is asked."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.store import MemoryStore
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot, ScriptedProvider
from nanobot.utils.clock import FrozenClock
from tests.support.ledger_rows import rows_of
from tests.support.memory import replace_, saving, tidying


class Three(ScriptedProvider):
    """Answers turns, moves messages into memory, and tidies: each by a script of its own."""

    def __init__(self, saved: Sequence[Any], tidied: Sequence[Any]) -> None:
        super().__init__()
        self.scripts = {"save_memory": list(saved), "tidy_memory": list(tidied)}
        self.prompts: list[str] = []

    async def chat_stream(self, messages: Sequence[ChatMessage], tools: Any = None, *others: Any, **more: Any) -> Any:
        [name] = [tool["function"]["name"] for tool in tools] if len(tools or ()) == 1 else [""]
        if not name:
            self.prompts.append(str(messages))
        self.script(self.scripts[name].pop(0) if name else "Fine.")
        async for delta in super().chat_stream(messages, tools, *others, **more):
            yield delta


async def test_after_a_day_of_talk_a_week_of_silence_asks_nothing_of_a_model(tmp_path: Path):
    """Two consolidations plant facts that contradict each other; the night after, one call makes them one."""
    clock = FrozenClock(datetime(2026, 2, 26, 9, 0, tzinfo=UTC))
    first = saving("The owner lives in Berlin.", "- Lives in Berlin.\n- Has a dog named Rex.")
    second = saving("The owner moved to Hamburg.", "- Lives in Berlin.\n- Has a dog named Rex.\n- Moved to Hamburg.")
    three = Three([first, second], [tidying(replace_("f1 f3", "Lives in Hamburg."))])
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": 16}}})
    async with build_runtime(
        config, data_dir=tmp_path, workspace=tmp_path / "workspace", provider=three, environ={}, clock=clock
    ) as runtime:
        bot, upkeep = Bot(runtime, three), runtime.memory
        upkeep.consolidation.pause_s = 0
        for number in range(16):
            await bot.say(f"word {number}")
            await upkeep.consolidation.wait_done()
            clock.advance(60)
        assert three.scripts["save_memory"] == []
        asked = len(three.requests)

        end = clock.now().timestamp() + 7 * 86_400

        class WeekIsOver(Exception):  # noqa: N818 it is no error
            pass

        async def sleep(seconds: float) -> None:
            if clock.now().timestamp() + seconds > end:
                raise WeekIsOver
            clock.advance(seconds)

        with pytest.raises(WeekIsOver):
            await upkeep.dreams.run(sleep)
        assert len(three.requests) == asked + 1
        await bot.say("where do I live?")

    facts = parse_facts(MemoryStore(tmp_path / "workspace").read_long_term())
    assert [fact.text for fact in facts] == ["Lives in Hamburg.", "Has a dog named Rex."]
    assert "Lives in Hamburg." in three.prompts[-1]
    assert "Lives in Berlin." not in three.prompts[-1]
    rows = rows_of(tmp_path)
    causes = [row["cause"] for row in rows]
    assert (causes.count("consolidation"), causes.count("dream"), causes.count("turn")) == (2, 1, 17)


async def test_who_is_let_in_alone_has_their_memory_tidied_as_the_owner_they_are(tmp_path: Path):
    """Nobody is paired as owner there: what they said is no less their own, in the log as in the facts."""
    three = Three(
        [saving("Moved.", "- Lives in Berlin.\n- Home: Berlin.")] * 9, [tidying(replace_("f1 f2", "Lives in Berlin."))]
    )
    telegram = {"enabled": True, "token": "1:a", "allowFrom": ["7"]}
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": 8}}, "channels": {"telegram": telegram}})
    async with build_runtime(
        config, data_dir=tmp_path, workspace=tmp_path / "workspace", provider=three, environ={}
    ) as runtime:
        runtime.memory.consolidation.pause_s = 0
        for number in range(14):
            await runtime.loop.run_turn(InboundMessage("telegram", "7", "7", f"word {number}"))
        await runtime.memory.consolidation.wait_done()
        await runtime.memory.dreams.run_all()

    memory = MemoryStore(tmp_path / "workspace")
    assert "somebody else" not in memory.history_file.read_text(encoding="utf-8")
    assert [fact.text for fact in parse_facts(memory.read_long_term())] == ["Lives in Berlin."]
