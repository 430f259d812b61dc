"""`nanobot cron`: add, list, enable, run, inspect and simulate jobs.

Every change takes the store's lock; a running gateway sees it within seconds.
"""

import asyncio
from itertools import islice
from typing import Annotated

import typer

from nanobot.cli.common import JsonOption, Setup, print_warnings, read_setup
from nanobot.cli.output import Column, print_json, print_line, print_list, print_text, to_one_line
from nanobot.cron.format import (
    format_job,
    format_next,
    format_schedule,
    may_notify,
    message_for,
    parse_schedule,
    parse_seconds,
)
from nanobot.cron.schedule import from_ms, seconds_between_runs, simulate
from nanobot.cron.service import CronService
from nanobot.cron.tool_backend import NEEDS_GATEWAY
from nanobot.cron.types import CronJob, CronSchedule, Misfire, Notify, Run
from nanobot.errors import NanobotError, UsageError
from nanobot.utils.text import count_noun, duration, format_when

_POLL_S = 0.1
_START_TIMEOUT_S = 10.0
_MIN_INTERVAL_S = 60
_NO_JOBS = "There are no jobs. Add one with `nanobot cron add`."
_EXAMPLE = "-c '0 9 * * 1-5' for every weekday at 9:00"
_NOT_DELIVERED = (
    "Its answer is not sent to any chat. To send it, set up a chat app with `nanobot onboard`, or add --channel NAME "
    "--to CHAT (the terminal: --channel cli --to direct)."
)

EveryOption = Annotated[
    str | None, typer.Option("-e", "--every", metavar="SECONDS", help="Run at this interval, e.g. 1200 or 20m.")
]
CronOption = Annotated[
    str | None, typer.Option("-c", "--cron", metavar="EXPR", help="A cron expression, e.g. '0 9 * * 1-5'.")
]
AtOption = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Run once, e.g. at 2026-12-24T18:00.")]
ZoneOption = Annotated[str | None, typer.Option("--tz", metavar="ZONE", help="The time zone of --cron or --at.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The job's id or name, from `nanobot cron list`.")]


def add(
    when: Annotated[
        str | None, typer.Argument(metavar="[TIME]", help="Once, e.g. 18:00, '+20m', 'tomorrow 9am'.")
    ] = None,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What the agent does or says then.")] = None,
    message: Annotated[str, typer.Option("-m", "--message", help="The same, beside -e, -c or --at.")] = "",
    name: Annotated[str, typer.Option("-n", "--name", help="A short name for the job.")] = "",
    every: EveryOption = None,
    cron: CronOption = None,
    at: AtOption = None,
    tz: ZoneOption = None,
    deliver: Annotated[
        bool | None,
        typer.Option(
            "-d",
            "--deliver/--no-deliver",
            help="Send the answer to a chat; default: if the owner is paired, to theirs.",
        ),
    ] = None,
    channel: Annotated[str | None, typer.Option("--channel", help="The chat's channel, e.g. telegram.")] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="CHAT", help="The chat's id.")] = None,
    notify: Annotated[Notify, typer.Option("--notify", help="When to send the answer.")] = Notify.ALWAYS,
    misfire: Annotated[Misfire, typer.Option("--misfire", help="What to do about missed runs.")] = Misfire.RUN_ONCE,
    within: Annotated[
        str | None, typer.Option("--within", metavar="SECONDS", help="Maximum delay for run_if_within.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Allow an interval below a minute.")] = False,
    json: JsonOption = False,
) -> None:
    """Add a job and print its next three runs."""
    if when is not None and text is None and not message and (every, cron, at) != (None, None, None):
        when, text = None, when
    if when is not None and (at is not None or message):
        raise UsageError("TIME and TEXT take the place of --at and --message. Leave one of both out.")
    at, message = at or when, message or text or ""
    if not message:
        raise UsageError('What should the agent do or say then? For example: nanobot cron add 18:00 "Call Ann"')
    if [every, cron, at].count(None) != 2:
        raise UsageError(f"When should it run? Give one of -e SECONDS, -c EXPR and --at TIME, for example {_EXAMPLE}.")
    setup, service = _open_jobs()
    schedule = _parse_schedule(service, every, cron, at, tz, is_forced=force)
    has_target = channel is not None or to is not None
    chat = None
    if deliver is not False and not has_target:
        from nanobot.pairing.store import PairingStore  # slow to import
        from nanobot.runtime.audience import ChatPrivacy

        chat = ChatPrivacy(setup.config, PairingStore(setup.paths), setup.sessions()).owners_chat()
    if chat is not None:
        channel, to = chat.channel, chat.chat_id
    job = service.add_job(
        name,
        schedule,
        message,
        has_target or chat is not None if deliver is None else deliver,
        channel,
        to,
        delete_after_run=schedule.kind == "at",
        notify=notify,
        misfire=misfire,
        misfire_within_s=None if within is None else parse_seconds(within),
    )
    if json:
        print_json({**job.to_json(), "nextRunsMs": service.next_instants(job)})
    else:
        _show(service, job)
    if chat is not None:
        print_line(f"Delivers to {to_one_line(f'{channel} {to}')} (--no-deliver keeps it silent).", err=True)
    elif not job.payload.deliver and deliver is None:
        print_line(_NOT_DELIVERED, err=True)


