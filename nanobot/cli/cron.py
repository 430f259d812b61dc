"""`nanobot cron`: jobs, to make, list, switch, run, look back on and rehearse.

Every change goes through the store's lock; a running gateway sees it within seconds.
"""

import asyncio
import sys
from dataclasses import dataclass
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    one_line,
    read_setup,
    say_text,
    show_json,
    show_rows,
    unknown_name,
    warn,
)
from nanobot.cli.terminal import is_screen
from nanobot.cli.through_gateway import demand_gateway, places_of
from nanobot.cron.service import CronService
from nanobot.cron.targets import KnownChannels
from nanobot.cron.types import CronJob, Misfire, Notify
from nanobot.cron.wording import job_zone_or_host, schedule_of, told_instant, told_job, told_schedule
from nanobot.errors import NanobotError
from nanobot.utils.text import counted

if TYPE_CHECKING:
    from nanobot.cron.history import HistoryRow

_POLL_S = 0.1
_PICKED_UP_S = 10.0
_NO_JOBS = "There are no jobs. Make one with `nanobot cron add`."
_EXAMPLE = "-c '0 9 * * 1-5' for every weekday at nine"
_SILENT = "It works in silence. To have its answer sent, add --deliver --channel NAME --to CHAT."
_NEEDS_GATEWAY = "No gateway is running: jobs run while `nanobot gateway` does."

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A job, as `nanobot cron list` names it.")]
LongConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Another config file; its folder is the data folder.")
]


@dataclass(frozen=True)
class _Jobs:
    """The jobs of this setup."""

    setup: Setup
    service: CronService

    def get(self, job_id: str) -> CronJob:
        """Raises NanobotError, with the nearest ids, where there is none."""
        job = self.service.get_job(job_id)
        if job is None:
            known = [job.id for job in self.service.list_jobs(include_disabled=True)]
            raise unknown_name("job", job_id, known, "nanobot cron list -a")
        return job

    def zone(self, job: CronJob) -> tzinfo:
        """Where its times are told."""
        return job_zone_or_host(job, self.service.timezone)

    def tell(self, job: CronJob) -> None:
        """What it is, and when it runs next."""
        say_text(told_job(job, self.zone(job), self.service.next_instants(job)))
        if not self.service.is_served():
            typer.echo(_NEEDS_GATEWAY, err=True)


