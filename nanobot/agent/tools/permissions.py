"""What a command needs beyond its sandbox: requested with `needs`, granted by the owner; and hints for the model."""

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from nanobot.agent.tools.base import Access, AccessKind
from nanobot.agent.tools.execution import CommandOutcome
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.security.files.prefix_set import PrefixSet
from nanobot.security.sandbox.view import ViewGrants, view_of
from nanobot.utils.storage_error import os_reason

_NETWORK = "network"
_READ_ONLY = re.compile(r"Read-only file system|EROFS|errno 30\b", re.IGNORECASE)
_NO_NETWORK = re.compile(
    r"Network is unreachable|Could not resolve|Temporary failure in name resolution|Name or service not known"
    r"|ENOTFOUND|EAI_AGAIN|ENETUNREACH|Connection refused|Failed to connect"
    r"|socket[^\n]*\n?[^\n]*Operation not permitted",  # how seccomp refuses one: bash in a line, Python in two
    re.IGNORECASE,
)
_NO_SERVICE = re.compile(
    r"docker daemon|docker\.sock|Failed to connect to bus|D-Bus|system bus|podman\.sock", re.IGNORECASE
)
_MISSING_TMP_FILE = re.compile(
    r"(/(?:tmp|run)/[^\s'\":]+)[^\n]*No such file|No such file[^\n]*?(/(?:tmp|run)/[^\s'\":]+)"
)
_NO_ROOT = re.compile(
    r"(?:^|\W)(?:sudo|doas|su|pkexec): |no new privileges|are you root\?|must be (?:super-?user|root)"
    r"|superuser privileges|setuid root|dpkg/lock|rpm/\.rpm\.lock",
    re.IGNORECASE,
)
_RAN_NANOBOT = re.compile(r"config\.json cannot be read: Permission denied|Permission denied: \S*gateway\.lock")
_DENIED = re.compile(r"Permission denied|EACCES", re.IGNORECASE)
_OUT_OF_MEMORY = re.compile(r"MemoryError|Cannot allocate memory|std::bad_alloc|out of memory", re.IGNORECASE)
_MAX_NAMED = 5


def requested_accesses(needs: Sequence[str], command: str, paths: PathPolicy, *, network: bool) -> list[Access]:
    """Return what a command asks for with `needs`, without what its sandbox gives anyway. Blocking.

    Raises PathDeniedError for what nobody can grant.
    """
    view, accesses = view_of(paths), dict[Access, None]()
    for need in needs:
        if need.strip().lower() == _NETWORK:
            if not network:
                accesses[Access(AccessKind.NETWORK, command, needs_approval=True)] = None
            continue
        if "\0" in need or not need.strip():
            raise PathDeniedError("An entry of needs is empty or has a NUL character. Name a folder, device or socket.")
        try:
            path = paths.workspace / os.path.expanduser(need)  # noqa: PTH111 - raises for no unknown user
            access = _access_to(need, Path(os.path.realpath(path)), paths)
        except PermissionError:
            raise PathDeniedError(
                f"{need} lies in a folder of another user that is closed to nanobot: no command can get there."
            ) from None
        except OSError as error:
            raise PathDeniedError(f"{need} cannot be resolved: {os_reason(error)}.") from error
        if access.kind is not AccessKind.FOLDER or not view.may_write(Path(access.target)):
            accesses[access] = None
    return list(accesses)


def _access_to(need: str, path: Path, paths: PathPolicy) -> Access:
    if path.is_char_device() or path.is_block_device():
        return Access(AccessKind.DEVICE, str(path), needs_approval=True)
    if path.is_socket():
        return Access(AccessKind.SERVICE, str(path), needs_approval=True)
    if PrefixSet(paths.unreadable).contains(path):
        return Access(AccessKind.SECRETS, str(path), needs_approval=True, detail="The command wants to read it.")
    if PrefixSet(paths.never_written).contains(path):
        raise PathDeniedError(
            f"{need} belongs to nanobot's own state or is protected by the owner: no command writes it."
        )
    folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112 - Path.is_dir raises without permission
    if not os.path.isdir(folder):  # noqa: PTH112
        raise PathDeniedError(f"{need} does not exist. Name the folder in which the command is to write.")
    if folder.parent == folder:
        raise PathDeniedError("The whole disk cannot be asked for. Name the folder in which the command is to write.")
    if any(folder.is_relative_to(kernel_folder) for kernel_folder in ("/proc", "/sys", "/dev")):
        raise PathDeniedError(f"{need} is made by the kernel and cannot be asked for. Name a single device in /dev.")
    return Access(AccessKind.FOLDER, str(folder), needs_approval=True)