def edit(
    job_id: IdArgument,
    message: Annotated[str | None, typer.Option("-m", "--message", help="What the agent does or says then.")] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A short name for the job.")] = None,
    every: EveryOption = None,
    cron: CronOption = None,
    at: AtOption = None,
    tz: ZoneOption = None,
) -> None:
    """Change what a job does, or when, and print its next three runs. What is not given stays."""
    _, service = _open_jobs()
    job, schedule = service.find_job(job_id), None
    if (every, cron, at) != (None, None, None):
        schedule = _parse_schedule(service, every, cron, at, tz)
    elif message is None and name is None:
        raise UsageError(f"What should change? Give -m TEXT, -n NAME, or one of -e, -c and --at: {_EXAMPLE}.")
    service.change_job(job.id, name=name, message=message, schedule=schedule)
    _show(service, service.find_job(job.id))


def list_(
    include_disabled: Annotated[bool, typer.Option("-a", "--all", help="Include disabled jobs.")] = False,
    json: JsonOption = False,
) -> None:
    _, service = _open_jobs()
    selected, zone_of = service.list_jobs(include_disabled=include_disabled), service.zone_of
    columns: dict[str, Column] = {
        "Job": "id",
        "Name": "name",
        "Schedule": lambda job: "once" if job.schedule.kind == "at" else format_schedule(job.schedule, zone_of(job)),
        "For": _target,
        "Next run": lambda job: format_next(job, zone_of(job)),
        "Last": lambda job: "running" if job.runs.running is not None else job.state.last_status,
    }
    print_list(selected, columns, as_json=json, empty=_NO_JOBS, to_json=CronJob.to_json)
    print_warnings(service.unreadable())


def remove(job_id: IdArgument) -> None:
    """Remove a job. Its history is kept."""
    _, service = _open_jobs()
    job = service.find_job(job_id)
    service.remove_job(job.id)
    print_text(f'Removed job {job.id} "{to_one_line(job.name)}".', wraps=True)


def enable(job_id: IdArgument) -> None:
    """Enable a job and print its next three runs."""
    _, service = _open_jobs()
    service.enable_job(service.find_job(job_id).id, enabled=True)
    _show(service, service.find_job(job_id))


def disable(job_id: IdArgument) -> None:
    """Disable a job. Runs missed meanwhile are not made up for."""
    _, service = _open_jobs()
    job = service.find_job(job_id)
    service.enable_job(job.id, enabled=False)
    print_text(f'Job {job.id} "{to_one_line(job.name)}" is disabled.', wraps=True)


