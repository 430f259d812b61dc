"""Which files tools may read and write. The one place where a path a model wrote becomes a path we open.

Every path is resolved first, links and `..` included, and judged by where it really leads; `opening` then opens exactly
that. Some places are ours: state that only the agent's own code writes, since a hand in it breaks the reader that comes
later. Others are given by the owner alone, with a yes to a rule ("folder:/there").
"""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from nanobot.errors import NanobotError
from nanobot.security.place_set import PlaceSet, folded, followed, with_parents

_OURS_IN_WORKSPACE = (
    "sessions",
    "cron/jobs.json",
    "cron/jobs.json.last-good",
    "cron/history.jsonl",
    "cron/history.old.jsonl",
    "cron/.locks",
    "memory/HISTORY.md",
    "memory/chats",
    "memory/.book",
)
_OURS_IN_DATA = ("config.json", "pairing.json", "state", *_OURS_IN_WORKSPACE)
READ_LATER = {
    "memory": "memory",
    "agents.md": "memory",
    "soul.md": "memory",
    "user.md": "memory",
    "tools.md": "memory",
    "identity.md": "memory",
    "heartbeat.md": "memory",
    "skills": "skill",
    "tools": "skill",
}
"""What of a workspace shapes turns to come, and as what kind of reach it is asked about."""

_OF_EVERY_PROCESS = frozenset(
    {"cgroup", "comm", "io", "limits", "mountinfo", "mounts", "net", "sched", "schedstat", "stat", "statm", "status"}
)
_OF_THE_KERNEL = frozenset(
    {"cgroups", "cmdline", "cpuinfo", "devices", "diskstats", "filesystems", "interrupts", "loadavg", "locks"}
    | {"meminfo", "mdstat", "misc", "modules", "partitions", "pressure", "softirqs", "stat", "swaps", "sys", "uptime"}
    | {"version", "vmstat", "zoneinfo"}
)
"""What of /proc may be read. The rest shows the inside of processes and of the kernel: keys, memory, open files."""
_SYSTEMS = ("/proc", "/sys", "/dev")
"""Made by the kernel, file by file as it is read: never written by file tools, and not what a search is for."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What a turn that others read must not touch: what was told in private. Nobody's yes gives it.

    `closed` is not there for it, but for what lies in `open`: folders it may write in, files it may read. What is
    `unlisted` may be opened by who knows its name, and is never shown by a list, a search or to a command.
    """

    closed: tuple[Path, ...] = ()
    open: tuple[Path, ...] = ()
    unlisted: tuple[Path, ...] = ()


class PathDeniedError(NanobotError):
    """A path leads where tools may not go. The text is for the model: what was refused, why, what to do instead."""


@dataclass(frozen=True, slots=True)
class Want:
    """What the owner may be asked about a path: the kind of reach, and the place. `beyond`: nothing goes without it."""

    kind: str
    place: Path
    beyond: bool = False
    detail: str = ""

    @property
    def rule(self) -> str:
        """What a yes is given to."""
        return f"{self.kind}:{self.place}"


