"""What nanobot keeps: that it can be read, all of it. Nothing here writes."""

from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

from nanobot.channels.registry import find
from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.cron.service import CronService
from nanobot.errors import StorageError
from nanobot.pairing.book import NOBODY
from nanobot.pairing.store import PairingStore
from nanobot.security.grants import Grants
from nanobot.security.provenance import FileBook
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Found
from nanobot.usage.ledger import LedgerReader
from nanobot.utils.clock import SystemClock
from nanobot.utils.text import counted

_BEFORE_ALL = date(2000, 1, 1)


def journal_is_sound(patient: Patient) -> Iterator[Finding]:
    """Messages accepted and messages sent."""
    import sqlite3  # only who keeps a journal has it

    path = patient.places.journal
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            told = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as refused:
        told = [str(refused)]
    if told != ["ok"]:
        yield error(
            f"{path} is damaged: {'; '.join(map(str, told))[:300]}",
            "Restart the gateway: it keeps the damaged file beside a new one.",
        )


def sessions_can_be_read(patient: Patient) -> Iterator[Finding]:
    """Every conversation."""
    count = 0
    for path, _ in SessionFolder(patient.workspace, patient.places.old_sessions).files():
        count += 1
        damaged = _damaged_lines(path)
        if damaged:
            yield note(
                f"{path}: {counted(damaged, 'line')} cannot be read.",
                "The sound ones load; the others are kept in a .corrupt file beside it.",
            )
    yield note(counted(count, "conversation"))


def _damaged_lines(path: Path) -> int:
    found = Found()
    with open(path, "rb") as file:
        for line in file:
            found.add(line)
            found.rows.clear()  # they are only counted
    return len(found.damaged)


def ledger_can_be_read(patient: Patient) -> Iterator[Finding]:
    """What models used."""
    reader = LedgerReader(patient.places.usage)
    rows = sum(1 for _ in reader.rows(_BEFORE_ALL))
    if reader.damaged:
        yield warning(
            f"{patient.places.usage}: {counted(reader.damaged, 'line')} cannot be read.",
            "The sums leave them out, and `nanobot usage` says so.",
        )
    elif rows:
        yield note(counted(rows, "model call"))


def jobs_can_be_read(patient: Patient) -> Iterator[Finding]:
    """Jobs and reminders."""
    service = CronService(patient.places.jobs_of(patient.workspace), timezone=patient.config.agents.defaults.timezone)
    try:
        jobs = service.list_jobs(include_disabled=True)
    except StorageError as refused:
        yield error(str(refused), "No job runs before this is put right.")
        return
    on = patient.config.channels.enabled
    for job in jobs:
        told = f'The job {job.id} "{job.name[:40]}"'
        if job.state.last_status == "error":
            yield warning(f"{told} failed last time: {job.state.last_error}", f"nanobot cron history {job.id}")
        if job.enabled and job.payload.deliver and job.payload.channel and job.payload.channel not in (*on, "cli"):
            yield warning(
                f"{told} reports to {job.payload.channel}, which is switched off.",
                f"Switch the channel on, or `nanobot cron remove {job.id}`.",
            )
    yield note(counted(len(jobs), "job"))


def pairing_can_be_read(patient: Patient) -> Iterator[Finding]:
    """Who may speak."""
    try:
        book = PairingStore(patient.places).book()
    except StorageError as refused:
        yield error(str(refused), "Until then nobody is let in by pairing.")
        return
    people = book.people()
    for name in patient.config.channels.enabled:
        spec, paired = find(name), people.get(name, NOBODY)
        if paired.approved and not paired.owners and spec is not None and spec.owners_are_known:
            yield warning(
                f"{spec.title}: {counted(len(paired.approved), 'person', 'people')} may speak, and nobody is owner. "
                "What needs your yes is refused there.",
                "If one of them is you: write /pairing there, and run the command it answers with.",
            )
    if patient.config.channels.enabled and not any(book.owners.values()):
        yield note(
            "No channel has an owner: approvals and owner's commands work in the terminal only.",
            "Write to the bot, then `nanobot pairing approve CODE --owner`.",
        )


def approvals_can_be_read(patient: Patient) -> Iterator[Finding]:
    """What was allowed for always, and which files hold somebody else's words."""
    try:
        Grants(patient.places.grants, SystemClock()).all()
    except StorageError as refused:
        yield error(str(refused), "Until then you are asked about everything again.")
    book = FileBook(patient.places.file_book, patient.places.media)
    if not book.is_sound:
        yield error(
            f"{book.path} cannot be read, so every file counts as somebody else's words.",
            "Move it away; what it knew of counts as yours then.",
        )
