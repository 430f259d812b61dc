"""What the gateway costs: until it is ready, while nobody writes, and for a turn over a channel."""

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from nanobot.testing.model_server import FakeModels, Say
from tests.bench.measure import Table
from tests.support.eventually import wait_until
from tests.support.toy_gateway import GatewayHome

pytestmark = [pytest.mark.bench, pytest.mark.timeout(600)]

IDLE_S = 20.0


@pytest.fixture(autouse=True)
def _cold(monkeypatch: pytest.MonkeyPatch):
    """What is measured here begins as it does for a person."""
    monkeypatch.setattr("tests.support.forkserver.CAN_FORK_SO", False)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def begin(home: GatewayHome) -> tuple["subprocess.Popen[bytes]", float]:
    """A gateway, and how long it took until it was ready."""
    before, started = home.log.count("ready in"), time.perf_counter()
    process = home.start("gateway")
    while home.log.count("ready in") == before:
        assert process.poll() is None
        time.sleep(0.002)
    return process, time.perf_counter() - started


def end(process: "subprocess.Popen[bytes]") -> float:
    """How long it took to leave."""
    started = time.perf_counter()
    process.terminate()
    process.communicate(timeout=10)
    return time.perf_counter() - started


def turns(home: GatewayHome, pid: int, chats: int, each: int) -> tuple[float, float]:
    """CPU milliseconds a turn, and turns a second; one message of a chat at a time."""
    before, cpu, started = len(home.toy.got()), cpu_s(pid), time.perf_counter()
    for number in range(each):
        for chat in range(chats):
            home.toy.write("hi", chat=f"c{chat}", message_id=f"{started}-{number}-{chat}")
        done = before + (number + 1) * chats
        wait_until(lambda done=done: len(home.toy.got()) >= done, 120)  # type: ignore[misc]
    count = chats * each
    return (cpu_s(pid) - cpu) / count * 1000, count / (time.perf_counter() - started)


def test_gateway(tmp_path: Path):
    with FakeModels(default=Say("hello"), strict=False) as server:
        home = GatewayHome(tmp_path, server)
        ready = [(process, taken, end(process)) for process, taken in (begin(home) for _ in range(5))]
        process, _ = begin(home)
        time.sleep(1)
        idle_mb, before = memory_mb(process.pid), cpu_s(process.pid)
        time.sleep(IDLE_S)
        idle_cpu = (cpu_s(process.pid) - before) / IDLE_S
        one, fifty = turns(home, process.pid, 1, 100), turns(home, process.pid, 50, 4)
        used_mb = memory_mb(process.pid)
        shots = []
        for _ in range(7):
            started = time.perf_counter()
            assert home.ask("hi").out == "hello\n"
            shots.append(time.perf_counter() - started)
        told = json.loads(home.run("gateway", "status", "--json").out)
        end(process)

    table = Table("The gateway, with one channel that looks for messages 100 times a second")
    table.row("to ready", statistics.median(taken for _, taken, _ in ready), "s", aim="0.6 s")
    table.row("to leave, idle", statistics.median(left for _, _, left in ready), "s", aim="5 s at most")
    table.row("memory, idle", idle_mb, "MB", aim="65 MB")
    table.row("memory, in use", used_mb, "MB", aim="75 MB")
    table.row("CPU, idle", idle_cpu * 100, "%")
    table.row("CPU a turn, 1 chat", one[0], "ms", aim="2 ms and the channel")
    table.row("CPU a turn, 50 chats", fifty[0], "ms")
    table.row("turns a second, 50 chats", fifty[1], "/s", aim="500")
    table.row("agent -m through it, whole", statistics.median(shots), "s", aim="0.2 s")
    table.row("the loop late, at worst", told["loopLagS"], "s", aim="0.1 s")
    table.show()
