"""Cron services on a held clock, their rounds driven by hand."""

from datetime import UTC, datetime
from pathlib import Path

from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, Run
from nanobot.utils.clock import FrozenClock


class SetClock(FrozenClock):
    """One that somebody sets."""

    def set(self, now: datetime) -> None:
        """Show another time; no time goes by."""
        self._now = now


class Crew:
    """Services on one store and one clock, and what they ran."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cron" / "jobs.json"
        self.clock = SetClock(datetime(2026, 11, 22, 8, 0, tzinfo=UTC))
        self.ran: list[Run] = []
        self.answers: dict[str, str] = {}
        self.services: list[CronService] = []

    def service(self, **more: object) -> CronService:
        """Another service, another process for all it knows."""
        made = CronService(self.path, **{"on_job": self.run, "clock": self.clock, "timezone": "UTC", **more})  # type: ignore[arg-type]
        self.services.append(made)
        return made

    async def run(self, job: CronJob, due: Run) -> str | None:
        """What a job does."""
        self.ran.append(due)
        return self.answers.get(job.id, "done")

    @property
    def now_ms(self) -> int:
        """What time it is."""
        return to_ms(self.clock.now())

    async def pass_(self, seconds: float, *services: CronService, step: float = 60) -> None:
        """Let time go by; each service looks every `step` seconds."""
        left = seconds
        while left > 0:
            self.clock.advance(min(step, left))
            left -= step
            await self.look(*services)

    async def look(self, *services: CronService) -> None:
        """Each service looks at the clock once, and what it begins ends."""
        for service in services:
            await service.tick()
        for service in services:
            await service.wait_for_runs()
