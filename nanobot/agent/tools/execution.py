"""Runs one command: its output, timeout, resource limits and process tree, and the text about how it ended.

Processes that a command left running on purpose have a sandbox of their own, invisible to later commands, which end
them through `BackgroundCommands`.
"""

import asyncio
import itertools
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.spill import SPILL_CAP, SpillFile
from nanobot.messages.types import Provenance
from nanobot.security.secrets import redact_known
from nanobot.utils.processes import Child, Process, child_process, count_processes, has_ended, memory_of
from nanobot.utils.text import count_noun, decode

if TYPE_CHECKING:
    from nanobot.security.sandbox.sandbox import SandboxedCommand, SandboxMode

_WANTS_TERMINAL = (  # compiled when a command fails: it takes 5 ms
    r"(?i)not a (tty|terminal)|no tty|a terminal is required|requires a terminal|stdin isn't a terminal|/dev/tty"
    r"|inappropriate ioctl|EOFError: EOF when reading a line|error opening terminal|TERM environment variable"
    r"|unknown terminal|terminal is not fully functional|Error reading input, exiting|failed tty get"
)
_INTERACTIVE = (
    r"(?:^|[;&|(]\s*|sudo\s+)"
    r"(?:top|htop|vim?|nvim|nano|emacs|less|more|man|watch|ssh|telnet|ftp|mysql|psql|passwd|su)\b"
)
_TERMINAL_ADVICE = (
    "There is no terminal and nobody to answer questions here. Use the command's non-interactive mode "
    "(a flag such as -y, --batch or -n, a file, or input by a pipe)."
)

_DRAIN_S = 0.5
_CHECK_S = 0.2
_THOROUGH_EVERY = 5
"""In every so many checks the command's own processes are counted, even if the machine has few new ones."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
"""Colours, cursor movements, window titles."""
_BUFFER_BYTES = 256 * 1024
"""Bytes of a stream that are buffered before a file is created."""
_HEAD_CHARS = 5_000
_TAIL_CHARS = 9_000
_PROGRESS_S = 2.0
_PACE_S = 0.001
_EXIT_CODES = {126: "found, but may not be run", 127: "no such command"}


@dataclass(frozen=True, slots=True)
class ExecPolicy:
    """How commands run.

    `path_prepend` and `path_append` extend PATH; `allowed_env_keys` are passed from our environment.

    `sandbox`: `auto` uses a sandbox if the machine has one and asks the owner about each command otherwise, `bwrap`
    refuses to run without one, `none` runs without. `tmp` is as in `Sandbox`, `deny` and `allow` as in `Guard`.
    """

    timeout_s: float = 60.0
    max_timeout_s: float = 600.0
    path_prepend: str = ""
    path_append: str = ""
    allowed_env_keys: tuple[str, ...] = ()
    max_processes: int = 512
    """A command with more processes is stopped (where they can be counted: Linux)."""
    max_memory: int = 0
    """A command whose processes together hold more bytes is stopped; 0: as much as one process may have."""
    disk_left: int = 256 * 1024 * 1024
    """A command that leaves less bytes free on the workspace's disk is stopped."""
    spill_cap: int = SPILL_CAP
    sandbox: "SandboxMode" = "auto"
    network: bool = True
    tmp: Path | None = None
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended. `exit_code` is None if it was stopped; `survivors` still run in the background."""

    text: str
    exit_code: int | None
    output_tail: str
    """The last characters of stderr and stdout, in which known problems are recognized."""
    survivors: tuple[Process, ...] = ()


async def run_command(
    command: str,
    sandboxed: "SandboxedCommand",
    folder: Path,
    env: Mapping[str, str],
    policy: ExecPolicy,
    timeout_s: float,
    workspace: Path,
    ctx: ToolContext | None,
    provenance: Provenance,
) -> CommandOutcome:
    """Run the command, whose output has this provenance. Raises OSError if it cannot be started. Cancelling ends all
    its processes.
    """
    report = _progress_reporter(ctx.emit) if ctx is not None else lambda chunk: None
    turn_id = ctx.turn_id if ctx is not None else "exec"
    open_spill = partial(SpillFile, workspace, turn_id, policy.spill_cap, provenance)
    stdout, stderr = _Capture(open_spill, report), _Capture(open_spill, report)
    exit_code: int | None = None
    survivors: list[Process] = []
    monitor = _ResourceMonitor(policy, workspace)
    try:
        async with child_process(
            sandboxed.argv,
            cwd=folder,
            env={**env, **sandboxed.env},
            confine=sandboxed.confine,
        ) as child:
            streams = (stdout.read_from(child.stdout), stderr.read_from(child.stderr))
            pumps = [asyncio.create_task(stream) for stream in streams]
            monitoring = asyncio.create_task(monitor.watch(child))
            try:
                async with asyncio.timeout(timeout_s):
                    exit_code = await child.wait()
                if monitor.exceeded:
                    await child.kill()  # killing was interrupted when the first process ended
            except (TimeoutError, asyncio.CancelledError) as stop:
                await child.kill()
                if isinstance(stop, asyncio.CancelledError):
                    raise
            finally:
                monitoring.cancel()
                survivors = await _drain(child, pumps, hang_up=exit_code is not None)
    finally:
        for capture in (stdout, stderr):
            if not capture.is_short:
                await asyncio.shield(asyncio.to_thread(capture.close))
    out, err = stdout.text(), stderr.text()
    output_tail = f"{err[-4000:]}\n{out[-4000:]}"
    parts = [*([out] if out else []), *([f"STDERR:\n{err}"] if err else [])]
    notes: list[str] = []
    if monitor.exceeded:
        exit_code = None
        notes.append(f"Stopped: {monitor.exceeded}. All its processes were ended.")
    elif exit_code is None:
        notes.append(
            f"Timed out after {timeout_s:g} s: the command and its children were stopped. If it needs longer, "
            f"set timeout (at most {policy.max_timeout_s:g}), or start it with `nohup ... >file 2>&1 &`."
        )
    else:
        notes.append(f"Exit code: {exit_code}{_describe_exit_code(exit_code)}")
    if survivors:
        names = ", ".join(f"{process.command} (pid {process.pid})" for process in survivors[:10])
        notes.append(f"Still running in the background: {names}. Its output is no longer read here.")
    if (exit_code != 0 and re.search(_WANTS_TERMINAL, output_tail)) or (
        exit_code is None and re.search(_INTERACTIVE, command)
    ):
        notes.append(_TERMINAL_ADVICE)
    text = "\n\n".join(["\n".join(parts) or "(no output)", "\n".join(notes)])
    return CommandOutcome(text, exit_code, output_tail, tuple(survivors))


async def _drain(child: Child, pumps: list[asyncio.Task[None]], *, hang_up: bool) -> list[Process]:
    """Read the rest of the output. Return the processes that still run."""
    try:
        remaining = hang_up and await child.hang_up()
        _, open_pumps = await asyncio.wait(pumps, timeout=_DRAIN_S)
        survivors = await _survivors(child) if hang_up and (remaining or open_pumps) else []
        if open_pumps and not survivors:  # nobody writes any more: the pipes have an end
            await asyncio.wait(pumps, timeout=_DRAIN_S * 10)
        return survivors
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _survivors(child: Child) -> list[Process]:
    """Return what lives on after the hang-up, which takes a moment to end processes; at least the shell."""
    pids: set[int] = set()
    for pause in (0.01, 0.05, 0.2):
        pids = {process.pid for process in await child.family()}
        if not pids and child.head is None:
            return []
        await asyncio.sleep(pause)
    survivors = [process for process in await child.family() if process.pid in pids]
    return survivors or [head for head in (child.head,) if head is not None]


def _describe_exit_code(exit_code: int) -> str:
    """Return what an exit code means beyond its number."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code < 0 or 128 < exit_code < 192:
        with suppress(ValueError):
            return f" (ended by signal {signal.Signals(number).name})"
    return f" ({_EXIT_CODES[exit_code]})" if exit_code in _EXIT_CODES else ""


