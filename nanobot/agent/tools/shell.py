"""exec: a shell command, with everything a command may do to its caller kept from it.

It runs behind the walls of this machine, in a session of its own, with no terminal and nothing on its stdin; of our
environment it gets what it needs and no keys. Its output is read while it runs into a bounded head and tail, the whole
goes to a file. When its time is up, or the turn is stopped, it goes with its whole family.

When the shell ends, its session hangs up, as when a terminal is closed: what it left in the background ends, except
for what was started with nohup or setsid. That goes on and is named in the result.
"""

import asyncio
import errno
import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.capture import Capture, Progress
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import number, string, takes
from nanobot.agent.tools.spill import SPILL_CAP
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.security.sandbox.limits import Limits
from nanobot.security.sandbox.walls import Walls, Wish
from nanobot.utils.processes import Argv, Child, Process, child_process, count_processes

_SAFE_KEYS = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    # what programs on Windows do not start without
    "SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "HOMEDRIVE", "HOMEPATH",
    "USERNAME", "APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "PROGRAMFILES", "PROGRAMFILES(X86)", "NUMBER_OF_PROCESSORS",
})  # fmt: skip
_NO_TERMINAL = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""Programs that look here know that nobody can answer them."""
_BEHIND_THE_WALL = {"TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache", "npm_config_cache": "/tmp/.cache/npm"}  # noqa: S108
"""Where the home cannot be written, what programs only keep for speed goes elsewhere. The /tmp is the command's own."""

_WANTS_TERMINAL = re.compile(
    r"not a (tty|terminal)|no tty|a terminal is required|requires a terminal|stdin isn't a terminal|/dev/tty"
    r"|inappropriate ioctl|EOFError: EOF when reading a line|error opening terminal|TERM environment variable"
    r"|unknown terminal|terminal is not fully functional|Error reading input, exiting|failed tty get",
    re.IGNORECASE,
)
_INTERACTIVE = re.compile(
    r"(?:^|[;&|(]\s*|sudo\s+)(?:top|htop|vim?|nvim|nano|emacs|less|more|man|watch|ssh|telnet|ftp|mysql|psql|passwd|su)\b"
)
_TERMINAL_ADVICE = (
    "There is no terminal and nobody to answer questions here. Use the command's way without questions "
    "(a flag such as -y, --batch or -n, a file, or input by a pipe)."
)

_LAST_WORDS_S = 0.5
_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class ExecPolicy:
    """How commands run. `path_append` goes behind PATH; `allowed_env_keys` are passed on from our environment.

    `sandbox`: `auto` walls commands off where the machine can and asks the owner about each where it cannot, `bwrap`
    refuses to run without, `none` does without. `cache` and `tmp` are as in `Walls`.
    """

    timeout_s: float = 60.0
    max_timeout_s: float = 600.0
    path_append: str = ""
    allowed_env_keys: tuple[str, ...] = ()
    max_processes: int = 512
    """A command that adds more processes than this to the host is stopped (where they can be counted: Linux)."""
    spill_cap: int = SPILL_CAP
    sandbox: Wish = "auto"
    network: bool = True
    cache: Path | None = None
    tmp: Path | None = None


