"""The files that a command plainly writes: by a redirection or an option, as a copy, or as a download is called."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nanobot.security.shell.danger import copied_into, operands, written
from nanobot.security.shell.words import read_line
from nanobot.security.shell.wrappers import unwrapped

_OUTPUT = re.compile(r"(?:>>?|(?<=\s)-[oO]|--output(?:-document)?|\btee(?:\s+-a)?)[\s=]*([^\s;|&<>()'\"]+)")
_FETCHED = re.compile(r"https?://[^\s'\"]+/([\w.-]+)")


def files_written(text: str, folder: Path) -> Iterator[Path]:
    """As far as the words of a line tell that runs in this folder. Of what is no folder now; blocks."""
    names = [*_OUTPUT.findall(text), *(_FETCHED.findall(text) if "wget" in text else ())]
    for one in unwrapped(read_line(text)):
        names += written(one)
        names += [f"{name}/{Path(source).name}" for name in copied_into(one) for source in operands(one)]
    for name in dict.fromkeys(names):
        with suppress(RuntimeError):  # `~somebody` whom this host does not know
            file = folder / Path(name).expanduser()
            if name and "\0" not in name and not file.is_dir():
                yield file
