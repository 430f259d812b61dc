"""exec: a shell command, with everything a command may do to its caller kept from it.

It is read by the guard, then runs behind the walls of this machine, in a session of its own, with no terminal and
nothing on its stdin; of our environment it gets what it needs and no keys. Its output is read while it runs into a
bounded head and tail, the whole goes to a file. When its time is up, or the turn is stopped, it goes with its whole
family.

When the shell ends, its session hangs up, as when a terminal is closed: what it left in the background ends, except
for what was started with nohup or setsid. That goes on, behind its wall, and is named in the result; a later `kill` of
a process so named is carried out from here, since no other command can see it.
"""

import asyncio
import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.background import Background
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, passed_on
from nanobot.agent.tools.cron_command import cron_call
from nanobot.agent.tools.disk import within
from nanobot.agent.tools.execution import Bounds, Execution
from nanobot.agent.tools.origins import MarkChanged, NothingRead, Reading, WatchReading, nothing_marked
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import array, number, string, takes
from nanobot.agent.tools.spill import SPILL_CAP, SPILL_FOLDER
from nanobot.agent.tools.watch import Most
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.environment import needed_of
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.aio import finish

if TYPE_CHECKING:  # the walls take 10 ms to import, which a turn without a command need not wait for
    from nanobot.agent.tools.needs import Needs
    from nanobot.security.sandbox.walls import Behind, Walls, Wish
    from nanobot.security.shell.guard import Guard, Judgement

log = logging.getLogger(__name__)

