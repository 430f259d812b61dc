"""Runs an MCP server so that nothing of it outlives nanobot: `python -I -S process_guard.py COMMAND ARGUMENTS...`.

The server uses this program's stdin, stdout and stderr. stderr is a pipe that only nanobot reads, so poll(2) reports
when nanobot is gone; then, and after a SIGTERM, the server has a moment to end before it is killed. On Linux, what it
started is killed too, even daemons; elsewhere its process group. Imports nothing of nanobot: it starts in 15 ms.
"""

import _thread
import os
import select
import signal
import sys
from contextlib import suppress

EXIT_CODE_PREFIX = "process_guard: exit code "
"""Begins the last line on stderr."""
_GRACE_S = 1
_NOT_FOUND = 127
_PR_SET_CHILD_SUBREAPER = 36


def main(command: list[str]) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become our children
    server = os.fork()
    if server == 0:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
        try:
            os.execvp(command[0], command)  # noqa: S606 - the configured command, without a shell
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
        os._exit(_NOT_FOUND)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # only the server and nanobot hold these pipes: each sees when the other one closes
        os.dup2(nothing, stream)
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_GRACE_S))
    signal.signal(signal.SIGALRM, lambda *_: _kill(server))
    _thread.start_new_thread(_watch_nanobot, ())
    _, status = os.waitpid(server, 0)
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.write(2, f"\n{EXIT_CODE_PREFIX}{os.waitstatus_to_exitcode(status)}\n".encode())
    _kill_descendants()


def _watch_nanobot() -> None:
    poller = select.poll()
    poller.register(2, 0)
    poller.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _kill_descendants() -> None:
    children = f"/proc/self/task/{os.getpid()}/children"
    if not os.path.exists(children):  # noqa: PTH110 - pathlib takes longer to import than this program to run
        os.killpg(0, signal.SIGKILL)  # ends this program too
    while True:  # orphans of a killed process become our children, until there are none
        with open(children, encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        if not pids:
            return
        for pid in pids:
            _kill(pid)
        for pid in pids:
            os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
