"""Links of the owner's in a workspace, on the way to what no command may write. A mount guards where a link leads, and
nothing guards the link: one that a command has moved away or replaced is put back when the command has ended.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)


class KeptLinks:
    """Those on the way to some places in a folder, as they are now. Blocking."""

    def __init__(self, folder: Path, places: Iterable[Path]) -> None:
        self._led_to = {link: _target(link) for link in _links(folder, places)}

    def put_back(self) -> None:
        """As they were; what is in their place goes aside, under a name of its own. Never raises."""
        for link, target in self._led_to.items():
            with suppress(OSError):
                if target is None or _target(link) == target:
                    continue
                aside = None
                if os.path.lexists(link):
                    aside = _free_name(link)
                    link.rename(aside)
                link.symlink_to(target)
                there = f"What was put there is {aside} now." if aside is not None else ""
                logger.warning("A command replaced the link %s to %s. It leads there again. %s", link, target, there)


def _links(folder: Path, places: Iterable[Path]) -> Iterator[Path]:
    """The outermost first."""
    for place in places:
        if place.is_relative_to(folder):
            way = folder
            for part in place.relative_to(folder).parts:
                way /= part
                if way.is_symlink():
                    yield way


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
