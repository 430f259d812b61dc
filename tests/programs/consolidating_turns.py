"""Turns of one session, every third of which consolidates it, without end, for `fork_and_kill`."""

import os
import re
from pathlib import Path
from typing import Any

from nanobot.agent.engine.spec import Model
from nanobot.agent.memory.consolidation import Consolidator
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.status import AgentStatus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import SystemClock


class QuestionRecorder(LLMProvider):
    """Saves the number of each question it was shown."""

    def get_default_model(self) -> str:
        return "recorder"

    async def chat(self, messages: Any, *args: Any, **kwargs: Any) -> LLMResponse:
        shown = re.findall(r"question (\d+)", messages[1]["content"])
        kept = {"history_entry": f"Heard {' '.join(shown)}.", "memory_update": f"Knows of {shown[-1]}."}
        return LLMResponse(None, [ToolCallRequest("1", "save_memory", kept)])


class Models:
    async def get(self, wanted: str | None) -> Model:
        return Model(QuestionRecorder(), "recorder", "m")


def consolidator(folder: Path, sessions: SessionManager) -> Consolidator:
    clock = SystemClock()
    return Consolidator(MemoryStore(folder), sessions, Models(), AgentStatus(clock), clock)


async def main(folder: Path, number: int) -> None:
    sessions = SessionManager(folder)
    consolidates = consolidator(folder, sessions)
    while True:
        async with sessions.hold("cli:direct") as session:
            for role, word in (("user", "question"), ("assistant", "answer")):
                row: Any = {"role": role, "content": f"{word} {number}", "turn_id": f"t{number}", "provenance": "owner"}
                await sessions.append(session, row)
        os.write(1, b"%d\n" % number)
        if number % 3 == 0:
            await consolidates.consolidate("cli:direct", lambda session: 8)
        number += 1
