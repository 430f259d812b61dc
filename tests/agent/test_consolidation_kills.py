"""Processes that talk and consolidate are killed at any moment: first the words are kept, then their messages leave."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.agent.memory.store import MemoryStore
from nanobot.messages.repair import legalise
from nanobot.session.manager import SessionManager
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.session.test_crash import FORKER

KEY = "cli:direct"
LAST_LIFE = """
sys.argv = ["x", folder, "-1"]
exec(code, {"__name__": "turns"})
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")

LIFE = """
import asyncio, os, re, sys
from pathlib import Path
from nanobot.agent.memory.consolidation import Consolidator
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.engine.spec import Model
from nanobot.agent.status import AgentStatus
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import SystemClock

class Clerk(LLMProvider):
    "Names each question it was shown."
    async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
        shown = re.findall(r"question (\\\\d+)", messages[1]["content"])
        kept = {"history_entry": f"Heard {' '.join(shown)}.", "memory_update": f"Knows of {shown[-1]}."}
        return LLMResponse(None, [ToolCallRequest("1", "save_memory", kept)])

class Models:
    async def get(self, wanted):
        return Model(Clerk(), "clerk", "m")

async def main(folder, number):
    sessions, clock = SessionManager(folder), SystemClock()
    consolidator = Consolidator(MemoryStore(folder), sessions, Models(), AgentStatus(clock), clock)
    if number < 0:
        await consolidator.compact("cli:direct")
        return
    while True:
        async with sessions.hold("cli:direct") as session:
            for role, word in (("user", "question"), ("assistant", "answer")):
                row = {"role": role, "content": f"{word} {number}", "turn_id": f"t{number}", "provenance": "owner"}
                await sessions.append(session, row)
        os.write(1, b"%d\\\\n" % number)
        if number % 3 == 0:
            await consolidator.compact("cli:direct")
        number += 1

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
""".replace("\\\\", "\\")


def kill_many(folder: Path, kills: int, seed: int) -> None:
    """The last life is not killed: on a busy machine no other may get as far as to keep anything."""
    manager = SessionManager(folder)
    session = manager.get_or_create(KEY)
    for number in range(900, 930):
        session.add_message("user", f"question {number}", provenance="owner")
        session.add_message("assistant", f"answer {number}", provenance="owner")
    manager.save(session)
    forker = FORKER.replace(
        "import nanobot.session.manager",
        "import nanobot.agent.memory.retention, nanobot.agent.memory.consolidation, nanobot.agent.engine.spec",
    )
    forker = forker.replace("uniform(0.001, 0.03)", "uniform(0.02, 0.35)") + LAST_LIFE
    run = subprocess.run(
        [sys.executable, "-c", forker, str(folder), str(kills), str(seed)], input=LIFE, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""

    session = SessionManager(folder).get_or_create(KEY)
    gone = [str(row["content"]) for row in session.messages[: session.last_consolidated] if row["role"] == "user"]
    left = legalise(session.get_history())
    log = MemoryStore(folder).history_file.read_text(encoding="utf-8")
    logged = {number for entry in re.findall(r"Heard ([\d ]+)\.\n\n", log) for number in entry.split()}
    said = {str(row["content"]) for row in session.messages}

    assert gone
    assert [question for question in gone if question.split()[1] not in logged] == []
    assert [number for number in run.stdout.split() if f"answer {number}" not in said] == []
    assert openai_problems(left) == anthropic_problems(left) == []
    assert re.fullmatch(r"Knows of \d+\.\n", MemoryStore(folder).read_long_term())


@pytest.mark.timeout(240)
def test_twenty_kills_lose_no_words(tmp_path: Path):
    kill_many(tmp_path, 20, 1)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_two_thousand_kills_lose_no_words(tmp_path: Path, seed: int):
    kill_many(tmp_path, 100, seed)