# -- output -------------------------------------------------------------------------------------------------------


class _Capture:
    """One stream, captured while the command runs: all of it while it is short, else its head and tail, and a file with
    the whole. Memory use is bounded however much comes; output beyond the file's cap is read slowly.
    """

    def __init__(self, open_spill: Callable[[], SpillFile], report: Callable[[bytes], None]) -> None:
        self._open_spill = open_spill
        self._report = report
        self._head = bytearray()
        self._tail = b""
        self._spill: SpillFile | None = None

    async def read_from(self, stream: asyncio.StreamReader) -> None:
        """Read until the stream ends. A command waits while it is not read, so endless output costs little."""
        while chunk := await stream.read(_BUFFER_BYTES):
            self._report(chunk)
            if self._spill is None and len(self._head) + len(chunk) <= _BUFFER_BYTES:
                self._head += chunk
                continue
            if self._spill is None:
                self._spill = await asyncio.to_thread(self._open_spill)
                await asyncio.to_thread(self._spill.write, bytes(self._head))
            self._tail = (self._tail + chunk)[-_BUFFER_BYTES:]
            if self._spill.full:
                self._spill.write(chunk)  # only counts
                await asyncio.sleep(_PACE_S)  # the data is dropped: leave the CPU to others
            else:
                await asyncio.to_thread(self._spill.write, chunk)

    @property
    def is_short(self) -> bool:
        """Whether the result shows all of it: then it has no file, and closing it does not touch the disk."""
        return self._spill is None and len(self._head) <= _HEAD_CHARS + _TAIL_CHARS

    def close(self) -> None:
        """End the capture. Writes buffered output that is too long for a result to a file."""
        if self._spill is None and not self.is_short:
            self._spill = self._open_spill()
            self._spill.write(bytes(self._head))
        if self._spill is not None:
            self._spill.close()

    def text(self) -> str:
        """Return what the model sees."""
        head = _clean(bytes(self._head))
        if self._spill is None or (not self._tail and len(head) <= _HEAD_CHARS + _TAIL_CHARS):
            return head
        tail = _clean(self._tail) if self._tail else head
        left_out = f"{count_noun(self._spill.size, 'byte')} in all"
        return (
            f"{head[:_HEAD_CHARS]}\n\n[The middle is left out, {left_out}. {self._spill.note}]\n\n{tail[-_TAIL_CHARS:]}"
        )


