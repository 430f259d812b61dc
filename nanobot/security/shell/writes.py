"""The files that a command writes according to its words: redirections, options, copies, names of downloads."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nanobot.security.shell.parse import read_line
from nanobot.security.shell.rules import copied_into, operands, written_words
from nanobot.security.shell.wrappers import expand_wrappers

_OUTPUT = re.compile(r"(?:>>?|(?<=\s)-[oO]|--output(?:-document)?|\btee(?:\s+-a)?)[\s=]*([^\s;|&<>()'\"]+)")
_FETCHED = re.compile(r"https?://[^\s'\"]+/([\w.-]+)")


def files_written(text: str, folder: Path) -> Iterator[Path]:
    """Files that a line, run in this folder, writes as far as its words show; existing folders excluded. Blocks."""
    names = [*_OUTPUT.findall(text), *(_FETCHED.findall(text) if "wget" in text else ())]
    for command in expand_wrappers(read_line(text)):
        names += written_words(command)
        names += [f"{name}/{Path(source).name}" for name in copied_into(command) for source in operands(command)]
    for name in dict.fromkeys(names):
        with suppress(RuntimeError):  # unknown `~user`
            file = folder / Path(name).expanduser()
            if name and "\0" not in name and not file.is_dir():
                yield file
