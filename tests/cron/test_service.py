"""CronService: each due instant is run once and accounted for, whatever clocks, processes and disks do."""

import asyncio
import errno
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronSchedule, JobSkippedError, Misfire, Notify, Run
from nanobot.errors import StorageError
from nanobot.utils.clock import SystemClock
from tests.support.cron import Crew
from tests.support.eventually import eventually

Every = Callable[[float], CronSchedule]
HOUR, DAY = 3600.0, 86400.0


def ms(text: str) -> int:
    return to_ms(datetime.fromisoformat(text).replace(tzinfo=UTC))


def outcomes(service: CronService) -> list[str]:
    return [row.outcome for row in service.history()]


def accounted(service: CronService) -> int:
    """How many instants of the schedule have their row."""
    return sum((row.count or 1) for row in service.history() if row.trigger == "schedule")


def stored(crew: Crew) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(crew.path.read_text(encoding="utf-8"))["jobs"]
    return jobs


# -- jobs ----------------------------------------------------------------------------------------------------------


def test_it_is_a_plain_library_without_an_event_loop(tmp_path: Path):
    service = CronService(tmp_path / "cron" / "jobs.json")

    job = service.add_job("stretch", CronSchedule("every", every_ms=60_000), "Stretch!", True, "telegram", "12345")
    others = CronService(tmp_path / "cron" / "jobs.json").list_jobs()

    assert others == [job]
    assert (job.name, job.payload.message, job.payload.to, len(job.id)) == ("stretch", "Stretch!", "12345", 8)
    assert service.status()["jobs"] == 1
    assert service.enable_job(job.id, enabled=False) is not None
    assert (service.list_jobs(), len(service.list_jobs(include_disabled=True))) == ([], 1)
    assert service.remove_job(job.id)
    assert not service.remove_job(job.id)
    assert service.enable_job(job.id) is None


@pytest.mark.parametrize(
    ("schedule", "more", "said"),
    [
        (CronSchedule("cron", expr="0 0 31 2 *"), {}, "never matches any date"),
        (CronSchedule("at", at_ms=1_000), {}, "in the past"),
        (CronSchedule("every", every_ms=60_000), {"deliver": True}, "needs a channel and a chat id"),
        (
            CronSchedule("every", every_ms=60_000),
            {"deliver": True, "channel": "telegram", "to": "last"},
            "needs a channel and a chat id",
        ),
        (CronSchedule("every", every_ms=60_000), {"message": "  "}, "needs a message"),
        (CronSchedule("every", every_ms=60_000), {"notify": Notify.ON_CHANGE}, "needs a chat to notify"),
        (CronSchedule("every", every_ms=60_000), {"misfire_within_s": 5.0}, "run_if_within"),
    ],
)
def test_a_job_that_cannot_be_is_refused_and_nothing_is_written(
    tmp_path: Path, schedule: CronSchedule, more: dict[str, Any], said: str
):
    service = CronService(tmp_path / "cron" / "jobs.json")

    with pytest.raises(ValueError, match=said):
        service.add_job(**{"name": "x", "schedule": schedule, "message": "hello", **more})

    assert service.list_jobs(include_disabled=True) == []
    assert not (tmp_path / "cron" / "jobs.json").exists()


# -- running -------------------------------------------------------------------------------------------------------


async def test_a_job_runs_at_its_instants_twenty_runs_are_kept_with_it_and_all_in_the_history(crew: Crew, every: Every):
    service = crew.service()
    job = service.add_job("water", every(60), "Water the plants")

    await crew.pass_(25 * 60, service)

    assert [due.at_ms - job.created_at_ms for due in crew.ran] == [60_000 * number for number in range(1, 26)]
    assert outcomes(service) == ["ran"] * 25
    state = stored(crew)[0]["state"]
    assert (state["lastStatus"], len(state["runHistory"]), state["lastRunAtMs"]) == ("ok", 20, crew.now_ms)
    assert all(due.late_ms == due.missed == 0 for due in crew.ran)


