"""One command, from its start to the text about it: its output, its time, its family, and how it ended."""

import asyncio
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.capture import Capture, Progress
from nanobot.agent.tools.watch import Most, Watch
from nanobot.messages.types import Provenance
from nanobot.utils.families import Process
from nanobot.utils.processes import Child, child_process

if TYPE_CHECKING:
    from nanobot.security.sandbox.walls import Behind

_WANTS_TERMINAL = (  # compiled where a command ends badly: it takes 5 ms, which no start need wait for
    r"(?i)not a (tty|terminal)|no tty|a terminal is required|requires a terminal|stdin isn't a terminal|/dev/tty"
    r"|inappropriate ioctl|EOFError: EOF when reading a line|error opening terminal|TERM environment variable"
    r"|unknown terminal|terminal is not fully functional|Error reading input, exiting|failed tty get"
)
_INTERACTIVE = (
    r"(?:^|[;&|(]\s*|sudo\s+)"
    r"(?:top|htop|vim?|nvim|nano|emacs|less|more|man|watch|ssh|telnet|ftp|mysql|psql|passwd|su)\b"
)
_TERMINAL_ADVICE = (
    "There is no terminal and nobody to answer questions here. Use the command's way without questions "
    "(a flag such as -y, --batch or -n, a file, or input by a pipe)."
)

_LAST_WORDS_S = 0.5


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a command may take, how much of the machine, and how much of its output is kept."""

    limit_s: float
    max_timeout_s: float
    most: Most
    spill_cap: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. `code` is None where it was stopped; `said` is the end of what it printed; `left` still runs."""

    text: str
    code: int | None
    said: str
    left: tuple[Process, ...] = ()


class Execution:
    """One command, from its start to the text about it."""

    def __init__(
        self, bounds: Bounds, workspace: Path, ctx: ToolContext | None, words: Provenance = Provenance.TOOL
    ) -> None:
        """`words`: whose its output may be."""
        self._bounds = bounds
        self._workspace = workspace
        progress = Progress(ctx.emit) if ctx is not None else None
        turn_id = ctx.turn_id if ctx is not None else "exec"
        self._stdout = Capture(workspace, turn_id, bounds.spill_cap, progress, words)
        self._stderr = Capture(workspace, turn_id, bounds.spill_cap, progress, words)
        self._exceeded = ""

    async def outcome(self, command: str, behind: "Behind", folder: Path, env: Mapping[str, str]) -> Outcome:
        """Run it. Raises OSError where it cannot be started. On a cancel all of its family is gone."""
        code: int | None = None
        left: list[Process] = []
        watch = Watch(self._bounds.most, self._workspace)
        try:
            async with child_process(
                behind.argv, cwd=folder, env={**env, **behind.env}, confine=behind.confine, limit=behind.limit
            ) as child:
                streams = (self._stdout.fill(child.stdout), self._stderr.fill(child.stderr))
                pumps = [asyncio.create_task(stream) for stream in streams]
                looking = asyncio.create_task(watch.over(child))
                try:
                    async with asyncio.timeout(self._bounds.limit_s):
                        code = await child.wait()
                    if watch.exceeded:
                        await child.kill()  # the watch was interrupted by the end of the first of them
                except (TimeoutError, asyncio.CancelledError) as stop:
                    await child.kill()
                    if isinstance(stop, asyncio.CancelledError):
                        raise
                finally:
                    looking.cancel()
                    left = await self._end(child, pumps, hang_up=code is not None)
        finally:
            if not (self._stdout.is_short and self._stderr.is_short):
                await asyncio.shield(asyncio.to_thread(self._close))
        self._exceeded = watch.exceeded
        said = f"{self._stderr.text()[-4000:]}\n{self._stdout.text()[-4000:]}"
        return Outcome(self._text(command, code, left, said), None if self._exceeded else code, said, tuple(left))

    async def _end(self, child: Child, pumps: list[asyncio.Task[None]], *, hang_up: bool) -> list[Process]:
        """Hear its last words; who is left of its family."""
        try:
            remaining = hang_up and await child.hang_up()
            _, deaf = await asyncio.wait(pumps, timeout=_LAST_WORDS_S)
            left = await self._survivors(child) if hang_up and (remaining or deaf) else []
            if deaf and not left:  # nobody writes any more: what is in the pipes has an end
                await asyncio.wait(pumps, timeout=_LAST_WORDS_S * 10)
            return left
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _survivors(self, child: Child) -> list[Process]:
        """Who lives on after the session hung up. Dying takes a moment; for who never stays that long, their head."""
        seen: set[int] = set()
        for pause in (0.01, 0.05, 0.2):
            seen = {one.pid for one in await child.family()}
            if not seen and child.head is None:
                return []
            await asyncio.sleep(pause)
        left = [one for one in await child.family() if one.pid in seen]
        return left or [head for head in (child.head,) if head is not None]

    def _close(self) -> None:
        self._stdout.close()
        self._stderr.close()

    def _text(self, command: str, code: int | None, left: list[Process], said: str) -> str:
        out, err = self._stdout.text(), self._stderr.text()
        parts = [out] if out else []
        if err:
            parts.append(f"STDERR:\n{err}")
        if not parts:
            parts.append("(no output)")
        notes = [f"Exit code: {code}{_meaning(code)}"] if code is not None and not self._exceeded else []
        if self._exceeded:
            notes.append(f"Stopped: {self._exceeded}. All its processes were ended.")
        elif code is None:
            notes.append(
                f"Timed out after {self._bounds.limit_s:g} s: the command and its children were stopped. If it needs "
                f"longer, set timeout (at most {self._bounds.max_timeout_s:g}), or start it with "
                "`nohup ... >file 2>&1 &`."
            )
        if left:
            names = ", ".join(f"{process.command} (pid {process.pid})" for process in left[:10])
            notes.append(f"Still running in the background: {names}. Its output is no longer read here.")
        if (code != 0 and re.search(_WANTS_TERMINAL, said)) or (code is None and re.search(_INTERACTIVE, command)):
            notes.append(_TERMINAL_ADVICE)
        return "\n\n".join(["\n".join(parts), "\n".join(notes)])


_KNOWN_CODES = {126: "found, but may not be run", 127: "no such command"}


def _meaning(code: int) -> str:
    """What an exit code says beyond its number."""
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 192:
        with suppress(ValueError):
            return f" (ended by signal {signal.Signals(number).name})"
    return f" ({_KNOWN_CODES[code]})" if code in _KNOWN_CODES else ""
