"""Completion in the chat: `/` slash commands, `$` skills, `@` workspace files."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from nanobot.agent.commands.sessions import Conversation

_WORD = re.compile(r"(?:^|(?<=\s))([@$])([^\s]*)$")
_COMMAND = re.compile(r"/[a-zA-Z_-]*$")
_RESUME = re.compile(r"/resume\s+(.*)", re.IGNORECASE)
_MAX_FILES = 200


def can_complete(text: str) -> bool:
    """Whether the text before the cursor can be completed."""
    return bool(_COMMAND.fullmatch(text) or _RESUME.fullmatch(text) or _WORD.search(text.rsplit("\n", 1)[-1]))


class ChatCompleter(Completer):
    """Completes commands, skills and files. Lists the skills each time: they can be added during a chat."""

    def __init__(self, commands: Mapping[str, str], skills: Callable[[], Mapping[str, str]], workspace: Path) -> None:
        self._commands = commands
        self._skills = skills
        self._workspace = workspace
        self.conversations: Mapping[int, Conversation] = {}
        """What `/resume` can reopen, by number, as `/sessions` listed it last."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The completions of the text before the cursor."""
        text = document.text_before_cursor
        word = _WORD.search(text.rsplit("\n", 1)[-1])
        if _COMMAND.fullmatch(text):
            yield from _complete_name(text[1:], "/", self._commands)
        elif (resume := _RESUME.fullmatch(text)) is not None:
            yield from self._complete_conversation(resume[1])
        elif word is not None and word[1] == "$":
            yield from _complete_name(word[2], "$", self._skills())
        elif word is not None:
            yield from self._files(word[2])

    def _complete_conversation(self, typed: str) -> Iterator[Completion]:
        for number, item in self.conversations.items():
            if typed.lower() in f"{number} {item.name} {item.title}".lower():
                yield Completion(item.name, -len(typed), f"{number}. {item.title}", item.describe())

    def _files(self, typed: str) -> Iterator[Completion]:
        folder, _, start = typed.rpartition("/")
        folder_path = self._workspace / Path(folder + "/" if folder or typed.startswith("/") else "").expanduser()
        for name in _list_names(folder_path, start):
            yield Completion(name, start_position=-len(start))


def _complete_name(start: str, mark: str, choices: Mapping[str, str]) -> Iterator[Completion]:
    for name, text in choices.items():
        if name.lower().startswith(start.lower()):
            yield Completion(name, start_position=-len(start), display=mark + name, display_meta=text)


def _list_names(folder: Path, start: str) -> Iterable[str]:
    """Names with this prefix, folders with a trailing slash; hidden names only if the prefix starts with a dot."""
    names: list[str] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                is_hidden = entry.name.startswith(".") and not start.startswith(".")
                if entry.name.lower().startswith(start.lower()) and not is_hidden:
                    names.append(entry.name + "/" if entry.is_dir() else entry.name)
                    if len(names) >= _MAX_FILES:
                        break
    except OSError:
        return []
    return sorted(names)
