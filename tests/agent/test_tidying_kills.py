"""Processes whose sessions are moved into memory while they talk are killed at any moment: no message is lost."""

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanobot.agent.memory.store import MemoryStore
from nanobot.session.manager import SessionManager

KEY = "cli:direct"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX"),
]

LIFE = r"""
import asyncio, os, re, sys
from pathlib import Path
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import LLMProvider, LLMResponse, ToolCallRequest
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot

class Clerk(LLMProvider):
    "Names each question it was shown."
    def get_default_model(self):
        return "clerk"
    async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
        if [tool["function"]["name"] for tool in tools or ()] != ["save_memory"]:
            return LLMResponse("Fine.")
        shown = re.findall(r"question (\d+)", messages[1]["content"].partition("<conversation>")[2])
        kept = {"history_entry": f"Heard {' '.join(shown)}.", "memory_update": f"- Knows of {shown[-1]}."}
        return LLMResponse(None, [ToolCallRequest("1", "save_memory", kept)])

async def main(home, number):
    config = Config.model_validate({"agents": {"defaults": {"memoryWindow": 16}}})
    clerk = Clerk()
    places = {"data_dir": home, "workspace": home / "workspace"}
    async with build_runtime(config, **places, provider=clerk, environ={}) as runtime:
        runtime.memory.consolidation.pause_s = 0.002
        bot = Bot(runtime, clerk)
        while True:
            await bot.say(f"question {number}")
            os.write(1, b"%d\n" % number)
            number += 1
            if number % 40 == 0:
                await bot.say("/new")

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


def test_forty_kills_lose_no_message(tmp_path: Path):
    chance, next_number = random.Random(7), 100
    answered: set[int] = set()
    for _ in range(40):
        child = subprocess.Popen([sys.executable, "-c", LIFE, str(tmp_path), str(next_number)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(chance.uniform(0, 0.5))
        child.send_signal(signal.SIGKILL)
        rest = child.communicate()[0]
        answered.update(int(line) for line in (first + rest).split())
        next_number = max(answered) + 10

    sessions = SessionManager(tmp_path / "workspace")
    kept = [row for one in sessions.list_sessions() for row in sessions.read(Path(one["path"])).messages]  # type: ignore[union-attr]
    said = [int(found[1]) for row in kept if (found := re.match(r"question (\d+)", str(row["content"])))]
    assert answered <= set(said)
    assert len(said) == len(set(said))
    live = sessions.get_or_create(KEY)
    gone = live.messages[: live.last_consolidated]
    log = "".join(entry.content for entry in MemoryStore(tmp_path / "workspace").read_history())
    logged = set(map(int, re.findall(r"\d+", log)))
    assert {int(str(row["content"]).split()[1]) for row in gone if row["role"] == "user"} <= logged
    assert log
