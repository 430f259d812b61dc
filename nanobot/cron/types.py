"""A job: when it runs, what it says, where the answer goes, what became of it. And how jobs.json writes one.

What somebody else wrote into a job (a later release, a hand) is kept: each job carries the object it was read from, and
is written back into it.
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
"""How many runs a job itself remembers; the history file has more."""
MINUTE_MS = 60_000
LAST_MS = 253_370_000_000_000
"""The year 9999, where a datetime ends."""
GRACE_MS = MINUTE_MS
"""Up to here a run is on time."""
AGENT_TURN = "agent_turn"


class CronError(NanobotError, ValueError):
    """A job that cannot be: what is wrong with it, and what would be right."""


class JobSkippedError(NanobotError):
    """Raised by what runs a job: it was not run after all, and why."""


class Misfire(StrEnum):
    """What becomes of an instant that was missed: asleep, switched off, not running."""

    RUN_ONCE = "run_once"
    SKIP = "skip"
    RUN_IF_WITHIN = "run_if_within"


class Notify(StrEnum):
    """When the person hears of a run of a job that delivers."""

    ALWAYS = "always"
    ON_CHANGE = "on_change"
    """Only where the answer differs from the one before."""
    ON_ALERT = "on_alert"
    """Only where the model finds something to report."""
    NEVER = "never"


@dataclass(slots=True)
class CronSchedule:
    """When a job runs: once `at`, `every` so often, or by a `cron` expression, each in `tz` where it is given."""

    kind: Kind
    at_ms: int | None = None
    every_ms: int | None = None
    expr: str | None = None
    tz: str | None = None


@dataclass(slots=True)
class CronPayload:
    """What a run says to the agent, and where its answer goes. The target is fixed when the job is made."""

    kind: str = AGENT_TURN
    message: str = ""
    deliver: bool = False
    channel: str | None = None
    to: str | None = None
    session_key: str | None = None
    """The chat the job was made in."""
    thread_id: str | None = None
    notify: Notify = Notify.ALWAYS
    provenance: Provenance = Provenance.OWNER
    """The least trusted words that had a part in making it: its runs are worth no more trust."""
    asked_by: str | None = None
    """Who asked for it on the channel, as that says; None for jobs of the owner's terminal."""


@dataclass(slots=True)
class RunRecord:
    """One run, as a job remembers it."""

    run_at_ms: int
    status: Status
    duration_ms: int = 0
    error: str | None = None


@dataclass(slots=True)
class Lease:
    """Who runs an instant of a job, since when. `holder` is the name of a lock that dies with its process."""

    due_ms: int
    started_ms: int
    holder: str
    attempt: int = 1
    manual: bool = False
    late_ms: int = 0
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Due:
    """The instant a run is for, and how it came to it."""

    job_id: str
    at_ms: int
    started_ms: int
    late_ms: int = 0
    """0 where it is on time."""
    missed: int = 0
    """How many instants before it this run stands for."""
    manual: bool = False
    attempt: int = 1
    """2 where the process died that had this instant first, before the agent knew of it."""

    @property
    def run_id(self) -> str:
        """The same for every attempt at this instant, and for nothing else: what a delivery is keyed by."""
        return f"cron:{self.job_id}:{self.at_ms}"


@dataclass(slots=True)
class CronJobState:
    """What became of a job so far, and what comes next."""

    next_run_at_ms: int | None = None
    last_run_at_ms: int | None = None
    last_status: Status | None = None
    last_error: str | None = None
    run_history: list[RunRecord] = field(default_factory=list)
    last_due_at_ms: int | None = None
    """The last instant of the schedule that was settled; it never comes again."""
    running: Lease | None = None
    run_requested_at_ms: int | None = None
    """Somebody asked for a run now, and whoever serves the jobs has not begun it yet."""
    last_answer: str | None = None
    """A fingerprint of the last answer, for `notify: on_change`."""


