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


TURNS = """
import asyncio, os, sys
from pathlib import Path
from nanobot.session.manager import SessionManager

async def main(folder, first):
    manager = SessionManager(folder)
    number = first
    while True:
        async with manager.hold("cli:direct") as session:
            call = {"id": f"c{number}", "type": "function", "function": {"name": "exec", "arguments": "{}"}}
            for row in (
                {"role": "user", "content": f"u{number}"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{number}", "name": "exec", "content": "x" * (number % 7) * 500},
                {"role": "assistant", "content": f"a{number}"},
            ):
                await manager.append(session, row)
            if number % 5 == 0:
                session.last_consolidated = max(session.message_count - 8, 0)
                await manager.append(session)
            if number % 7 == 0:
                session.messages[0]["edited"] = number
                manager.save(session)
            os.write(1, b"%d\\n" % number)
        number += 1

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""

FORKER = """
import os, sys, random, select, time, signal
sys.argv = ["x", *sys.argv[1:]]
source = sys.stdin.read()
import asyncio, json
from pathlib import Path
import nanobot.session.manager
folder, kills, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
code = compile(source, "turns", "exec")
first = 0
for _ in range(kills):
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writable, 1)
        sys.argv = ["x", folder, str(first)]
        exec(code, {"__name__": "turns"})
        os._exit(1)
    os.close(writable)
    if chance.random() < 0.5:  # a busy machine kills the others before they have said anything
        select.select([readable], [], [], 10)
    time.sleep(chance.uniform(0.001, 0.03))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    acknowledged = b""
    while part := os.read(readable, 65536):
        acknowledged += part
    os.close(readable)
    numbers = [int(number) for number in acknowledged.split()]
    print(*numbers, flush=True)
    first = (numbers[-1] if numbers else first) + 2
"""


def kill_many(folder: Path, kills: int, seed: int) -> None:
    """Processes that run turns are killed at random moments; each goes on where the one before was."""
    run = subprocess.run(
        [sys.executable, "-c", FORKER, str(folder), str(kills), str(seed)], input=TURNS, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr

    session = SessionManager(folder).get_or_create(KEY)
    history = legalise(session.get_history())
    texts = [row["content"] for row in session.messages]
    acknowledged = [int(number) for number in run.stdout.split()]
    missing = [number for number in acknowledged if f"u{number}" not in texts or f"a{number}" not in texts]

    assert acknowledged
    assert missing == []
    assert openai_problems(history) == anthropic_problems(history) == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_two_hundred_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, seed: int):
    kill_many(tmp_path, 100, seed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(100, 120))
def test_ten_thousand_kills_lose_nothing_that_was_acknowledged(tmp_path: Path, seed: int):
    for part in range(5):
        kill_many(tmp_path / str(part), 100, seed * 10 + part)
