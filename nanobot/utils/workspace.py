"""A workspace appears by itself: the templates that are missing are copied in, nothing of the user's is touched."""

from pathlib import Path

from nanobot.utils.files import make_private_folder
from nanobot.utils.refusals import refusal
from nanobot.utils.resources import templates_dir


def prepare_workspace(workspace: Path) -> list[str]:
    """Copy each template that is missing; the names of what was made, in order. Never overwrites, not even in a race.

    A new folder is the owner's alone; in a folder that exists, modes are left as they are. Raises StorageError.
    """
    templates = templates_dir()
    made = []
    try:
        make_private_folder(workspace)
        for template in sorted(path for path in templates.rglob("[!.]*") if path.is_file()):
            name = template.relative_to(templates)
            target = workspace / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if _copy_new(template, target):
                made.append(name.as_posix())
    except OSError as error:
        raise refusal(f"The workspace {workspace} cannot be made", error) from error
    return made


def _copy_new(source: Path, target: Path) -> bool:
    """Copy unless the name is taken, be it by a dangling link; whether it was copied. Half a copy does not stay."""
    content = source.read_bytes()
    try:
        with open(target, "xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    except OSError:
        target.unlink(missing_ok=True)
        raise
    return True
