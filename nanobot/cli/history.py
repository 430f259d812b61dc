"""The history of the prompt in a file only its owner reads. A disk that refuses costs the history, never the chat."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from prompt_toolkit.history import FileHistory

from nanobot.cli.terminal import mended
from nanobot.utils.files import PRIVATE_FILE, make_private_folder

MOST_CHARS = 50_000
"""A longer line is not worth finding again."""


class ChatHistory(FileHistory):
    """What was typed, oldest first; the file is made on first use."""

    def __init__(self, path: Path) -> None:
        with suppress(OSError):
            make_private_folder(path.parent)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, PRIVATE_FILE))
        super().__init__(str(path))

    def load_history_strings(self) -> Iterable[str]:
        """The lines of the file, the newest first; none where it cannot be read."""
        with suppress(OSError):
            return [*super().load_history_strings()]
        return []

    def store_string(self, string: str) -> None:
        """Append a line."""
        if len(string) <= MOST_CHARS:
            with suppress(OSError):
                super().store_string(mended(string))
