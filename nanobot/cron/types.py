"""The types of a job, and its JSON form in jobs.json.

Unknown keys of a job are kept: each job holds the object it was read from and is written back into it.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, get_args

from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance, least_trusted

Kind = Literal["at", "every", "cron"]
Status = Literal["ok", "error", "skipped"]
RUNS_KEPT = 20
"""Runs kept in the job itself; the history file has more."""
MINUTE_MS = 60_000
LAST_MS = 253_370_000_000_000
"""The year 9999, the limit of datetime."""
_FIRST_INSTANT_MS = 10**12
"""September 2001. An earlier instant in a file is invalid: 0, or seconds instead of milliseconds."""
GRACE_MS = MINUTE_MS
"""A run that starts within this delay is on time."""
AGENT_TURN = "agent_turn"


class CronError(NanobotError, ValueError):
    """An invalid job: what is wrong, and what would be right."""


class JobSkippedError(NanobotError):
    """Raised by a job handler: the job was not run, and why."""


class JobFailedError(NanobotError):
    """Raised by a job handler: the run failed, and when to try it again; None for not at all."""

    def __init__(self, reason: str, retry_in_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_in_s = retry_in_s


class Misfire(StrEnum):
    """What to do about a run that was missed because the machine or nanobot was not running."""

    RUN_ONCE = "run_once"
    SKIP = "skip"
    RUN_IF_WITHIN = "run_if_within"


class Notify(StrEnum):
    """When the answer of a delivering job is sent."""

    ALWAYS = "always"
    ON_CHANGE = "on_change"
    """Only if the answer differs from the previous one."""
    ON_ALERT = "on_alert"
    """Only if the model has something to report."""
    NEVER = "never"


@dataclass(slots=True)
class CronSchedule:
    """When a job runs: once `at` a time, `every` interval, or by a `cron` expression, in `tz` if given."""

    kind: Kind
    at_ms: int | None = None
    every_ms: int | None = None
    expr: str | None = None
    tz: str | None = None


@dataclass(slots=True)
class CronPayload:
    """The message to the agent, and where its answer goes. The target is fixed when the job is added."""

    kind: str = AGENT_TURN
    message: str = ""
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    session_key: str | None = None
    """The session the job was added in."""
    thread_id: str | None = None
    notify: Notify = Notify.ALWAYS
    provenance: Provenance = Provenance.OWNER
    """The least trusted content involved in adding the job; its runs get no more trust."""
    asked_by: str | None = None
    """The sender who asked for it on the channel; None for jobs of the owner's terminal."""
    verbatim: bool = False
    """Whether the message is sent as it is, without a model: a snoozed reminder."""


@dataclass(slots=True)
class RunRecord:
    """One past run in a job's state."""

    run_at_ms: int
    status: Status
    duration_ms: int = 0
    error: str | None = None


@dataclass(slots=True)
class Lease:
    """A run in progress. `holder` names a lock that is released when its process dies."""

    due_ms: int
    started_ms: int
    holder: str
    attempt: int = 1
    manual: bool = False
    late_ms: int = 0
    missed: int = 0
    retry: int = 0


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a job sent last, until the person answers it with done, snooze or tomorrow."""

    at_ms: int
    text: str


@dataclass(frozen=True, slots=True)
class Retry:
    """The next retry of a run that failed: when, which due instant, and how many retries came before."""

    at_ms: int
    due_ms: int
    count: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """The due instant of a run, and how it was triggered."""

    job_id: str
    at_ms: int
    started_ms: int
    late_ms: int = 0
    """0 if on time."""
    missed: int = 0
    """Number of earlier missed runs that this run also stands for."""
    manual: bool = False
    attempt: int = 1
    """2 if the first process died before the agent received the run."""
    retry: int = 0
    """1 for the first retry after a failed turn."""

    @property
    def run_id(self) -> str:
        """Unique per due instant and the same for every attempt; deliveries are deduplicated by it."""
        return f"cron:{self.job_id}:{self.at_ms}"

    @property
    def message_id(self) -> str:
        """The id of the run's message: the same for every attempt, but one of its own for each retry."""
        return f"{self.run_id}:{self.retry}" if self.retry else self.run_id


@dataclass(slots=True)
class CronJobState:
    """Past and next runs of a job."""

    next_run_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_status: Status | None = None
    last_error: str | None = None
    run_history: list[RunRecord] = field(default_factory=list)
    last_due_at_ms: int | None = None
    """The last settled due instant; it never runs again."""
    running: Lease | None = None
    run_requested_at_ms: int | None = None
    """When a manual run was requested that has not started yet."""
    retry: Retry | None = None
    delivered: Delivered | None = None
    last_answer: str | None = None
    """Fingerprint of the last answer, for `notify: on_change`."""

    @property
    def wakes_at_ms(self) -> int | None:
        """When it is due next, or is to be tried again."""
        retry_at_ms = self.retry.at_ms if self.retry is not None else None
        return min((at for at in (self.next_run_at_ms, retry_at_ms) if at is not None), default=None)


