"""The owner's symbolic links in a workspace that lead to protected paths. A mount protects the target of a link, not
the link itself, so a link that a command moved or replaced is restored when the command has ended.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class ProtectedLinks:
    """Remembers the links on the way to some paths in a folder. Methods block."""

    def __init__(self, folder: Path, paths: Iterable[Path]) -> None:
        self._targets = {link: _target(link) for link in _links(folder, paths)}

    def restore(self) -> None:
        """Restore changed links; what stands in their place is renamed. Never raises."""
        for link, target in self._targets.items():
            with suppress(OSError):
                if target is None or _target(link) == target:
                    continue
                aside = None
                if os.path.lexists(link):
                    aside = _free_name(link)
                    link.rename(aside)
                link.symlink_to(target)
                moved = f" What had replaced it is now {aside}." if aside is not None else ""
                logger.warning("A command replaced the link %s to %s. The link is restored.%s", link, target, moved)


def _links(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """The outermost first."""
    for path in paths:
        if path.is_relative_to(folder):
            prefix = folder
            for part in path.relative_to(folder).parts:
                prefix /= part
                if prefix.is_symlink():
                    yield prefix


def _target(link: Path) -> Path | None:
    try:
        return link.readlink()
    except OSError:
        return None


def _free_name(link: Path) -> Path:
    number = 1
    while os.path.lexists(aside := link.with_name(f"{link.name}.replaced-{number}")):
        number += 1
    return aside
