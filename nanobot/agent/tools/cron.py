"""The `cron` tool: reminders and jobs, made, listed, switched and removed by the agent.

It knows nothing of stores and calendars: what it asks for goes through a port, which answers in words for the model.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Protocol

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import boolean, number, string, takes
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, Provenance
from nanobot.security.vault import masked

ACTIONS = ("add", "list", "remove", "enable", "disable", "run")
_MAKES_WORK = ("add", "enable", "run")
_NAMES_A_JOB = ("remove", "enable", "disable", "run")


class Jobs(Protocol):
    """The jobs. Each method answers in words; a refusal is a NanobotError that says what would be right."""

    async def add(
        self,
        *,
        message: str,
        name: str | None,
        every_seconds: float | None,
        cron_expr: str | None,
        at: str | None,
        tz: str | None,
        deliver: bool,
        channel: str | None,
        to: str | None,
        thread_id: str | None,
        session_key: str | None,
        notify: str | None,
        provenance: str,
        asked_by: str | None,
    ) -> str:
        """Make a job; its target is fixed from here on. `asked_by` is who wrote, as the channel says."""
        ...

    async def list(self, chat: str = "") -> str:
        """All of them; of a chat, as `channel:chat_id`, only its own."""
        ...

    async def remove(self, job_id: str, chat: str = "") -> str:
        """Take one away."""
        ...

    async def enable(self, job_id: str, enabled: bool, chat: str = "") -> str:
        """Switch one on or off."""
        ...

    async def run(self, job_id: str, chat: str = "") -> str:
        """Have one run soon; returns at once."""
        ...


class CronTool(Tool):
    """Jobs that run later, in turns of their own."""

    name = "cron"
    description = (
        "Reminders and recurring jobs. add takes message, said to you when due, and one of at, every_seconds, "
        "cron_expr; your answer then goes to this chat."
    )
    parameters = takes(
        "action",
        action=string(enum=list(ACTIONS)),
        message=string("What to do then"),
        name=string(),
        every_seconds=number(minimum=1),
        cron_expr=string("Like 0 9 * * 1-5"),
        tz=string("IANA zone (default: the user's)"),
        at=string("Once, like 2026-12-24T18:00"),
        deliver=boolean("false: send nothing"),
        notify=string(
            "on_change: if the answer differs; on_alert: if something is to be told",
            enum=["always", "on_change", "on_alert", "never"],
        ),
        job_id=string(),
    )
    effect = Effect.ONCE

    def __init__(self, open_jobs: Callable[[], Jobs]) -> None:
        """`open_jobs` is asked when the tool is used first: most turns need no calendar."""
        self._open_jobs = open_jobs

    @cached_property
    def _jobs(self) -> Jobs:
        return self._open_jobs()

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """A job, by what it is to do, or by what is done to it; a look at the list reaches for nothing."""
        action = str(arguments.get("action"))
        if action == "list":
            return ()
        target = arguments.get("message") if action == "add" else arguments.get("job_id")
        return (Reach(ReachKind.JOB, f"{action} {target or ''}".strip()),)

    async def execute(
        self, action: str, job_id: str | None = None, *, ctx: ToolContext | None = None, **wanted: Any
    ) -> ToolResult:
        """Do it. Cancelling leaves the store as it was or with the change whole."""
        if ctx is not None and ctx.origin is Origin.CRON and action in _MAKES_WORK:
            return ToolResult.failed(
                f"A job may not {action} jobs: it would breed. Say in your answer what you would have scheduled."
            )
        if action in _NAMES_A_JOB and not job_id:
            return ToolResult.failed(f"{action} needs job_id. `list` shows the jobs with their ids.")
        try:
            return ToolResult(await self._answer(action, job_id or "", ctx, wanted))
        except NanobotError as error:
            return ToolResult.failed(str(error))

    async def _answer(self, action: str, job_id: str, ctx: ToolContext | None, wanted: dict[str, Any]) -> str:
        if action == "add":
            return await self._add(ctx, **wanted)
        chat = ctx.scope.chat if ctx is not None else ""
        if action == "remove":
            return await self._jobs.remove(job_id, chat)
        if action in ("enable", "disable"):
            return await self._jobs.enable(job_id, action == "enable", chat)
        return await self._jobs.run(job_id, chat) if action == "run" else await self._jobs.list(chat)

    async def _add(
        self,
        ctx: ToolContext | None,
        message: str = "",
        name: str | None = None,
        every_seconds: float | None = None,
        cron_expr: str | None = None,
        tz: str | None = None,
        at: str | None = None,
        deliver: bool = True,
        notify: str | None = None,
    ) -> str:
        """The chat that asks is the target, thread included.

        The job is trusted as little as the words it came of: those of this turn, and those that its message repeats.
        What an older turn has read is no part of it, or no job made after a look at the web could do anything.
        """
        here = ctx.address if ctx is not None else None
        return await self._jobs.add(
            message=masked(message),
            name=name and masked(name),
            every_seconds=every_seconds,
            cron_expr=cron_expr,
            at=at,
            tz=tz,
            deliver=deliver,
            channel=here.channel if here is not None else None,
            to=here.chat_id if here is not None else None,
            thread_id=here.thread_id if here is not None else None,
            session_key=ctx.session_key if ctx is not None else None,
            notify=notify,
            provenance=ctx.entered if ctx is not None else Provenance.OWNER,
            asked_by=ctx.sender_id if ctx is not None and ctx.origin is Origin.USER else None,
        )
