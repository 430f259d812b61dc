"""What a run is asked, what of its answer reaches a person, and when. The one place that decides either."""

import hashlib
import re

from nanobot.bus.events import InboundMessage
from nanobot.cron.judging import late_words
from nanobot.cron.types import CronJob, Due, Notify
from nanobot.messages.types import Origin

NOTHING_TO_REPORT = "NOTHING_TO_REPORT"
"""What the model answers in a job with `notify: on_alert` when there is no alert."""
_EDGES = re.compile(r"[\s`*_\"'.!]+")


def message_for(job: CronJob, due: Due) -> InboundMessage:
    """The message that a run is: at the job's target, in the job's own session, with the run's id as its own.

    Every attempt at an instant has the same id. A job whose answer is judged before it is told, or never is, is quiet:
    what its turn sends by itself would pass by that judgement.
    """
    payload = job.payload
    return InboundMessage(
        payload.channel or "cli",
        "cron",
        payload.to or "direct",
        words_for(job, due),
        session_key_override=job.run_session,
        message_id=due.run_id,
        thread_id=payload.thread_id,
        origin=Origin.CRON,
        provenance=payload.provenance,
        quiet=not may_tell(job) or payload.notify is not Notify.ALWAYS,
        journal_key=due.run_id,
    )


def words_for(job: CronJob, due: Due) -> str:
    """The message of a run: the job's own, then what the model has to know about this run."""
    notes = []
    if due.late_ms:
        notes.append(f"This run is late by {late_words(due.late_ms)}.")
    if due.missed:
        runs = "run was" if due.missed == 1 else "runs were"
        notes.append(f"{due.missed} earlier {runs} missed; this one stands for all.")
    if may_tell(job) and job.payload.notify is Notify.ON_ALERT:
        notes.append(f"If nothing needs the person's attention, answer with {NOTHING_TO_REPORT} alone.")
    return f"{job.payload.message}\n\n[{' '.join(notes)}]" if notes else job.payload.message


def may_tell(job: CronJob) -> bool:
    """Whether anything of this job may reach a person: neither its answer nor the `message` tool, where not."""
    return job.payload.deliver and job.payload.notify is not Notify.NEVER


def worth_telling(job: CronJob, answer: str | None) -> bool:
    """Whether this answer is sent to the job's target. `job` is as it was when the run began."""
    said = (answer or "").strip()
    if not may_tell(job) or not said:
        return False
    if job.payload.notify is Notify.ON_CHANGE:
        return fingerprint(said) != job.state.last_answer
    if job.payload.notify is Notify.ON_ALERT:
        return _EDGES.sub("", said).upper() != _EDGES.sub("", NOTHING_TO_REPORT)
    return True


def fingerprint(answer: str) -> str:
    """Equal for answers that differ in spaces and case alone."""
    return hashlib.sha256(" ".join(answer.casefold().split()).encode("utf-8", "backslashreplace")).hexdigest()[:16]