class ExecTool(Tool):
    """A shell command."""

    name = "exec"
    description = (
        "Run a shell command and get its output and exit code. There is no terminal and no input. "
        "Start what must outlive the command with `nohup ... >file 2>&1 &`; other background processes end with it."
    )
    parameters = takes(
        "command",
        command=string("The command, for the shell"),
        working_dir=string("Folder to run in (default: the workspace)"),
        timeout=number("Seconds until it is stopped; at most 600"),
    )
    effect = Effect.ONCE
    derives = True

    def __init__(self, paths: PathPolicy, policy: ExecPolicy | None = None) -> None:
        self._paths = paths
        self._policy = policy = policy or ExecPolicy()
        self._walls = Walls(paths, policy.sandbox, network=policy.network, cache=policy.cache, tmp=policy.tmp)

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """The command itself, which the owner is always asked about where no wall stands that he wants."""
        del ctx
        unwalled = self._walls.wanted and not await asyncio.to_thread(lambda: self._walls.stand)
        detail = "nothing walls it off on this machine" if unwalled else ""
        return (Reach(ReachKind.COMMAND, arguments["command"], beyond=unwalled, detail=detail),)

    async def execute(
        self,
        command: str,
        working_dir: str | None = None,
        timeout: float | None = None,
        *,
        ctx: ToolContext | None = None,
    ) -> ToolResult:
        """Run it. On a cancel and at its time limit the command and all its children are gone within two seconds."""
        if not command.strip() or "\0" in command:
            return ToolResult.failed("The command is empty or contains a NUL character. Give a shell command.")
        asked = working_dir or "."
        try:
            folder = await asyncio.to_thread(self._paths.readable, asked)
            if not await asyncio.to_thread(folder.is_dir):
                return ToolResult.failed(f"The working_dir {asked} is not a folder that exists.")
        except PathDeniedError as error:
            return ToolResult.failed(str(error))
        walled = await asyncio.to_thread(lambda: self._walls.stand)
        if not walled and (refusal := self._refusal(command, ctx)):
            return ToolResult.failed(refusal)
        limit = min(max(timeout or self._policy.timeout_s, 0.1), self._policy.max_timeout_s)
        execution = _Execution(self._policy, self._paths.workspace, limit, ctx)
        env = environment(os.environ, self._policy)
        line = _shell(command, Limits())
        argv: Argv = line
        if walled and not isinstance(line, str):
            argv = await asyncio.to_thread(self._walls.behind, line, folder)
            env |= _BEHIND_THE_WALL
        try:
            text, ok = await execution.outcome(command, argv, folder, env)
        except OSError as error:
            hint = " Put the text into a file with write_file first." if error.errno == errno.E2BIG else ""
            return ToolResult.failed(f"The command could not be started: {error.strerror or error}.{hint}")
        return ToolResult(text, error=not ok)

    def _refusal(self, command: str, ctx: ToolContext | None) -> str:
        """Why a command may not run without a wall; nothing where it may."""
        if not self._walls.wanted:
            return ""
        granted = ctx.granted if ctx is not None else frozenset()
        if not self._walls.required and Reach(ReachKind.COMMAND, command).rule in granted:
            return ""
        return self._walls.advice


def environment(ours: Mapping[str, str], policy: ExecPolicy) -> dict[str, str]:
    """What a command may know of our environment: what programs need to run, and what the owner allowed."""
    allowed = {name.upper() for name in policy.allowed_env_keys}
    passed = {
        name: value
        for name, value in ours.items()
        if name.upper() in _SAFE_KEYS or name.upper() in allowed or name.startswith("LC_")
    }
    if policy.path_append:
        passed["PATH"] = os.pathsep.join(filter(None, (passed.get("PATH", os.defpath), policy.path_append)))
    return {**passed, **{name: value for name, value in _NO_TERMINAL.items() if name.upper() not in allowed}}


