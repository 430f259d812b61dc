"""This installation: the files shipped with the code, how to install an optional part, and the workspace made from the
templates, without touching the files of its user.
"""

import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.storage_error import storage_error

_PACKAGE = Path(__file__).resolve().parent.parent


def templates_dir() -> Path:
    """The templates that onboarding copies into a workspace."""
    return _resource("templates")


def skills_dir() -> Path:
    return _resource("skills")


def _resource(name: str) -> Path:
    packaged = _PACKAGE / name
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def install_command(extra: str) -> str:
    """The install command for the running interpreter; the first pip on the PATH may belong to another one."""
    *program, requirement = install_arguments(extra)
    return f"{shlex.join(program) if os.name == 'posix' else subprocess.list2cmdline(program)} '{requirement}'"


def install_arguments(extra: str) -> list[str]:
    """The same as arguments: with pip, or with uv where an environment has no pip."""
    uv = None if find_spec("pip") else shutil.which("uv")
    installer = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    return [*installer, f"nanobot[{extra}]"]


def open_workspace(workspace: Path) -> None:
    """Create the workspace if it is missing or empty. In any other, missing files stay missing. Raises StorageError."""
    try:
        is_new = not workspace.is_dir() or not any(workspace.iterdir())
    except OSError as error:
        raise storage_error(f"The workspace {workspace} cannot be read", error) from error
    if is_new:
        prepare_workspace(workspace)


def prepare_workspace(workspace: Path) -> list[str]:
    """Copy missing templates and return their names in order. Never overwrites, not even in a race.

    New folders and files are private; existing ones keep their mode. Raises StorageError.
    """
    templates = templates_dir()
    created = []
    try:
        make_private_folder(workspace)
        for template in sorted(path for path in templates.rglob("[!.]*") if path.is_file()):
            name = template.relative_to(templates)
            target = workspace / name
            make_private_folder(target.parent)
            if _copy_new(template, target):
                created.append(name.as_posix())
    except OSError as error:
        raise storage_error(f"The workspace {workspace} cannot be created", error) from error
    return created


def _copy_new(source: Path, target: Path) -> bool:
    """Copy unless the name exists, even as a dangling link. Return whether it was copied. A partial copy is removed."""
    content = source.read_bytes()
    try:
        with open(target, "xb", opener=lambda path, flags: os.open(path, flags, PRIVATE_FILE)) as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError:
        target.unlink(missing_ok=True)
        raise
    return True