async def test_a_handler_that_takes_the_job_alone_is_fine(crew: Crew, every: Every):
    ran: list[str] = []

    async def on_job(job: CronJob) -> None:
        ran.append(job.id)

    service = crew.service(on_job=on_job)
    job = service.add_job("water", every(60), "Water")
    await crew.pass_(60, service)

    assert ran == [job.id]


async def test_a_failure_and_a_skip_are_told_with_their_reasons(crew: Crew, every: Every):
    async def on_job(job: CronJob) -> str:
        raise JobSkippedError("the chat is archived") if job.name == "skips" else RuntimeError("no model")

    service = crew.service(on_job=on_job)
    service.add_job("skips", every(60), "x")
    service.add_job("fails", every(60), "x")
    await crew.pass_(60, service)

    assert {(row.name, row.outcome, row.reason) for row in service.history()} == {
        ("skips", "skipped", "the chat is archived"),
        ("fails", "failed", "no model"),
    }
    assert {job.state.last_error for job in service.list_jobs()} == {"the chat is archived", "no model"}


async def test_a_one_shot_goes_when_it_ran_and_stays_when_it_failed(crew: Crew):
    service = crew.service()
    gone = service.add_job("a", CronSchedule("at", at_ms=crew.now_ms + 1000), "x", delete_after_run=True)
    kept = service.add_job("b", CronSchedule("at", at_ms=crew.now_ms + 1000), "x")

    async def on_job(job: CronJob) -> None:
        raise RuntimeError("no model")

    await crew.pass_(60, service)
    service.on_job = on_job
    failed = service.add_job("c", CronSchedule("at", at_ms=crew.now_ms + 1000), "x", delete_after_run=True)
    await crew.pass_(60, service)

    left = {job.id: job.enabled for job in service.list_jobs(include_disabled=True)}
    assert left == {kept.id: False, failed.id: False}
    assert [due.job_id for due in crew.ran] == [gone.id, kept.id]


async def test_a_run_by_hand_leaves_the_schedule_alone(crew: Crew, every: Every):
    service = crew.service()
    job = service.add_job("water", every(600), "Water")
    off = service.add_job("off", every(600), "Off")
    service.enable_job(off.id, enabled=False)

    assert await service.run_job(job.id)
    assert await service.run_job(job.id), "again at once"
    assert not await service.run_job(off.id)
    assert await service.run_job(off.id, force=True)
    assert not await service.run_job("12345678")

    assert [due.manual for due in crew.ran] == [True] * 3
    assert [row.trigger for row in service.history()] == ["manual"] * 3
    assert service.list_jobs()[0].state.next_run_at_ms == job.state.next_run_at_ms


# -- missed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("misfire", "within", "asleep_s", "ran", "reason"),
    [
        (Misfire.RUN_ONCE, None, 3 * DAY, True, "missed; one later run stands for all"),
        (Misfire.SKIP, None, 3 * DAY, False, "missed by 1 h 30 min; the job is set to skip"),
        (Misfire.RUN_IF_WITHIN, 7200.0, 3 * DAY, True, "missed; one later run stands for all"),
        (Misfire.RUN_IF_WITHIN, 3600.0, 3 * DAY, False, "missed by 1 h 30 min; the job is set to run_if_within"),
    ],
)
async def test_what_was_missed_is_run_or_skipped_as_the_job_says(
    crew: Crew, misfire: Misfire, within: float | None, asleep_s: float, ran: bool, reason: str
):
    service = crew.service()
    service.add_job(
        "report", CronSchedule("cron", expr="30 6 * * *"), "Report", misfire=misfire, misfire_within_s=within
    )

    crew.clock.advance(asleep_s)
    await crew.look(service)
    await crew.look(service)

    assert [(due.late_ms, due.missed) for due in crew.ran] == ([(5_400_000, 2)] if ran else [])
    assert accounted(service) == 3
    assert service.history()[0].reason == reason


