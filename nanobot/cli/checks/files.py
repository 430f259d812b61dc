"""Files and folders: there, the owner's alone, with room to write."""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.config.saver import BACKUPS
from nanobot.utils.files import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from nanobot.utils.resources import templates_dir
from nanobot.utils.text import counted, human_size
from nanobot.utils.workspace import prepare_workspace

_TIGHT, _FULL = 1_000_000_000, 100_000_000
_LEFT_OVER_S = 3600.0
_MOST_NAMED = 5


def folders_are_there(patient: Patient) -> Iterator[Finding]:
    """The data folder and the workspace can be written."""
    for folder, what in (
        (patient.places.data, "data folder"),
        (patient.places.state, "state folder"),
        (patient.workspace, "workspace"),
    ):
        if folder == patient.places.state and not os.path.lexists(folder):
            continue
        if folder.is_symlink() and not folder.exists():
            yield error(
                f"The {what} {folder} is a link that leads nowhere.", f"Make {folder.readlink()}, or unlink it."
            )
        elif not folder.exists() and not _writable(_existing(folder)):
            yield error(
                f"The {what} {folder} cannot be made: {_existing(folder)} cannot be written.",
                f"Name another place, or make it yours: sudo install -d -o $USER {folder}",
            )
        elif not folder.exists():
            yield note(f"The {what} {folder} is made at the first message.", fix=partial(_make, folder))
        elif not folder.is_dir():
            yield error(f"The {what} {folder} is not a folder.", "Move that file away, or name another place.")
        elif not _writable(folder):
            yield error(f"The {what} {folder} cannot be written.", _made_writable(folder))


def _writable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _made_writable(folder: Path) -> str:
    is_ours = os.name == "posix" and folder.stat().st_uid == os.geteuid()
    return f"chmod u+rwx {folder}" if is_ours else f"Name another place, or make it yours: sudo chown -R $USER {folder}"


def _make(folder: Path) -> str:
    make_private_folder(folder)
    return f"made {folder}"


def templates_are_there(patient: Patient) -> Iterator[Finding]:
    """The files that tell the agent who it is."""
    templates = templates_dir()
    names = sorted(path.relative_to(templates) for path in templates.rglob("[!.]*") if path.is_file())
    missing = [name.as_posix() for name in names if not (patient.workspace / name).exists()]
    if not patient.workspace.is_dir():
        yield note("The first files are made with the workspace")
    elif missing:
        yield note(
            f"Not in the workspace: {', '.join(missing)}.",
            "Fine where you deleted them; --fix puts the templates there.",
            lambda: f"made {', '.join(prepare_workspace(patient.workspace))}",
        )


def private_files(patient: Patient) -> Iterator[Path]:
    """Files and folders with secrets or private talk, as far as they are there."""
    config, places = patient.config_path, patient.places
    beside = [config.with_name(config.name + ending) for ending in BACKUPS]
    folders = [places.state, places.logs, places.media, places.cli_history.parent, patient.workspace / "sessions"]
    files = [config, *beside, places.pairing]
    for folder in folders:
        files += sorted(path for path in folder.rglob("*") if not path.is_symlink()) if folder.is_dir() else []
    yield from (path for path in [*files, *folders] if path.exists() and not path.is_socket())


def files_are_private(patient: Patient) -> Iterator[Finding]:
    """Nobody else on this machine can read what is secret."""
    if os.name != "posix":
        yield note("Not examined here: Windows keeps rights in lists of its own.")
        return
    open_ones = [path for path in private_files(patient) if path.stat().st_mode & 0o077]
    for path in open_ones[:_MOST_NAMED]:
        mode = stat.S_IMODE(path.stat().st_mode)
        yield error(
            f"{path} can be {'changed' if mode & 0o022 else 'read'} by others (mode {mode:04o}).",
            f"chmod {'700' if path.is_dir() else '600'} {path}",
            partial(_close, path),
        )
    rest = open_ones[_MOST_NAMED:]
    if rest:
        more = counted(len(rest), "more file", "more files")
        yield error(f"{more} can be read by others.", "--fix closes what others can read.", partial(_close_all, rest))


def _close(path: Path) -> str:
    path.chmod(PRIVATE_FOLDER if path.is_dir() else PRIVATE_FILE)
    return f"{path} is yours alone now"


def _close_all(paths: list[Path]) -> str:
    for path in paths:
        _close(path)
    return f"{counted(len(paths), 'more file is', 'more files are')} yours alone now"


def files_are_ours(patient: Patient) -> Iterator[Finding]:
    """Nothing belongs to somebody else, as after a start with sudo."""
    if os.name != "posix":
        return
    if os.geteuid() == 0:
        yield from _commands_can_write(patient)
        return
    for path in [*private_files(patient), patient.places.data, patient.workspace]:
        if path.exists() and path.stat().st_uid != os.geteuid():
            is_inside = path.is_relative_to(patient.places.data)
            advice = (
                f"sudo chown -R $USER {patient.places.data}"
                if is_inside
                else "Name another workspace, or take it over."
            )
            yield error(f"{path} belongs to another user.", advice)
            return


def _commands_can_write(patient: Patient) -> Iterator[Finding]:
    """Root may write anywhere, but a command behind its wall is root without powers."""
    workspace = patient.workspace
    owner = workspace.stat().st_uid if workspace.exists() else 0
    if owner != 0 and patient.config.tools.exec.sandbox != "none":
        yield warning(
            f"The workspace belongs to user {owner} and nanobot runs as root: commands cannot write in it.",
            f"Start nanobot as that user, or chown -R root {workspace}",
        )


def disk_has_room(patient: Patient) -> Iterator[Finding]:
    """Room for what has to be kept, and a disk that takes it."""
    places = map(_existing, (patient.workspace, patient.places.data))
    for folder in {folder.stat().st_dev: folder for folder in places}.values():
        free = shutil.disk_usage(folder).free
        told = f"{human_size(free)} free at {folder}"
        if free < _FULL:
            yield error(f"Only {told}.", "Make room: what cannot be kept is refused.")
        elif free < _TIGHT:
            yield warning(f"Only {told}.", "Make room before it is full.")
        else:
            yield note(told)


def nothing_is_left_over(patient: Patient) -> Iterator[Finding]:
    """No halves of writes that were killed."""
    old = time.time() - _LEFT_OVER_S
    folders = (patient.places.data, patient.places.state, patient.workspace, patient.workspace / "memory")
    found = [
        path
        for folder in folders
        if folder.is_dir()
        for path in folder.glob(".*.????????.tmp")
        if path.is_file() and path.stat().st_mtime < old
    ]
    if found:
        yield warning(
            f"{counted(len(found), 'file is', 'files are')} left of writes that were killed, such as {found[0]}.",
            "--fix deletes them; what they were to replace is whole.",
            lambda: _delete(found),
        )


def _delete(paths: list[Path]) -> str:
    for path in paths:
        path.unlink(missing_ok=True)
    return f"deleted {counted(len(paths), 'leftover')}"


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())
