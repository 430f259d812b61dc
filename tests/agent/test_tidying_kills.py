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
CONVERSATION = [sys.executable, "-m", "tests.programs.conversation"]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX"),
]


def test_forty_kills_lose_no_message(tmp_path: Path):
    chance, next_number = random.Random(7), 100
    answered: set[int] = set()
    for _ in range(40):
        child = subprocess.Popen([*CONVERSATION, str(tmp_path), str(next_number)], stdout=subprocess.PIPE)
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
