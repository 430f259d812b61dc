"""What the trace of a turn costs: bytes, and CPU on the event loop and beside it."""

import statistics
import time
from pathlib import Path

import pytest

from nanobot.agent import events
from nanobot.agent.events import TurnOutcome
from nanobot.agent.trace.store import Facts, TraceStore, TurnTrace
from nanobot.bus.events import InboundMessage
from nanobot.security.secrets import hold_secrets
from nanobot.utils.clock import SystemClock
from tests.bench.measure import Table
from tests.support.turn_events import step

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

HAPPENED = [
    events.RunStarted(session_key="cli:direct", model="m"),
    *step("Let me look.", calls=True),
    *step("Two files.", number=1),
    events.TurnEnded(outcome=TurnOutcome.ANSWERED, text="Two files.", phase_seconds={"build": 0.01, "run": 1.5}),
]
PROMPT: dict[str, object] = {"system": "be good " * 1000, "tools": [{"x": "y" * 9000}], "limits": {"max_steps": 40}}


def test_a_turn_with_one_tool_call(tmp_path: Path):
    hold_secrets(lambda: {f"a key of the config {number}": "" for number in range(10)})
    folder = TraceStore(tmp_path / "traces")
    message = InboundMessage("cli", "owner", "direct", "What is in my workspace?")
    on_loop, beside, calibration = [], [], []

    for _ in range(2000):
        entries: list[Facts] = []
        began = time.perf_counter()
        trace = TurnTrace(message, SystemClock(), entries.append, "/home/me/workspace")
        for event in HAPPENED:
            trace(event)
        on_loop.append((time.perf_counter() - began) * 1e6)
        entries.append({"type": "prompt", **PROMPT})
        began = time.perf_counter()
        folder.write({("cli:direct", "3f2a91c0b7de"): entries})
        beside.append((time.perf_counter() - began) * 1e6)
        began = time.perf_counter()
        sum(range(1000))
        calibration.append((time.perf_counter() - began) * 1e6)

    table = Table("The trace of a turn with one tool call")
    unit = statistics.median(calibration)
    table.row("on the event loop", statistics.median(on_loop), "us", unit, "sum(range(1000))")
    table.row("in the thread beside it", statistics.median(beside), "us", unit, "sum(range(1000))", "100 us together")
    size = sum(path.stat().st_size for path in (tmp_path / "traces").glob("*.jsonl*")) / 2000
    table.row("on the disk", size, "B", aim="1,000 B")
    table.show()
