"""How far the words of a file are trusted, for the tools that show some of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from nanobot.messages.types import Provenance, least_trusted

WordsOf = Callable[[Path], Provenance | None]
"""Whose words a file holds, by its real path; None for the owner's own. Neither blocks long nor raises."""


def nothing_known(path: Path) -> Provenance | None:
    """Nobody keeps account of files."""
    return None


def trust_in(real: Path, words_of: WordsOf, own: Provenance = Provenance.FILE) -> Provenance:
    """The least trusted of what such a file is by itself and whose words it holds."""
    return least_trusted([own, words_of(real) or own])


MarkChanged = Callable[[Sequence[Path], int, Provenance], None]
"""Told that what was changed in these folders since that moment (`time.time_ns`) holds such words. Blocks; raises
StorageError."""


def nothing_marked(folders: Sequence[Path], since_ns: int, words: Provenance) -> None:
    """Nobody keeps account of files."""


class Reading(Protocol):
    """A command under watch. The methods block, briefly."""

    def words(self, printed: str) -> Provenance | None:
        """The least trusted of the files it has read until now, and has printed so much; None for the owner's own."""
        ...

    def close(self) -> None:
        """It has ended."""
        ...


WatchReading = Callable[[str, Path, Provenance | None], Reading]
"""Watches what a command reads that is about to run in that folder, with these words from outside in it, if any.
Blocks; raises StorageError."""


class NothingRead:
    """Nobody keeps account of files."""

    def __init__(self, command: str, folder: Path, words: Provenance | None) -> None:
        """As a `WatchReading`."""

    def words(self, printed: str) -> Provenance | None:
        """Nothing is known."""

    def close(self) -> None:
        """There is nothing to close."""
