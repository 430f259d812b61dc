"""The types of a job, and its JSON form in jobs.json.

Unknown keys of a job are kept: each job holds the object it was read from and is written back into it.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator, Strict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance, least_trusted

Kind = Literal["at", "every", "cron"]
Status = Literal["ok", "error", "skipped"]
RUNS_KEPT = 20
"""Runs kept in the job itself; the history has more."""
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS
LAST_MS = 253_370_000_000_000
"""The year 9999, the limit of datetime."""
_FIRST_INSTANT_MS = 10**12
"""September 2001. An earlier instant in a file is invalid: 0, or seconds instead of milliseconds."""
GRACE_MS = MINUTE_MS
"""A run that starts within this delay is on time."""
AGENT_TURN = "agent_turn"


def _read_text(value: object) -> str:
    """A string, even with lone surrogates, which pydantic refuses; or a number, as of a chat id without quotes."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 pydantic reports only this one
    return value


def _read_ms(value: object) -> object:
    """Drop the fraction of a number; a boolean or a text is no number of milliseconds."""
    if isinstance(value, bool | str):
        raise ValueError("must be a number of milliseconds")  # noqa: TRY004 as above
    return int(value) if isinstance(value, float) and abs(value) < LAST_MS else value


Text = Annotated[str, PlainValidator(_read_text)]
Flag = Annotated[bool, Strict()]
Ms = Annotated[int, BeforeValidator(_read_ms), Field(gt=-LAST_MS, lt=LAST_MS)]
_JSON = ConfigDict(alias_generator=to_camel)


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

    __pydantic_config__ = _JSON
    kind: Kind
    at_ms: Ms | None = None
    every_ms: Ms | None = None
    expr: Text | None = None
    tz: Text | None = None


@dataclass(slots=True)
class CronPayload:
    """The message to the agent, and where its answer goes. The target is fixed when the job is added."""

    __pydantic_config__ = _JSON
    kind: Text = AGENT_TURN
    message: Text = ""
    deliver: Flag = False
    channel: Text | None = None
    to: Text | None = None
    session_key: Text | None = None
    """The session the job was added in."""
    thread_id: Text | None = None
    notify: Notify = Notify.ALWAYS
    provenance: Annotated[Provenance, BeforeValidator(lambda name: least_trusted([_read_text(name)]))] = (
        Provenance.OWNER
    )
    """The least trusted content involved in adding the job; its runs get no more trust."""
    asked_by: Text | None = None
    """The sender who asked for it on the channel; None for jobs of the owner's terminal."""
    verbatim: Flag = False
    """Whether the message is sent as it is, without a model: a snoozed reminder."""


@dataclass(slots=True)
class RunRecord:
    """One past run in a job's state."""

    __pydantic_config__ = _JSON
    run_at_ms: Ms = 0
    status: Status = "error"
    duration_ms: Ms = 0
    error: Text | None = None


Outcome = Literal["waiting", "running", "ran", "failed", "skipped"]
STATUS: dict[Outcome, Status] = {"ran": "ok", "failed": "error", "skipped": "skipped"}
"""The status in jobs.json of a run that has ended."""


@dataclass(frozen=True, slots=True)
class Run:
    """A row of the database: a run of a due instant, or instants that were skipped."""

    job_id: str = ""
    at_ms: int = 0
    """The due instant."""
    started_ms: int = 0
    """When it started; while it waits, when it is to start."""
    late_ms: int = 0
    """0 if on time."""
    missed: int = 0
    """Number of earlier missed runs that this run also stands for."""
    manual: bool = False
    attempt: int = 1
    """2 if the first process died before the agent received the run."""
    retry: int = 0
    """1 for the first retry after a failed turn."""
    name: str = ""
    outcome: Outcome = "running"
    holder: str = ""
    """The lease of the process that runs it."""
    reason: str | None = None
    duration_ms: int | None = None
    until_ms: int | None = None
    count: int | None = None
    """How many instants were skipped, from `at_ms` to `until_ms`."""
    answer: str | None = None
    """Fingerprint of the answer, for `notify: on_change`."""
    delivered_ms: int | None = None
    delivered: str | None = None
    """What was sent, until the person answers it with done, snooze or tomorrow."""

    @property
    def run_id(self) -> str:
        """Unique per due instant and the same for every attempt; deliveries are deduplicated by it."""
        return f"cron:{self.job_id}:{self.at_ms}"

    @property
    def message_id(self) -> str:
        """The id of the run's message: the same for every attempt, but one of its own for each retry."""
        return f"{self.run_id}:{self.retry}" if self.retry else self.run_id

    @property
    def trigger(self) -> str:
        return "manual" if self.manual else "retry" if self.retry else "schedule"

    def to_json(self) -> dict[str, object]:
        """As in `nanobot cron history --json`."""
        row = {
            "jobId": self.job_id,
            "name": self.name,
            "dueAtMs": self.at_ms,
            "outcome": self.outcome,
            "trigger": self.trigger,
            "runAtMs": self.started_ms or None,
            "durationMs": self.duration_ms,
            "lateMs": self.late_ms or None,
            "reason": self.reason,
            "untilMs": self.until_ms,
            "count": self.count,
        }
        return {key: value for key, value in row.items() if value is not None}