@dataclass(slots=True)
class CronJob:
    """A scheduled job."""

    id: str
    name: str
    enabled: bool = True
    schedule: CronSchedule = field(default_factory=lambda: CronSchedule("every"))
    payload: CronPayload = field(default_factory=CronPayload)
    state: CronJobState = field(default_factory=CronJobState)
    created_at_ms: int = 0
    updated_at_ms: int = 0
    delete_after_run: bool = False
    misfire: Misfire = Misfire.RUN_ONCE
    misfire_within_s: float | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The JSON object it was read from; never changed."""

    @property
    def run_session(self) -> str:
        """The session of its runs, separate from every chat."""
        return f"cron:{self.id}"

    @property
    def is_over(self) -> bool:
        """Whether it ran once, as it should, and is to be deleted unless the reminder it sent may still be snoozed."""
        is_one_shot = self.delete_after_run and self.schedule.kind == "at" and not self.enabled
        return is_one_shot and self.state.last_status == "ok" and self.state.last_due_at_ms == self.schedule.at_ms

    @property
    def is_agent_turn(self) -> bool:
        """Whether it is an agent turn. Later releases of the original store other kinds in the file."""
        return self.payload.kind == AGENT_TURN

    @classmethod
    def from_json(cls, raw: Any) -> "CronJob":
        """Parse an object of jobs.json. Raises CronError, which names the key."""
        entry = _Entry(raw, "the job")
        schedule, payload, state = entry.part("schedule", required=True), entry.part("payload"), entry.part("state")
        job = cls(
            id=entry.text("id", required=True),
            name=entry.text("name") or entry.text("id"),
            enabled=entry.flag("enabled", default=True),
            schedule=CronSchedule(
                kind=schedule.one_of("kind", get_args(Kind)),
                at_ms=schedule.integer("atMs"),
                every_ms=schedule.integer("everyMs"),
                expr=schedule.text("expr") or None,
                tz=schedule.text("tz") or None,
            ),
            payload=CronPayload(
                kind=payload.text("kind") or AGENT_TURN,
                message=payload.text("message"),
                deliver=payload.flag("deliver", default=False),
                channel=payload.text("channel") or None,
                to=payload.text("to") or None,
                session_key=payload.text("sessionKey") or None,
                thread_id=payload.text("threadId") or None,
                notify=Notify(payload.one_of("notify", tuple(Notify), default=Notify.ALWAYS)),
                provenance=least_trusted(filter(None, [payload.text("provenance")])),
                asked_by=payload.text("askedBy") or None,
                verbatim=payload.flag("verbatim", default=False),
            ),
            state=_parse_state(state),
            created_at_ms=entry.integer("createdAtMs") or 0,
            updated_at_ms=entry.integer("updatedAtMs") or 0,
            delete_after_run=entry.flag("deleteAfterRun", default=False),
            misfire=Misfire(entry.one_of("misfire", tuple(Misfire), default=Misfire.RUN_ONCE)),
            misfire_within_s=entry.number("misfireWithinS"),
            raw=raw,
        )
        if job.is_agent_turn and job.schedule.kind != "at" and (job.state.next_run_at_ms or 0) < _FIRST_INSTANT_MS:
            job.state.next_run_at_ms = None
        return job

    def to_json(self) -> dict[str, Any]:
        """The job as in jobs.json. nanobot's additional keys are left out at their defaults."""
        schedule, payload, state = self.schedule, self.payload, self.state
        ours: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "enabled": self.enabled,
            "schedule": {
                "kind": schedule.kind,
                "atMs": schedule.at_ms,
                "everyMs": schedule.every_ms,
                "expr": schedule.expr,
                "tz": schedule.tz,
            },
            "payload": {
                "kind": payload.kind,
                "message": payload.message,
                "deliver": payload.deliver,
                "channel": payload.channel,
                "to": payload.to,
                "sessionKey": _or_absent(payload.session_key),
                "threadId": _or_absent(payload.thread_id),
                "notify": _or_absent(payload.notify, unless=Notify.ALWAYS),
                "provenance": _or_absent(payload.provenance, unless=Provenance.OWNER),
                "askedBy": _or_absent(payload.asked_by),
                "verbatim": _or_absent(payload.verbatim, unless=False),
            },
            "state": {
                "nextRunAtMs": state.next_run_at_ms,
                "lastRunAtMs": state.last_run_at_ms,
                "lastStatus": state.last_status,
                "lastError": state.last_error,
                "runHistory": [
                    {"runAtMs": run.run_at_ms, "status": run.status, "durationMs": run.duration_ms, "error": run.error}
                    for run in state.run_history[-RUNS_KEPT:]
                ],
                "lastDueAtMs": _or_absent(state.last_due_at_ms),
                "running": _or_absent(_lease_json(state.running)),
                "runRequestedAtMs": _or_absent(state.run_requested_at_ms),
                "retry": _or_absent(
                    state.retry
                    and {"atMs": state.retry.at_ms, "dueAtMs": state.retry.due_ms, "count": state.retry.count}
                ),
                "delivered": _or_absent(
                    state.delivered and {"atMs": state.delivered.at_ms, "text": state.delivered.text}
                ),
                "lastAnswer": _or_absent(state.last_answer),
            },
            "createdAtMs": self.created_at_ms,
            "updatedAtMs": self.updated_at_ms,
            "deleteAfterRun": self.delete_after_run,
            "misfire": _or_absent(self.misfire, unless=Misfire.RUN_ONCE),
            "misfireWithinS": _or_absent(self.misfire_within_s),
        }
        return _merge(self.raw, ours)