_NOT_APART = (
    "Others read what is said in this chat, and no wall (tools.exec.sandbox is none) keeps a command from what was "
    "told in private. It needs the owner's yes."
)
_NO_TERMINAL = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""Programs that look here know that nobody can answer them."""


@dataclass(frozen=True, slots=True)
class ExecPolicy:
    """How commands run. `path_append` goes behind PATH; `allowed_env_keys` are passed on from our environment.

    `sandbox`: `auto` walls commands off where the machine can and asks the owner about each where it cannot, `bwrap`
    refuses to run without, `none` does without. `cache` and `tmp` are as in `Walls`, `deny` and `allow` as in `Guard`.
    """

    timeout_s: float = 60.0
    max_timeout_s: float = 600.0
    path_append: str = ""
    allowed_env_keys: tuple[str, ...] = ()
    max_processes: int = 512
    """A command that has more processes than this is stopped (where they can be counted: Linux)."""
    max_memory: int = 0
    """The same of the bytes that all of them hold together; 0: as much as one of them may have."""
    disk_left: int = 256 * 1024 * 1024
    """The same where it leaves less than these bytes on the disk of the workspace."""
    spill_cap: int = SPILL_CAP
    sandbox: "Wish" = "auto"
    network: bool = True
    cache: Path | None = None
    tmp: Path | None = None
    deny: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Considered:
    """A command before it runs: where it would, what the guard says, what it needs, whether there is a wall."""

    folder: Path
    judgement: "Judgement"
    wants: "Needs"
    walled: bool
    paths: PathPolicy
    """What may be seen of the disk by whom the turn answers."""


class ExecTool(Tool):
    """A shell command. `find_tool` gives other tools by name: a command may mean one of them. `mark_changed` is told of
    what a command wrote that holds words from outside, `watch_reading` sees which such files it reads."""

    name = "exec"
    description = (
        "Run a shell command, without terminal or input. It writes in the workspace and its own /tmp. What must "
        "outlive it: `nohup ... >file 2>&1 &`."
    )
    parameters = takes(
        "command",
        command=string(),
        working_dir=string("Default: the workspace"),
        timeout=number("Seconds, at most 600"),
        needs=array("Asks the owner for a folder to write, a device, a socket, `network`"),
    )
    effect = Effect.ONCE
    derives = True

    def __init__(
        self,
        paths: PathPolicy,
        policy: ExecPolicy | None = None,
        *,
        find_tool: Callable[[str], Tool | None] = lambda name: None,
        mark_changed: MarkChanged = nothing_marked,
        watch_reading: WatchReading = NothingRead,
    ) -> None:
        self._mark_changed = mark_changed
        self._watch_reading = watch_reading
        self._paths = paths
        self._policy = policy or ExecPolicy()
        self._find_tool = find_tool
        self._background = Background()

    @cached_property
    def _walls(self) -> "Walls":
        from nanobot.security.sandbox.walls import Walls

        policy = self._policy
        return Walls(self._paths, policy.sandbox, network=policy.network, cache=policy.cache, tmp=policy.tmp)

    @cached_property
    def _guard(self) -> "Guard":
        from nanobot.security.shell.guard import Guard

        return Guard(self._paths, self._policy.deny, self._policy.allow)

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """The command itself, which the owner is always asked about where no wall stands that he wants; and its needs.

        A command that means another tool reaches for what that one does.
        """
        command = arguments["command"]
        plain, stands = await asyncio.to_thread(self._judged, command, self._paths.workspace)
        told_apart = not ctx.scope.is_owners
        if meant := self._meant(plain):
            tool, wanted = meant
            return await tool.reaches(wanted, ctx)
        if self._walls.required and not stands:
            return ()  # no yes would make it run
        unwalled = not stands and (self._walls.wanted or told_apart)
        detail = "Nothing walls it off on this machine." if unwalled else ""
        detail += " It may read what others told nanobot in private." if unwalled and told_apart else ""
        needs = await asyncio.to_thread(self._needs, arguments.get("needs"), command)
        target = self._target(command, arguments.get("working_dir"))
        return (Reach(ReachKind.COMMAND, target, beyond=unwalled, detail=detail), *needs.reaches)

    async def execute(
        self,
        command: str,
        working_dir: str | None = None,
        timeout: float | None = None,
        needs: list[str] | None = None,
        *,
        ctx: ToolContext | None = None,
    ) -> ToolResult:
        """Run it. On a cancel and at its time limit the command and all its children are gone within two seconds."""
        if not command.strip() or "\0" in command:
            return ToolResult.failed("The command is empty or contains a NUL character. Give a shell command.")
        try:
            paths = within(self._paths, ctx)
            considered = await asyncio.to_thread(self._considered, command, working_dir or ".", needs, paths)
        except PathDeniedError as error:
            return ToolResult.failed(str(error))
        judgement, walled, wants = considered.judgement, considered.walled, considered.wants
        if judgement.refusal:
            return ToolResult.failed(judgement.refusal)
        if meant := self._meant(judgement):
            tool, wanted = meant
            if problems := tool.validate_params(wanted):
                return ToolResult.failed(f"{tool.name} was not called. {' '.join(problems)}")
            return await passed_on(tool, wanted, ctx)
        if (done := self._background.ended_by(judgement.single)) is not None:
            return done
        granted = ctx.granted if ctx is not None else frozenset()
        if not walled and (refusal := self._refusal(self._target(command, working_dir), granted, ctx)):
            return ToolResult.failed(refusal)
        if refusal := wants.refusal(granted):
            return ToolResult.failed(refusal)
        limit = min(max(timeout or self._policy.timeout_s, 0.1), self._policy.max_timeout_s)
        return await self._run(command, limit, considered, ctx)

    async def _run(self, command: str, limit: float, considered: "_Considered", ctx: ToolContext | None) -> ToolResult:
        from nanobot.agent.tools.needs import advice_for
        from nanobot.security.sandbox.limits import Limits
        from nanobot.security.sandbox.walls import NoWallError
        from nanobot.security.shell.runs import tells_no_words

        policy, judgement, walled = self._policy, considered.judgement, considered.walled
        most = Most(policy.max_processes, policy.max_memory or Limits().memory, policy.disk_left)
        bounds = Bounds(limit, policy.max_timeout_s, most, policy.spill_cap)
        fetched = Provenance.WEB if judgement.fetches else None
        words = least_trusted([one for one in (fetched, ctx and ctx.entered) if one])
        execution = Execution(bounds, self._paths.workspace, ctx, words)
        env = environment(os.environ, policy)
        try:
            brought = words if judgement.fetches or (ctx is not None and is_outside(ctx.entered)) else None
            behind, before, reading = await asyncio.to_thread(self._ready, command, considered, brought)
            began, printed = time.time_ns(), ""
            try:
                outcome = await execution.outcome(command, behind, considered.folder, env)
                printed = "" if tells_no_words(command) or not outcome.said.strip() else outcome.text
            finally:
                behind.close()
                granted = considered.wants.grants.folders
                read = await finish(asyncio.to_thread(self._settled, reading, printed, began, brought, granted))
        except NoWallError as error:
            return ToolResult.failed(str(error))
        except StorageError as error:
            return ToolResult.failed(f"It was not run: nobody could tell later whose words it writes. {error}")
        except OSError as error:
            return ToolResult.failed(self._why_not_started(error, walled=walled))
        if walled and outcome.code == 1 and outcome.said.startswith("bwrap: "):
            await asyncio.to_thread(self._walls.forget)
        self._background.remember(outcome.left)
        advice = []
        if walled:
            walls = self._walls
            look = partial(advice_for, network=policy.network, fenced=walls.fenced)
            advice = await asyncio.to_thread(look, outcome, command, walls.tmp, before)
        told = [one for one in (fetched, read if printed else None) if one is not None]
        return ToolResult(
            "\n".join([outcome.text, *advice]),
            error=outcome.code != 0,
            provenance=least_trusted(told) if told else None,
        )

    def _why_not_started(self, error: OSError, *, walled: bool) -> str:
        hint = ""
        if error.errno == errno.E2BIG:
            hint = "Put the text into a file with write_file first."
        elif error.errno == errno.EACCES and walled:
            hint = self._walls.why_closed
        return f"The command could not be started: {error.strerror or error}. {hint}".rstrip()

    def _settled(
        self, reading: Reading, printed: str, began: int, brought: Provenance | None, granted: Sequence[Path]
    ) -> Provenance | None:
        """Whose words a command has read. What it changed is trusted as little as those, and as what it brought."""
        try:
            read = reading.words(printed)
        except StorageError as error:
            log.warning("Where the words of files come from cannot be kept: %s", error)
            read = Provenance.WEB
        finally:
            reading.close()
        words = [one for one in (read, brought) if one is not None]
        if words:
            self._mark(began, least_trusted(words), granted)
        return read

    def _mark(self, began: int, words: Provenance, granted: Sequence[Path]) -> None:
        """What was changed wherever a command may write."""
        home, tmp = self._paths.workspace, self._walls.tmp
        allowed = [place for place in (*self._paths.allowed, *granted) if not place.is_relative_to(home)]
        try:
            self._mark_changed([home, home / SPILL_FOLDER, *([tmp] if tmp is not None else []), *allowed], began, words)
        except StorageError as error:
            log.warning("Where the words of files come from cannot be kept: %s", error)

    def _considered(self, command: str, asked: str, needs: Sequence[str] | None, paths: PathPolicy) -> "_Considered":
        """All that is to be known before it runs. Raises PathDeniedError where it cannot run in that folder."""
        try:
            folder = paths.readable(asked)
            if not folder.is_dir():
                raise PathDeniedError(f"The working_dir {asked} is not a folder that exists.")
        except OSError as error:
            problem = f"The working_dir {asked} cannot be entered: {error.strerror or error}."
            raise PathDeniedError(problem) from error
        judgement, walled = self._judged(command, folder)
        return _Considered(folder, judgement, self._needs(needs, command), walled, paths)

    def _ready(
        self, command: str, considered: "_Considered", brought: Provenance | None
    ) -> "tuple[Behind, frozenset[str], Reading]":
        """How it is started, what lies in its /tmp before, and who sees what it reads."""
        from nanobot.agent.tools.needs import told_tmp
        from nanobot.security.sandbox.walls import unwalled

        line, folder = _shell(command), considered.folder
        if not considered.walled or isinstance(line, str):
            return unwalled(line), frozenset(), self._watch_reading(command, folder, brought)
        behind = self._walls.behind(line, folder, considered.wants.grants, considered.paths)
        return behind, told_tmp(self._walls.tmp), self._watch_reading(command, folder, brought)

    def _judged(self, command: str, folder: Path) -> "tuple[Judgement, bool]":
        walled = self._walls.stand
        return self._guard.judge(command, folder, walled=walled), walled

    def _meant(self, judgement: "Judgement") -> tuple[Tool, dict[str, Any]] | None:
        """The other tool that a command means, and with which arguments."""
        wanted = cron_call(judgement.single)
        tool = self._find_tool("cron") if wanted is not None else None
        return (tool, wanted) if tool is not None and wanted is not None else None

    def _needs(self, asked: Sequence[str] | None, command: str) -> "Needs":
        from nanobot.agent.tools.needs import Needs

        return Needs.of(asked or (), command, self._paths, network=self._policy.network)

    def _target(self, command: str, working_dir: str | None) -> str:
        """What a yes is given to: the command, and where it runs unless that is the workspace."""
        home = self._paths.workspace
        folder = os.path.normpath(home / (working_dir or "."))
        return command if folder == os.path.normpath(home) else f"{command} (in {folder})"

    def _refusal(self, target: str, granted: frozenset[str], ctx: ToolContext | None) -> str:
        """Why a command may not run without a wall; nothing where it may."""
        told_apart = ctx is not None and not ctx.scope.is_owners
        if not self._walls.wanted and not told_apart:
            return ""
        if not self._walls.required and Reach(ReachKind.COMMAND, target).rule in granted:
            return ""
        return self._walls.advice if self._walls.wanted else _NOT_APART


def typed_by_owner(command: str, ctx: ToolContext) -> ToolContext:
    """The context of a command that the owner typed: about running it they need not be asked."""
    return replace(ctx, granted=frozenset({Reach(ReachKind.COMMAND, command).rule}))


def environment(ours: Mapping[str, str], policy: ExecPolicy) -> dict[str, str]:
    """What a command may know of our environment: what programs need to run, and what the owner allowed."""
    allowed = {name.upper() for name in policy.allowed_env_keys}
    passed = needed_of(ours, allowed)
    if policy.path_append:
        passed["PATH"] = os.pathsep.join(filter(None, (passed.get("PATH", os.defpath), policy.path_append)))
    return {**passed, **{name: value for name, value in _NO_TERMINAL.items() if name.upper() not in allowed}}


def _shell(command: str) -> list[str] | str:
    if os.name == "nt":
        return command  # the system's own shell takes it as one line
    return [shutil.which("bash") or "/bin/sh", "-c", command]
