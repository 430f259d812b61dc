"""What the road over a channel costs: a turn, many chats, a long run."""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.model_server import FakeModels, Say, Slow, Step
from tests.bench.measure import Table, clean_environ, run_once

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]


def road(home: Path, model: Step, chats: int, turns: int) -> dict[str, Any]:
    """So many chats with so many turns each; what it took."""
    with FakeModels(default=model, strict=False) as server:
        command = [sys.executable, "-m", "tests.bench.over_a_channel", str(home), server.v1, str(chats), str(turns)]
        told: dict[str, Any] = json.loads(run_once(command, clean_environ(home), Path.cwd()).output)
    assert (told["received"], told["queued"]) == (chats * turns + 1, 0)
    return told


@pytest.mark.parametrize(("chats", "turns"), [(1, 200), (50, 10), (500, 2)])
def test_cpu_a_turn_over_a_channel(tmp_path: Path, chats: int, turns: int):
    taken = [road(tmp_path / str(number), Say("hello"), chats, turns) for number in range(3)]

    table = Table(f"{chats} chats, {turns} turns each, over a channel with its journal, answers at once")
    table.row("CPU a turn", statistics.median(one["cpu_ms"] for one in taken), "ms", aim="2 ms and the journal")
    table.row("turns a second", statistics.median(one["turns_s"] for one in taken), "/s", aim="500 at 50 chats")
    table.row("the event loop stalled, longest", max(one["stall_s"] for one in taken), "s", aim="0.1 s")
    table.show()


@pytest.mark.parametrize(("chats", "turns", "aim"), [(50, 3, "1.15x"), (500, 2, "2.5x")])
def test_chats_over_a_channel_that_wait_half_a_second_for_each_answer(tmp_path: Path, chats: int, turns: int, aim: str):
    told = road(tmp_path, Slow(Say("hello"), first_s=0.5), chats, turns)

    table = Table(f"{chats} chats, {turns} turns each, over a channel, answers take 500 ms")
    table.row("all of them", told["seconds"], "s", turns * 0.5, "ideal", aim)
    table.row("the event loop stalled, longest", told["stall_s"], "s", aim="0.1 s")
    table.show()


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_five_thousand_turns_over_a_channel(tmp_path: Path):
    told = road(tmp_path, Say("hello"), 200, 25)

    table = Table("5,000 turns in 200 chats over a channel")
    table.row("growth", told["grown_mb"], "MB", aim="5 MB beside the sessions")
    table.row("turns a second", told["turns_s"], "/s", aim="500")
    table.show()
