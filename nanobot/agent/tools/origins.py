"""How far the words of a file are trusted, for the tools that show some of it."""

from collections.abc import Callable, Sequence
from pathlib import Path

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
