"""A bot that remembers: what was said is consolidated, then tidied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.store import MemoryStore
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.runtime.build import build_runtime
from nanobot.testing import ScriptedProvider
from tests.support.memory import replace_, saving, tidying


class Three(ScriptedProvider):
    """Answers turns, moves messages into memory, and tidies: each by a script of its own."""

    def __init__(self, saved: Sequence[Any], tidied: Sequence[Any]) -> None:
        super().__init__()
        self.scripts = {"save_memory": list(saved), "tidy_memory": list(tidied)}

    async def chat_stream(self, messages: Sequence[ChatMessage], tools: Any = None, *others: Any, **more: Any) -> Any:
        [name] = [tool["function"]["name"] for tool in tools] if len(tools or ()) == 1 else [""]
        self.script(self.scripts[name].pop(0) if name else "Fine.")
        async for delta in super().chat_stream(messages, tools, *others, **more):
            yield delta


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
