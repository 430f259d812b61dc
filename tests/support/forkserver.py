"""Commands started from a process that is warm: it has imported what they need, and forks for each of them.

A fresh interpreter spends 0.4 s of processor time on imports before `nanobot` does anything, and the suite starts
hundreds. `Warm` is a `Popen` whose child is a fork instead: a process of its own, with its own environment, folder,
streams and signals, which runs a module as `python -m` does, and is killed, waited for and read as any other.
`tests/support/terminal.py` has the same at a terminal.

Such a child does not show what a start itself is about: what is imported when, strange streams and variables, programs
around it. So only a plain `python -m MODULE` is warm, with variables that are read after the imports, and where the
system can fork so; all others are real starts. `COLD_STARTS=1` makes every start a real one.
"""

import asyncio
import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import re
import runpy
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
CAN_FORK_SO = sys.platform == "linux" and hasattr(os, "pidfd_open") and "COLD_STARTS" not in os.environ
_READ_LATE = re.compile(
    "PATH|PYTHONPATH|HOME|USERPROFILE|VIRTUAL_ENV|TERM|COLUMNS|NO_COLOR|PROMPT_TOOLKIT_NO_CPR|LANG|PYTHONIOENCODING|BROWSER"
    "|NANOBOT_.*|OLLAMA_HOST|OPENAI_API_KEY|DISCORD_API"
)
"""Variables that are read by who runs, and not by a module while it is imported."""
_HEEDED = {"cwd", "stdin", "stdout", "stderr", "text", "encoding", "errors"}
_COLD = ("__main__", "litellm", "_child")  # what runs when it is imported, and what takes seconds


def started(command: Sequence[Any], *, env: Mapping[str, str], **options: Any) -> "subprocess.Popen[Any]":
    """`Popen(command, env=env, **options)`, warm where that shows the same."""
    warm = options.keys() <= _HEEDED and may_be_warm(command, env)
    return (Warm if warm else subprocess.Popen)(command, env=env, **options)


def may_be_warm(command: Sequence[Any], env: Mapping[str, str]) -> bool:
    """Whether a fork shows the same as a real start."""
    return (
        CAN_FORK_SO
        and [*command[:2]] == [sys.executable, "-m"]
        and all(isinstance(word, str) for word in command)
        and all(_READ_LATE.fullmatch(name) for name in env)
        and {env.get("PYTHONIOENCODING", "utf-8"), env.get("LANG", "C.UTF-8")} == {"utf-8", "C.UTF-8"}
    )