class _Execution:
    """One command, from its start to the text about it."""

    def __init__(self, policy: ExecPolicy, workspace: Path, limit_s: float, ctx: ToolContext | None) -> None:
        self._policy = policy
        self._limit_s = limit_s
        progress = Progress(ctx.emit) if ctx is not None else None
        turn_id = ctx.turn_id if ctx is not None else "exec"
        self._stdout = Capture(workspace, turn_id, policy.spill_cap, progress)
        self._stderr = Capture(workspace, turn_id, policy.spill_cap, progress)
        self._too_many = False

    async def outcome(self, command: str, argv: Argv, folder: Path, env: Mapping[str, str]) -> tuple[str, bool]:
        """What to tell the model, and whether the command ended well. Raises OSError where it cannot be started."""
        code: int | None = None
        left: list[Process] = []
        try:
            async with child_process(argv, cwd=folder, env=env) as child:
                streams = (self._stdout.fill(child.stdout), self._stderr.fill(child.stderr))
                pumps = [asyncio.create_task(stream) for stream in streams]
                watch = asyncio.create_task(self._watch(child))
                try:
                    async with asyncio.timeout(self._limit_s):
                        code = await child.wait()
                    if self._too_many:
                        await child.kill()  # the watch was interrupted by the end of the first of them
                except (TimeoutError, asyncio.CancelledError) as stop:
                    await child.kill()
                    if isinstance(stop, asyncio.CancelledError):
                        raise
                finally:
                    watch.cancel()
                    left = await self._end(child, pumps, hang_up=code is not None)
        finally:
            await asyncio.shield(asyncio.to_thread(self._close))
        return self._text(command, code, left), code == 0

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
        """Who lives on after the session hung up. Dying takes a moment."""
        for pause in (0.01, 0.05, 0.2):
            if not await child.family():
                return []
            await asyncio.sleep(pause)
        return await child.family()

    async def _watch(self, child: Child) -> None:
        """Stop a command that only makes more of itself, before the host has no room for anybody else."""
        before = await asyncio.to_thread(count_processes)
        while before:
            await asyncio.sleep(_WATCH_S)
            crowded = count_processes() - before > self._policy.max_processes
            if crowded and len(await child.family()) > self._policy.max_processes:
                self._too_many = True
                await child.kill()
                return

    def _close(self) -> None:
        self._stdout.close()
        self._stderr.close()

    def _text(self, command: str, code: int | None, left: list[Process]) -> str:
        out, err = self._stdout.text(), self._stderr.text()
        parts = [out] if out else []
        if err:
            parts.append(f"STDERR:\n{err}")
        if not parts:
            parts.append("(no output)")
        notes = [f"Exit code: {code}{_meaning(code)}"] if code is not None and not self._too_many else []
        if self._too_many:
            notes.append(
                f"Stopped: it started more than {self._policy.max_processes} processes. All of them were ended."
            )
        elif code is None:
            notes.append(
                f"Timed out after {self._limit_s:g} s: the command and its children were stopped. If it needs longer, "
                f"set timeout (at most {self._policy.max_timeout_s:g}), or start it with `nohup ... >file 2>&1 &`."
            )
        if left:
            names = ", ".join(f"{process.command} (pid {process.pid})" for process in left[:10])
            notes.append(f"Still running in the background: {names}. Its output is no longer read here.")
        asks = code != 0 and _WANTS_TERMINAL.search(f"{err[-4000:]}\n{out[-4000:]}")
        if asks or (code is None and _INTERACTIVE.search(command)):
            notes.append(_TERMINAL_ADVICE)
        return "\n\n".join(["\n".join(parts), "\n".join(notes)])


_BETWEEN = 'exec 3>&2 2>/dev/null; {limits}"$0" -c "$1" 2>&3 3>&-; exit $?'
"""A shell between us and the command's own, which keeps quiet: its parent, `$PPID`, is not the bot."""


def _shell(command: str, limits: Limits) -> list[str] | str:
    if os.name == "nt":
        return command  # the system's own shell takes it as one line
    shell = shutil.which("bash") or "/bin/sh"
    return ["/bin/sh", "-c", _BETWEEN.format(limits=limits.as_shell()), shell, command]


_KNOWN_CODES = {126: "found, but may not be run", 127: "no such command"}


def _meaning(code: int) -> str:
    """What an exit code says beyond its number."""
    number = -code if code < 0 else code - 128
    if code < 0 or 128 < code < 192:
        with suppress(ValueError):
            return f" (ended by signal {signal.Signals(number).name})"
    return f" ({_KNOWN_CODES[code]})" if code in _KNOWN_CODES else ""
