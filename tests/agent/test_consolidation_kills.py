"""Processes that talk and consolidate are killed at any moment: first the words are kept, then their messages leave."""

import asyncio
import re
import sys
from pathlib import Path

import pytest

from nanobot.agent.memory.store import MemoryStore
from nanobot.messages.repair import legalise
from nanobot.session.manager import SessionManager
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.programs.consolidating_turns import consolidator
from tests.support.home import told

KEY = "cli:direct"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")


def kill_many(folder: Path, kills: int, seed: int) -> None:
    """At the end the session is consolidated unharmed: on a busy machine no process may get as far."""
    manager = SessionManager(folder)
    session = manager.get_or_create(KEY)
    for number in range(900, 930):
        session.add_message("user", f"question {number}", provenance="owner")
        session.add_message("assistant", f"answer {number}", provenance="owner")
    manager.save(session)
    words = [str(folder), str(kills), str(seed), "0.02", "0.35"]
    acknowledged = told("tests.programs.fork_and_kill", "consolidating_turns", *words).split()
    asyncio.run(consolidator(folder, SessionManager(folder)).consolidate(KEY, lambda session: 8))

    session = SessionManager(folder).get_or_create(KEY)
    gone = [str(row["content"]) for row in session.messages[: session.last_consolidated] if row["role"] == "user"]
    left = legalise(session.get_history())
    log = MemoryStore(folder).history_file.read_text(encoding="utf-8")
    logged = {number for entry in re.findall(r"Heard ([\d ]+)\.\n\n", log) for number in entry.split()}
    said = {str(row["content"]) for row in session.messages}

    assert gone
    assert [question for question in gone if question.split()[1] not in logged] == []
    assert [number for number in acknowledged if f"answer {number}" not in said] == []
    assert openai_problems(left) == anthropic_problems(left) == []
    assert re.fullmatch(r"- Knows of \d+\.\n", MemoryStore(folder).read_long_term())


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_two_thousand_kills_lose_no_words(tmp_path: Path, seed: int):
    kill_many(tmp_path, 100, seed)
