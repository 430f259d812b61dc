"""A workspace appears by itself, made from the templates; nothing of the user's is touched."""

import os
from pathlib import Path

from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.refusals import refusal
from nanobot.utils.resources import templates_dir


def open_workspace(workspace: Path) -> None:
    """Make the workspace where there is none. One that holds anything is the user's: what is missing stays missing.

    Raises StorageError.
    """
    try:
        is_new = not workspace.is_dir() or not any(workspace.iterdir())
    except OSError as error:
        raise refusal(f"The workspace {workspace} cannot be read", error) from error
    if is_new:
        prepare_workspace(workspace)


def prepare_workspace(workspace: Path) -> list[str]:
    """Copy each template that is missing; the names of what was made, in order. Never overwrites, not even in a race.

    New folders and files are the owner's alone; what exists keeps its mode. Raises StorageError.
    """
    templates = templates_dir()
    made = []
    try:
        make_private_folder(workspace)
        for template in sorted(path for path in templates.rglob("[!.]*") if path.is_file()):
            name = template.relative_to(templates)
            target = workspace / name
            make_private_folder(target.parent)
            if _copy_new(template, target):
                made.append(name.as_posix())
    except OSError as error:
        raise refusal(f"The workspace {workspace} cannot be made", error) from error
    return made


def _copy_new(source: Path, target: Path) -> bool:
    """Copy unless the name is taken, be it by a dangling link; whether it was copied. Half a copy does not stay."""
    content = source.read_bytes()
    try:
        with open(target, "xb", opener=_private) as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError:
        target.unlink(missing_ok=True)
        raise
    return True


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE_FILE)
