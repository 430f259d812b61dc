"""Runs an MCP server between its client and the system, so that nothing of it outlives either.

Run by path, as a program: `python -I -S process_guard.py PARENT MAX_LINE_BYTES COMMAND ARGUMENTS...`, where PARENT is
the process id of the client. stdin and stderr are the server's own; stdout is relayed, to end a server whose line is
longer than a client can take. It imports nothing of nanobot: it starts in 15 ms.

A parent-death signal for the server alone would miss what it starts: `npx` starts a shell, which starts the server. On
Linux this process is their subreaper, so daemons end too; elsewhere the process group ends.
"""

import _thread
import os
import signal
import sys
from contextlib import suppress

EXIT_CODE_PREFIX = "process_guard: exit code "
"""Begins the last line on stderr, if the server ended by itself."""
_GRACE_S = 1
_DRAIN_S = 2
_NOT_FOUND = 127
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(parent: int, max_line_bytes: int, command: list[str]) -> int:
    """Run the command until it ends, or is ended because the parent is gone or sent SIGTERM; return its exit code."""
    ending = killed = False

    def end_server(*_: object) -> None:
        nonlocal ending
        ending = True
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S, _GRACE_S)

    def on_alarm(*_: object) -> None:
        nonlocal killed
        if ending or os.getppid() != parent:
            killed = True
            with suppress(ProcessLookupError):
                os.kill(server, signal.SIGKILL)

    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    output, server_output = os.pipe()
    server = os.fork()
    if server == 0:
        os.dup2(server_output, 1)
        _run_server(command)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # only the server reads it: it sees the end when the client closes it
    os.close(server_output)
    signal.signal(signal.SIGTERM, end_server)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, on_alarm)
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM):
        signal.setitimer(signal.ITIMER_REAL, _GRACE_S, _GRACE_S)
    if os.getppid() != parent:
        end_server()
    drained = _thread.allocate_lock()
    drained.acquire()
    _thread.start_new_thread(_relay, (output, max_line_bytes, drained))
    code = None
    while code is None:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status) if pid == server else None
    _end_descendants()
    drained.acquire(timeout=_DRAIN_S)
    if not killed:
        os.write(2, f"\n{EXIT_CODE_PREFIX}{code}\n".encode())
    return code


def _run_server(command: list[str]) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # in case the guard itself is killed
    try:
        os.execvp(command[0], command)  # noqa: S606 - the configured command, without a shell
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    os._exit(_NOT_FOUND)


def _relay(output: int, max_line_bytes: int, drained: _thread.LockType) -> None:
    """Copy to stdout until the server closes its end, sends too long a line, or nobody reads."""
    length = 0
    with suppress(BrokenPipeError):
        while length <= max_line_bytes and (data := os.read(output, 65_536)):
            end = data.rfind(b"\n")
            length = length + len(data) if end < 0 else len(data) - end - 1
            while data:
                data = data[os.write(1, data) :]
    if length > max_line_bytes:
        os.write(2, f"\nit sent a line of more than {max_line_bytes >> 20} MB\n".encode())
    os.close(1)
    drained.release()
    os.kill(os.getpid(), signal.SIGTERM)


def _end_descendants() -> None:
    """Kill all that is left. Orphans of a killed process become our children, until there are none."""
    children = f"/proc/self/task/{os.getpid()}/children"
    if not os.path.exists(children):  # noqa: PTH110 - pathlib takes longer to import than this program to run
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        return
    while True:
        with open(children, encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


def _prctl(option: int, value: int) -> bool:
    """Call prctl(2). Return whether the system has it."""
    if sys.platform != "linux":
        return False
    import ctypes

    return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]) & 0xFF)
