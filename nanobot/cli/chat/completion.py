"""Completion in the chat: `/` slash commands, `$` skills, `@` files by any part of their path."""

import heapq
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

from nanobot.agent.commands.sessions import Conversation

_WORD = re.compile(r"(?:^|(?<=\s))([@$])([^\s]*)$")
_COMMAND = re.compile(r"/[a-zA-Z_-]*$")
_RESUME = re.compile(r"/resume\s+(.*)", re.IGNORECASE)
_MAX_FILES = 200
_MAX_FOUND = 50
_MIN_SCATTERED = 3
"""Fewer letters must be next to each other in a path, else nearly every path has them."""
_MAX_ENTRIES, _MAX_S = 50_000, 0.3
"""Where a search ends; it goes from the top down, so that near files are found in any case."""
_SKIPPED = frozenset({"node_modules", "__pycache__", "venv", "site-packages", "target", "dist", "build"})
"""Folders of files that no person wrote. Hidden ones are skipped too."""


def can_complete(text: str) -> bool:
    """Whether the text before the cursor can be completed."""
    return bool(_COMMAND.fullmatch(text) or _RESUME.fullmatch(text) or _WORD.search(text.rsplit("\n", 1)[-1]))


class ChatCompleter(Completer):
    """Completes commands, skills and files. Lists the skills each time: they can be added during a chat."""

    def __init__(
        self,
        commands: Mapping[str, str],
        skills: Callable[[], Mapping[str, str]],
        folders: Sequence[Path],
        *,
        max_entries: int = _MAX_ENTRIES,
    ) -> None:
        """Files are searched in `folders`, and named relative to them; the first one wins."""
        self._commands = commands
        self._skills = skills
        self._folders = [*dict.fromkeys(folders)]
        self._max_entries = max_entries
        self.conversations: Mapping[int, Conversation] = {}
        """What `/resume` can reopen, by number, as `/sessions` listed it last."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        """The completions of the text before the cursor."""
        text = document.text_before_cursor
        word = _WORD.search(text.rsplit("\n", 1)[-1])
        if _COMMAND.fullmatch(text):
            yield from _complete_name(text[1:], "/", self._commands)
        elif (resume := _RESUME.fullmatch(text)) is not None:
            for number, item in self.conversations.items():
                if resume[1].lower() in f"{number} {item.name} {item.title}".lower():
                    yield Completion(item.name, -len(resume[1]), f"{number}. {item.title}", item.describe())
        elif word is not None and word[1] == "$":
            yield from _complete_name(word[2], "$", self._skills())
        elif word is not None:
            yield from self._files(word[2])

    def _files(self, typed: str) -> Iterator[Completion]:
        """What is in the typed folder; after that, files and folders found by the letters typed."""
        folder, _, start = typed.rpartition("/")
        inside = Path(folder + "/" if folder or typed.startswith("/") else "").expanduser()
        shown = {typed}

        def is_offered(name: str) -> bool:  # hidden names only if the prefix starts with a dot
            return name.lower().startswith(start.lower()) and name.startswith(".") <= start.startswith(".")

        for root in self._folders:
            for name in sorted(islice(filter(is_offered, _entries(root / inside)), _MAX_FILES)):
                if (path := typed[: len(typed) - len(start)] + name) not in shown:
                    shown.add(path)
                    yield Completion(name, start_position=-len(start))
        if typed and not inside.is_absolute():
            for root in self._folders:
                for path in _find_files(root, typed, self._max_entries):
                    if path not in shown:
                        shown.add(path)
                        yield Completion(path, start_position=-len(typed))


def _complete_name(start: str, mark: str, choices: Mapping[str, str]) -> Iterator[Completion]:
    for name, text in choices.items():
        if name.lower().startswith(start.lower()):
            yield Completion(name, start_position=-len(start), display=mark + name, display_meta=text)


def _find_files(root: Path, typed: str, max_entries: int) -> list[str]:
    """Paths below the folder that have the typed letters in this order, the best first. Of a folder that has them, only
    the folder itself.
    """
    letters = typed.lower()
    scattered = ".*?" if len(letters) >= _MIN_SCATTERED else ""
    in_order = re.compile(scattered.join(map(re.escape, letters)))
    ranked = []
    for path in islice(_walk(root, time.monotonic() + _MAX_S), max_entries):
        lower = path.lower()
        folder, _, name = lower.rstrip("/").rpartition("/")
        if letters not in folder and in_order.search(lower):
            rank = 0 if name.startswith(letters) else 1 if letters in name else 2
            ranked.append((rank, len(path), path))
    return [path for _, _, path in heapq.nsmallest(_MAX_FOUND, ranked)]


def _walk(root: Path, ends: float) -> Iterator[str]:
    """Paths below the folder, relative to it, near ones first, until this time; folders with a trailing slash."""
    folders = deque([""])
    while folders:
        folder = folders.popleft()
        for name in _entries(root / folder):
            if time.monotonic() > ends:
                return
            if not name.startswith("."):
                yield folder + name
                if name.endswith("/") and name[:-1] not in _SKIPPED and not (root / folder / name[:-1]).is_symlink():
                    folders.append(folder + name)


def _entries(folder: Path) -> Iterator[str]:
    """The names in a folder, those of folders with a trailing slash; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry.name + "/" if entry.is_dir() else entry.name
