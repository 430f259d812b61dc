"""Provenance of file contents, for the tools that show them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from nanobot.messages.types import Provenance, least_trusted

ProvenanceOf = Callable[[Path], Provenance | None]
"""Returns the provenance of a file's content by its real path; None for the owner's own. Fast; never raises."""


def untracked_files(path: Path) -> Provenance | None:
    """For bots that do not track files."""
    return None


def file_provenance(real: Path, provenance_of: ProvenanceOf, own: Provenance = Provenance.FILE) -> Provenance:
    """Return the less trusted of what such a file is by itself (`own`) and what its content is."""
    return least_trusted([own, provenance_of(real) or own])


MarkChanged = Callable[[Sequence[Path], int, Provenance, bool], None]
"""Records that what changed in these folders since that instant (`time.time_ns`) has this provenance, and whether
whole third-party folders may have come. Blocks; raises StorageError."""


def mark_nothing(folders: Sequence[Path], since_ns: int, provenance: Provenance, brings_trees: bool) -> None:
    """For bots that do not track files."""


class SourceReading(Protocol):
    """Observes the files one command reads. The methods block briefly."""

    def provenance(self, printed: str) -> Provenance | None:
        """Return the least trusted provenance of the files read so far, given the output; None for the owner's own."""
        ...

    def close(self) -> None:
        """Stop observing."""
        ...


WatchReading = Callable[[str, Path, Provenance | None], SourceReading]
"""Starts observing what a command reads that is about to run in a folder, with this provenance in play, if any. Blocks;
raises StorageError."""


class NoSources:
    """For bots that do not track files."""

    def __init__(self, command: str, folder: Path, provenance: Provenance | None) -> None:
        """Take the arguments of a `WatchReading`."""

    def provenance(self, printed: str) -> Provenance | None:
        """Return None: nothing is known."""

    def close(self) -> None:
        """Do nothing."""
