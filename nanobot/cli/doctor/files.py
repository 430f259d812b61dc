"""Checks of files and folders: existence, permissions, owner, free space, leftovers."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from nanobot.cli.doctor.checks import CheckContext, Finding, error, health_check, note, security_check, warning
from nanobot.config.saver import BACKUPS
from nanobot.utils.files import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from nanobot.utils.resources import templates_dir
from nanobot.utils.text import count_noun, human_size
from nanobot.utils.workspace import prepare_workspace

_TIGHT, _FULL = 1_000_000_000, 100_000_000
_LEFTOVER_AGE_S = 3600.0
_MAX_LISTED = 5


@health_check("files.folders", "Folders are writable", reads_config=False)
def check_folders(context: CheckContext) -> Iterator[Finding]:
    for folder, kind in (
        (context.data_dir, "data folder"),
        (context.paths.state, "state folder"),
        (context.workspace, "workspace"),
    ):
        if folder == context.paths.state and not os.path.lexists(folder):
            continue
        if folder.is_symlink() and not folder.exists():
            yield error(f"The {kind} {folder} is a broken symlink.", f"Create {folder.readlink()}, or remove the link.")
        elif not folder.exists() and not _writable(_nearest_existing(folder)):
            yield error(
                f"The {kind} {folder} cannot be created: {_nearest_existing(folder)} is not writable.",
                f"Configure another folder, or create it: sudo install -d -o $USER {folder}",
            )
        elif not folder.exists():
            yield note(f"The {kind} {folder} is created at the first message.", fix=partial(_make, folder))
        elif not folder.is_dir():
            yield error(f"The {kind} {folder} is not a folder.", "Move that file away, or configure another folder.")
        elif not _writable(folder):
            is_own = os.name == "posix" and folder.stat().st_uid == os.geteuid()
            others = f"Configure another folder, or take ownership: sudo chown -R $USER {folder}"
            yield error(f"The {kind} {folder} is not writable.", f"chmod u+rwx {folder}" if is_own else others)


def _writable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


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
        yield note(
            f"Not in the workspace: {', '.join(missing)}.",
            "That is fine if you deleted them; --fix restores the templates.",
            lambda: f"created {', '.join(prepare_workspace(context.workspace))}",
        )


def private_files(context: CheckContext) -> Iterator[Path]:
    """Existing files and folders with secrets or private conversations."""
    config, places = context.config_path, context.paths
    backups = [config.with_name(config.name + ending) for ending in BACKUPS]
    folders = [places.state, places.logs, places.media, places.cli_history.parent, context.workspace / "sessions"]
    files = [config, *backups, places.pairing]
    for folder in folders:
        files += sorted(path for path in folder.rglob("*") if not path.is_symlink()) if folder.is_dir() else []
    yield from (path for path in [*files, *folders] if path.exists() and not path.is_socket())


@security_check("secrets.files", "Config and state are readable only by you", reads_config=False)
@health_check("files.private", "Config and state are readable only by you", reads_config=False)
def check_permissions(context: CheckContext) -> Iterator[Finding]:
    if os.name != "posix":
        yield note("Not checked: Windows uses access control lists.")
        return
    readable_by_others = [path for path in private_files(context) if path.stat().st_mode & 0o077]
    for path in readable_by_others[:_MAX_LISTED]:
        mode = stat.S_IMODE(path.stat().st_mode)
        yield error(
            f"{path} can be {'changed' if mode & 0o022 else 'read'} by others (mode {mode:04o}).",
            f"chmod {'700' if path.is_dir() else '600'} {path}",
            partial(_make_private, path),
        )
    rest = readable_by_others[_MAX_LISTED:]
    if rest:
        more = count_noun(len(rest), "more file", "more files")
        yield error(f"{more} can be read by others.", "--fix makes them private.", partial(_make_private, *rest))


def _make_private(*paths: Path) -> str:
    for path in paths:
        path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
    return f"made {paths[0] if len(paths) == 1 else count_noun(len(paths), 'more file')} private"


@health_check("files.owner", "All files belong to you", reads_config=False)
def check_owner(context: CheckContext) -> Iterator[Finding]:
    """No file belongs to another user, as after a start with sudo."""
    if os.name != "posix":
        return
    workspace = context.workspace
    if os.geteuid() == 0:  # root can write anywhere, but a sandboxed command is root without capabilities
        owner = workspace.stat().st_uid if workspace.exists() else 0
        if owner != 0 and context.config.tools.exec.sandbox != "none":
            yield warning(
                f"The workspace belongs to user {owner} but nanobot runs as root: commands cannot write to it.",
                f"Start nanobot as that user, or chown -R root {workspace}",
            )
        return
    for path in [*private_files(context), context.data_dir, workspace]:
        if path.exists() and path.stat().st_uid != os.geteuid():
            is_inside = path.is_relative_to(context.data_dir)
            advice = (
                f"sudo chown -R $USER {context.data_dir}"
                if is_inside
                else "Configure another workspace, or take ownership."
            )
            yield error(f"{path} belongs to another user.", advice)
            return


@health_check("disk", "The disk has free space", reads_config=False)
def check_disk(context: CheckContext) -> Iterator[Finding]:
    places = map(_nearest_existing, (context.workspace, context.data_dir))
    for folder in {folder.stat().st_dev: folder for folder in places}.values():
        free = shutil.disk_usage(folder).free
        free_text = f"{human_size(free)} free at {folder}"
        if free < _FULL:
            yield error(f"Only {free_text}.", "Free some space: messages that cannot be stored are refused.")
        elif free < _TIGHT:
            yield warning(f"Only {free_text}.", "Free some space soon.")
        else:
            yield note(free_text)


@health_check("files.leftovers", "No temporary files are left over", reads_config=False)
def check_leftovers(context: CheckContext) -> Iterator[Finding]:
    """No temporary files of interrupted writes."""
    old = time.time() - _LEFTOVER_AGE_S
    folders = (context.data_dir, context.paths.state, context.workspace, context.workspace / "memory")
    leftovers = [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.glob(".*.????????.tmp")
        if path.is_file() and path.stat().st_mtime < old
    ]
    if leftovers:
        yield warning(
            f"{count_noun(len(leftovers), 'temporary file')} of interrupted writes, such as {leftovers[0]}.",
            "--fix deletes them; the files they were to replace are intact.",
            lambda: _delete(leftovers),
        )


def _delete(paths: list[Path]) -> str:
    for path in paths:
        path.unlink(missing_ok=True)
    return f"deleted {count_noun(len(paths), 'leftover')}"


def _nearest_existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