def view_grants(accesses: Sequence[Access]) -> ViewGrants:
    """Return the granted accesses of a command as additions to its view."""

    def of(kind: AccessKind) -> tuple[Path, ...]:
        return tuple(Path(access.target) for access in accesses if access.kind is kind)

    return ViewGrants(
        of(AccessKind.FOLDER),
        of(AccessKind.DEVICE),
        of(AccessKind.SERVICE),
        secrets=of(AccessKind.SECRETS),
        network=any(access.kind is AccessKind.NETWORK for access in accesses),
    )


def refuse_missing(accesses: Sequence[Access], granted: Collection[str]) -> str:
    """Return why the command may not have these accesses; empty if the owner granted all."""
    missing = [access for access in accesses if access.rule not in granted]
    if not missing:
        return ""
    named = ", ".join(
        f"{access.kind} {access.target}" if access.kind is not AccessKind.NETWORK else "the network"
        for access in missing
    )
    return (
        f"The owner has not granted what this command needs: {named}. Do it without, or tell the owner what it is for."
    )


def describe_tmp(tmp: Path | None) -> frozenset[str]:
    """Return the names in the /tmp of commands. Blocking."""
    if tmp is None:
        return frozenset()
    try:
        return frozenset(path.name for path in tmp.iterdir() if not path.name.startswith("."))
    except OSError:
        return frozenset()


def find_sandbox_hints(
    outcome: CommandOutcome,
    tmp: Path | None,
    before: frozenset[str],
    *,
    network: bool,
    uses_landlock: bool,
) -> list[str]:
    """Return hints for the model about sandbox limits its command met, and about where its files are. Blocking."""
    hints = []
    if outcome.exit_code != 0:
        hints = [text for pattern, text in _HINTS if pattern.search(outcome.output_tail)]
        if uses_landlock and _DENIED.search(outcome.output_tail):  # Landlock reports denials so, and /tmp is the host's
            temp_note = f" and in $TMPDIR ({tmp}), not in /tmp" if tmp is not None else ""
            hints.append(
                f"Commands write only in the workspace{temp_note}, and do not read keys or nanobot's state. If it must "
                'write elsewhere, call exec again with needs: ["/that/folder"]; the owner is asked.'
            )
        if not network and _NO_NETWORK.search(outcome.output_tail):
            hints.append('Commands have no network here. If it must have it, call exec again with needs: ["network"].')
        if (
            (match := _MISSING_TMP_FILE.search(outcome.output_tail))
            and (host_path := match[1] or match[2])
            and os.path.exists(host_path)  # noqa: PTH110 - Path.exists raises without permission
        ):
            hints.append(f"Commands have a /tmp and /run of their own. Read {host_path} of the host with read_file.")
    if tmp is not None and (added := sorted(describe_tmp(tmp) - before)):
        names = ", ".join(added[:_MAX_NAMED]) + (" ..." if len(added) > _MAX_NAMED else "")
        hints.append(f"New in /tmp, which is {tmp} for the other tools: {names}")
    return hints


_HINTS = (
    (
        _READ_ONLY,
        "Commands write only in the workspace and /tmp. If it must write elsewhere, call exec again with needs: "
        '["/that/folder"]; the owner is asked.',
    ),
    (_NO_SERVICE, "Services of this machine are out of reach. Name the socket in needs; the owner is asked."),
    (
        _NO_ROOT,
        "Commands do not run as root and cannot become root: no sudo, no system packages, no services. Do it in the "
        "workspace (a venv, npm without -g, a prefix there), or tell the owner which command to run.",
    ),
    (
        _RAN_NANOBOT,
        "nanobot does not run in its own sandbox. Use the tool made for it, or tell the owner which command to run.",
    ),
    (_OUT_OF_MEMORY, "A command may not take all memory of this machine. Do it in smaller pieces."),
)
