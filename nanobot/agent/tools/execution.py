"""Runs one command: its output, timeout, process tree, and the text about how it ended."""

import asyncio
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.capture import Capture, CaptureProgress
from nanobot.agent.tools.resource_monitor import ResourceLimits, ResourceMonitor
from nanobot.messages.types import Provenance
from nanobot.utils.process_tree import Process
from nanobot.utils.processes import Child, child_process

if TYPE_CHECKING:
    from nanobot.security.sandbox.sandbox import SandboxedCommand

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


@dataclass(frozen=True, slots=True)
class ExecLimits:
    """Limits of a command's time and resources, and of how much of its output is saved."""

    timeout_s: float
    max_timeout_s: float
    resources: ResourceLimits
    spill_cap: int


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """How a command ended. `exit_code` is None if it was stopped; `survivors` still run in the background."""

    text: str
    exit_code: int | None
    output_tail: str
    """The last characters of stderr and stdout, in which known problems are recognized."""
    survivors: tuple[Process, ...] = ()


class CommandExecution:
    def __init__(
        self, limits: ExecLimits, workspace: Path, ctx: ToolContext | None, provenance: Provenance = Provenance.TOOL
    ) -> None:
        """`provenance`: of the output."""
        self._limits = limits
        self._workspace = workspace
        progress = CaptureProgress(ctx.emit) if ctx is not None else None
        turn_id = ctx.turn_id if ctx is not None else "exec"
        self._stdout = Capture(workspace, turn_id, limits.spill_cap, progress, provenance)
        self._stderr = Capture(workspace, turn_id, limits.spill_cap, progress, provenance)
        self._exceeded = ""

    async def run(
        self, command: str, sandboxed: "SandboxedCommand", folder: Path, env: Mapping[str, str]
    ) -> CommandOutcome:
        """Run the command. Raises OSError if it cannot be started. Cancelling ends all its processes."""
        exit_code: int | None = None
        survivors: list[Process] = []
        monitor = ResourceMonitor(self._limits.resources, self._workspace)
        try:
            async with child_process(
                sandboxed.argv,
                cwd=folder,
                env={**env, **sandboxed.env},
                confine=sandboxed.confine,
                limit=sandboxed.limit,
            ) as child:
                streams = (self._stdout.read_from(child.stdout), self._stderr.read_from(child.stderr))
                pumps = [asyncio.create_task(stream) for stream in streams]
                monitoring = asyncio.create_task(monitor.watch(child))
                try:
                    async with asyncio.timeout(self._limits.timeout_s):
                        exit_code = await child.wait()
                    if monitor.exceeded:
                        await child.kill()  # killing was interrupted when the first process ended
                except (TimeoutError, asyncio.CancelledError) as stop:
                    await child.kill()
                    if isinstance(stop, asyncio.CancelledError):
                        raise
                finally:
                    monitoring.cancel()
                    survivors = await self._drain(child, pumps, hang_up=exit_code is not None)
        finally:
            if not (self._stdout.is_short and self._stderr.is_short):
                await asyncio.shield(asyncio.to_thread(self._close))
        self._exceeded = monitor.exceeded
        output_tail = f"{self._stderr.text()[-4000:]}\n{self._stdout.text()[-4000:]}"
        return CommandOutcome(
            self._text(command, exit_code, survivors, output_tail),
            None if self._exceeded else exit_code,
            output_tail,
            tuple(survivors),
        )

    async def _drain(self, child: Child, pumps: list[asyncio.Task[None]], *, hang_up: bool) -> list[Process]:
        """Read the rest of the output. Return the processes that still run."""
        try:
            remaining = hang_up and await child.hang_up()
            _, open_pumps = await asyncio.wait(pumps, timeout=_DRAIN_S)
            survivors = await self._survivors(child) if hang_up and (remaining or open_pumps) else []
            if open_pumps and not survivors:  # nobody writes any more: the pipes have an end
                await asyncio.wait(pumps, timeout=_DRAIN_S * 10)
            return survivors
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _survivors(self, child: Child) -> list[Process]:
        """Return what lives on after the hang-up, which takes a moment to end processes; at least the shell."""
        pids: set[int] = set()
        for pause in (0.01, 0.05, 0.2):
            pids = {process.pid for process in await child.family()}
            if not pids and child.head is None:
                return []
            await asyncio.sleep(pause)
        survivors = [process for process in await child.family() if process.pid in pids]
        return survivors or [head for head in (child.head,) if head is not None]

    def _close(self) -> None:
        self._stdout.close()
        self._stderr.close()

    def _text(self, command: str, exit_code: int | None, survivors: list[Process], output_tail: str) -> str:
        out, err = self._stdout.text(), self._stderr.text()
        parts = [out] if out else []
        if err:
            parts.append(f"STDERR:\n{err}")
        if not parts:
            parts.append("(no output)")
        notes = (
            [f"Exit code: {exit_code}{_describe_exit_code(exit_code)}"]
            if exit_code is not None and not self._exceeded
            else []
        )
        if self._exceeded:
            notes.append(f"Stopped: {self._exceeded}. All its processes were ended.")
        elif exit_code is None:
            notes.append(
                f"Timed out after {self._limits.timeout_s:g} s: the command and its children were stopped. If it needs "
                f"longer, set timeout (at most {self._limits.max_timeout_s:g}), or start it with "
                "`nohup ... >file 2>&1 &`."
            )
        if survivors:
            names = ", ".join(f"{process.command} (pid {process.pid})" for process in survivors[:10])
            notes.append(f"Still running in the background: {names}. Its output is no longer read here.")
        if (exit_code != 0 and re.search(_WANTS_TERMINAL, output_tail)) or (
            exit_code is None and re.search(_INTERACTIVE, command)
        ):
            notes.append(_TERMINAL_ADVICE)
        return "\n\n".join(["\n".join(parts), "\n".join(notes)])


_EXIT_CODES = {126: "found, but may not be run", 127: "no such command"}


def _describe_exit_code(exit_code: int) -> str:
    """Return what an exit code means beyond its number."""
    number = -exit_code if exit_code < 0 else exit_code - 128
    if exit_code < 0 or 128 < exit_code < 192:
        with suppress(ValueError):
            return f" (ended by signal {signal.Signals(number).name})"
    return f" ({_EXIT_CODES[exit_code]})" if exit_code in _EXIT_CODES else ""
