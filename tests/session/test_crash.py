"""Two writers, and processes that are killed at any moment: what was acknowledged is there, once, and in order."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nanobot.messages.repair import legalise
from nanobot.session.manager import SessionManager
from nanobot.testing.protocol_rules import anthropic_problems, openai_problems
from tests.support.home import told

KEY = "cli:direct"
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")

LIBRARY = """
import sys
from pathlib import Path
from nanobot.session.manager import SessionManager
manager = SessionManager(Path(sys.argv[1]))
for number in range(100):
    session = manager.get_or_create("cli:direct")
    session.add_message("user", f"{sys.argv[2]}{number}")
    if sys.argv[3] == "exposed":
        session.messages
    manager.save(session)
"""
ENGINE = """
import asyncio, sys
from pathlib import Path
from nanobot.session.manager import SessionManager
async def main():
    manager = SessionManager(Path(sys.argv[1]))
    for number in range(100):
        async with manager.hold("cli:direct") as session:
            assert len(session.messages) % 2 == 0
            await manager.append(session, {"role": "user", "content": f"{sys.argv[2]}{number}"})
            await manager.append(session, {"role": "assistant", "content": "ok"})
asyncio.run(main())
"""


def both(script: str, folder: Path, *args: str) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", script, str(folder), name, *args]) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]


@pytest.mark.parametrize("how", ["blind", "exposed"])
def test_two_processes_that_save_one_session_lose_nothing(tmp_path: Path, how: str):
    both(LIBRARY, tmp_path, how)

    texts = [str(row["content"]) for row in SessionManager(tmp_path).get_or_create(KEY).messages]
    assert len(texts) == 200
    for name in "ab":
        assert [text for text in texts if text.startswith(name)] == [f"{name}{number}" for number in range(100)]


def test_two_processes_that_hold_one_session_take_turns(tmp_path: Path):
    both(ENGINE, tmp_path)

    rows = SessionManager(tmp_path).get_or_create(KEY).messages
    assert [row["role"] for row in rows] == ["user", "assistant"] * 200
    assert len({row["content"] for row in rows if row["role"] == "user"}) == 200


def test_a_lock_goes_with_its_holder(tmp_path: Path):
    script = (
        "import asyncio, sys; from pathlib import Path; from nanobot.session.manager import SessionManager\n"
        "async def main():\n"
        "    async with SessionManager(Path(sys.argv[1])).hold('cli:direct'):\n"
        "        print('held', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    holder.stdout.readline()
    waited = threading.Event()

    def on_wait() -> None:
        waited.set()
        holder.kill()

    async def second() -> None:
        async with SessionManager(tmp_path).hold(KEY, on_wait):
            pass

    asyncio.run(asyncio.wait_for(second(), 10))
    holder.wait()
    holder.stdout.close()
    assert waited.is_set()


def kill_many(folder: Path, kills: int, seed: int) -> None:
    """Processes that run turns are killed at random moments; each goes on where the one before was."""
    out = told("tests.programs.fork_and_kill", "session_turns", str(folder), str(kills), str(seed), "0.001", "0.03")

    session = SessionManager(folder).get_or_create(KEY)
    history = legalise(session.get_history())
    texts = [row["content"] for row in session.messages]
    acknowledged = [int(number) for number in out.split()]
    missing = [number for number in acknowledged if f"u{number}" not in texts or f"a{number}" not in texts]

    assert acknowledged
    assert missing == []
    assert openai_problems(history) == anthropic_problems(history) == []


def test_twenty_kills_lose_nothing_that_was_acknowledged(tmp_path: Path):
    kill_many(tmp_path, 20, 0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_ten_thousand_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, seed: int):
    for part in range(5):
        kill_many(tmp_path / str(part), 100, seed * 10 + part)