async def test_a_week_of_sleep_leaves_no_instant_without_its_row(crew: Crew, every: Every):
    service = crew.service()
    service.add_job("minute", CronSchedule("cron", expr="* * * * *"), "x")
    service.add_job("often", every(25), "x")

    for asleep_s in (30.0, 5 * HOUR, 0.0, 20 * HOUR, 45.0):
        crew.clock.advance(asleep_s)
        await crew.look(service)
        await crew.pass_(300, service, step=20)

    often, minute = (
        sum((row.count or 1) for row in service.history() if row.name == name) for name in ("often", "minute")
    )
    gone_s = (crew.clock.now() - datetime(2026, 11, 22, 8, 0, tzinfo=UTC)).total_seconds()
    assert often == gone_s // 25
    assert minute == gone_s // 60


async def test_a_slow_run_does_not_pile_up(crew: Crew, every: Every):
    go_on = asyncio.Event()

    async def on_job(_job: CronJob, due: Run) -> None:
        crew.ran.append(due)
        await go_on.wait()

    service = crew.service(on_job=on_job)
    job = service.add_job("slow", every(60), "x")
    for _ in range(5):
        crew.clock.advance(60)
        await service.tick()
        assert not await service.run_job(job.id), "nor by hand"
    go_on.set()
    await service.wait_for_runs()
    crew.clock.advance(60)
    await crew.look(service)

    assert len(crew.ran) == 2
    reasons = [(row.outcome, row.reason, row.count) for row in service.history()]
    assert reasons == [("ran", None, None), ("skipped", "the previous run was still running", 4), ("ran", None, None)]


# -- clocks --------------------------------------------------------------------------------------------------------


async def test_clocks_set_back_fire_nothing_twice_and_stall_no_interval(crew: Crew, every: Every):
    service = crew.service()
    often = service.add_job("often", every(300), "x")
    hourly = service.add_job("hourly", CronSchedule("cron", expr="0 * * * *"), "x")
    await crew.pass_(HOUR + 300, service, step=300)

    crew.clock.set(datetime(2026, 11, 22, 8, 30, tzinfo=UTC))
    await crew.look(service)
    before = len(crew.ran)
    await crew.pass_(HOUR, service, step=300)

    assert sum(due.job_id == often.id for due in crew.ran[before:]) == 12
    assert sum(due.job_id == hourly.id for due in crew.ran) == 1, "9:00 was run already"
    await crew.pass_(HOUR, service)
    assert sum(due.job_id == hourly.id for due in crew.ran) == 2


async def test_a_clock_that_was_a_year_ahead_leaves_no_job_waiting_for_it(crew: Crew):
    crew.clock.set(datetime(2027, 11, 22, 8, 0, tzinfo=UTC))
    service = crew.service()
    service.add_job("daily", CronSchedule("cron", expr="0 9 * * *"), "x")
    await crew.pass_(2 * HOUR, service)

    crew.clock.set(datetime(2026, 11, 22, 8, 0, tzinfo=UTC))
    await crew.pass_(2 * HOUR, service)

    assert [due.at_ms for due in crew.ran] == [ms("2027-11-22T09:00"), ms("2026-11-22T09:00")]


async def test_another_zone_in_the_config_moves_what_has_no_zone_of_its_own(crew: Crew):
    first = crew.service(timezone="Europe/Berlin")
    first.add_job("mine", CronSchedule("cron", expr="0 9 * * *"), "x")
    first.add_job("theirs", CronSchedule("cron", expr="0 9 * * *", tz="Asia/Tokyo"), "x")
    await first.close()

    service = crew.service(timezone="America/New_York")
    await crew.look(service)

    assert {job.name: job.state.next_run_at_ms for job in service.list_jobs()} == {
        "mine": ms("2026-11-22T14:00"),
        "theirs": ms("2026-11-23T00:00"),
    }


# -- one store, several hands --------------------------------------------------------------------------------------


