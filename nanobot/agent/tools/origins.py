"""Whose words stand in a file: where it lies, what it is, and what somebody remembers of how it came there."""

from collections.abc import Callable, Sequence
from pathlib import Path

from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.paths import PathPolicy

WordsOf = Callable[[Path], Provenance | None]
"""What is remembered of a file that was written while words from outside were there. Neither blocks long nor raises."""


def nothing_known(path: Path) -> Provenance | None:
    """Nobody keeps account of files."""
    return None


MarkChanged = Callable[[Sequence[Path], int, Provenance], None]
"""Told that what was changed in these folders since that moment (`time.time_ns`) holds such words. Blocks; raises
StorageError."""


def nothing_marked(folders: Sequence[Path], since_ns: int, words: Provenance) -> None:
    """Nobody keeps account of files."""


class Origins:
    """Tells how far the words of a file are trusted."""

    def __init__(self, paths: PathPolicy, words_of: WordsOf = nothing_known) -> None:
        data = paths.data_folder
        self._media = None if data is None else (data / "media").resolve()
        self._words_of = words_of

    def of(self, real: Path, own: Provenance = Provenance.FILE) -> Provenance:
        """The least trusted of: what such a file is by itself, who sent it, and what is remembered of it."""
        return least_trusted([own, *filter(None, (self._sender(real), self._words_of(real)))])

    def _sender(self, real: Path) -> Provenance | None:
        """What people sent lies in a folder a channel."""
        if self._media is None or not real.is_relative_to(self._media):
            return None
        return Provenance.MAIL if real.relative_to(self._media).parts[:1] == ("email",) else Provenance.PERSON
