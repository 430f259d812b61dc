"""Real processes on one store: an instant is run once, whoever dies when."""

import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanobot.config.paths import DataPaths, get_data_dir
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronSchedule, Run
from tests.support.eventually import wait_until
from tests.support.home import start_program

Start = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process that serves the jobs of `tmp_path`."""
    children: list[subprocess.Popen[bytes]] = []

    def start_it(mode: str) -> "subprocess.Popen[bytes]":
        children.append(start_program("tests.cron.cron_child", str(tmp_path), mode))
        return children[-1]

    yield start_it
    for child in children:
        child.kill()
        child.wait()


def lines(folder: Path) -> list[list[int]]:
    """Due instant, attempt and process of every run that began."""
    try:
        return [list(map(int, line.split())) for line in (folder / "ran.txt").read_text().splitlines()]
    except FileNotFoundError:
        return []


def passed(service: CronService, every_ms: int) -> set[int]:
    """Every instant that has a row."""
    found: set[int] = set()
    for row in service.history():
        found.update(range(row.at_ms, (row.until_ms or row.at_ms) + 1, every_ms))
    return found


async def settle(service: CronService) -> None:
    await service.tick()
    await service.wait_for_runs()
    await service.close()


async def on_job(_job: CronJob, _due: Run) -> None:
    """Does nothing."""


async def test_a_kill_in_the_middle_of_a_run_is_recorded_by_the_next_process(tmp_path: Path, start: Start):
    service = CronService(tmp_path / "jobs.json", on_job)
    service.add_job("a", CronSchedule("every", every_ms=300), "x")
    child = start("hangs")
    wait_until(lambda: lines(tmp_path))

    served, busy = service.is_served(), service.list_jobs()[0].runs.running
    assert not await service.run_job(service.list_jobs()[0].id), "it is at work over there"
    child.kill()
    child.wait()
    await settle(service)

    (began,) = lines(tmp_path)
    killed = [row for row in service.history() if row.outcome == "failed"]
    assert served
    assert busy is not None
    assert [(row.at_ms, row.reason) for row in killed] == [(began[0], "nanobot was stopped in the middle of this run")]
    assert not service.is_served()


async def test_two_processes_fire_once_and_one_takes_over_from_the_other(tmp_path: Path, start: Start):
    service = CronService(tmp_path / "jobs.json", on_job)
    job = service.add_job("a", CronSchedule("every", every_ms=50), "x")
    first, second = start("quick"), start("quick")
    wait_until(lambda: len([*DataPaths(get_data_dir()).leases.glob("*.lock")]) == 2)
    both = len(lines(tmp_path))
    wait_until(lambda: len(lines(tmp_path)) > both + 10)
    busy, other = (first, second) if lines(tmp_path)[-1][2] == first.pid else (second, first)
    busy.kill()
    busy.wait()
    wait_until(lambda: lines(tmp_path)[-1][2] == other.pid)
    other.kill()
    other.wait()
    await settle(service)

    dues = [due for due, _, _ in lines(tmp_path)]
    ran = [row.at_ms for row in service.history() if row.outcome != "skipped"]
    assert len(set(dues)) == len(dues)
    assert set(dues) <= set(ran)
    assert len(set(ran)) == len(ran)
    first_due = job.state.next_run_at_ms or 0
    assert passed(service, 50) == set(range(first_due, max(passed(service, 50)) + 1, 50)), "none without its row"


async def test_kills_at_any_moment_leave_no_instant_run_twice_or_without_its_row(tmp_path: Path, start: Start):
    service = CronService(tmp_path / "jobs.json", on_job)
    job = service.add_job("a", CronSchedule("every", every_ms=10), "x")
    for _ in range(4):
        before = len(lines(tmp_path))
        child = start("quick")
        wait_until(lambda: len(lines(tmp_path)) > before)  # noqa: B023 it is called here and now
        time.sleep(random.uniform(0, 0.05))
        child.kill()
        child.wait()
    await settle(service)

    dues = [due for due, _, _ in lines(tmp_path)]
    assert len(set(dues)) == len(dues)
    assert set(dues) <= {row.at_ms for row in service.history() if row.outcome != "skipped"}
    first_due = job.state.next_run_at_ms or 0
    assert passed(service, 10) == set(range(first_due, max(passed(service, 10)) + 1, 10))