async def test_what_others_change_counts_before_the_next_run(crew: Crew, every: Every):
    service, external = crew.service(), CronService(crew.path, clock=crew.clock)
    job = service.add_job("a", every(60), "x")
    await crew.look(service)

    external.enable_job(job.id, enabled=False)
    await crew.pass_(300, service)
    assert crew.ran == []

    external.enable_job(job.id)
    added = external.add_job("b", every(60), "x")
    await crew.pass_(60, service)
    assert {due.job_id for due in crew.ran} == {job.id, added.id}

    external.remove_job(job.id)
    await crew.pass_(60, service)
    assert [due.job_id for due in crew.ran].count(job.id) == 1


# -- crashes and cut-off runs --------------------------------------------------------------------------------------


async def cut_off(crew: Crew, service: CronService) -> None:
    """The process of this service goes while its job is at work."""
    begun = asyncio.Event()

    async def hangs(_job: CronJob, due: Run) -> None:
        crew.ran.append(due)
        begun.set()
        await asyncio.Event().wait()

    service.on_job = hangs
    crew.clock.advance(60)
    await service.tick()
    await begun.wait()
    await service.close(0)


async def test_a_run_that_the_agent_never_saw_is_begun_again_under_the_same_name(crew: Crew, every: Every):
    service = crew.service()
    service.add_job("a", CronSchedule("at", at_ms=crew.now_ms + 60_000), "x")
    await cut_off(crew, service)

    crew.clock.advance(600)
    await crew.look(later := crew.service(was_started=lambda _job, _due: False))

    assert [(due.attempt, due.late_ms) for due in crew.ran] == [(1, 0), (2, 600_000)]
    assert crew.ran[0].run_id == crew.ran[1].run_id
    assert outcomes(later) == ["ran"]


async def test_run_that_dies_is_begun_three_times_and_then_reported_as_failed(crew: Crew, every: Every):
    crew.service().add_job("a", CronSchedule("at", at_ms=crew.now_ms + 60_000), "x")
    for _ in range(3):
        await cut_off(crew, crew.service(was_started=lambda _job, _due: False))

    await crew.pass_(600, later := crew.service(was_started=lambda _job, _due: False))

    assert [due.attempt for due in crew.ran] == [1, 2, 3]
    assert [(row.outcome, row.reason) for row in later.history()] == [
        ("failed", "nanobot was stopped in the middle of this run")
    ]


async def test_a_stop_at_any_moment_leaves_jobs_that_the_next_start_runs(crew: Crew, every: Every):
    service = crew.service(clock=SystemClock(), was_started=lambda _job, _due: False)
    service.add_job("a", every(0.02), "x")

    for number in range(10):
        await service.start()
        await asyncio.sleep(0.005 * number)
        service.stop()
    before = len(crew.ran)
    await service.start()
    await eventually(lambda: len(crew.ran) > before)

    instants = [row.at_ms for row in service.history()]
    assert len(instants) == len({*instants})  # one that three lives were cut off in has failed; none ends twice


async def test_an_instant_that_ran_is_not_run_again_by_switching_off_and_on_when_the_clock_went_back(crew: Crew):
    service = crew.service()
    job = service.add_job("hourly", CronSchedule("cron", expr="0 * * * *"), "x")
    await crew.pass_(3600, service, step=3600)
    crew.clock.set(crew.clock.now() - timedelta(seconds=5))
    await crew.look(service)

    service.enable_job(job.id, enabled=False)
    service.enable_job(job.id)
    await crew.pass_(60, service, step=60)

    assert len(crew.ran) == 1


