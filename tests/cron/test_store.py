"""jobs.json: what the original wrote is read and kept; what is written, the original reads."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.cron.service import CronService
from nanobot.cron.types import CronError, CronJob, CronSchedule, Misfire, Notify
from nanobot.messages.types import Provenance

OLD: dict[str, Any] = {
    "version": 1,
    "jobs": [
        {
            "id": "1a2b3c4d",
            "name": "Morning",
            "enabled": True,
            "schedule": {"kind": "cron", "atMs": None, "everyMs": None, "expr": "0 9 * * *", "tz": "Asia/Shanghai"},
            "payload": {
                "kind": "agent_turn",
                "message": "Say good morning",
                "deliver": True,
                "channel": "telegram",
                "to": "12345",
                "channelMeta": {"thread": 7},
                "sessionKey": "telegram:12345",
            },
            "state": {
                "nextRunAtMs": 1_795_400_000_000,
                "lastRunAtMs": None,
                "lastStatus": "ok",
                "lastError": None,
                "runHistory": [{"runAtMs": 1, "status": "ok", "durationMs": 5, "error": None}],
            },
            "createdAtMs": 1_795_300_000_000,
            "updatedAtMs": 1_795_300_000_000,
            "deleteAfterRun": False,
            "later": {"release": [1, 2]},
        },
        {
            "id": "dream",
            "name": "dream",
            "schedule": {"kind": "every", "everyMs": 1000},
            "payload": {"kind": "system_event"},
        },
        {
            "id": "e",
            "name": "e",
            "schedule": {"kind": "every", "everyMs": 60_000},
            "payload": {"message": "x", "to": 5},
        },
    ],
    "more": "kept",
}


def write(path: Path, whole: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole), encoding="utf-8")
    return path


def within(part: Any, whole: Any) -> bool:
    """Whether all that is in `part` is in `whole`, nulls aside."""
    if isinstance(part, dict):
        return all(value is None or within(value, whole.get(key)) for key, value in part.items())
    return bool(part == whole)


def test_a_store_of_the_original_is_read_and_all_of_it_is_kept(tmp_path: Path):
    path = write(tmp_path / "jobs.json", OLD)
    service = CronService(path)

    morning = service.get_job("1a2b3c4d")
    service.add_job("new", CronSchedule("every", every_ms=5_000), "x")
    written = json.loads(path.read_text(encoding="utf-8"))

    assert morning is not None
    assert (morning.payload.session_key, morning.schedule.tz) == ("telegram:12345", "Asia/Shanghai")
    assert morning.state.run_history[0].duration_ms == 5
    assert (written["version"], written["more"], len(written["jobs"])) == (1, "kept", 4)
    assert all(within(before, after) for before, after in zip(OLD["jobs"][:2], written["jobs"], strict=False))
    assert written["jobs"][2]["payload"]["to"] == "5"
    assert set(written["jobs"][3]) == {*OLD["jobs"][0]} - {"later"}, "no key of ours where it says nothing"
    assert service.unreadable() == []


async def test_chores_of_later_releases_are_neither_run_nor_touched(tmp_path: Path):
    ran: list[str] = []

    async def on_job(job: CronJob) -> None:
        ran.append(job.id)

    overdue = {"nextRunAtMs": 1_760_000_000_000}
    chore = {**OLD["jobs"][1], "state": overdue}
    daily = {"kind": "every", "everyMs": 86_400_000}
    path = write(tmp_path / "jobs.json", {"jobs": [chore, {**OLD["jobs"][2], "schedule": daily, "state": overdue}]})
    service = CronService(path, on_job)
    await service.tick()
    await service.wait_for_runs()
    by_hand = await service.run_job("dream", force=True)
    waits = await service.tick()
    await service.close()

    assert (ran, by_hand) == (["e"], False)
    assert waits is not None
    assert waits > 1
    assert within(chore, json.loads(path.read_text(encoding="utf-8"))["jobs"][0])


def test_the_file_moves_from_its_old_place_once(tmp_path: Path):
    old = write(tmp_path / "cron" / "jobs.json", OLD)
    new = tmp_path / "workspace" / "cron" / "jobs.json"
    before = old.read_bytes()

    CronService(new).adopt(old)
    moved = new.read_bytes()
    write(old, {"version": 1, "jobs": []})
    CronService(new).adopt(old)

    assert moved == before == new.read_bytes()
    assert old.exists(), "a second one is left where it is"


@given(
    misfire=st.sampled_from(Misfire),
    notify=st.sampled_from(Notify),
    provenance=st.sampled_from(Provenance),
    words=st.text(max_size=20),
    amount=st.one_of(st.none(), st.integers(0, 2**40)),
    extra=st.dictionaries(st.sampled_from(["x", "y"]), st.integers(), max_size=2),
)
def test_what_is_written_is_read_back(
    misfire: Misfire, notify: Notify, provenance: Provenance, words: str, amount: int | None, extra: dict[str, int]
):
    job = CronJob(
        "a", words or "a", schedule=CronSchedule("at", at_ms=amount), misfire=misfire, created_at_ms=amount or 0
    )
    job.payload.message, job.payload.notify, job.payload.to = words, notify, words or None
    job.state.last_run_at_ms, job.payload.provenance = amount, provenance
    job.raw = {**extra, "schedule": {**extra}}

    again = CronJob.from_json(json.loads(json.dumps(job.to_json())))

    assert again == job
    assert within(extra, again.to_json())
    assert within(extra, again.to_json()["schedule"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "id: Field required"),
        ({"schedule": None}, "schedule: Field required"),
        ({"schedule": {"kind": "at", "atMs": "soon"}}, "schedule.atMs: .* number"),
        ({"schedule": {"kind": "at", "atMs": float("nan")}}, "schedule.atMs: .* number"),
        ({"schedule": {"kind": "at", "atMs": 10**18}}, "schedule.atMs: .* less than"),
        ({"enabled": "yes"}, "enabled: .* boolean"),
        ({"payload": {"notify": "loudly"}}, "payload.notify: .* 'always'"),
        ({"misfire": "perhaps"}, "misfire: .* 'run_once'"),
        ({"state": {"runHistory": [1]}}, "state.runHistory.0: .* dictionary"),
        ({"state": 5}, "state: .* dictionary"),
    ],
)
def test_an_entry_that_is_no_job_says_which_key_is_wrong(change: dict[str, object], said: str):
    with pytest.raises(CronError, match=said):
        CronJob.from_json({**OLD["jobs"][0], **change})


def test_half_a_character_in_a_job_stops_no_other(tmp_path: Path):
    service = CronService(tmp_path / "jobs.json")
    half = service.add_job("half", CronSchedule("every", every_ms=60_000), "say \ud83d")

    whole = service.add_job("whole", CronSchedule("every", every_ms=60_000), "say hello")

    again = {job.id: job.payload.message for job in CronService(tmp_path / "jobs.json").list_jobs()}
    assert again == {half.id: "say \ud83d", whole.id: "say hello"}


@pytest.mark.parametrize("planned", [0, 1, 1_760_000_000])
def test_a_plan_that_is_no_instant_is_made_anew(tmp_path: Path, planned: int):
    job = {
        "id": "0badcafe",
        "name": "water",
        "enabled": True,
        "schedule": {"kind": "every", "everyMs": 3_600_000},
        "payload": {"kind": "agent_turn", "message": "Water the plants"},
        "state": {"nextRunAtMs": planned},
    }
    path = tmp_path / "jobs.json"
    path.write_text(json.dumps({"version": 1, "jobs": [job]}))

    (read,) = CronService(path).list_jobs()

    assert read.state.next_run_at_ms is None