def run(
    job_id: IdArgument,
    force: Annotated[bool, typer.Option("-f", "--force", help="Run it even if it is disabled.")] = False,
) -> None:
    """Run a job now, in the gateway if one is running. The schedule is not affected."""
    setup, service = _open_jobs()
    job = service.find_job(job_id)
    if not (job.enabled or force):
        raise NanobotError(f"Job {job.id} is disabled. Run it anyway with `nanobot cron run {job.id} -f`.")
    is_served = service.is_served()
    row = asyncio.run(_run_in_gateway(service, job) if is_served else _run_locally(setup, service, job))
    if row is None:
        raise NanobotError(f"Job {job.id} is already running. See `nanobot cron history {job.id}`.")
    print_line(f"{row.outcome} in {(row.duration_ms or 0) / 1000:.1f} s", err=True)
    if row.outcome != "ran":
        raise NanobotError(f"Job {job.id} {row.outcome}: {row.reason or 'no reason given'}")


def history(
    job_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A job's id or name; default: all jobs.")] = None,
    last: Annotated[int, typer.Option("-n", "--last", metavar="N", min=1, help="Show the last N runs.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show past runs and their results (ran, skipped with the reason, failed), newest first."""
    _, service = _open_jobs()
    rows = service.history(job_id)
    if not rows and job_id is not None:
        job_id = service.find_job(job_id).id
        rows = service.history(job_id)
    shown = rows[: -last - 1 : -1]
    if json:
        print_json([row.to_json() for row in shown])
        return
    existing = {job.id: job for job in service.list_jobs(include_disabled=True)}

    def due(job: CronJob | None, at_ms: int) -> str:
        return format_when(from_ms(at_ms, service.zone_of(job or CronJob("", ""))), relative=False)

    running = [
        (due(job, run.at_ms), job.id, job.name, "running")
        for job in existing.values()
        if job_id in (None, job.id) and (run := job.runs.running) is not None
    ]
    ended = [(due(existing.get(row.job_id), row.at_ms), row.job_id, row.name, _result(row)) for row in shown]
    columns = {"Due": 0, "Job": 1, "Name": 2, "Result": 3}
    print_list([*running, *ended], columns, empty="No job has run yet.")
    if len(rows) > last:
        print_line(f"{len(rows) - last} older runs; show them with -n {len(rows)}.", err=True)


def rehearse(
    days: Annotated[float, typer.Option("--days", min=0.01, max=3660, help="How many days to simulate.")] = 7,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Print at most N runs.")] = 200,
    json: JsonOption = False,
) -> None:
    """Simulate the schedule: what will run in the coming days. Marks collisions and clock changes."""

    _, service = _open_jobs()
    events = list(islice(simulate(service.list_jobs(), days, service.timezone), limit + 1))
    shown = events[:limit]
    columns: dict[str, Column] = {
        "When": lambda event: format_when(from_ms(event.at_ms, event.zone), offset=True, relative=False),
        "Job": lambda event: event.job.id if event.job else "",
        "Name": lambda event: event.job.name if event.job else "",
        "Remark": "description",
    }
    empty = f"No job runs within {days:g} days."
    print_list(shown, columns, as_json=json, empty=empty, to_json=lambda event: event.to_json())
    if len(events) > limit:
        print_line(f"There is more; show it with --limit {limit * 5}.", err=True)


def _open_jobs() -> tuple[Setup, CronService]:
    """Open the workspace's job store; one in the data folder (earlier releases) is moved there first."""
    setup = read_setup(secrets=False)
    service = CronService(
        setup.workspace / "cron" / "jobs.json",
        timezone=setup.config.agents.defaults.timezone,
        channels={**setup.config.channels.enabled_by_name(), "web": setup.config.gateway.web.enabled},
        data_dir=setup.data_dir,
    )
    service.adopt(setup.data_dir / "cron" / "jobs.json")
    return setup, service


def _parse_schedule(
    service: CronService,
    every: str | None,
    cron: str | None,
    at: str | None,
    tz: str | None,
    *,
    is_forced: bool = False,
) -> CronSchedule:
    """The schedule of these options. Raises NanobotError for an interval below a minute, unless it is forced."""
    every_s = None if every is None else parse_seconds(every)
    schedule = parse_schedule(every_seconds=every_s, cron_expr=cron, at=at, tz=tz, user_zone=service.timezone)
    interval_s = seconds_between_runs(schedule)
    if interval_s < _MIN_INTERVAL_S and not is_forced:
        raise NanobotError(
            f"That runs every {interval_s:g} s, and each run is a model call: {86_400 / interval_s:,.0f} a day. "
            "Choose a minute or more, or add --force."
        )
    return schedule


def _show(service: CronService, job: CronJob) -> None:
    """Print the job and its next runs."""
    print_text(format_job(job, service.zone_of(job), service.next_instants(job)), wraps=True)
    if not service.is_served():
        print_line(NEEDS_GATEWAY, err=True)


async def _run_in_gateway(service: CronService, job: CronJob) -> Run | None:
    """Request a run through the store and wait for its end. None if the job is already running."""
    if service.is_running(job.id):
        return None
    before = len(service.history(job.id))
    service.request_run(job.id)
    print_line(f"The gateway is running job {job.id}. Ctrl+C stops waiting, not the job.", err=True)
    waited_s = 0.0
    while len(rows := service.history(job.id)) == before:
        now = service.get_job(job.id)
        is_started = now is None or now.runs.waiting is None or not now.runs.waiting.manual
        if not is_started and waited_s > _START_TIMEOUT_S:
            if service.is_running(job.id):
                return None
            raise NanobotError("The gateway did not start the job. See `nanobot status` and `nanobot gateway logs`.")
        await asyncio.sleep(_POLL_S)
        waited_s += _POLL_S
    return rows[-1]


async def _run_locally(setup: Setup, service: CronService, job: CronJob) -> Run | None:
    """Run the job in this process and print its answer: no channel is connected here."""
    from nanobot.agent.events import TurnOutcome  # the engine is slow to import
    from nanobot.cron.types import Run

    async with setup.open_runtime() as runtime:

        async def on_job(job: CronJob, due: Run) -> str:
            if job.payload.verbatim:
                print_text(job.payload.message)
                return job.payload.message
            result = await runtime.loop.run_turn(message_for(job, due, setup.config.agents.defaults.timezone))
            if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
                raise NanobotError(result.text)
            print_text(result.text)
            return result.text

        service.on_job = on_job
        ran = await service.run_job(job.id, force=True)
    if ran and may_notify(job) and job.payload.channel != "cli":
        target = to_one_line(f"{job.payload.channel}:{job.payload.to}")
        print_line(f"Not sent to {target}: only the gateway is connected to channels.", err=True)
    return service.history(job.id)[-1] if ran else None


def _target(job: CronJob) -> str:
    if not job.payload.deliver:
        return ""
    when = "" if job.payload.notify is Notify.ALWAYS else f" ({job.payload.notify})"
    return f"{job.payload.channel}:{job.payload.to}{when}"


def _result(row: Run) -> str:
    """`ran in 2.1 s, late by 5 min`, `failed in 7.1 s: the reason`."""
    parts = [row.outcome if row.duration_ms is None else f"{row.outcome} in {row.duration_ms / 1000:.1f} s"]
    parts += [row.trigger] if row.trigger != "schedule" else []
    parts += [f"late by {duration(row.late_ms / 1000)}"] if row.late_ms else []
    parts += [count_noun(row.count, "run")] if row.count else []
    return ", ".join(parts) + (f": {row.reason}" if row.reason else "")
