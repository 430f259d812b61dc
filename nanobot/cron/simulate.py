"""Simulating the schedule: the coming runs of all jobs, with collisions and clock changes."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import groupby
from operator import attrgetter

from nanobot.cron.schedule import clock_changes, from_ms, instants, is_moved, job_zone, read_wall_time, to_ms, wall_at
from nanobot.cron.types import DAY_MS, MINUTE_MS, CronJob


@dataclass(frozen=True, slots=True)
class SimulatedEvent:
    """One run of a job, or a clock change (without a job)."""

    at_ms: int
    zone: tzinfo
    job: CronJob | None = None
    remark: str = ""
    """How a clock change affects the run, or what changes."""
    collides: tuple[str, ...] = ()
    """Names of other jobs in the same minute."""

    @property
    def description(self) -> str:
        """Remark and collisions; empty for a plain run."""
        collides = f"collides with {', '.join(self.collides)}" if self.collides else ""
        return "; ".join(part for part in (self.remark, collides) if part)

    def to_json(self) -> dict[str, object]:
        """As in `nanobot cron rehearse --json`."""
        at = from_ms(self.at_ms, self.zone).isoformat()
        row = {"atMs": self.at_ms, "at": at, "jobId": self.job and self.job.id, "remark": self.remark}
        return row if self.job is None else {**row, "name": self.job.name, "collidesWith": list(self.collides)}


def simulate(jobs: Sequence[CronJob], days: float, user_zone: str | None) -> Iterator[SimulatedEvent]:
    """Runs and clock changes of the coming days, in order, for enabled jobs. Raises CronError."""
    start_ms = to_ms(datetime.now(UTC))
    end_ms = start_ms + round(days * DAY_MS)
    zones = {job.id: job_zone(job, user_zone) for job in jobs if job.enabled and job.is_agent_turn}
    changes, when = [], attrgetter("at_ms")
    for zone in dict.fromkeys(zones.values()):
        for change in clock_changes(zone, from_ms(start_ms), from_ms(end_ms)):
            by = change.after - change.before
            remark = f"clocks go {'forward' if by > timedelta() else 'back'} by {abs(by) // timedelta(minutes=1)} min"
            changes.append(SimulatedEvent(to_ms(change.at), zone, remark=remark))
    streams = [_runs_of(job, start_ms, end_ms, zones[job.id]) for job in jobs if job.id in zones]
    runs = _with_collisions(heapq.merge(*streams, key=when))
    return heapq.merge(sorted(changes, key=when), runs, key=when)


def _runs_of(job: CronJob, start_ms: int, end_ms: int, zone: tzinfo) -> Iterator[SimulatedEvent]:
    anchor = job.state.next_run_at_ms or job.created_at_ms or start_ms
    for due in instants(job.schedule, start_ms, zone=zone, anchor_ms=anchor):
        if due >= end_ms:
            return
        remark, wall = "", wall_at(from_ms(due), zone)
        if is_moved(job.schedule, due, zone):
            remark = "this time of day is skipped on this day"
        elif job.schedule.kind == "cron" and read_wall_time(wall.replace(fold=0), zone).second is not None:
            remark = f"this hour occurs twice; {'second' if wall.fold else 'first'} time"
        yield SimulatedEvent(due, zone, job, remark)


def _with_collisions(runs: Iterator[SimulatedEvent]) -> Iterator[SimulatedEvent]:
    for _, group in groupby(runs, key=lambda run: run.at_ms // MINUTE_MS):
        together = list(group)
        names = {run.job.id: run.job.name for run in together if run.job is not None}
        for run in together:
            others = (name for job_id, name in names.items() if run.job is None or job_id != run.job.id)
            yield replace(run, collides=tuple(others))