@dataclass(slots=True)
class CronJob:
    """One cron entry."""

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
    """The object it was read from; never changed."""

    @property
    def run_session(self) -> str:
        """The session its runs are kept in: its own, apart from every chat."""
        return f"cron:{self.id}"

    @property
    def is_ours(self) -> bool:
        """Whether it is a turn of the agent. Later releases of the original keep chores of their own in the file."""
        return self.payload.kind == AGENT_TURN

    @classmethod
    def from_json(cls, raw: Any) -> "CronJob":
        """The job in an object of jobs.json. Raises CronError, which names the key, where it is none."""
        told = _Told(raw, "the job")
        schedule, payload, state = told.part("schedule", required=True), told.part("payload"), told.part("state")
        return cls(
            id=told.text("id", required=True),
            name=told.text("name") or told.text("id"),
            enabled=told.flag("enabled", default=True),
            schedule=CronSchedule(
                kind=schedule.one_of("kind", get_args(Kind)),
                at_ms=schedule.whole("atMs"),
                every_ms=schedule.whole("everyMs"),
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
            ),
            state=_state(state),
            created_at_ms=told.whole("createdAtMs") or 0,
            updated_at_ms=told.whole("updatedAtMs") or 0,
            delete_after_run=told.flag("deleteAfterRun", default=False),
            misfire=Misfire(told.one_of("misfire", tuple(Misfire), default=Misfire.RUN_ONCE)),
            misfire_within_s=told.amount("misfireWithinS"),
            raw=raw,
        )

    def to_json(self) -> dict[str, Any]:
        """The job as jobs.json has it. Keys of ours stand there only where they say something."""
        schedule, payload, state = self.schedule, self.payload, self.state
        own: dict[str, Any] = {
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
                "sessionKey": _said(payload.session_key),
                "threadId": _said(payload.thread_id),
                "notify": _said(payload.notify, unless=Notify.ALWAYS),
                "provenance": _said(payload.provenance, unless=Provenance.OWNER),
                "askedBy": _said(payload.asked_by),
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
                "lastDueAtMs": _said(state.last_due_at_ms),
                "running": _said(_lease_json(state.running)),
                "runRequestedAtMs": _said(state.run_requested_at_ms),
                "lastAnswer": _said(state.last_answer),
            },
            "createdAtMs": self.created_at_ms,
            "updatedAtMs": self.updated_at_ms,
            "deleteAfterRun": self.delete_after_run,
            "misfire": _said(self.misfire, unless=Misfire.RUN_ONCE),
            "misfireWithinS": _said(self.misfire_within_s),
        }
        return _merged(self.raw, own)


def _state(told: "_Told") -> CronJobState:
    runs = [_Told(row, "a run") for row in told.rows("runHistory")]
    lease = told.part("running")
    return CronJobState(
        next_run_at_ms=told.whole("nextRunAtMs"),
        last_run_at_ms=told.whole("lastRunAtMs"),
        last_status=told.one_of("lastStatus", get_args(Status), default=None),
        last_error=told.text("lastError") or None,
        run_history=[
            RunRecord(
                run.whole("runAtMs") or 0,
                run.one_of("status", get_args(Status), default="error"),
                run.whole("durationMs") or 0,
                run.text("error") or None,
            )
            for run in runs
        ],
        last_due_at_ms=told.whole("lastDueAtMs"),
        running=Lease(
            due_ms=lease.whole("dueAtMs") or 0,
            started_ms=lease.whole("startedAtMs") or 0,
            holder=lease.text("holder"),
            attempt=lease.whole("attempt") or 1,
            manual=lease.flag("manual", default=False),
            late_ms=lease.whole("lateMs") or 0,
            missed=lease.whole("missed") or 0,
        )
        if lease
        else None,
        run_requested_at_ms=told.whole("runRequestedAtMs"),
        last_answer=told.text("lastAnswer") or None,
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
    }


_ABSENT = object()


def _said(value: object, *, unless: object = None) -> object:
    return _ABSENT if value is None or value == unless else value


def _merged(raw: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Our keys put into what was there; what is not ours stays."""
    merged = dict(raw)
    for key, value in own.items():
        if value is _ABSENT:
            merged.pop(key, None)
        elif isinstance(value, dict):
            before = merged.get(key)
            merged[key] = _merged(before if isinstance(before, dict) else {}, value)
        else:
            merged[key] = value
    return merged


class _Told:
    """An object of the file, read key by key. Null and missing are the same; what does not fit is a CronError."""

    def __init__(self, raw: Any, what: str) -> None:
        if not isinstance(raw, dict):
            raise CronError(f"{what} must be an object, not {_shown(raw)}")
        self._raw = raw

    def __bool__(self) -> bool:
        return bool(self._raw)

    def part(self, key: str, *, required: bool = False) -> "_Told":
        found = self._raw.get(key)
        if found is None and not required:
            found = {}
        return _Told(found, key)

    def rows(self, key: str) -> list[Any]:
        found = self._raw.get(key)
        if found is not None and not isinstance(found, list):
            raise CronError(f"{key} must be a list, not {_shown(found)}")
        return found or []

    def text(self, key: str, *, required: bool = False) -> str:
        found = self._raw.get(key)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)  # a chat id that somebody wrote without quotes
        if (found is None and not required) or isinstance(found, str):
            return found or ""
        raise CronError(f"{key} must be a text, not {_shown(found)}")

    def flag(self, key: str, *, default: bool) -> bool:
        found = self._raw.get(key)
        if found is None or isinstance(found, bool):
            return default if found is None else found
        raise CronError(f"{key} must be true or false, not {_shown(found)}")

    def amount(self, key: str) -> float | None:
        found = self._raw.get(key)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise CronError(f"{key} must be a number, not {_shown(found)}")
        return found

    def whole(self, key: str) -> int | None:
        found = self.amount(key)
        if found is not None and abs(found) >= LAST_MS:
            raise CronError(f"{key} must be in milliseconds and before the year 9999, not {_shown(found)}")
        return None if found is None else int(found)

    def one_of(self, key: str, known: tuple[str, ...], **default: Any) -> Any:
        found = self._raw.get(key)
        if found is None and "default" in default:
            return default["default"]
        if found in known:
            return found
        raise CronError(f"{key} must be one of {', '.join(known)}, not {_shown(found)}")


def _shown(found: object) -> str:
    return "missing" if found is None else repr(found)[:60]
