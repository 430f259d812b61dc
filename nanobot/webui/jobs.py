"""Jobs and reminders: list, calendar, history, add, pause, run, remove."""

import asyncio
from itertools import islice
from typing import Annotated, Any

from pydantic import BaseModel, Field

from nanobot.cron.format import format_schedule, parse_schedule
from nanobot.cron.schedule import simulate
from nanobot.cron.types import CronJob, CronSchedule
from nanobot.security.http_access import HttpError, route
from nanobot.webui.view import WebView

_MAX_RUNS, _MAX_HISTORY = 500, 200


class _When(BaseModel):
    """One of `at` (such as "tomorrow 9am"), `every_s` and `cron` says when."""

    at: str | None = None
    every_s: float | None = Field(None, ge=60)
    cron: str | None = None
    tz: str | None = None

    def schedule(self, user_zone: str | None) -> CronSchedule:
        """Raises CronError."""
        return parse_schedule(
            every_seconds=self.every_s, cron_expr=self.cron, at=self.at, tz=self.tz, user_zone=user_zone
        )


class _NewJob(_When):
    message: str = Field(min_length=1, max_length=20_000)
    name: str = Field("", max_length=100)
    deliver: bool = True
    """Send the answer to the owner's chat."""


class _JobChange(_When):
    """What is None stays."""

    enabled: bool | None = None
    message: str | None = Field(None, min_length=1, max_length=20_000)
    name: str | None = Field(None, max_length=100)
    model: str | None = Field(None, max_length=200)
    """The model of its runs; empty for the configured one."""


class JobsView(WebView):
    @route("GET", "/api/jobs")
    async def list_all(self) -> Any:
        """All jobs, next to run first, with a description of the schedule and the next runs (Unix milliseconds)."""
        jobs = await asyncio.to_thread(self.runtime.cron().list_jobs, include_disabled=True)
        shown, costs = await asyncio.to_thread(self._shown, *jobs), await self.runtime.spending.of_sessions("cron:")
        for job in shown:
            runs, used = costs.get(f"cron:{job['id']}", (0, None))
            job["month"] = {"runs": runs, "usd": used.usd if used is not None else 0.0}
        return {"jobs": shown}

    @route("POST", "/api/jobs", status=201, changed="jobs")
    def add(self, body: _NewJob) -> Any:
        runtime, cron = self.runtime, self.runtime.cron()
        schedule = body.schedule(cron.timezone)
        chat = runtime.privacy.owners_chat() if body.deliver else None
        channel, to = (chat.channel, chat.chat_id) if chat is not None else (None, None)
        job = cron.add_job(
            body.name, schedule, body.message, chat is not None, channel, to, delete_after_run=schedule.kind == "at"
        )
        return self._shown(job)[0]

    @route("GET", "/api/jobs/calendar")
    def calendar(self, days: Annotated[int, Field(ge=1, le=400)] = 35) -> Any:
        """What will run in the coming days, with collisions and clock changes."""
        cron = self.runtime.cron()
        return {"runs": [run.to_json() for run in islice(simulate(cron.list_jobs(), days, cron.timezone), _MAX_RUNS)]}

    @route("GET", "/api/jobs/history")
    def history(self, job: str = "") -> Any:
        return {"runs": [row.to_json() for row in self.runtime.cron().history(job or None)[: -_MAX_HISTORY - 1 : -1]]}

    @route("PATCH", "/api/jobs/{job}", changed="jobs")
    async def change(self, job: str, body: _JobChange) -> Any:
        """Pause or resume a job, or change its text, time or model."""
        known = await asyncio.to_thread(self.runtime.cron().get_job, job)
        if known is None:
            raise _no_job(job)
        if body.model is not None:
            async with self.sessions.hold(known.run_session) as session:
                await self.runtime.models.choose(session, body.model or None)
                await self.sessions.append(session)
        return await asyncio.to_thread(self._change, known, body)

    def _change(self, job: CronJob, new: _JobChange) -> dict[str, Any]:
        cron = self.runtime.cron()
        schedule = new.schedule(cron.timezone) if (new.at, new.every_s, new.cron) != (None, None, None) else None
        if (schedule, new.message, new.name) != (None, None, None):
            cron.change_job(job.id, name=new.name, message=new.message, schedule=schedule)
        if new.enabled is not None:
            cron.enable_job(job.id, enabled=new.enabled)
        return self._shown(cron.get_job(job.id) or job)[0]

    @route("DELETE", "/api/jobs/{job}", changed="jobs")
    def remove(self, job: str) -> Any:
        if not self.runtime.cron().remove_job(job):
            raise _no_job(job)
        return {"removed": job}

    @route("POST", "/api/jobs/{job}/run", status=202)
    def run(self, job: str) -> Any:
        """Start a run now. Its turn is in the feed, its end in the history."""
        if not self.runtime.cron().request_run(job):
            raise HttpError(409, "There is no such job, or it is running.")
        return {"started": job}

    def _shown(self, *jobs: CronJob) -> list[dict[str, Any]]:
        cron = self.runtime.cron()
        return [
            {
                **job.to_json(),
                "schedule_text": format_schedule(job.schedule, cron.zone_of(job)),
                "next_runs_ms": cron.next_instants(job) if job.enabled else [],
                "running": job.runs.running is not None,
                "model": self.sessions.get_or_create(job.run_session).metadata.get("model"),
            }
            for job in jobs
        ]


def _no_job(job_id: str) -> HttpError:
    return HttpError(404, f"There is no job {job_id}.")
