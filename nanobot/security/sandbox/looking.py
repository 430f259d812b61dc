"""Where places lead, and what lies inside of what: by texts, since it is done before each command."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path


class Look:
    """One look at the disk: where places lead now. A folder on the way to several of them is looked at once."""

    def __init__(self) -> None:
        self._folder = cache(os.path.realpath)

    def real(self, places: Iterable[Path]) -> tuple[Path, ...]:
        """Where they lead, each named once; `~` is the home of the user."""
        return tuple(map(Path, dict.fromkeys(map(self._end_of, places))))

    def _end_of(self, place: Path) -> str:
        folder, name = os.path.split(os.path.expanduser(place))  # noqa: PTH111
        if name in {"", ".", ".."}:
            return os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
        end = os.path.join(self._folder(folder), name)  # noqa: PTH118
        return os.path.realpath(end) if os.path.islink(end) else end  # noqa: PTH114


class Inside:
    """Some real places with all that is in them."""

    def __init__(self, *places: Path) -> None:
        self._starts = tuple(map(_as_folder, places))

    def __contains__(self, path: Path) -> bool:
        """Whether this real path is one of them, or lies in one."""
        return _as_folder(path).startswith(self._starts)

    def below(self, path: Path) -> bool:
        """Whether it lies in one, and is not that place itself."""
        text = os.fspath(path)
        return text != os.sep and text.startswith(self._starts)


def _as_folder(place: Path) -> str:
    return os.fspath(place).rstrip(os.sep) + os.sep
