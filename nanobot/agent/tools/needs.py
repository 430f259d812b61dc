"""What a command needs beyond its wall: asked for by name, given by the owner; and how a model learns that it may."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.agent.tools.execution import Outcome
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.security.place_set import PlaceSet
from nanobot.security.sandbox.bwrap import is_device
from nanobot.security.sandbox.view import Grants, view_of

_NETWORK = "network"
_READ_ONLY = re.compile(r"Read-only file system|EROFS|errno 30\b", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"Network is unreachable|Could not resolve|Temporary failure in name resolution|Name or service not known"
    r"|ENOTFOUND|EAI_AGAIN|ENETUNREACH|Connection refused|Failed to connect",
    re.IGNORECASE,
)
_NO_SERVICE = re.compile(
    r"docker daemon|docker\.sock|Failed to connect to bus|D-Bus|system bus|podman\.sock", re.IGNORECASE
)
_NOT_THERE = re.compile(r"(/(?:tmp|run)/[^\s'\":]+)[^\n]*No such file|No such file[^\n]*?(/(?:tmp|run)/[^\s'\":]+)")
_NO_ROOT = re.compile(
    r"(?:^|\W)(?:sudo|doas|su|pkexec): |no new privileges|are you root\?|must be (?:super-?user|root)"
    r"|superuser privileges|setuid root|dpkg/lock|rpm/\.rpm\.lock",
    re.IGNORECASE,
)
_ITSELF = re.compile(r"config\.json cannot be read: Permission denied|Permission denied: \S*gateway\.lock")
_DENIED = re.compile(r"Permission denied|EACCES", re.IGNORECASE)
_NO_ROOM = re.compile(r"MemoryError|Cannot allocate memory|std::bad_alloc|out of memory", re.IGNORECASE)
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class Needs:
    """What is asked for: as reaches for whoever judges them, and as grants for the wall."""

    reaches: tuple[Reach, ...] = ()
    grants: Grants = field(default_factory=Grants)
    problem: str = ""

    @classmethod
    def of(cls, asked: Sequence[str], command: str, paths: PathPolicy, *, network: bool) -> "Needs":
        """Read what was asked for; what the wall gives anyhow asks nobody. Blocking: it looks where paths lead."""
        view = view_of(paths) if asked else None
        reaches: dict[Reach, Path | None] = {}
        for need in asked:
            if need.strip().lower() == _NETWORK:
                if not network:
                    reaches[Reach(ReachKind.NETWORK, command, beyond=True)] = None
                continue
            try:
                reach, place = _reach(need, paths)
            except PathDeniedError as error:
                return cls(problem=str(error))
            if view is None or reach.kind is not ReachKind.FOLDER or not view.may_write(place):
                reaches[reach] = place
        return cls(tuple(reaches), _grants(reaches))

    def refusal(self, granted: frozenset[str]) -> str:
        """Why the command may not have them; nothing where it may."""
        if self.problem:
            return self.problem
        missing = [reach for reach in self.reaches if reach.rule not in granted]
        if not missing:
            return ""
        named = ", ".join(
            f"{reach.kind} {reach.target}" if reach.kind is not ReachKind.NETWORK else "the network"
            for reach in missing
        )
        return (
            f"The owner has not granted what this command needs: {named}. "
            "Do it without, or tell the owner what it is for."
        )


def _reach(need: str, paths: PathPolicy) -> tuple[Reach, Path]:
    if "\0" in need or not need.strip():
        raise PathDeniedError("An entry of needs is empty or has a NUL character. Name a folder, device or socket.")
    place = Path(os.path.realpath(paths.workspace / Path(need).expanduser()))
    try:
        return _reach_of(need, place, paths)
    except PermissionError:
        raise PathDeniedError(
            f"{need} lies in a folder of another user that is closed to nanobot: no command can get there."
        ) from None


def _reach_of(need: str, place: Path, paths: PathPolicy) -> tuple[Reach, Path]:
    if is_device(place):
        return Reach(ReachKind.DEVICE, str(place), beyond=True), place
    if place.is_socket():
        return Reach(ReachKind.SERVICE, str(place), beyond=True), place
    if PlaceSet(paths.unreadable).holds(place):
        return Reach(ReachKind.SECRETS, str(place), beyond=True, detail="The command wants to read it."), place
    if PlaceSet(paths.never_written).holds(place):
        raise PathDeniedError(
            f"{need} belongs to nanobot's own state or is protected by the owner: no command writes it."
        )
    folder = place if os.path.isdir(place) else place.parent  # noqa: PTH112 - also where we may not look
    if not os.path.isdir(folder):  # noqa: PTH112
        raise PathDeniedError(f"{need} does not exist. Name the folder in which the command is to write.")
    if folder.parent == folder:
        raise PathDeniedError("The whole disk cannot be asked for. Name the folder in which the command is to write.")
    if any(folder.is_relative_to(made) for made in ("/proc", "/sys", "/dev")):
        raise PathDeniedError(f"{need} is made by the kernel and cannot be asked for. Name a single device in /dev.")
    return Reach(ReachKind.FOLDER, str(folder), beyond=True), folder


def _grants(reaches: dict[Reach, Path | None]) -> Grants:
    def of(kind: ReachKind) -> tuple[Path, ...]:
        return tuple(place for reach, place in reaches.items() if reach.kind is kind and place is not None)

    return Grants(
        of(ReachKind.FOLDER),
        of(ReachKind.DEVICE),
        of(ReachKind.SERVICE),
        secrets=of(ReachKind.SECRETS),
        network=any(reach.kind is ReachKind.NETWORK for reach in reaches),
    )


def told_tmp(tmp: Path | None) -> frozenset[str]:
    """What lies in the /tmp of commands. Blocking."""
    if tmp is None:
        return frozenset()
    try:
        return frozenset(place.name for place in tmp.iterdir() if not place.name.startswith("."))
    except OSError:
        return frozenset()


def advice_for(
    outcome: Outcome, command: str, tmp: Path | None, before: frozenset[str], *, network: bool, fenced: bool
) -> list[str]:
    """What a model should know of the wall that its command met, and of where its files are. Blocking."""
    advice = []
    if outcome.code != 0:
        advice = [text for pattern, text in _ADVICE if pattern.search(outcome.said)]
        if fenced and _DENIED.search(outcome.said):  # so Landlock calls what it forbids, and /tmp is the host's
            room = f" and in $TMPDIR ({tmp}), not in /tmp" if tmp is not None else ""
            advice.append(
                f"Commands write only in the workspace{room}, and do not read keys or nanobot's state. If it must "
                'write elsewhere, call exec again with needs: ["/that/folder"]; the owner is asked.'
            )
        if not network and _NO_NETWORK.search(outcome.said):
            advice.append('Commands have no network here. If it must have it, call exec again with needs: ["network"].')
        if (
            (missing := _NOT_THERE.search(outcome.said))
            and (there := missing[1] or missing[2])
            and os.path.exists(there)  # noqa: PTH110 - Path.exists raises where it may not look
        ):
            advice.append(f"Commands have a /tmp and /run of their own. {there} of the host is read with read_file.")
    if tmp is None:
        if re.search(r"(?<![\w/])/tmp/", command) and outcome.code == 0:
            advice.append("Its /tmp is gone with the command. Keep files in the workspace.")
    elif new := sorted(told_tmp(tmp) - before):
        named = ", ".join(new[:_MOST_NAMED]) + (" ..." if len(new) > _MOST_NAMED else "")
        advice.append(f"New in /tmp, which is {tmp} for the other tools: {named}")
    return advice


_ADVICE = (
    (
        _READ_ONLY,
        "Commands write only in the workspace and /tmp. If it must write elsewhere, call exec again with needs: "
        '["/that/folder"]; the owner is asked.',
    ),
    (_NO_SERVICE, "Services of this machine are out of reach. Name the socket in needs; the owner is asked."),
    (
        _NO_ROOT,
        "Commands have no powers of root and cannot get them: no sudo, no system packages, no services. Do it in the "
        "workspace (a venv, npm without -g, a prefix there), or tell the owner which command to run.",
    ),
    (
        _ITSELF,
        "nanobot does not run behind its own wall. Use the tool made for it, or tell the owner which command to run.",
    ),
    (_NO_ROOM, "A command may not take all memory of this machine. Do it in smaller pieces."),
)
