"""Which files tools may read and write. The one place where a path a model wrote becomes a path we open.

Every path is resolved first, links and `..` included, and judged by where it really leads. Some places are ours: state
that only the agent's own code writes, since a hand in it breaks the reader that comes later.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from nanobot.errors import NanobotError

_OURS_IN_WORKSPACE = (
    "sessions",
    "cron/jobs.json",
    "cron/jobs.json.last-good",
    "cron/history.jsonl",
    "cron/history.old.jsonl",
    "cron/.locks",
    "memory/HISTORY.md",
)
_OURS_IN_DATA = ("config.json", "pairing.json", "state", *_OURS_IN_WORKSPACE)
_SECRETS_OF_PROCESSES = frozenset({"environ", "mem"})
"""Files under /proc that show the keys a process was started with."""


class PathDeniedError(NanobotError):
    """A path leads where tools may not go. The text is for the model: what was refused, why, what to do instead."""


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """What tools may touch. Relative paths are taken from the workspace, `~` is the home of the user.

    With `restrict` only the workspace and `allowed` may be touched at all. `protected` is never written, `unreadable`
    neither read nor written; both hold for a folder and all that is in it. `data_folder` is where our own state lives,
    `library` what comes with nanobot (its skills): always read, never written.
    """

    workspace: Path
    restrict: bool = False
    allowed: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    unreadable: tuple[Path, ...] = ()
    data_folder: Path | None = None
    library: tuple[Path, ...] = ()

    def readable(self, path: str | Path) -> Path:
        """Where this path really leads, if tools may read there. Raises PathDeniedError."""
        real = self._resolved(path)
        if self.restrict and not _within(real, (self.workspace, *self.allowed, *self.library)):
            raise PathDeniedError(
                f"{path} is outside the workspace {self.workspace}, and tools are restricted to it "
                "(tools.restrictToWorkspace). Use a path inside, or ask the owner to add it to tools.allowedPaths."
            )
        if _within(real, self.unreadable) or _is_secret_of_process(real):
            raise PathDeniedError(f"{path} holds secrets that tools may not read. Ask the owner for what you need.")
        return real

    def writable(self, path: str | Path) -> Path:
        """Where this path really leads, if tools may write there. Raises PathDeniedError."""
        real = self.readable(path)
        if _within(real, (*self.protected, *self.library, *self._ours())):
            raise PathDeniedError(
                f"{path} belongs to nanobot's own state and is never written by file tools. "
                "Leave it as it is: use the tool made for it, or tell the owner which change is needed."
            )
        return real

    def left_out_of(self, folder: Path) -> list[str]:
        """What a search of this folder passes over, relative to it, with `/`: what may not be read, and the stored
        conversations, which would otherwise answer every search with itself. A search inside them finds them."""
        root = _real_key(folder)
        inside = root.rstrip(os.sep) + os.sep
        places = map(_real_key, (*self.unreadable, self.workspace / "sessions"))
        return [place.removeprefix(inside).replace(os.sep, "/") for place in places if place.startswith(inside)]

    def _resolved(self, path: str | Path) -> Path:
        text = os.fspath(path)
        if not text.strip():
            raise PathDeniedError("The path is empty. Give the path of a file or folder.")
        if "\0" in text:
            raise PathDeniedError("The path contains a NUL character. Give a plain path.")
        try:
            # One walk to the end of all links; a name too long or a circle is left for the one who opens it.
            return Path(os.path.realpath(self.workspace / Path(text).expanduser()))
        except (OSError, RuntimeError, ValueError) as error:
            raise PathDeniedError(f"{path} cannot be followed: {error}. Give an absolute path.") from error

    def _ours(self) -> tuple[Path, ...]:
        ours = [self.workspace / name for name in _OURS_IN_WORKSPACE]
        if self.data_folder is not None:
            ours += [self.data_folder / name for name in _OURS_IN_DATA]
        return tuple(ours)


def _within(real: Path, places: tuple[Path, ...]) -> bool:
    """Whether it is one of these places or inside one. Case counts where the host's file system lets it count."""
    path = _key(real)
    return any(path == place or path.startswith(place.rstrip(os.sep) + os.sep) for place in map(_real_key, places))


def _real_key(place: Path) -> str:
    return _key(os.path.realpath(place.expanduser()))


def _key(path: str | Path) -> str:
    text = os.path.normcase(path)
    return text.casefold() if sys.platform == "darwin" else text


def _is_secret_of_process(real: Path) -> bool:
    return real.parts[1:2] == ("proc",) and real.name in _SECRETS_OF_PROCESSES