def _progress_reporter(emit: Callable[[str], None]) -> Callable[[bytes], None]:
    """Return a function that reports the last line of the output every few seconds."""
    next_report = time.monotonic() + _PROGRESS_S

    def report(chunk: bytes) -> None:
        nonlocal next_report
        if time.monotonic() >= next_report:
            next_report = time.monotonic() + _PROGRESS_S
            if lines := redact_known(decode(chunk)).strip().splitlines():
                emit(lines[-1][:200])

    return report


def _clean(data: bytes) -> str:
    """Return the text without escape sequences and secrets. Redacts first: the text may be cut within a secret."""
    return redact_known(_ESCAPES.sub("", decode(data)).replace("\r\n", "\n").rstrip())


# -- resources ----------------------------------------------------------------------------------------------------


class _ResourceMonitor:
    """Stops a command that takes more of the machine than it may: the kernel's own limits hold for single processes,
    and do not count those of root. Create it before the command starts: it counts processes that are new since then.
    """

    def __init__(self, policy: ExecPolicy, workspace: Path) -> None:
        self.exceeded = ""
        """The limit that was exceeded, in words, once the command was stopped for it."""
        from nanobot.security.sandbox.sandbox import max_memory

        self._max_processes = policy.max_processes
        self._max_memory = policy.max_memory or max_memory()
        self._disk_left = policy.disk_left
        self._workspace = workspace
        self._before = count_processes()
        self._had_room = self._has_room()

    async def watch(self, child: Child) -> None:
        """Check until the command is stopped or this is cancelled."""
        if not self._before:
            return
        for check in itertools.count(1):
            await asyncio.sleep(_CHECK_S)
            self.exceeded = await self._excess(child, thorough=check % _THOROUGH_EVERY == 0)
            if self.exceeded:
                await child.kill()
                return

    async def _excess(self, child: Child, *, thorough: bool) -> str:
        """Describe the exceeded limit; empty if there is none. A cheap check comes first."""
        import psutil  # 10 ms that only commands need

        if self._had_room and not self._has_room():
            return f"it left less than {self._disk_left >> 20} MB on the disk. Delete what it wrote"
        total, allowed = count_processes(), self._max_processes
        # Processes of others may end meanwhile, so the difference alone is not enough.
        many_processes = total > allowed and (thorough or total - self._before > allowed)
        memory = psutil.virtual_memory()
        low_memory = memory.total - memory.available > self._max_memory
        if not (many_processes or low_memory):
            return ""
        family = await child.family()
        if len(family) > allowed:
            return f"it started more than {allowed} processes"
        if low_memory and await asyncio.to_thread(memory_of, [process.pid for process in family]) > self._max_memory:
            return f"its processes took more than {self._max_memory / 1024**3:.1f} GB of memory together"
        return ""

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self._workspace).free >= self._disk_left
        except OSError:  # unknown
            return False


# -- background ---------------------------------------------------------------------------------------------------

_KILL = re.compile(r"kill(?: -(?:[sn] )?(?P<signal>\w+))?(?: --)?(?P<pids>(?: \d+)+)", re.ASCII)


class BackgroundCommands:
    """Background processes by pid, held by a pidfd so that a reused pid is not mistaken for one of them."""

    def __init__(self) -> None:
        self._pidfds: dict[int, int] = {}

    def remember(self, processes: Sequence[Process]) -> None:
        """Hold processes that go on after their command."""
        if sys.platform != "linux":
            return  # elsewhere a later command sees them itself
        for pid in [pid for pid, pidfd in self._pidfds.items() if has_ended(pidfd)]:
            self._release(pid)
        for process in processes:
            self._release(process.pid)
            with suppress(OSError):
                self._pidfds[process.pid] = os.pidfd_open(process.pid)

    def handle_kill(self, words: Sequence[str]) -> ToolResult | None:
        """Carry out a `kill` of held processes; None if these words are no such command."""
        if sys.platform != "linux" or not self._pidfds or (match := _KILL.fullmatch(" ".join(words))) is None:
            return None
        name, pids = (match["signal"] or "TERM").upper(), [int(pid) for pid in match["pids"].split()]
        number = int(name) if name.isdigit() else signal.Signals.__members__.get(f"SIG{name.removeprefix('SIG')}", 65)
        if number > 64 or any(pid not in self._pidfds for pid in pids):
            return None
        gone = []
        for pid in pids:
            try:
                signal.pidfd_send_signal(self._pidfds[pid], number)
            except ProcessLookupError:
                gone.append(f"kill: ({pid}) - No such process")
                self._release(pid)
        if gone:
            return ToolResult("\n".join([*gone, "", "Exit code: 1"]), error=True)
        return ToolResult("(no output)\n\nExit code: 0")

    def _release(self, pid: int) -> None:
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            os.close(pidfd)
