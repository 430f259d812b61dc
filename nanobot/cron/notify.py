"""The message of a run, and whether its answer is sent."""

import hashlib
import re

from nanobot.bus.events import InboundMessage
from nanobot.cron.schedule import from_ms, job_zone_or_host
from nanobot.cron.types import CronJob, Notify, Run
from nanobot.messages.types import JOB_NOTE, Origin
from nanobot.utils.text import format_when, relative_time

NOTHING_TO_REPORT = "NOTHING_TO_REPORT"
"""The model's answer for `notify: on_alert` if there is no alert."""
_EDGES = re.compile(r"[\s`*_\"'.!]+")


def message_for(job: CronJob, due: Run, user_zone: str | None = None) -> InboundMessage:
    """The inbound message of a run: at the job's target, in the job's session, with the run's message id.

    It is quiet unless every answer is sent, since messages the turn sends itself would bypass `is_worth_sending`.
    """
    payload = job.payload
    return InboundMessage(
        payload.channel or "cli",
        "cron",
        payload.to or "direct",
        run_message(job, due, user_zone),
        session_key_override=job.run_session,
        message_id=due.message_id,
        thread_id=payload.thread_id,
        origin=Origin.CRON,
        provenance=payload.provenance,
        quiet=not may_notify(job) or payload.notify is not Notify.ALWAYS,
        journal_key=due.message_id,
    )


def run_message(job: CronJob, due: Run, user_zone: str | None = None) -> str:
    """The text of a run: the job's message, then what the model should know about this run."""
    due_at = "started by hand" if due.manual else f"due {due_time(job, due, user_zone)}"
    notes = [f'{JOB_NOTE}{job.name}", {due_at}.']
    if may_notify(job):
        notes.append(
            f"Your answer is sent to {job.payload.channel or 'cli'}, chat {job.payload.to or 'direct'}: if the text "
            "above is a reminder, remind the person; if it is a task, do it and report the result. Nobody can answer "
            "questions now."
        )
        if due.retry and job.payload.notify is Notify.ALWAYS:
            notes.append("No model answered before, so the person was sent the text above as it is.")
    else:
        notes.append("Nobody sees your answer. Do what the text above says.")
    if due.missed:
        runs = "run was" if due.missed == 1 else "runs were"
        notes.append(f"{due.missed} earlier {runs} missed; this one stands for all.")
    if may_notify(job) and job.payload.notify is Notify.ON_ALERT:
        notes.append(f"If nothing needs the person's attention, answer with {NOTHING_TO_REPORT} alone.")
    return f"{job.payload.message}\n\n{' '.join(notes)}]"


def due_time(job: CronJob, due: Run, user_zone: str | None = None) -> str:
    """The due instant in the job's zone: `18:00`, of a late run `18:00 (25 min ago)`, with the date if it was another
    day.
    """
    zone = job_zone_or_host(job, user_zone)
    due_at, now = from_ms(due.at_ms, zone), from_ms(due.at_ms + due.late_ms, zone)
    if due_at.date() != now.date():
        return format_when(due_at, now)
    return f"{due_at:%H:%M} ({relative_time(due_at, now)})" if due.late_ms else f"{due_at:%H:%M}"


def may_notify(job: CronJob) -> bool:
    """Whether the job may send anything: its answer, or with the `message` tool."""
    return job.payload.deliver and job.payload.notify is not Notify.NEVER


def is_worth_sending(job: CronJob, answer: str | None) -> bool:
    """Whether to send this answer to the job's target. `job` is its state when the run started."""
    text = (answer or "").strip()
    if not may_notify(job) or not text:
        return False
    if job.payload.notify is Notify.ON_CHANGE:
        return fingerprint(text) != job.runs.last_answer
    if job.payload.notify is Notify.ON_ALERT:
        return _EDGES.sub("", text).upper() != _EDGES.sub("", NOTHING_TO_REPORT)
    return True


def fingerprint(answer: str) -> str:
    """Equal for answers that differ only in white space and case."""
    return hashlib.sha256(" ".join(answer.casefold().split()).encode("utf-8", "backslashreplace")).hexdigest()[:16]
