"""Runs a server as long as we live, and ends its whole process tree when we are gone, whatever ended us.

Run by path, as a program: `python -I -S process_guard.py FD COMMAND ARGUMENTS...`. FD is the reading end of a pipe
whose other end only we hold: when it closes, because we released it or were killed, the server gets a moment to exit
by itself and is then killed with everything it started. On Linux a process that leaves the tree (a daemon) becomes the
guard's child again and ends too; elsewhere the process group is ended. It imports nothing of nanobot: it starts in
15 ms.
"""

import os
import select
import signal
import sys
import time
from contextlib import suppress

_EXIT_TIMEOUT_S = 2.0
"""How long a server may take to exit once its stdin is closed, as the specification requires."""
_TERMINATE_TIMEOUT_S = 1.0
_NOT_FOUND = 127


def main(guard_fd: int, command: list[str]) -> int:
    """Run the command until it ends or the pipe closes; return its exit code."""
    os.set_inheritable(guard_fd, False)
    wake_reader, wake_writer = os.pipe()
    for end in (wake_reader, wake_writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # the process tree is ended as a whole, by the pipe
    _prctl(36)  # PR_SET_CHILD_SUBREAPER: orphans of the tree become our children
    server = os.fork()
    if server == 0:
        _exec_server(command)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # they are the server's: while we held them, nobody would see them close
        os.dup2(nothing, stream)
    code = _wait(server, guard_fd, wake_reader, None)
    if code is None:
        code = _wait(server, guard_fd, wake_reader, time.monotonic() + _EXIT_TIMEOUT_S)
    _end_processes(signal.SIGTERM, _TERMINATE_TIMEOUT_S)
    _end_processes(signal.SIGKILL, _EXIT_TIMEOUT_S)
    return _NOT_FOUND if code is None else code


def _exec_server(command: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    _prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: in case the guard itself is killed
    try:
        os.execvp(command[0], command)  # noqa: S606 - the configured command, without a shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(_NOT_FOUND)


def _wait(server: int, guard_fd: int, wake_reader: int, until: float | None) -> int | None:
    """Return the server's exit code; None if the pipe closed first or, with `until`, if the time is up."""
    code = None
    while code is None:
        watched = [wake_reader] if until is not None else [wake_reader, guard_fd]
        ready, _, _ = select.select(watched, [], [], None if until is None else max(until - time.monotonic(), 0))
        if wake_reader in ready:
            with suppress(BlockingIOError):
                os.read(wake_reader, 4096)
        code = _reap().get(server)
        if code is None and (guard_fd in ready or (until is not None and time.monotonic() >= until)):
            return None
    return code


def _reap() -> dict[int, int]:
    """Return the exit codes of ended children, by pid."""
    ended = {}
    with suppress(ChildProcessError):
        while (ended_process := os.waitpid(-1, os.WNOHANG))[0]:
            ended[ended_process[0]] = os.waitstatus_to_exitcode(ended_process[1])
    return ended


def _end_processes(number: int, timeout_s: float) -> None:
    """Signal the whole process tree, repeatedly, until it is gone or the time is up."""
    deadline = time.monotonic() + timeout_s
    signalled: set[int] = set()
    while (processes := _descendants()) and time.monotonic() < deadline:
        for pid in processes - signalled if number != signal.SIGKILL else processes:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        signalled |= processes
        time.sleep(0.005)
        _reap()


def _descendants() -> set[int]:
    """Return all living descendants."""
    parents = {pid: parent for pid, parent, alive in _processes() if alive}
    processes = {os.getpid()}
    grew = True
    while grew:
        children = {pid for pid, parent in parents.items() if parent in processes} - processes
        processes |= children
        grew = bool(children)
    return processes - {os.getpid()}


def _processes() -> list[tuple[int, int, bool]]:
    """Return (pid, parent, is alive) of all processes of the host."""
    if not os.path.exists("/proc/self/stat"):  # noqa: PTH110 - pathlib takes longer to import than this program to run
        return _processes_by_ps()
    processes = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                processes.append((int(name), int(parent), state not in (b"Z", b"X")))
    return processes


def _processes_by_ps() -> list[tuple[int, int, bool]]:
    with os.popen("ps -A -o pid=,ppid=,pgid=,stat=") as listing:  # noqa: S605 - a constant
        rows = [line.split() for line in listing]
    ours = os.getpid()
    return [
        (int(pid), ours if group == str(ours) else int(parent), not state.startswith("Z"))
        for pid, parent, group, state in (row[:4] for row in rows if len(row) >= 4)
        if pid != str(ours)
    ]


def _prctl(option: int, value: int = 1) -> None:
    if sys.platform == "linux":
        with suppress(Exception):  # without it, the process group is still ended
            import ctypes

            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]) & 0xFF)
