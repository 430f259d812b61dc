"""Completion in the chat: `/` slash commands with their help, `$` skills, `@` file names of the workspace."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

_WORD = re.compile(r"(?:^|(?<=\s))([@$])([^\s]*)$")
_COMMAND = re.compile(r"/[a-zA-Z_-]*$")
_MOST_FILES = 200


def completes(text: str) -> bool:
    """Whether the text before the cursor ends in something that can be completed."""
    return bool(_COMMAND.fullmatch(text) or _WORD.search(text.rsplit("\n", 1)[-1]))


class ChatCompleter(Completer):
    """Words for the line editor. Skills are asked for each time: they may be added while one chats."""

    def __init__(self, commands: Mapping[str, str], skills: Callable[[], Mapping[str, str]], workspace: Path) -> None:
        self._commands = commands
        self._skills = skills
        self._workspace = workspace

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """What may follow the text before the cursor."""
        text = document.text_before_cursor
        word = _WORD.search(text.rsplit("\n", 1)[-1])
        if _COMMAND.fullmatch(text):
            yield from _named(text[1:], "/", self._commands)
        elif word is not None and word[1] == "$":
            yield from _named(word[2], "$", self._skills())
        elif word is not None:
            yield from self._files(word[2])

    def _files(self, typed: str) -> Iterator[Completion]:
        folder, _, start = typed.rpartition("/")
        place = self._workspace / Path(folder + "/" if folder or typed.startswith("/") else "").expanduser()
        for name in _names_in(place, start):
            yield Completion(name, start_position=-len(start))


def _named(start: str, mark: str, named: Mapping[str, str]) -> Iterator[Completion]:
    for name, text in named.items():
        if name.lower().startswith(start.lower()):
            yield Completion(name, start_position=-len(start), display=mark + name, display_meta=text)


def _names_in(folder: Path, start: str) -> Iterable[str]:
    """Names that begin so, folders with a slash behind them; hidden ones only when asked for."""
    found: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") and not start.startswith(".")
                if entry.name.lower().startswith(start.lower()) and not hidden:
                    found.append(entry.name + "/" if entry.is_dir() else entry.name)
                    if len(found) >= _MOST_FILES:
                        break
    except OSError:
        return []
    return sorted(found)
