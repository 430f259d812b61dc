"""Jobs and reminders: list, calendar, history, add, pause, run, remove."""

import asyncio
from itertools import islice
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.cron.format import format_schedule, parse_schedule
from nanobot.cron.simulate import simulate
from nanobot.cron.types import CronJob, CronSchedule
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.webui.services import WebServices

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


class JobEndpoints:
    """The endpoints of the jobs view."""

    def __init__(self, services: WebServices) -> None:
        self._services = services

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/jobs", self.list_all, Requires.DEVICE),
            Endpoint("/api/jobs", self.add, Requires.DEVICE, ("POST",)),
            Endpoint("/api/jobs/calendar", self.calendar, Requires.DEVICE),
            Endpoint("/api/jobs/history", self.history, Requires.DEVICE),
            Endpoint("/api/jobs/{job}", self.change, Requires.DEVICE, ("PATCH",)),
            Endpoint("/api/jobs/{job}", self.remove, Requires.DEVICE, ("DELETE",)),
            Endpoint("/api/jobs/{job}/run", self.run, Requires.DEVICE, ("POST",)),
        ]

    async def list_all(self, request: Request, caller: Credential | None) -> Response:
        """All jobs, next to run first, with a description of the schedule and the next runs (Unix milliseconds)."""
        jobs, costs = await asyncio.to_thread(self._list), await self._services.runtime.spending.of_sessions("cron:")
        for job in jobs:
            runs, used = costs.get(f"cron:{job['id']}", (0, None))
            job["month"] = {"runs": runs, "usd": used.usd if used is not None else 0.0}
        return json_response({"jobs": jobs})

    async def add(self, request: Request, caller: Credential | None) -> Response:
        new = await read_json(request, _NewJob)
        job = await asyncio.to_thread(self._add, new)
        self._services.feed.changed("jobs")
        return json_response(await asyncio.to_thread(self._shown, job), 201)

    async def calendar(self, request: Request, caller: Credential | None) -> Response:
        """What will run in the coming days, with collisions and clock changes."""
        days = _number(request, "days", 35, 400)
        cron = self._services.runtime.cron()

        def runs() -> list[dict[str, object]]:
            return [run.to_json() for run in islice(simulate(cron.list_jobs(), days, cron.timezone), _MAX_RUNS)]

        return json_response({"runs": await asyncio.to_thread(runs)})

    async def history(self, request: Request, caller: Credential | None) -> Response:
        """Past runs, newest first."""
        job = request.query_params.get("job") or None
        rows = await asyncio.to_thread(self._services.runtime.cron().history, job)
        return json_response({"runs": [row.to_json() for row in rows[: -_MAX_HISTORY - 1 : -1]]})

    async def change(self, request: Request, caller: Credential | None) -> Response:
        """Pause or resume a job, or change its text, time or model."""
        new, job_id = await read_json(request, _JobChange), request.path_params["job"]
        runtime = self._services.runtime
        job = await asyncio.to_thread(runtime.cron().get_job, job_id)
        if job is None:
            raise HttpError(404, f"There is no job {job_id}.")
        if new.model is not None:
            async with runtime.sessions.hold(job.run_session) as session:
                await runtime.models.choose(session, new.model or None)
                await runtime.sessions.append(session)
        await asyncio.to_thread(self._change, job_id, new)
        self._services.feed.changed("jobs")
        job = await asyncio.to_thread(runtime.cron().get_job, job_id) or job
        return json_response(await asyncio.to_thread(self._shown, job))

    async def remove(self, request: Request, caller: Credential | None) -> Response:
        job_id = request.path_params["job"]
        if not await asyncio.to_thread(self._services.runtime.cron().remove_job, job_id):
            raise HttpError(404, f"There is no job {job_id}.")
        self._services.feed.changed("jobs")
        return json_response({"removed": job_id})

    async def run(self, request: Request, caller: Credential | None) -> Response:
        """Start a run now. Its turn is in the feed, its end in the history."""
        cron, job_id = self._services.runtime.cron(), request.path_params["job"]
        if not await asyncio.to_thread(cron.request_run, job_id):
            raise HttpError(409, "There is no such job, or it is running.")
        return json_response({"started": job_id}, 202)

    def _list(self) -> list[dict[str, Any]]:
        return [self._shown(job) for job in self._services.runtime.cron().list_jobs(include_disabled=True)]

    def _add(self, new: _NewJob) -> CronJob:
        runtime = self._services.runtime
        cron = runtime.cron()
        schedule = new.schedule(cron.timezone)
        chat = runtime.privacy.owners_chat() if new.deliver else None
        return cron.add_job(
            new.name,
            schedule,
            new.message,
            chat is not None,
            chat.channel if chat is not None else None,
            chat.chat_id if chat is not None else None,
            delete_after_run=schedule.kind == "at",
        )

    def _change(self, job_id: str, new: _JobChange) -> None:
        cron = self._services.runtime.cron()
        schedule = new.schedule(cron.timezone) if (new.at, new.every_s, new.cron) != (None, None, None) else None
        if schedule is not None or new.message is not None or new.name is not None:
            cron.change_job(job_id, name=new.name, message=new.message, schedule=schedule)
        if new.enabled is not None:
            cron.enable_job(job_id, enabled=new.enabled)

    def _shown(self, job: CronJob) -> dict[str, Any]:
        cron = self._services.runtime.cron()
        zone = cron.zone_of(job)
        return {
            **job.to_json(),
            "schedule_text": format_schedule(job.schedule, zone),
            "next_runs_ms": cron.next_instants(job) if job.enabled else [],
            "running": job.runs.running is not None,
            "model": self._services.runtime.sessions.get_or_create(job.run_session).metadata.get("model"),
        }


def _number(request: Request, name: str, default: int, largest: int) -> int:
    try:
        return min(max(int(request.query_params.get(name, default)), 1), largest)
    except ValueError as error:
        raise HttpError(400, f"`{name}` is a number.") from error