class Warm(subprocess.Popen[Any]):
    """A child of the warm process: the places where `Popen` itself asks the system for a child and for its end."""

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        _program, _before, _close, _keep, cwd, env, _info, _flags, _shell, *streams = rest
        theirs = [number if given == -1 else given for number, given in enumerate((streams[0], streams[3], streams[5]))]
        self._end = fork(Order([*args], os.fspath(cwd or Path.cwd()), dict(env)), theirs)
        self.pid = self._end.pid
        self._child_created = True
        self._close_pipe_fds(*streams[:6])  # type: ignore[attr-defined]

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        code = self.returncode if self.returncode is not None else self._end.code(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        self.returncode = code
        return code


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to be."""

    command: list[str]
    folder: str
    environ: dict[str, str]
    at_terminal: bool = False


class End:
    """The line on which the warm parent tells a child's pid, and later how it ended."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.pid = self._number()

    def code(self, timeout: float | None = None) -> int | None:
        """The exit code as `Popen` has it, or None where it still runs when the time is over."""
        look = select.poll()
        look.register(self._line, select.POLLIN)
        if not look.poll(None if timeout is None else max(timeout, 0) * 1000):
            return None
        with self._line:
            return self._number()

    def _number(self) -> int:
        told = self._line.recv(4)
        if len(told) < 4:
            raise ChildProcessError("the warm process is gone")
        return int.from_bytes(told, "big", signed=True)


class _Parent:
    """The warm process, seen from the tests."""

    def __init__(self) -> None:
        self._wire, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forkserver", str(theirs.fileno())],
                env={name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._one_at_a_time = threading.Lock()
        atexit.register(self.close)

    def fork(self, order: Order, streams: Sequence[int]) -> End:
        """A child with these streams."""
        body = json.dumps(astuple(order)).encode()
        ours, theirs = socket.socketpair()
        with theirs, self._one_at_a_time:
            socket.send_fds(self._wire, [len(body).to_bytes(4, "big")], [*streams, theirs.fileno()])
            self._wire.sendall(body)
        return End(ours)

    def close(self) -> None:
        """End it. What it started goes on, as children of tests do."""
        self._wire.close()
        self._process.wait()


@cache
def _parent() -> _Parent:
    return _Parent()


def begin() -> None:
    """Have the warm process under way, so that it is warm when the first test asks."""
    if CAN_FORK_SO:
        _parent()


def fork(order: Order, streams: Sequence[int]) -> End:
    """A child of the warm process."""
    return _parent().fork(order, streams)


def _serve(wire: socket.socket) -> tuple[Order, list[int]]:
    """Fork for each order, and tell how the children end. Returns in each child, with what it is to be."""
    running: dict[int, tuple[int, int]] = {}  # its pidfd: its pid, and the line where its end is told
    while True:
        look = select.poll()
        for number in (wire.fileno(), *running):
            look.register(number, select.POLLIN)
        for number, _ in look.poll():
            if number in running:
                pid, line = running.pop(number)
                _tell(line, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(number)
                os.close(line)
                continue
            order, (*streams, line) = _received(wire)
            pid = os.fork()
            if pid == 0:
                for kept in (line, *running, *(line for _, line in running.values())):
                    os.close(kept)
                wire.close()
                return order, streams
            for stream in streams:
                os.close(stream)
            _tell(line, pid)
            running[os.pidfd_open(pid)] = pid, line


def _received(wire: socket.socket) -> tuple[Order, list[int]]:
    head, numbers, _, _ = socket.recv_fds(wire, 4, 4)
    if not head:
        os._exit(0)  # the tests are over
    body = wire.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return Order(*json.loads(body)), numbers


def _tell(line: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(line, number.to_bytes(4, "big", signed=True))


def _become(order: Order, streams: list[int]) -> None:
    """Be what `python -m MODULE` is with these streams, in this folder, with this environment."""
    import fcntl
    import termios

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if order.at_terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    strange = "strict" if "PYTHONIOENCODING" in order.environ else "surrogateescape"
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        mode, errors = "w" if number else "r", "backslashreplace" if number == 2 else strange
        own = io.TextIOWrapper(open(number, f"{mode}b", closefd=False), "utf-8", errors, newline="\n")  # noqa: SIM115
        own.reconfigure(line_buffering=number == 2 or own.isatty())
        setattr(sys, name, own)
        setattr(sys, f"__{name}__", own)
    os.chdir(order.folder)
    there, ours = _added_path(order.environ), _added_path(os.environ)
    sys.path[:] = [order.folder, *there, *(place for place in sys.path[1:] if place not in ours)]
    os.environ.clear()
    os.environ.update(order.environ)
    if "LANG" not in order.environ:
        os.environ["LC_CTYPE"] = "C.UTF-8"  # so does Python where nobody names a language
    _, module, *words = order.command[1:]
    sys.orig_argv[:] = order.command
    sys.argv[:] = ["-m", *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a tenth of a second sooner: nobody takes apart what was imported


def _added_path(environ: Mapping[str, str]) -> list[str]:
    return [place for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]


def _warm_up() -> None:
    """Import all of ours, and what is asked for later, and often; then have one turn."""
    import nanobot

    ours = (module.name for module in pkgutil.walk_packages(nanobot.__path__, "nanobot."))
    for name in (*ours, "anyio._backends._asyncio", "httpcore", "loguru", "mcp", "sqlite3", "yaml"):
        if not any(part in name for part in _COLD):
            importlib.import_module(name)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_one_turn(Path(folder)))
    importlib.import_module("nanobot.security.secrets").forget_all()
    gc.collect()
    gc.freeze()  # what is there now stays out of the garbage collector's rounds, and in pages that all share


async def _one_turn(folder: Path) -> None:
    """What is compiled, built and read once in a process: patterns, codecs, prices."""
    from nanobot.config.schema import Config
    from nanobot.config.section import Shape
    from nanobot.testing import open_bot

    for _, shape in Shape(Config).below():
        if shape.section:
            shape.section.model_rebuild()  # else pydantic builds it where it is used first
    async with open_bot(folder, "Hello.") as bot:
        await bot.say("hello")


if __name__ == "__main__":
    _warm_up()
    _become(*_serve(socket.socket(fileno=int(sys.argv[1]))))
