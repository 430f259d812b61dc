"""What a turn costs: CPU, bytes, the prompt prefix, many chats, long sessions."""

import asyncio
import json
import os
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

from nanobot.session.manager import SessionManager
from nanobot.testing import calls, open_bot
from nanobot.testing.model_server import FakeModels, Say
from tests.bench.measure import Table, clean_environ, median, nanobot, runs

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]


def durable_append_s(folder: Path) -> float:
    """The floor under every turn: 400 bytes appended and seen to the disk."""
    taken = []
    for _ in range(50):
        started = time.perf_counter()
        with (folder / "floor").open("ab") as file:
            file.write(b"x" * 400)
            file.flush()
            os.fsync(file.fileno())
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


@pytest.mark.parametrize(("chats", "turns"), [(1, 200), (50, 10), (500, 2)])
def test_cpu_a_turn(tmp_path: Path, chats: int, turns: int):
    with FakeModels(default=Say("hello"), strict=False) as server:
        environ = clean_environ(tmp_path)
        command = [sys.executable, "-m", "tests.bench.many_turns", str(tmp_path), server.v1, str(chats), str(turns)]
        taken = [json.loads(run.output) for run in runs(command, environ, Path.cwd(), times=3)]

    table = Table(f"{chats} chats, {turns} turns each, over HTTP on loopback")
    post = statistics.median(one["post_cpu_ms"] for one in taken)
    table.row("one httpx POST, CPU", post, "ms")
    table.row("CPU a turn", statistics.median(one["cpu_ms"] for one in taken), "ms", post, "POST", "2 ms")
    table.row("turns a second", statistics.median(one["turns_s"] for one in taken), "/s", aim="500 at 50 chats")
    table.show()


async def test_bytes_and_prefix(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        for number in range(20):
            bot.provider.script(calls(("list_dir", {"path": "."})), f"answer {number}")
            await bot.say(f"question {number}")
        sizes, said = [], []
        path = bot.workspace / "sessions" / "cli_direct.jsonl"
        for number in range(20):
            before = path.stat().st_size
            bot.provider.script(f"answer {number}")
            await bot.say(f"question {number}")
            sizes.append(path.stat().st_size - before)
            said.append(len(f"question {number}answer {number}"))
        requests = [json.dumps(request).encode() for request in bot.provider.requests]

    shares = []
    for request, following in pairwise(requests):
        head = os.path.commonprefix([request, following])  # noqa: RUF071 bytes, not paths
        shares.append(len(head) / (len(request) - len(b"]")))
    table = Table("What a turn leaves")
    table.row("bytes written a turn", statistics.median(sizes), "B", statistics.median(said), "its text", "text + 4 kB")
    table.row("share of a request that is the head of the next, least", min(shares), "", aim="1.00")
    table.show()


async def test_parallel_calls(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        bot.provider.script(calls(*[("exec", {"command": "sleep 0.5"})] * 8), "done")
        started = time.perf_counter()
        await bot.say("go")
        taken = time.perf_counter() - started

    table = Table("Eight tool calls of 0.5 s in one step")
    table.row("the turn", taken, "s", 0.5, "one call", "0.56 s")
    table.show()


def test_a_session_of_100_000_messages(tmp_path: Path):
    home = tmp_path / "home"
    workspace = tmp_path / "workspace"
    manager = SessionManager(workspace)
    session = manager.get_or_create("cli:direct")
    for number in range(50_000):
        session.add_message("user", f"question {number} " + "x" * 80)
        session.add_message("assistant", f"answer {number} " + "y" * 80)
    manager.save(session)
    path = manager.find("cli:direct")
    assert path is not None

    async def turns() -> tuple[float, float, int]:
        async with open_bot(tmp_path) as bot:
            bot.provider.script("first", *["next"] * 20)
            started = time.perf_counter()
            await bot.say("hello")
            first = time.perf_counter() - started
            before, later = path.stat().st_size, []
            for _ in range(20):
                started = time.perf_counter()
                await bot.say("hello")
                later.append(time.perf_counter() - started)
            return first, statistics.median(later), (path.stat().st_size - before) // 20

    first, later, written = asyncio.run(turns())
    with FakeModels(default=Say("hello"), strict=False) as server:
        environ = clean_environ(
            home,
            NANOBOT_PROVIDERS__CUSTOM__API_BASE=server.v1,
            NANOBOT_AGENTS__DEFAULTS__PROVIDER="custom",
            NANOBOT_AGENTS__DEFAULTS__MODEL="m",
        )
        home.mkdir()
        long = runs([*nanobot("agent", "-m", "hi", "-w", str(workspace))], environ, tmp_path, times=5)
        short = runs([*nanobot("agent", "-m", "hi", "-w", str(tmp_path / "other"))], environ, tmp_path, times=5)

    table = Table(f"A session of 100,000 messages ({path.stat().st_size / 1e6:.0f} MB)")
    floor = durable_append_s(tmp_path)
    table.row("append + fdatasync", floor, "s")
    table.row("the first turn, session opened in it", first, "s", floor, "append")
    table.row("a turn", later, "s", floor, "append", "0.005 s")
    table.row("written a turn", written / 1000, "kB", aim="text + 4 kB")
    short_s = median(short, lambda run: run.wall_s)
    table.row("one-shot into it", median(long, lambda run: run.wall_s), "s", short_s, "a fresh one", "0.3 s")
    extra = median(long, lambda run: run.peak_mb) - median(short, lambda run: run.peak_mb)
    table.row("memory for it, above a fresh one", extra, "MB", aim="5 MB")
    table.show()
