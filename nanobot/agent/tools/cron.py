"""The `cron` tool: the agent creates, lists, switches and removes reminders and jobs."""

import asyncio
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import dropwhile, islice
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.base import (
    Access,
    AccessKind,
    Effect,
    Tool,
    ToolContext,
    ToolResult,
    boolean,
    number,
    string,
    takes,
)
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin
from nanobot.security.secrets import redact_known

if TYPE_CHECKING:
    from nanobot.cron.tool_backend import CronToolBackend

ACTIONS = ("add", "list", "remove", "enable", "disable", "run")
_CREATES_RUNS = ("add", "enable", "run")
_MIN_INTERVAL_S = 60
"""Shortest interval of a job that a model creates: each run calls a model."""
_CRON_FIELDS = 5
"""A sixth one would be seconds."""
_MAX_UNASKED = 50
"""With this many jobs, each further one needs approval."""
_NEEDS_JOB_ID = ("remove", "enable", "disable", "run")
_SCHEDULES = frozenset({"every_seconds", "cron_expr", "at"})


class CronTool(Tool):
    name = "cron"
    description = (
        "Reminders and recurring jobs. add takes a message, given to you when the job is due, and exactly one of at, "
        "every_seconds, cron_expr; your answer then is sent to this chat."
    )
    parameters = takes(
        "action",
        action=string("What to do with jobs", enum=list(ACTIONS)),
        message=string("What to do or to say when the job is due, complete in itself"),
        name=string("Short name of the job"),
        every_seconds=number(minimum=_MIN_INTERVAL_S),
        cron_expr=string("Cron expression such as 0 9 * * 1-5 (minute hour day month weekday)"),
        tz=string("IANA time zone such as Europe/Berlin (default: the user's)"),
        at=string("Once, at an ISO date and time such as 2026-12-24T18:00, in tz"),
        deliver=boolean("false: run the job but send nothing"),
        notify=string(
            "When to send the answer; on_change: if it differs, on_alert: if there is something to report",
            enum=["always", "on_change", "on_alert", "never"],
        ),
        job_id=string("remove, enable, disable, run: id of the job, as list shows it"),
    )
    effect = Effect.ONCE

    def __init__(self, open_jobs: Callable[[], "CronToolBackend"]) -> None:
        """`open_jobs` is called when the tool is first used: most turns need no jobs."""
        self._open_jobs = open_jobs

    @cached_property
    def _jobs(self) -> "CronToolBackend":
        return self._open_jobs()

    def translate(self, params: dict[str, Any]) -> dict[str, Any]:
        """`description` is a job's name or message; `schedule` is a cron expression, a time or seconds."""
        arguments = dict(params)
        description, schedule = arguments.pop("description", None), arguments.pop("schedule", None)
        if description:
            arguments.setdefault("name" if arguments.get("message") else "message", description)
        if schedule is not None and not _SCHEDULES & arguments.keys():
            text = str(schedule).strip()
            name = "cron_expr" if len(text.split()) >= 5 or text.startswith("@") else "at"
            arguments["every_seconds" if text.replace(".", "", 1).isdigit() else name] = schedule
        return arguments

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare the job by its message or by what is done to it; listing declares nothing."""
        action = str(arguments.get("action"))
        if action == "list":
            return ()
        target = arguments.get("message") if action == "add" else arguments.get("job_id")
        count = 0
        if action == "add":
            with suppress(NanobotError):  # the store cannot be read: `execute` reports it
                count = await asyncio.to_thread(self._jobs.count)
        too_many, detail = count >= _MAX_UNASKED, f"there are {count} jobs already"
        return (Access(AccessKind.JOB, f"{action} {target or ''}".strip(), too_many, detail if too_many else ""),)

    async def execute(
        self, action: str, job_id: str | None = None, *, ctx: ToolContext | None = None, **options: Any
    ) -> ToolResult:
        """Run the action. Cancelling leaves the store unchanged or with the whole change."""
        if ctx is not None and ctx.is_subagent and action != "list":
            return ToolResult.failed("Subagents cannot create jobs. Say in your report what should be scheduled.")
        if ctx is not None and ctx.origin is Origin.CRON and action in _CREATES_RUNS:
            return ToolResult.failed(
                f"A job may not {action} jobs: they would multiply. Say in your answer what you would have scheduled."
            )
        if action in _NEEDS_JOB_ID and not job_id:
            return ToolResult.failed(f"{action} needs job_id. `list` shows the jobs with their ids.")
        if action == "add" and len(str(options.get("cron_expr") or "").split()) > _CRON_FIELDS:
            return ToolResult.failed(
                "cron_expr has five fields, from minute to weekday: no job runs more than once a minute."
            )
        try:
            return ToolResult(await asyncio.to_thread(self._run_action, action, job_id or "", ctx, options))
        except NanobotError as error:
            return ToolResult.failed(str(error))

    def _run_action(self, action: str, job_id: str, ctx: ToolContext | None, options: dict[str, Any]) -> str:
        chat = ctx.scope.chat if ctx is not None else ""
        if action == "add":
            return self._add(ctx, **options)
        return self._jobs.list(chat) if action == "list" else self._jobs.change(action, job_id, chat)

    def _add(
        self,
        ctx: ToolContext | None,
        message: str = "",
        name: str | None = None,
        deliver: bool = True,
        notify: str | None = None,
        **schedule: Any,
    ) -> str:
        """Add a message for the chat that asks, thread included.

        It is trusted as little as what it derives from: the content of this turn, and what its message repeats. Content
        of older turns does not count, or no job created after a web search could do anything.
        """
        from nanobot.cron.types import CronPayload, Notify

        payload = CronPayload(message=redact_known(message), deliver=deliver, notify=Notify(notify or Notify.ALWAYS))
        if ctx is not None:
            address = ctx.address
            payload.channel, payload.to, payload.thread_id = address.channel, address.chat_id, address.thread_id
            payload.session_key, payload.provenance = ctx.session_key, ctx.entered
            payload.asked_by = ctx.sender_id if ctx.origin is Origin.USER else None
        return self._jobs.add(payload, redact_known(name or ""), **schedule)


# -- `nanobot cron` as a command ----------------------------------------------------------------------------------

_COMMAND_VALUES = {
    "-m": "message", "--message": "message",
    "-n": "name", "--name": "name",
    "-e": "every_seconds", "--every": "every_seconds",
    "-c": "cron_expr", "--cron": "cron_expr",
    "--at": "at",
    "--tz": "tz",
    "--notify": "notify",
    "--channel": "", "--to": "",  # the chat that asks is the target
}  # fmt: skip
_COMMAND_FLAGS = {"-d": True, "--deliver": True, "--no-deliver": False}
_COMMAND_ALIASES = {"ls": "list", "rm": "remove"}
_COMMAND_IGNORED = ("-a", "--all", "-f", "--force", "--json", "--disable")


def cron_call(words: Sequence[str]) -> dict[str, Any] | None:
    """Convert a `nanobot cron ...` command into arguments of the cron tool; None if these words are no such command.

    Old AGENTS.md files teach the command, and are never overwritten. The options are those of `nanobot cron --help`.
    """
    command = dropwhile(re.compile(r"(?:.*/)?(?:python[\d.]*|uv|run|-m)").fullmatch, words)
    program, group, action = (*islice(command, 3), "", "", "")[:3]
    action = _COMMAND_ALIASES.get(action, action)
    if program.rpartition("/")[2] != "nanobot" or group != "cron" or action not in ACTIONS:
        return None
    arguments: dict[str, Any] = {"action": "disable" if action == "enable" and "--disable" in words else action}
    for word in command:
        option, equals, value = word.partition("=")
        if option in _COMMAND_VALUES:
            if (given := value if equals else next(command, None)) is None:
                return None
            arguments[_COMMAND_VALUES[option]] = given
        elif option in _COMMAND_FLAGS:
            arguments["deliver"] = _COMMAND_FLAGS[option]
        elif option in _COMMAND_IGNORED:
            continue
        elif action in _NEEDS_JOB_ID and not word.startswith("-") and "job_id" not in arguments:
            arguments["job_id"] = word
        else:
            return None
    arguments.pop("", None)
    return arguments
