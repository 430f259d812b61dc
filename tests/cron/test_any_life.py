"""Whatever happens to clock, process and disk: no instant is run twice, and the last word is a sound store."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.cron.types import CronSchedule
from tests.support.cron import Crew

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.integers(1, 5 * 3600)),
        st.tuples(st.just("set back"), st.integers(1, 20 * 3600)),
        st.tuples(st.sampled_from(["restart", "second", "damage", "mend", "off", "on", "by hand", "ask"]), st.just(0)),
    ),
    min_size=5,
    max_size=25,
)


async def live(folder: Path, events: list[tuple[str, int]]) -> None:
    crew = Crew(folder)
    service = crew.service()
    jobs = [
        service.add_job("hourly", CronSchedule("cron", expr="0 * * * *"), "x"),
        service.add_job("nine", CronSchedule("cron", expr="0 9 * * *"), "x"),
        service.add_job("once", CronSchedule("at", at_ms=crew.now_ms + 7_200_000), "x", delete_after_run=True),
    ]
    await crew.look(service)
    whole = crew.path.read_bytes()
    for event, amount in [*events, ("mend", 0), ("pass", 60)]:
        damaged = crew.path.read_bytes() == b"{"
        if event == "pass":
            crew.clock.advance(amount)
        elif event == "set back":
            crew.clock.set(crew.clock.now() - timedelta(seconds=amount))
        elif event == "damage" and not damaged:
            whole = crew.path.read_bytes()
            crew.path.write_bytes(b"{")
        elif event == "mend" and damaged:
            crew.path.write_bytes(whole)
        elif event == "restart":
            await crew.look(service)
            await service.close()
            service = crew.service()
        elif event == "second":
            await crew.look(service)
            await crew.look(crew.service())
        elif event in ("off", "on") and not damaged:
            service.enable_job(jobs[1].id, enabled=event == "on")
        elif event == "by hand":
            await service.run_job(jobs[0].id)
        elif event == "ask" and not damaged:
            service.request_run(jobs[0].id)
        await crew.look(service)

    scheduled = [(due.job_id, due.at_ms) for due in crew.ran if not due.manual]
    rows = [(row.job_id, row.at_ms) for row in service.history() if row.outcome == "ran"]
    assert len(set(scheduled)) == len(scheduled)
    assert sorted(rows) == sorted((due.job_id, due.at_ms) for due in crew.ran)
    left = json.loads(crew.path.read_text(encoding="utf-8"))["jobs"]
    assert {job["name"] for job in left} >= {"hourly", "nine"}
    assert all("running" not in job["state"] for job in left)
    for made in crew.services:
        await made.close(0)


def run_life(events: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(live(Path(folder), events))


@settings(max_examples=12)
@given(EVENTS)
def test_no_life_runs_an_instant_twice(events: list[tuple[str, int]]):
    run_life(events)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=600)
@given(EVENTS)
def test_no_long_sweep_of_lives_does_either(events: list[tuple[str, int]]):
    run_life(events)