@dataclass(frozen=True, slots=True)
class PathPolicy:
    """What tools may touch. Relative paths are taken from the workspace, `~` is the home of the user.

    With `restrict` only the workspace and `allowed` may be touched at all. Without, the rest may be read, and written
    where the owner said yes to the folder. `unreadable` (our state, places of keys) takes a yes of its own to be read.
    `protected` is never written, and `sealed` neither, which is our own wherever it lies; both hold for a folder and
    all that is in it. `data_folder` is where our own state lives, `library` what comes with nanobot (its skills):
    always read, never written.
    """

    workspace: Path
    restrict: bool = False
    allowed: tuple[Path, ...] = ()
    protected: tuple[Path, ...] = ()
    unreadable: tuple[Path, ...] = ()
    data_folder: Path | None = None
    library: tuple[Path, ...] = ()
    sealed: tuple[Path, ...] = ()
    apart: Apart = Apart()

    _home: PlaceSet = field(init=False, repr=False, compare=False)
    _given: PlaceSet = field(init=False, repr=False, compare=False)
    _library: PlaceSet = field(init=False, repr=False, compare=False)
    _secret: PlaceSet = field(init=False, repr=False, compare=False)
    _guarded: PlaceSet = field(init=False, repr=False, compare=False)
    _own: PlaceSet = field(init=False, repr=False, compare=False)
    _closed: PlaceSet = field(init=False, repr=False, compare=False)
    _open: PlaceSet = field(init=False, repr=False, compare=False)
    _unlisted: PlaceSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, places in (
            ("_home", (self.workspace,)),
            ("_given", (self.workspace, *self.allowed)),
            ("_library", self.library),
            ("_secret", self.unreadable),
            ("_guarded", self.protected),
            ("_own", (*self._ours(), *self.library)),
            ("_closed", self.apart.closed),
            ("_open", self.apart.open),
            ("_unlisted", self.apart.unlisted),
        ):
            object.__setattr__(self, name, PlaceSet(places))

    @property
    def never_written(self) -> tuple[Path, ...]:
        """What no tool writes, whatever anybody says."""
        return (*self.protected, *self.library, *self._ours())

    def readable(self, path: str | Path, granted: Collection[str] = ()) -> Path:
        """Where this path really leads, if tools may read there. Raises PathDeniedError."""
        real = self._resolved(path)
        self._check_readable(path, real, granted)
        return real

    def listable(self, path: str | Path, granted: Collection[str] = ()) -> Path:
        """Where this folder really leads, if tools may look what is in it. Raises PathDeniedError."""
        real = self.readable(path, granted)
        self._check_listable(path, real)
        return real

    def admits(self, real: Path, granted: Collection[str] = ()) -> bool:
        """Whether tools may read this, which is known to be a path without links and was found by a list."""
        try:
            self._check_readable(real, real, granted)
            self._check_listable(real, real)
        except PathDeniedError:
            return False
        return True

    def writable(self, path: str | Path, granted: Collection[str] = ()) -> Path:
        """Where this path really leads, if tools may write there. Raises PathDeniedError."""
        real = self._resolved(path)
        self._check_not_ours(path, real)  # first: of what is never written nobody is told to ask for a yes
        self._check_readable(path, real, granted)
        self._check_guarded(path, real)
        self._check_granted(path, self._outside(real), granted)
        return real

    def sendable(self, path: str | Path) -> Path:
        """Where this path really leads, if the file there may be sent to a chat: from the workspace, what was allowed
        and what people sent, never our own state nor a hidden file of somebody's home. Raises PathDeniedError."""
        real = self.readable(path)
        media = () if self.data_folder is None else (self.data_folder / "media",)
        bases = [base for base in (self.workspace, *self.allowed, *media) if PlaceSet((base,)).contains_exactly(real)]
        if not bases:
            raise PathDeniedError(
                f"{path} is not sent: files go out from the workspace {self.workspace}, from tools.allowedPaths and "
                "from what people sent here. Copy it into the workspace first, if the owner wants it sent."
            )
        if PlaceSet(self._ours()).holds(real) or all(_is_hidden_in_home(real, base) for base in bases):
            raise PathDeniedError(
                f"{path} is not sent: it is nanobot's own state, or a hidden file of the home folder."
            )
        return real

    def kept(self, path: str | Path) -> Path:
        """Where a file of the workspace that nanobot itself writes really lies. A command may have put a link in its
        place: it is followed within what tools may write, and to nothing of our own. Raises PathDeniedError."""
        real = self._resolved(path)
        itself = Path(path).name == real.name and followed(self.workspace / Path(path).parent) == str(real.parent)
        told_apart = self._closed.holds(real) and not self._open.contains_exactly(real)
        if self._outside(real) or self._secret_at(real) or told_apart or (self._own.holds(real) and not itself):
            raise PathDeniedError(
                f"{path} leads to {real}, where it is not written. Remove the link, or have the owner add its folder "
                "to tools.allowedPaths."
            )
        return real

    def wanted_to_read(self, path: str | Path) -> list[Want]:
        """What the owner must have said yes to before this may be read. Raises PathDeniedError where no yes helps."""
        real = self._resolved(path)
        want = self._secret_at(real)
        self.readable(path, (want.rule,) if want is not None else ())
        return [want] if want is not None else []

    def wanted_to_write(self, path: str | Path) -> list[Want]:
        """What writing this takes a yes for, or may. Raises PathDeniedError where no yes helps."""
        real = self._resolved(path)
        wants = [want for want in (self._secret_at(real), self._outside(real), self._read_later(real)) if want]
        self.writable(path, [want.rule for want in wants])
        return wants

    def left_out_of(self, folder: Path) -> list[str]:
        """What a search of this real folder passes over, relative to it, with `/`.

        What may not be read, what the system makes up, and the stored conversations, which would otherwise answer every
        search with itself. A search inside them finds them.
        """
        history = (self.workspace / "sessions", self.workspace / "memory/.book")
        apart = PlaceSet((*history, *map(Path, _SYSTEMS), *self.apart.closed, *self.apart.unlisted))
        return [*self._secret.below(folder), *apart.below(folder)]

    def other_name_of(self, found: os.stat_result) -> str | None:
        """The secret file that this one is a second name of (a hard link), if there is one."""
        return self._secret.other_name_of(found) if found.st_nlink > 1 and self._secret else None

    def _resolved(self, path: str | Path) -> Path:
        text = os.fspath(path)
        if not text.strip():
            raise PathDeniedError("The path is empty. Give the path of a file or folder.")
        if "\0" in text:
            raise PathDeniedError("The path contains a NUL character. Give a plain path.")
        if os.name == "nt" and (odd := next(filter(_means_another_on_windows, PurePath(text).parts[1:]), None)):
            raise PathDeniedError(f"{odd!r} in {path} means another file on Windows. Give its plain name.")
        try:
            # One walk to the end of all links; a name too long or a circle is left for the one who opens it.
            return Path(followed(self.workspace / Path(text).expanduser()))
        except (OSError, RuntimeError, ValueError) as error:
            raise PathDeniedError(f"{path} cannot be followed: {error}. Give an absolute path.") from error

    def _check_readable(self, path: str | Path, real: Path, granted: Collection[str]) -> None:
        self._check_bounds(path, real)
        if self._closed.holds(real) and not self._open.contains_exactly(real):
            raise PathDeniedError(
                f"{path} holds what was told nanobot in private, and others read what is said in this chat. Go on "
                f"without it. What belongs to this chat is in {self.apart.open[0] if self.apart.open else 'no file'}."
            )
        if _is_inside_of_processes(real):
            raise PathDeniedError(
                f"{path} shows the inside of processes or of the kernel, which holds secrets that tools may not read. "
                "Use exec with a program such as ps."
            )
        self._check_granted(path, self._secret_at(real), granted)

    def _check_bounds(self, path: str | Path, real: Path) -> None:
        if self.restrict and not (self._given.contains_exactly(real) or self._library.contains_exactly(real)):
            raise PathDeniedError(
                f"{path} is outside the workspace {self.workspace}, and tools are restricted to it "
                "(tools.restrictToWorkspace). Use a path inside, or ask the owner to add it to tools.allowedPaths."
            )

    def _check_listable(self, path: str | Path, real: Path) -> None:
        if self._unlisted.holds(real):
            raise PathDeniedError(
                f"{path} is not looked into where others read along: files of other chats lie there too. A file that "
                "was sent here is read by its path."
            )

    def _is_of_this_chat(self, real: Path) -> bool:
        """Whether it is the memory of the very chat, which is written there; but for its log, which only grows."""
        return self._open.contains_exactly(real) and folded(real.name) != "history.md"

    def _check_not_ours(self, path: str | Path, real: Path) -> None:
        if self._own.holds(real) and not self._is_of_this_chat(real):
            raise PathDeniedError(
                f"{path} belongs to nanobot's own state and is never written by file tools. "
                "Leave it as it is: use the tool made for it, or tell the owner which change is needed."
            )

    def _check_guarded(self, path: str | Path, real: Path) -> None:
        if self._guarded.holds(real):
            raise PathDeniedError(
                f"{path} is protected by the owner (tools.protectedPaths): it may be read, not written. "
                "Write elsewhere, or tell the owner which change is needed."
            )
        if _is_in_system(real):
            raise PathDeniedError(f"{path} is made by the system, like a device: file tools do not write it.")

    def _check_granted(self, path: str | Path, want: Want | None, granted: Collection[str]) -> None:
        if want is None or any(f"{want.kind}:{place}" in granted for place in with_parents(str(want.place))):
            return
        if want.kind == "secrets":
            raise PathDeniedError(
                f"{path} holds secrets that tools may not read unless the owner says yes. Ask the owner for what you "
                "need."
            )
        raise PathDeniedError(
            f"{path} is outside the workspace {self.workspace}, and the owner has not said yes to writing in "
            f"{want.place}. Write inside the workspace, or ask the owner to add the folder to tools.allowedPaths."
        )

    def _secret_at(self, real: Path) -> Want | None:
        place = self._secret.place_of(real)
        return None if place is None else Want("secrets", real, beyond=True, detail=f"What is in {place} is secret.")

    def _outside(self, real: Path) -> Want | None:
        if self._given.contains_exactly(real):
            return None
        return Want("folder", real.parent, beyond=True, detail="That is outside of the workspace.")

    def _read_later(self, real: Path) -> Want | None:
        for base in self._home.names:
            if real.is_relative_to(base) and real != Path(base):
                kind = READ_LATER.get(folded(real.relative_to(base).parts[0]))
                return None if kind is None else Want(kind, real, detail="It is read into later turns.")
        return None

    def _ours(self) -> tuple[Path, ...]:
        ours = [self.workspace / name for name in _OURS_IN_WORKSPACE]
        if self.data_folder is not None:
            ours += [self.data_folder / name for name in _OURS_IN_DATA]
        return (*ours, *self.sealed)


def _is_in_system(real: Path) -> bool:
    return any(real.is_relative_to(place) for place in _SYSTEMS) and not real.is_relative_to("/dev/shm")  # noqa: S108


def _is_inside_of_processes(real: Path) -> bool:
    parts = real.parts[2:] if real.parts[:2] == ("/", "proc") else ()
    if not parts:
        return False
    if parts[0].isdecimal():
        inside = parts[3:] if parts[1:2] == ("task",) else parts[1:]
        return not inside or inside[0] not in _OF_EVERY_PROCESS
    return parts[0] not in _OF_THE_KERNEL


def _is_hidden_in_home(real: Path, base: Path) -> bool:
    """Whether it is in a hidden folder of the home that this base is or lies above of."""
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - who has no home has no hidden files
    if not real.is_relative_to(home) or not Path(home).is_relative_to(os.path.realpath(base)):
        return False
    return any(part.startswith(".") for part in real.relative_to(home).parts[:1])


def _means_another_on_windows(name: str) -> bool:
    return name not in (".", "..") and (name.endswith((".", " ")) or ":" in name)
