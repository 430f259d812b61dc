"""Keeps a server alive as long as we are, and ends its whole family when we are gone, however we went.

Run by path, as a program: `python -I -S keeper.py FD COMMAND ARGUMENTS...`. FD is the reading end of a pipe whose other
end is ours alone: when it closes, because we let go or were killed, the server gets a moment to leave by itself and is
then killed with everything it started. On Linux whoever leaves the family (a daemon does) becomes the keeper's child
again and ends too; elsewhere the process group is what is ended. It imports nothing of nanobot, to be there in 15 ms.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

_TO_LEAVE_S = 2.0
"""How long a server may take to end by itself once its stdin is closed, as the specification asks of it."""
_TO_CLEAN_UP_S = 1.0
_NOT_FOUND = 127


def main(life: int, command: list[str]) -> int:
    """Run the command until it ends or the life line breaks; its exit code."""
    os.set_inheritable(life, False)
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # a family is ended as a whole, by the life line
    _prctl(36)  # PR_SET_CHILD_SUBREAPER: orphans of the family come to us
    server = os.fork()
    if server == 0:
        _become(command)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # they are the server's: while we held them, nobody would see them end
        os.dup2(nothing, stream)
    code = _wait(server, life, woken, None)
    if code is None:
        code = _wait(server, life, woken, time.monotonic() + _TO_LEAVE_S)
    _end(signal.SIGTERM, _TO_CLEAN_UP_S)
    _end(signal.SIGKILL, _TO_LEAVE_S)
    return _NOT_FOUND if code is None else code


def _become(command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: should the keeper itself be killed
    try:
        os.execvp(command[0], command)  # noqa: S606 - the owner's own words, and no shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(_NOT_FOUND)


def _wait(server: int, life: int, woken: int, until: float | None) -> int | None:
    """The server's exit code; None when the life line broke first, or, with `until`, when the time is up."""
    code = None
    while code is None:
        watched = [woken] if until is not None else [woken, life]
        ready, _, _ = select.select(watched, [], [], None if until is None else max(until - time.monotonic(), 0))
        if woken in ready:
            with suppress(BlockingIOError):
                os.read(woken, 4096)
        code = _reap().get(server)
        if code is None and (life in ready or (until is not None and time.monotonic() >= until)):
            return None
    return code


def _reap() -> dict[int, int]:
    """Who of our children has ended, and how."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def _end(number: int, patience_s: float) -> None:
    """Signal the whole family, again and again, until it is gone or our patience is."""
    deadline = time.monotonic() + patience_s
    told: set[int] = set()
    while (family := _family()) and time.monotonic() < deadline:
        for pid in family - told if number != signal.SIGKILL else family:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        told |= family
        time.sleep(0.005)
        _reap()


def _family() -> set[int]:
    """All who descend from us and live."""
    parents = {pid: parent for pid, parent, alive in _processes() if alive}
    family = {os.getpid()}
    grew = True
    while grew:
        young = {pid for pid, parent in parents.items() if parent in family} - family
        family |= young
        grew = bool(young)
    return family - {os.getpid()}


def _processes() -> list[tuple[int, int, bool]]:
    """(pid, parent, whether it lives) of all processes of the host."""
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110 - pathlib takes longer to import than this program to run
        return _listed_by_ps()
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                found.append((int(name), int(parent), state not in (b"Z", b"X")))
    return found


def _listed_by_ps() -> list[tuple[int, int, bool]]:
    with os.popen("ps -A -o pid=,ppid=,pgid=,stat=") as listing:  # noqa: S605 - the words are ours
        rows = [line.split() for line in listing]
    ours = os.getpid()
    return [
        (int(pid), ours if group == str(ours) else int(parent), not state.startswith("Z"))
        for pid, parent, group, state in (row[:4] for row in rows if len(row) >= 4)
        if pid != str(ours)
    ]


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        with suppress(Exception):  # a courtesy of the kernel: without it the process group is still ended
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]) & 0xFF)