@dataclass(slots=True)
class JobRuns:
    """What the database knows of a job's runs."""

    running: Run | None = None
    waiting: Run | None = None
    """The first to start of a retry and a run that was requested."""
    last_due_ms: int | None = None
    """The last due instant that was run or skipped; it never runs again."""
    last_answer: str | None = None
    delivered: Run | None = None
    """The run whose reminder may still be answered."""

    @property
    def delivered_ms(self) -> int:
        """When that was sent; 0 without one."""
        return (self.delivered.delivered_ms or 0) if self.delivered is not None else 0

    @property
    def retry(self) -> Run | None:
        return self.waiting if self.waiting is not None and self.waiting.retry else None


@dataclass(slots=True)
class CronJobState:
    """Past and next runs of a job, as reported in jobs.json."""

    __pydantic_config__ = _JSON
    next_run_at_ms: Ms | None = None
    last_run_at_ms: Ms | None = None
    last_status: Status | None = None
    last_error: Text | None = None
    run_history: list[RunRecord] = field(default_factory=list)


@dataclass(slots=True)
class CronJob:
    """A scheduled job."""

    __pydantic_config__ = _JSON
    id: Text
    name: Text
    enabled: Flag = True
    schedule: CronSchedule = field(default_factory=lambda: CronSchedule("every"))
    payload: CronPayload = field(default_factory=CronPayload)
    state: CronJobState = field(default_factory=CronJobState)
    created_at_ms: Ms = 0
    updated_at_ms: Ms = 0
    delete_after_run: Flag = False
    misfire: Misfire = Misfire.RUN_ONCE
    misfire_within_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    raw: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The JSON object it was read from; never changed."""
    runs: JobRuns = field(default_factory=JobRuns, init=False, repr=False, compare=False)

    @property
    def run_session(self) -> str:
        """The session of its runs, separate from every chat."""
        return f"cron:{self.id}"

    @property
    def wakes_at_ms(self) -> int | None:
        """When it is due next, or is to be tried again."""
        waits_ms = self.runs.waiting.started_ms if self.runs.waiting is not None else None
        return min((at for at in (self.state.next_run_at_ms, waits_ms) if at is not None), default=None)

    @property
    def is_over(self) -> bool:
        """Whether it ran once, as it should, and is to be deleted unless the reminder it sent may still be snoozed."""
        is_one_shot = self.delete_after_run and self.schedule.kind == "at" and not self.enabled
        return is_one_shot and self.state.last_status == "ok" and self.runs.last_due_ms == self.schedule.at_ms

    def is_of_chat(self, chat: str) -> bool:
        """Whether it posts to this chat, such as `telegram:123`; empty for any."""
        return not chat or f"{self.payload.channel}:{self.payload.to}" == chat

    @property
    def is_agent_turn(self) -> bool:
        """Whether it is an agent turn. Later releases of the original store other kinds in the file."""
        return self.payload.kind == AGENT_TURN

    @classmethod
    def from_json(cls, raw: Any) -> "CronJob":
        """Parse an object of jobs.json. Null, empty and missing are equal. Raises CronError, which names the key."""
        entry = _without_empty(raw)
        if isinstance(entry, dict):
            entry.setdefault("name", entry.get("id"))
        try:
            job = _codec().validate_python(entry)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"]) or "the job"
            value = "" if problem["type"] == "missing" else f", not {problem['input']!r:.60}"
            raise CronError(f"{key}: {problem['msg']}{value}") from None
        if "schedule" not in entry:
            raise CronError("schedule: Field required")
        job.raw = raw
        if job.is_agent_turn and job.schedule.kind != "at" and (job.state.next_run_at_ms or 0) < _FIRST_INSTANT_MS:
            job.state.next_run_at_ms = None
        return job

    def to_json(self) -> dict[str, Any]:
        """The job as in jobs.json. nanobot's additional keys are left out at their defaults."""
        return _merge(self.raw, _codec().dump_python(self, by_alias=True, exclude={"raw", "runs"}))


@cache
def _codec() -> TypeAdapter[CronJob]:
    return TypeAdapter(CronJob)


def _without_empty(value: Any) -> Any:
    """The value without keys that are null or empty, which take their defaults."""
    if isinstance(value, list):
        return [_without_empty(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_empty(item) for key, item in value.items() if item not in (None, "", {})}


_OURS: dict[str, object] = {
    **dict.fromkeys(("sessionKey", "threadId", "askedBy", "misfireWithinS")),
    "notify": Notify.ALWAYS,
    "provenance": Provenance.OWNER,
    "verbatim": False,
    "misfire": Misfire.RUN_ONCE,
}
"""Keys that are not in every file of the original, with their defaults, at which they are not written."""


def _merge(raw: Any, ours: dict[str, Any]) -> dict[str, Any]:
    """Put our keys into the original object; unknown keys are kept."""
    merged = dict(raw) if isinstance(raw, dict) else {}
    for key, value in ours.items():
        if key in _OURS and value == _OURS[key]:
            merged.pop(key, None)
        else:
            merged[key] = _merge(merged.get(key), value) if isinstance(value, dict) else value
    return merged
