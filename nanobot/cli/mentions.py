"""`@name` in a line of the chat: a file of the workspace that goes with the message. Other words with @ are words."""

import re
from pathlib import Path

_MENTION = re.compile(r"(?:^|(?<=\s))@(\S+)")


def mentioned_files(line: str, workspace: Path) -> list[str]:
    """Absolute paths of the files a line names, each once, in order."""
    found: dict[str, None] = {}
    for name in _MENTION.findall(line):
        for spelling in (name, name.rstrip(".,;:!?)")):
            path = _file(spelling, workspace)
            if path is not None:
                found[path] = None
                break
    return [*found]


def _file(name: str, workspace: Path) -> str | None:
    try:
        path = workspace / Path(name).expanduser()
        return str(path) if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long, no such home, a NUL in it: no file of that name
        return None