# -- disks ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage", [b'{"version": 1, "jobs": [', b"", b"\x00\xff", b"[]", b'{"jobs": 7}', b'{"version": 2, "jobs": []}']
)
async def test_a_damaged_store_is_left_alone_and_told_while_jobs_go_on(
    crew: Crew, every: Every, garbage: bytes, caplog: pytest.LogCaptureFixture
):
    service = crew.service()
    job = service.add_job("a", every(60), "x")
    await crew.pass_(60, service)
    crew.path.write_bytes(garbage)

    await crew.pass_(180, service)
    with pytest.raises(StorageError, match="was not changed"):
        service.add_job("b", every(60), "x")
    with pytest.raises(StorageError, match="was not changed"):
        crew.service().list_jobs()

    assert crew.path.read_bytes() == garbage
    assert len(crew.ran) == 4
    assert [job.id for job in service.list_jobs()] == [job.id]
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [service.problem]
    assert str(crew.path) in (service.problem or "")


async def test_a_store_that_is_mended_takes_what_was_run_meanwhile(crew: Crew, every: Every):
    service = crew.service()
    service.add_job("a", every(60), "x")
    service.add_job("b", CronSchedule("at", at_ms=crew.now_ms + 120_000), "x", delete_after_run=True)
    await crew.look(service)
    sound = crew.path.read_bytes()
    crew.path.write_bytes(b"{")
    await crew.pass_(180, service)
    assert len(crew.ran) == 4

    crew.path.write_bytes(sound)
    await crew.pass_(60, service)

    assert len(crew.ran) == 5, "nothing of it again"
    assert accounted(service) == 5
    assert service.problem is None
    assert [job["name"] for job in stored(crew)] == ["a"]


async def test_after_a_restart_the_jobs_of_a_damaged_store_go_on_from_its_copy(crew: Crew, every: Every):
    first = crew.service()
    first.add_job("a", every(60), "x")
    await crew.pass_(60, first)
    sound = crew.path.read_bytes()
    crew.path.write_bytes(b"garbage")
    await first.close()

    for _ in range(2):
        service = crew.service()
        await crew.pass_(60, service)
        assert "is not valid JSON" in (service.problem or "")
        await service.close()
    assert crew.path.read_bytes() == b"garbage"
    crew.path.write_bytes(sound)
    await crew.pass_(60, mended := crew.service())

    assert len({due.at_ms for due in crew.ran}) == len(crew.ran) == 4
    assert accounted(mended) == 4
    assert mended.problem is None


async def test_jobs_run_on_while_the_file_cannot_be_written(crew: Crew, every: Every, monkeypatch):
    def refuse(*_args: Any, **_folders: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    service = crew.service()
    service.add_job("a", every(60), "x")
    await crew.look(service)
    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", refuse)
        await crew.pass_(120, service)
        await crew.pass_(60, crew.service())
        assert "cannot be written: Read-only file system" in (service.problem or "")
        with pytest.raises(StorageError, match="cannot be written"):
            service.add_job("b", every(60), "x")
    await crew.pass_(60, service)

    assert len({due.at_ms for due in crew.ran}) == len(crew.ran) == 4
    assert service.problem is None
    assert [(job["name"], job["state"]["lastRunAtMs"]) for job in stored(crew)] == [("a", crew.now_ms)]


async def test_one_bad_entry_is_kept_and_named_and_the_others_run(crew: Crew, every: Every):
    service = crew.service()
    service.add_job("a", every(60), "x")
    whole = json.loads(crew.path.read_text(encoding="utf-8"))
    bad = {"id": "x", "schedule": {"kind": "sometimes"}, "mine": 1}
    odd = {**whole["jobs"][0], "id": "nowhere1", "schedule": {"kind": "cron", "expr": "0 9 * * *", "tz": "Mars/Base"}}
    whole["jobs"] = [bad, *whole["jobs"], odd]
    crew.path.write_text(json.dumps(whole), encoding="utf-8")

    await crew.pass_(60, service)

    assert len(crew.ran) == 1
    assert stored(crew)[0] == bad
    assert service.unreadable() == ["entry 1: schedule.kind: Input should be 'at', 'every' or 'cron', not 'sometimes'"]
    assert "unknown timezone 'Mars/Base'" in (service.problem or "")