def _parse_state(entry: "_Entry") -> CronJobState:
    runs = [_Entry(row, "a run") for row in entry.rows("runHistory")]
    lease, retry, delivered = entry.part("running"), entry.part("retry"), entry.part("delivered")
    return CronJobState(
        next_run_at_ms=entry.integer("nextRunAtMs"),
        last_run_at_ms=entry.integer("lastRunAtMs"),
        last_status=entry.one_of("lastStatus", get_args(Status), default=None),
        last_error=entry.text("lastError") or None,
        run_history=[
            RunRecord(
                run.integer("runAtMs") or 0,
                run.one_of("status", get_args(Status), default="error"),
                run.integer("durationMs") or 0,
                run.text("error") or None,
            )
            for run in runs
        ],
        last_due_at_ms=entry.integer("lastDueAtMs"),
        running=Lease(
            due_ms=lease.integer("dueAtMs") or 0,
            started_ms=lease.integer("startedAtMs") or 0,
            holder=lease.text("holder"),
            attempt=lease.integer("attempt") or 1,
            manual=lease.flag("manual", default=False),
            late_ms=lease.integer("lateMs") or 0,
            missed=lease.integer("missed") or 0,
            retry=lease.integer("retry") or 0,
        )
        if lease
        else None,
        run_requested_at_ms=entry.integer("runRequestedAtMs"),
        retry=Retry(retry.integer("atMs") or 0, retry.integer("dueAtMs") or 0, retry.integer("count") or 0)
        if retry
        else None,
        delivered=Delivered(delivered.integer("atMs") or 0, delivered.text("text")) if delivered else None,
        last_answer=entry.text("lastAnswer") or None,
    )


def _lease_json(lease: Lease | None) -> dict[str, Any] | None:
    if lease is None:
        return None
    return {
        "dueAtMs": lease.due_ms,
        "startedAtMs": lease.started_ms,
        "holder": lease.holder,
        "attempt": lease.attempt,
        "manual": lease.manual,
        "lateMs": lease.late_ms,
        "missed": lease.missed,
        "retry": lease.retry,
    }


_ABSENT = object()


def _or_absent(value: object, *, unless: object = None) -> object:
    return _ABSENT if value is None or value == unless else value


def _merge(raw: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """Put our keys into the original object; unknown keys are kept."""
    merged = dict(raw)
    for key, value in ours.items():
        if value is _ABSENT:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = _merge(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


class _Entry:
    """Reads an object key by key. Null and missing are equal; an invalid value raises CronError."""

    def __init__(self, raw: Any, what: str) -> None:
        if not isinstance(raw, dict):
            raise CronError(f"{what} must be an object, not {_describe_value(raw)}")
        self._raw = raw

    def __bool__(self) -> bool:
        return bool(self._raw)

    def part(self, key: str, *, required: bool = False) -> "_Entry":
        value = self._raw.get(key)
        if value is None and not required:
            value = {}
        return _Entry(value, key)

    def rows(self, key: str) -> list[Any]:
        value = self._raw.get(key)
        if value is not None and not isinstance(value, list):
            raise CronError(f"{key} must be a list, not {_describe_value(value)}")
        return value or []

    def text(self, key: str, *, required: bool = False) -> str:
        value = self._raw.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)  # a chat id without quotes
        if (value is None and not required) or isinstance(value, str):
            return value or ""
        raise CronError(f"{key} must be a string, not {_describe_value(value)}")

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._raw.get(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        raise CronError(f"{key} must be true or false, not {_describe_value(value)}")

    def number(self, key: str) -> float | None:
        value = self._raw.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise CronError(f"{key} must be a number, not {_describe_value(value)}")
        return value

    def integer(self, key: str) -> int | None:
        value = self.number(key)
        if value is not None and abs(value) >= LAST_MS:
            raise CronError(f"{key} must be in milliseconds and before the year 9999, not {_describe_value(value)}")
        return None if value is None else int(value)

    def one_of(self, key: str, known: tuple[str, ...], **default: Any) -> Any:
        value = self._raw.get(key)
        if value is None and "default" in default:
            return default["default"]
        if value in known:
            return value
        raise CronError(f"{key} must be one of {', '.join(known)}, not {_describe_value(value)}")


def _describe_value(value: object) -> str:
    return "missing" if value is None else repr(value)[:60]