def add(
    message: Annotated[str, typer.Option("-m", "--message", help="What is to be done or said when it is due.")],
    name: Annotated[str, typer.Option("-n", "--name", help="A short name for it.")] = "",
    every: Annotated[float | None, typer.Option("-e", "--every", metavar="SECONDS", help="Run so often.")] = None,
    cron: Annotated[str | None, typer.Option("-c", "--cron", metavar="EXPR", help="Such as '0 9 * * 1-5'.")] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="ISO", help="Run once, at 2026-12-24T18:00.")] = None,
    tz: Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The zone of --cron or --at.")] = None,
    deliver: Annotated[bool, typer.Option("-d", "--deliver", help="Send the answer to a chat.")] = False,
    channel: Annotated[str | None, typer.Option("--channel", help="The channel of that chat.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="CHAT", help="The id of that chat.")] = None,
    notify: Annotated[Notify, typer.Option("--notify", help="When the chat hears of it.")] = Notify.ALWAYS,
    misfire: Annotated[Misfire, typer.Option("--misfire", help="What becomes of a run missed.")] = Misfire.RUN_ONCE,
    within: Annotated[
        float | None, typer.Option("--within", metavar="SECONDS", min=0, help="How late, for run_if_within.")
    ] = None,
    config: LongConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Make a job; prints its next three runs."""
    if every is None and cron is None and at is None:
        raise NanobotError(f"When? One of them is needed: -e SECONDS, -c EXPR or --at TIME, such as {_EXAMPLE}.")
    jobs = _open(config, workspace)
    job = jobs.service.add_job(
        name,
        schedule_of(every_seconds=every, cron_expr=cron, at=at, tz=tz, user_zone=jobs.service.timezone),
        message,
        deliver,
        channel,
        to,
        notify=notify,
        misfire=misfire,
        misfire_within_s=within,
    )
    if json:
        show_json({**job.to_json(), "nextRunsMs": jobs.service.next_instants(job)})
    else:
        jobs.tell(job)
        if not deliver and is_screen(sys.stderr):  # a word for a person, who may wait for it
            typer.echo(_SILENT, err=True)


def list_(
    everything: Annotated[bool, typer.Option("-a", "--all", help="Those that are switched off, too.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """The jobs, those first that run first."""
    jobs = _open(config, workspace)
    found = jobs.service.list_jobs(include_disabled=everything)
    if json:
        show_json([job.to_json() for job in found])
    else:
        rows = [
            (
                job.id,
                job.name,
                told_schedule(job.schedule, jobs.zone(job)),
                _target(job),
                told_instant(job.state.next_run_at_ms, jobs.zone(job)) if job.enabled else "switched off",
                "at work" if job.state.running is not None else job.state.last_status or "",
            )
            for job in found
        ]
        show_rows(("Job", "Name", "Schedule", "For", "Next run", "Last"), rows, empty=_NO_JOBS)
    warn(jobs.service.unreadable())


def remove(job_id: IdArgument, config: ConfigOption = None, workspace: WorkspaceOption = None) -> None:
    """Remove a job; its history stays."""
    jobs = _open(config, workspace)
    job = jobs.get(job_id)
    jobs.service.remove_job(job.id)
    say_text(f'Removed job {job.id} "{one_line(job.name)}".')


def enable(job_id: IdArgument, config: ConfigOption = None, workspace: WorkspaceOption = None) -> None:
    """Switch a job on; prints its next three runs."""
    jobs = _open(config, workspace)
    jobs.service.enable_job(jobs.get(job_id).id, enabled=True)
    jobs.tell(jobs.get(job_id))


def disable(job_id: IdArgument, config: ConfigOption = None, workspace: WorkspaceOption = None) -> None:
    """Switch a job off; what passes meanwhile is not made up for."""
    jobs = _open(config, workspace)
    job = jobs.get(job_id)
    jobs.service.enable_job(job.id, enabled=False)
    say_text(f'Job {job.id} "{one_line(job.name)}" is switched off.')


def run(
    job_id: IdArgument,
    force: Annotated[bool, typer.Option("-f", "--force", help="Also where it is switched off.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Run a job now, in the gateway where one is running; its schedule goes on as if nothing had been."""
    jobs = _open(config, workspace)
    job = jobs.get(job_id)
    if not (job.enabled or force):
        raise NanobotError(f"Job {job.id} is switched off. Run it all the same with `nanobot cron run {job.id} -f`.")
    served = jobs.service.is_served()
    row = asyncio.run(_run_there(jobs.service, job) if served else _run_here(jobs, job))
    if row is None:
        raise NanobotError(f"Job {job.id} is running already. See `nanobot cron history {job.id}`.")
    typer.echo(f"{row['outcome']} in {row.get('durationMs', 0) / 1000:.1f} s", err=True)
    if row["outcome"] != "ran":
        raise NanobotError(f"Job {job.id} {row['outcome']}: {row.get('reason', 'no reason given')}")


def test(
    job_id: IdArgument,
    send: Annotated[bool, typer.Option("--send", help="Post a word there, through the running gateway.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Where a job would post. Nothing of the job is run."""
    job = _open(config, workspace).get(job_id)
    payload, ids = job.payload, None
    if send:
        if not payload.deliver:
            raise NanobotError(f"Job {job.id} posts nowhere. {_SILENT}")
        word = f"This is a test of the job {job.name!r}: its answer will come here."
        request = {"do": "send", "channel": payload.channel, "to": payload.to, "thread": payload.thread_id}
        ids = demand_gateway(places_of(config), {**request, "text": word})["ids"]
    if json:
        there = {"channel": payload.channel, "to": payload.to, "thread": payload.thread_id} if payload.deliver else None
        show_json({"id": job.id, "target": there, "notify": payload.notify, "sent": ids})
        return
    if not payload.deliver:
        typer.echo(f"Job {job.id} posts nowhere: {_SILENT}")
        return
    thread = f", thread {payload.thread_id}" if payload.thread_id else ""
    typer.echo(f"Job {job.id} posts to {one_line(_target(job))}{one_line(thread)}.")
    if ids is not None:
        typer.echo(f"A word is there, as {', '.join(one_line(str(one)) for one in ids) or 'sent'}.")


def history(
    job_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="One job; without it, all of them.")] = None,
    last: Annotated[int, typer.Option("-n", "--last", min=1, help="Only the last so many.")] = 50,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """What became of each due instant: ran, skipped with the reason, or failed; the newest first."""
    jobs = _open(config, workspace)
    rows = jobs.service.history(job_id)
    if not rows and job_id is not None:
        jobs.get(job_id)  # it may only not have run yet
    shown = rows[: -last - 1 : -1]
    if json:
        show_json(shown)
        return
    ended = [
        (
            told_instant(row["dueAtMs"], _zone_of_row(jobs, row)),
            row["jobId"],
            row["name"],
            row["outcome"],
            f"{row['durationMs'] / 1000:.1f} s" if "durationMs" in row else "",
            _remark(row),
        )
        for row in shown
    ]
    show_rows(
        ("Due", "Job", "Name", "Outcome", "Took", "Remark"),
        [*_under_way(jobs, job_id), *ended],
        empty="No job was due yet.",
    )
    if len(rows) > last:
        typer.echo(f"{len(rows) - last} older ones; show them with -n {len(rows)}.", err=True)


def rehearse(
    days: Annotated[float, typer.Option("--days", min=0.01, max=3660, help="How far to look ahead.")] = 7,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Print at most so many.")] = 200,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """What would fire in the days to come, on a simulated clock; collisions and clock changes are marked."""
    from nanobot.cron.rehearsal import Firing, rehearse_now  # nobody else simulates

    jobs = _open(config, workspace)
    found = list(islice(rehearse_now(jobs.service.list_jobs(), days, jobs.service.timezone), limit + 1))
    shown = found[:limit]
    if json:
        show_json([one.to_json() for one in shown])
    else:
        rows = [
            (told_instant(one.at_ms, one.zone), one.job.id, one.job.name, one.words)
            if isinstance(one, Firing)
            else (told_instant(one.at_ms, one.zone), "", "", one.words)
            for one in shown
        ]
        show_rows(("When", "Job", "Name", "Remark"), rows, empty=f"Nothing fires within {days:g} days.")
    if len(found) > limit:
        typer.echo(f"There is more; show it with --limit {limit * 5}.", err=True)


def _open(config: Path | None, workspace: Path | None) -> _Jobs:
    """The store of this workspace, moved there from where earlier releases kept it."""
    setup = read_setup(config, workspace, secrets=False)
    service = CronService(
        setup.workspace / "cron" / "jobs.json",
        timezone=setup.config.agents.defaults.timezone,
        targets=KnownChannels(setup.config.channels.switched_on()),
    )
    service.adopt(setup.data_dir / "cron" / "jobs.json")
    return _Jobs(setup, service)


async def _run_there(service: CronService, job: CronJob) -> "HistoryRow | None":
    """By the process that serves the jobs: it sees the wish in the store."""
    before = len(service.history(job.id))
    service.request_run(job.id)
    waited_s = 0.0
    while len(rows := service.history(job.id)) == before:
        now = service.get_job(job.id)
        picked_up = now is None or now.state.run_requested_at_ms is None
        if not picked_up and waited_s > _PICKED_UP_S:
            raise NanobotError("The gateway did not take it up. See `nanobot status` and the gateway's log.")
        await asyncio.sleep(_POLL_S)
        waited_s += _POLL_S
    return rows[-1]


async def _run_here(jobs: _Jobs, job: CronJob) -> "HistoryRow | None":
    """In this process: its answer is printed, since no channel is open here."""
    from nanobot.agent.turn import TurnOutcome  # the engine: only where something is run
    from nanobot.cron.notify import may_tell, message_for
    from nanobot.cron.types import Due
    from nanobot.runtime import build_runtime

    setup, payload = jobs.setup, job.payload
    async with build_runtime(setup.config, data_dir=setup.data_dir, workspace=setup.workspace) as runtime:

        async def on_job(job: CronJob, due: Due) -> str:
            result = await runtime.loop.run_turn(message_for(job, due))
            if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
                raise NanobotError(result.text)
            say_text(result.text)
            return result.text

        jobs.service.on_job = on_job
        ran = await jobs.service.run_job(job.id, force=True)
    if ran and may_tell(job) and payload.channel != "cli":
        there = one_line(f"{payload.channel}:{payload.to}")
        typer.echo(f"Not sent to {there}: channels are open in the gateway only.", err=True)
    return jobs.service.history(job.id)[-1] if ran else None


def _target(job: CronJob) -> str:
    if not job.payload.deliver:
        return ""
    when = "" if job.payload.notify is Notify.ALWAYS else f" ({job.payload.notify})"
    return f"{job.payload.channel}:{job.payload.to}{when}"


def _zone_of_row(jobs: _Jobs, row: "HistoryRow") -> tzinfo:
    job = jobs.service.get_job(row["jobId"])
    return jobs.zone(job or CronJob("", ""))


def _under_way(jobs: _Jobs, job_id: str | None) -> list[tuple[str, ...]]:
    """A row for each run that has not ended: its chat may not have the answer yet."""
    found = [job for job in jobs.service.list_jobs(include_disabled=True) if job_id in (None, job.id)]
    return [
        (told_instant(lease.due_ms, jobs.zone(job)), job.id, job.name, "at work", "", "not ended, or not delivered yet")
        for job in found
        if (lease := job.state.running) is not None
    ]


def _remark(row: "HistoryRow") -> str:
    from nanobot.cron.judging import late_words

    remarks = []
    if row["trigger"] == "manual":
        remarks.append("by hand")
    if "lateMs" in row:
        remarks.append(f"late by {late_words(row['lateMs'])}")
    if "count" in row:
        remarks.append(counted(row["count"], "instant"))
    if "reason" in row:
        remarks.append(row["reason"])
    return "; ".join(remarks)
