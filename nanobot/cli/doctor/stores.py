"""Checks that the stores can be read: journal, sessions, ledger, jobs, pairing, provenance. Read-only."""

from collections.abc import Iterator
from contextlib import closing

from nanobot.channels.registry import find
from nanobot.cli.doctor.checks import CheckContext, Finding, error, health_check, note, warning
from nanobot.cron.service import CronService
from nanobot.errors import StorageError
from nanobot.pairing.store import NOBODY, PairingStore
from nanobot.security.provenance import ProvenanceStore
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import DecodedLines
from nanobot.utils.text import count_noun


@health_check("stores.database", "The database is intact", limit_s=30.0, reads_config=False)
def check_database(context: CheckContext) -> Iterator[Finding]:
    import sqlite3  # slow to import

    path = context.paths.database
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            messages = [row[0] for row in db.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as exc:
        messages = [str(exc)]
    if messages != ["ok"]:
        yield error(
            f"{path} is damaged: {'; '.join(map(str, messages))[:300]}",
            "Restart the gateway: it starts a new database and keeps the damaged file.",
        )


@health_check("stores.sessions", "Conversations can be read", limit_s=60.0, reads_config=False)
def check_sessions(context: CheckContext) -> Iterator[Finding]:
    count = 0
    for path, _ in SessionFolder(context.workspace, context.paths.legacy_sessions).files():
        count += 1
        decoded = DecodedLines()
        with open(path, "rb") as file:
            for line in file:
                decoded.add(line)
                decoded.rows.clear()  # only counted
        if decoded.damaged:
            yield note(
                f"{path}: {count_noun(len(decoded.damaged), 'line')} cannot be read.",
                "The valid lines load; the others are moved to a .corrupt file beside it.",
            )
    yield note(count_noun(count, "conversation"))


@health_check("stores.jobs", "Jobs can be read")
def check_jobs(context: CheckContext) -> Iterator[Finding]:
    service = CronService(context.paths.jobs_file(context.workspace), timezone=context.config.agents.defaults.timezone)
    try:
        jobs = service.list_jobs(include_disabled=True)
    except StorageError as exc:
        yield error(str(exc), "No job runs until this is fixed.")
        return
    enabled = context.config.channels.enabled
    for job in jobs:
        title = f'The job {job.id} "{job.name[:40]}"'
        if job.state.last_status == "error":
            yield warning(f"{title} failed last time: {job.state.last_error}", f"nanobot cron history {job.id}")
        if job.enabled and job.payload.deliver and job.payload.channel and job.payload.channel not in (*enabled, "cli"):
            yield warning(
                f"{title} posts to {job.payload.channel}, which is disabled.",
                f"Enable the channel, or `nanobot cron remove {job.id}`.",
            )
    yield note(count_noun(len(jobs), "job"))


@health_check("stores.pairing", "Pairing state can be read")
def check_pairing(context: CheckContext) -> Iterator[Finding]:
    try:
        state = PairingStore(context.paths).load()
    except StorageError as exc:
        yield error(str(exc), "Until then paired people are not recognised.")
        return
    paired_users = state.people()
    for name in context.config.channels.enabled:
        spec, users = find(name), paired_users.get(name, NOBODY)
        if users.approved and not users.owners and spec is not None and spec.owners_are_known:
            yield warning(
                f"{spec.title}: {count_noun(len(users.approved), 'person is', 'people are')} paired, but there is no "
                "owner. What needs your approval is refused.",
                "If one of them is you: write /pairing there and run the command it answers with.",
            )
    if context.config.channels.enabled and not any(state.owners.values()):
        yield note(
            "No channel has an owner: approvals and owner commands work only in the terminal.",
            "Write to the bot, then `nanobot pairing approve CODE --owner`.",
        )


@health_check("stores.provenance", "The provenance of files can be read", reads_config=False)
def check_provenance(context: CheckContext) -> Iterator[Finding]:
    state = ProvenanceStore(context.paths.file_provenance, context.paths.media)
    if not state.is_sound:
        yield error(
            f"{state.path} cannot be read, so every file counts as untrusted.",
            "Move it away; the files it listed then count as yours.",
        )
