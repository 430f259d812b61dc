"""Many chats at once: what people wait, whether the loop stalls, what a long run leaves in memory."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import FakeModels, Say, Slow
from tests.bench.measure import Table, clean_environ, run_once

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]


def program(name: str, home: Path, *words: object) -> dict[str, Any]:
    """Run one of the programs beside this file; what it printed."""
    command = [sys.executable, "-m", f"tests.bench.{name}", *map(str, words)]
    told: dict[str, Any] = json.loads(run_once(command, clean_environ(home), Path.cwd()).output)
    return told


@pytest.mark.parametrize(("chats", "turns", "aim"), [(50, 3, "1.15x"), (500, 2, "2.5x")])
def test_chats_that_wait_half_a_second_for_each_answer(tmp_path: Path, chats: int, turns: int, aim: str):
    with FakeModels(default=Slow(Say("hello"), first_s=0.5), strict=False) as server:
        told = program("crowd", tmp_path, tmp_path, server.v1, chats, turns)

    table = Table(f"{chats} chats, {turns} turns each, answers take 500 ms")
    table.row("all of them", told["seconds"], "s", turns * 0.5, "ideal", aim)
    table.row("the event loop stalled, longest", told["stall_s"], "s", aim="0.1 s")
    table.show()


def test_a_storm_of_messages_with_one_chat_stuck(tmp_path: Path):
    told = program("storm", tmp_path, tmp_path, 10_000, 100)

    assert told["wrong"] == []
    table = Table("10,000 messages at once over 100 chats, one of them stuck")
    table.row("turns a second", told["turns_s"], "/s", aim="400")
    table.row("the event loop stalled, longest", told["stall_s"], "s", aim="0.1 s")
    table.row("/status took, longest", told["status_s"], "s", aim="1 s")
    table.show()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_five_thousand_turns_in_two_hundred_sessions(tmp_path: Path):
    plain = program("soak", tmp_path, tmp_path / "plain", 5_000, 200, 0)
    with_tools = program("soak", tmp_path, tmp_path / "tools", 5_000, 200, 1)

    table = Table("5,000 turns in 200 sessions")
    table.row("memory before", plain["before_mb"], "MB")
    table.row("growth", plain["grown_mb"], "MB", aim="5 MB")
    table.row("growth, with a tool call a turn", with_tools["grown_mb"], "MB")
    table.show()
