"""Simulating the schedule: the coming runs of all jobs, with collisions and clock changes."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import groupby

from nanobot.cron.schedule import clock_changes, from_ms, instants, is_moved, job_zone, read_wall_time, to_ms, wall_at
from nanobot.cron.types import DAY_MS, MINUTE_MS, CronJob


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One run of a job. `collides` names other jobs in the same minute, `remark` a clock change that affects it."""

    at_ms: int
    job: CronJob
    zone: tzinfo
    collides: tuple[str, ...] = ()
    remark: str = ""

    @property
    def description(self) -> str:
        """Remark and collisions; empty for a plain run."""
        collides = f"collides with {', '.join(self.collides)}" if self.collides else ""
        return "; ".join(part for part in (self.remark, collides) if part)

    def to_json(self) -> dict[str, object]:
        """As in `nanobot cron rehearse --json`."""
        return {
            "atMs": self.at_ms,
            "at": from_ms(self.at_ms, self.zone).isoformat(),
            "jobId": self.job.id,
            "name": self.job.name,
            "collidesWith": list(self.collides),
            "remark": self.remark,
        }


@dataclass(frozen=True, slots=True)
class ClockShift:
    """A clock change of a zone."""

    at_ms: int
    zone: tzinfo
    by: timedelta

    @property
    def description(self) -> str:
        """`clocks go forward by 60 min`."""
        direction = "forward" if self.by > timedelta() else "back"
        return f"clocks go {direction} by {abs(self.by) // timedelta(minutes=1)} min"

    def to_json(self) -> dict[str, object]:
        """As in `nanobot cron rehearse --json`."""
        at = from_ms(self.at_ms, self.zone).isoformat()
        return {"atMs": self.at_ms, "at": at, "jobId": None, "remark": self.description}


def simulate(jobs: Sequence[CronJob], days: float, user_zone: str | None) -> Iterator[SimulatedRun | ClockShift]:
    """Runs and clock changes of the coming days, in order, for enabled jobs. Raises CronError."""
    start_ms = to_ms(datetime.now(UTC))
    end_ms = start_ms + round(days * DAY_MS)
    zones = {job.id: job_zone(job, user_zone) for job in jobs if job.enabled and job.is_agent_turn}
    streams = [_runs_of(job, start_ms, end_ms, zones[job.id]) for job in jobs if job.id in zones]
    changes = sorted(
        (ClockShift(to_ms(change.at), zone, change.after - change.before) for zone in dict.fromkeys(zones.values())
         for change in clock_changes(zone, from_ms(start_ms), from_ms(end_ms))),
        key=lambda change: change.at_ms,
    )  # fmt: skip
    merged = heapq.merge(*streams, key=lambda run: run.at_ms)
    return heapq.merge(changes, _with_collisions(merged), key=lambda event: event.at_ms)


def _runs_of(job: CronJob, start_ms: int, end_ms: int, zone: tzinfo) -> Iterator[SimulatedRun]:
    planned = job.state.next_run_at_ms
    anchor = planned or job.created_at_ms or start_ms
    for due in instants(job.schedule, start_ms, zone=zone, anchor_ms=anchor):
        if due >= end_ms:
            return
        yield SimulatedRun(due, job, zone, remark=_remark(job, due, zone))


def _remark(job: CronJob, due: int, zone: tzinfo) -> str:
    """How a clock change affects this run."""
    if job.schedule.kind != "cron":
        return ""
    if is_moved(job.schedule, due, zone):
        return "this time of day is skipped on this day"
    wall = wall_at(from_ms(due), zone)
    read = read_wall_time(wall.replace(fold=0), zone)
    if read.second is not None:
        return "this hour occurs twice; second time" if wall.fold else "this hour occurs twice; first time"
    return ""


def _with_collisions(runs: Iterator[SimulatedRun]) -> Iterator[SimulatedRun]:
    for _, group in groupby(runs, key=lambda run: run.at_ms // MINUTE_MS):
        group_runs = list(group)
        names = {run.job.id: run.job.name for run in group_runs}
        for run in group_runs:
            others = tuple(name for job_id, name in names.items() if job_id != run.job.id)
            yield SimulatedRun(run.at_ms, run.job, run.zone, others, run.remark)
