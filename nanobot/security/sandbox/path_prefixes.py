"""Resolving many paths and comparing prefixes as text: done before each command, so it has to be fast."""

import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path


class PathResolver:
    """Resolves paths, each parent folder once."""

    def __init__(self) -> None:
        self._real_folder = cache(os.path.realpath)

    def real(self, paths: Iterable[Path]) -> tuple[Path, ...]:
        """The real paths without duplicates; `~` is the user's home."""
        return tuple(map(Path, dict.fromkeys(map(self._resolve, paths))))

    def _resolve(self, path: Path) -> str:
        folder, name = os.path.split(os.path.expanduser(path))  # noqa: PTH111
        if name in {"", ".", ".."}:
            return os.path.realpath(os.path.join(folder, name))  # noqa: PTH118
        real = os.path.join(self._real_folder(folder), name)  # noqa: PTH118
        return os.path.realpath(real) if os.path.islink(real) else real  # noqa: PTH114


class PathPrefixSet:
    """Some real paths and everything inside them."""

    def __init__(self, *paths: Path) -> None:
        self._prefixes = tuple(map(_as_folder, paths))

    def __contains__(self, path: Path) -> bool:
        """Whether this real path is one of them or inside one."""
        return _as_folder(path).startswith(self._prefixes)

    def below(self, path: Path) -> bool:
        """Whether it is inside one of them, and not that path itself."""
        text = os.fspath(path)
        return text != os.sep and text.startswith(self._prefixes)


def _as_folder(path: Path) -> str:
    return os.fspath(path).rstrip(os.sep) + os.sep
