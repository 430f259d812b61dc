"""What would fire in the days to come: every job on a simulated clock, collisions and clock changes marked. Pure."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import groupby

from nanobot.cron.judging import DAY_MS, job_zone
from nanobot.cron.schedule import from_ms, instants, is_moved, to_ms
from nanobot.cron.types import MINUTE_MS, CronJob
from nanobot.cron.zones import clock_changes, reading, wall_at


@dataclass(frozen=True, slots=True)
class Firing:
    """One instant of one job. `collides` names the other jobs of the same minute, `remark` what the clocks do to it."""

    at_ms: int
    job: CronJob
    zone: tzinfo
    collides: tuple[str, ...] = ()
    remark: str = ""

    @property
    def words(self) -> str:
        """What is odd about it; empty where nothing is."""
        collides = f"collides with {', '.join(self.collides)}" if self.collides else ""
        return "; ".join(part for part in (self.remark, collides) if part)

    def to_json(self) -> dict[str, object]:
        """For programs."""
        return {
            "atMs": self.at_ms,
            "at": from_ms(self.at_ms, self.zone).isoformat(),
            "jobId": self.job.id,
            "name": self.job.name,
            "collidesWith": list(self.collides),
            "remark": self.remark,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """The clocks of a zone change."""

    at_ms: int
    zone: tzinfo
    by: timedelta

    @property
    def words(self) -> str:
        """`clocks go forward by 60 min`."""
        way = "forward" if self.by > timedelta() else "back"
        return f"clocks go {way} by {abs(self.by) // timedelta(minutes=1)} min"

    def to_json(self) -> dict[str, object]:
        """For programs."""
        at = from_ms(self.at_ms, self.zone).isoformat()
        return {"atMs": self.at_ms, "at": at, "jobId": None, "remark": self.words}


def rehearse(jobs: Sequence[CronJob], start_ms: int, days: float, user_zone: str | None) -> Iterator[Firing | Change]:
    """What happens in that time, in order. Jobs that are switched off are left out. Raises CronError."""
    end_ms = start_ms + round(days * DAY_MS)
    zones = {job.id: job_zone(job, user_zone) for job in jobs if job.enabled and job.is_ours}
    streams = [_firings(job, start_ms, end_ms, zones[job.id]) for job in jobs if job.id in zones]
    changes = sorted(
        (Change(to_ms(change.at), zone, change.after - change.before) for zone in dict.fromkeys(zones.values())
         for change in clock_changes(zone, from_ms(start_ms), from_ms(end_ms))),
        key=lambda change: change.at_ms,
    )  # fmt: skip
    merged = heapq.merge(*streams, key=lambda firing: firing.at_ms)
    return heapq.merge(changes, _with_collisions(merged), key=lambda one: one.at_ms)


def rehearse_now(jobs: Sequence[CronJob], days: float, user_zone: str | None) -> Iterator[Firing | Change]:
    """The same from now on. Raises CronError."""
    return rehearse(jobs, to_ms(datetime.now(UTC)), days, user_zone)


def _firings(job: CronJob, start_ms: int, end_ms: int, zone: tzinfo) -> Iterator[Firing]:
    planned = job.state.next_run_at_ms
    anchor = planned or job.created_at_ms or start_ms
    for due in instants(job.schedule, start_ms, zone=zone, anchor_ms=anchor):
        if due >= end_ms:
            return
        yield Firing(due, job, zone, remark=_remark(job, due, zone))


def _remark(job: CronJob, due: int, zone: tzinfo) -> str:
    """What is odd about this hour on the wall."""
    if job.schedule.kind != "cron":
        return ""
    if is_moved(job.schedule, due, zone):
        return "its time of day does not exist on this day"
    wall = wall_at(from_ms(due), zone)
    read = reading(wall.replace(fold=0), zone)
    if read.second is not None:
        return "this hour comes twice; the second" if wall.fold else "this hour comes twice; the first"
    return ""


def _with_collisions(firings: Iterator[Firing]) -> Iterator[Firing]:
    for _, group in groupby(firings, key=lambda firing: firing.at_ms // MINUTE_MS):
        together = list(group)
        names = {firing.job.id: firing.job.name for firing in together}
        for firing in together:
            others = tuple(name for job_id, name in names.items() if job_id != firing.job.id)
            yield Firing(firing.at_ms, firing.job, firing.zone, others, firing.remark)
