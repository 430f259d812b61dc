"""Checks of files and folders: existence, permissions, owner, free space, leftovers; and that stores can be read."""

import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from nanobot.channels.registry import find
from nanobot.cli.doctor.checks import CheckContext, Finding, error, health_check, note, security_check, warning
from nanobot.config.saver import BACKUPS
from nanobot.errors import StorageError
from nanobot.pairing.store import NOBODY, PairingStore
from nanobot.security.provenance import ProvenanceStore
from nanobot.session.file_format import decode
from nanobot.session.folder import SessionFolder
from nanobot.utils.files import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from nanobot.utils.installation import prepare_workspace, templates_dir
from nanobot.utils.text import count_noun, human_size

_TIGHT, _FULL = 1_000_000_000, 100_000_000
_LEFTOVER_AGE_S = 3600.0


@health_check("files.folders", "Folders are writable", reads_config=False)
def check_folders(context: CheckContext) -> Iterator[Finding]:
    folders = {"data folder": context.data_dir, "state folder": context.paths.state, "workspace": context.workspace}
    if not os.path.lexists(context.paths.state):
        del folders["state folder"]
    for kind, folder in folders.items():
        base, can_write = _nearest_existing(folder), partial(os.access, mode=os.R_OK | os.W_OK | os.X_OK)
        own = f"Configure another folder, or make it yours: sudo install -d -o $USER {folder}"
        if folder.is_symlink() and not folder.exists():
            yield error(f"The {kind} {folder} is a broken symlink.", f"Create {folder.readlink()}, or remove the link.")
        elif not folder.exists() and not can_write(base):
            yield error(f"The {kind} {folder} cannot be created: {base} is not writable.", own)
        elif not folder.exists():
            yield note(f"The {kind} {folder} is created at the first message.", fix=partial(_make, folder))
        elif not folder.is_dir():
            yield error(f"The {kind} {folder} is not a folder.", "Move that file away, or configure another folder.")
        elif not can_write(folder):
            is_own = os.name == "posix" and folder.stat().st_uid == os.geteuid()
            yield error(f"The {kind} {folder} is not writable.", f"chmod u+rwx {folder}" if is_own else own)


def _make(folder: Path) -> str:
    make_private_folder(folder)
    return f"created {folder}"


@health_check("files.templates", "The workspace has its files", reads_config=False)
def check_templates(context: CheckContext) -> Iterator[Finding]:
    templates = templates_dir()
    names = sorted(path.relative_to(templates) for path in templates.rglob("[!.]*") if path.is_file())
    missing = [name.as_posix() for name in names if not (context.workspace / name).exists()]
    if not context.workspace.is_dir():
        yield note("The first files are created with the workspace")
    elif missing:
        advice = "That is fine if you deleted them; --fix restores the templates."
        fix = lambda: f"created {', '.join(prepare_workspace(context.workspace))}"  # noqa: E731
        yield note(f"Not in the workspace: {', '.join(missing)}.", advice, fix)


def private_files(context: CheckContext) -> Iterator[Path]:
    """Existing files and folders with secrets or private conversations."""
    config, paths = context.config_path, context.paths
    backups = [config.with_name(config.name + ending) for ending in BACKUPS]
    folders = [paths.state, paths.logs, paths.media, paths.cli_history.parent, context.workspace / "sessions"]
    files = [config, *backups, paths.pairing]
    for folder in folders:
        files += sorted(path for path in folder.rglob("*") if not path.is_symlink()) if folder.is_dir() else []
    yield from (path for path in [*files, *folders] if path.exists() and not path.is_socket())


@security_check("secrets.files", "Config and state are readable only by you", reads_config=False)
@health_check("files.private", "Config and state are readable only by you", reads_config=False)
def check_permissions(context: CheckContext) -> Iterator[Finding]:
    if os.name != "posix":
        yield note("Not checked: Windows uses access control lists.")
        return
    if unsafe := [path for path in private_files(context) if path.stat().st_mode & 0o077]:
        mode = stat.S_IMODE(unsafe[0].stat().st_mode)
        others = f", and {count_noun(len(unsafe) - 1, 'more file')}" if len(unsafe) > 1 else ""
        text = f"{unsafe[0]} can be {'changed' if mode & 0o022 else 'read'} by others (mode {mode:04o}){others}."
        yield error(text, "chmod go-rwx, or let --fix do it.", partial(_protect, unsafe))


def _protect(paths: Sequence[Path]) -> str:
    for path in paths:
        path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
    return f"made {paths[0] if len(paths) == 1 else count_noun(len(paths), 'file')} private"


@health_check("files.owner", "All files belong to you", reads_config=False)
def check_owner(context: CheckContext) -> Iterator[Finding]:
    """No file belongs to another user, as after a start with sudo."""
    data, workspace = context.data_dir, context.workspace
    if os.name != "posix":
        return
    if os.geteuid() == 0:  # root can write anywhere, but a sandboxed command is root without capabilities
        owner = workspace.stat().st_uid if workspace.exists() else 0
        if owner != 0 and context.config.tools.exec.sandbox != "none":
            yield warning(
                f"The workspace belongs to user {owner} but nanobot runs as root: commands cannot write to it.",
                f"Start nanobot as that user, or chown -R root {workspace}",
            )
        return
    for path in [*private_files(context), data, workspace]:
        if path.exists() and path.stat().st_uid != os.geteuid():
            others = "Configure another workspace, or take ownership."
            own = f"sudo chown -R $USER {data}" if path.is_relative_to(data) else others
            yield error(f"{path} belongs to another user.", own)
            return


@health_check("disk", "The disk has free space", reads_config=False)
def check_disk(context: CheckContext) -> Iterator[Finding]:
    folders = map(_nearest_existing, (context.workspace, context.data_dir))
    for folder in {folder.stat().st_dev: folder for folder in folders}.values():
        free = shutil.disk_usage(folder).free
        text = f"{human_size(free)} free at {folder}"
        if free < _FULL:
            yield error(f"Only {text}.", "Free some space: messages that cannot be stored are refused.")
        elif free < _TIGHT:
            yield warning(f"Only {text}.", "Free some space soon.")
        else:
            yield note(text)


@health_check("files.leftovers", "No temporary files are left over", reads_config=False)
def check_leftovers(context: CheckContext) -> Iterator[Finding]:
    folders = (context.data_dir, context.paths.state, context.workspace, context.workspace / "memory")
    files = [path for folder in folders for path in folder.glob(".*.????????.tmp") if path.is_file()]
    if old := [path for path in files if path.stat().st_mtime < time.time() - _LEFTOVER_AGE_S]:
        text = f"{count_noun(len(old), 'temporary file')} of interrupted writes, such as {old[0]}."
        yield warning(text, "--fix deletes them; the files they were to replace are intact.", partial(_delete, old))


def _delete(paths: Sequence[Path]) -> str:
    for path in paths:
        path.unlink(missing_ok=True)
    return f"deleted {count_noun(len(paths), 'leftover')}"


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


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
        with open(path, "rb") as file:
            damaged = sum(not decode(line)[1] for line in file)
        if damaged:
            yield note(
                f"{path}: {count_noun(damaged, 'line')} cannot be read.",
                "The valid lines load; the others stay in the file and are skipped.",
            )
    yield note(count_noun(count, "conversation"))


@health_check("stores.jobs", "Jobs can be read")
def check_jobs(context: CheckContext) -> Iterator[Finding]:
    try:
        jobs = context.jobs().list_jobs(include_disabled=True)
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
