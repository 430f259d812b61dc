"""The `exec` tool: runs a shell command in a sandbox.

The guard checks the command. It then runs in a session of its own, without terminal or stdin, with a minimal
environment that has no keys. Its output is read while it runs into a bounded head and tail; the whole goes to a file. A
timeout or cancellation ends the command with all its processes.

When the shell ends, its session hangs up, which ends background processes except those started with nohup or setsid.
These go on in their sandbox, and the result names them. A later `kill` of one is carried out by this process, since no
other command can see it.
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

from nanobot.agent.tools.base import (
    Access,
    AccessKind,
    Effect,
    Tool,
    ToolContext,
    ToolResult,
    array,
    delegate_call,
    number,
    string,
    takes,
)
from nanobot.agent.tools.cron import cron_call
from nanobot.agent.tools.disk import limit_to_scope
from nanobot.agent.tools.execution import BackgroundCommands, ExecPolicy, run_command
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.spill import SPILL_FOLDER
from nanobot.agent.tools.validation import repair_arguments
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.aio import finish
from nanobot.utils.processes import child_environment

if TYPE_CHECKING:  # importing the sandbox takes 10 ms, which a turn without a command need not wait for
    from nanobot.security.file_reads import FileReadWatcher
    from nanobot.security.provenance import ProvenanceStore
    from nanobot.security.sandbox.sandbox import Sandbox, SandboxedCommand
    from nanobot.security.sandbox.view import ViewGrants
    from nanobot.security.shell.guard import Guard, GuardDecision

log = logging.getLogger(__name__)

_PRIVATE_DATA = (
    "Others read this chat, and without a sandbox (tools.exec.sandbox is none) a command can read what was said in "
    "private. It needs the owner's approval."
)
_FOR_OWNER = "It ran in the sandbox. Two marks run it without: !!command"
_NO_TERMINAL = {"TERM": "dumb", "PAGER": "cat", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0"}
"""Tells programs that nobody can answer them."""


@dataclass(frozen=True, slots=True)
class _PreparedCommand:
    """A command that is ready to run."""

    text: str
    folder: Path
    decision: "GuardDecision"
    sandboxed: bool
    grants: "ViewGrants"
    paths: PathPolicy
    """The files that the turn's audience may see."""


class ExecTool(Tool):
    """`find_tool` returns tools by name: a command may mean another one. `marks` records files that are written from
    untrusted content, and observes which such files a command reads.
    """

    name = "exec"
    description = (
        "Run a shell command without terminal or standard input. It can write in the workspace and in its own /tmp. To "
        "leave a process running, use `nohup ... >file 2>&1 &`."
    )
    parameters = takes(
        "command",
        command=string("The command line, run by bash or sh"),
        working_dir=string("Folder to run in (default: the workspace)"),
        timeout=number("Seconds until it is stopped (at most 600)"),
        needs=array(
            "Extra permissions to ask the owner for: a folder to write in, a device, a socket file, or `network`"
        ),
    )
    effect = Effect.ONCE
    derives = True

    def __init__(
        self,
        paths: PathPolicy,
        policy: ExecPolicy | None = None,
        *,
        find_tool: Callable[[str], Tool | None] = lambda name: None,
        marks: "ProvenanceStore | None" = None,
    ) -> None:
        self._marks = marks
        self._paths = paths
        self._policy = policy or ExecPolicy()
        self._find_tool = find_tool
        self.background = BackgroundCommands()
        """Processes that commands left running."""

    @cached_property
    def _sandbox(self) -> "Sandbox":
        from nanobot.security.sandbox.sandbox import Sandbox

        policy = self._policy
        return Sandbox(self._paths, policy.sandbox, network=policy.network, tmp=policy.tmp)

    @cached_property
    def _guard(self) -> "Guard":
        from nanobot.security.shell.guard import Guard

        return Guard(self._paths, self._policy.deny, self._policy.allow)

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Return the access of the command, which needs approval in any case where a wanted sandbox is missing, and of
        `needs`. A command that means another tool accesses what that tool does.
        """
        command = arguments["command"]
        _, decision, has_sandbox = await asyncio.to_thread(self._prepare, command, ".", self._paths)
        is_shared = not ctx.scope.is_owners
        if redirect := self._redirect(decision):
            tool, tool_arguments = redirect
            return await tool.required_access(tool_arguments, ctx)
        if self._sandbox.required and not has_sandbox:
            return ()  # it will not run, approved or not
        unsandboxed = not has_sandbox and (self._sandbox.wanted or is_shared)
        detail = "It runs without a sandbox on this machine." if unsandboxed else ""
        detail += " It may read what others told nanobot in private." if unsandboxed and is_shared else ""
        try:
            accesses = await self._requested_accesses(arguments.get("needs"), command)
        except PathDeniedError:
            accesses = []  # it will not run
        target = self.target(command, arguments.get("working_dir"))
        return (Access(AccessKind.COMMAND, target, needs_approval=unsandboxed, detail=detail), *accesses)

    async def execute(
        self,
        command: str,
        working_dir: str | None = None,
        timeout: float | None = None,
        needs: list[str] | None = None,
        *,
        ctx: ToolContext | None = None,
    ) -> ToolResult:
        """Run the command. On cancellation and timeout it ends with all its children within two seconds."""
        if not command.strip() or "\0" in command:
            return ToolResult.failed("The command is empty or contains a NUL character. Give a shell command.")
        from nanobot.agent.tools.permissions import refuse_missing, view_grants

        granted = ctx.granted if ctx is not None else frozenset()
        paths = limit_to_scope(self._paths, ctx)
        try:
            folder, decision, sandboxed = await asyncio.to_thread(self._prepare, command, working_dir or ".", paths)
            if decision.refusal:
                return ToolResult.failed(decision.refusal)
            if redirect := self._redirect(decision):
                tool, tool_arguments = redirect
                if problems := tool.validate_params(tool_arguments):
                    return ToolResult.failed(f"{tool.name} was not called. {' '.join(problems)}")
                return await delegate_call(tool, tool_arguments, ctx)
            if (result := self.background.handle_kill(decision.single)) is not None:
                return result
            if not sandboxed and (refusal := self._sandbox_refusal(self.target(command, working_dir), granted, ctx)):
                return ToolResult.failed(refusal)
            accesses = await self._requested_accesses(needs, command)
        except PathDeniedError as error:
            return ToolResult.failed(str(error))
        if refusal := refuse_missing(accesses, granted):
            return ToolResult.failed(refusal)
        timeout_s = min(max(timeout or self._policy.timeout_s, 0.1), self._policy.max_timeout_s)
        prepared = _PreparedCommand(command, folder, decision, sandboxed, view_grants(accesses), paths)
        return await self._run(prepared, timeout_s, ctx)

    async def _run(self, prepared: _PreparedCommand, timeout_s: float, ctx: ToolContext | None) -> ToolResult:
        from nanobot.agent.tools.permissions import find_sandbox_hints
        from nanobot.security.sandbox.sandbox import SandboxUnavailableError
        from nanobot.security.shell.programs import prints_no_content

        policy, command, sandbox = self._policy, prepared.text, self._sandbox
        fetched = [Provenance.WEB] if prepared.decision.fetches else []
        provenance = least_trusted([*fetched, *([ctx.entered] if ctx is not None else [])])
        taint = provenance if is_outside(provenance) else None
        env = command_environment(os.environ, policy)
        try:
            line, before, reading = await asyncio.to_thread(self._start, prepared, taint)
            started_ns, printed = time.time_ns(), ""
            try:
                outcome = await run_command(
                    command, line, prepared.folder, env, policy, timeout_s, self._paths.workspace, ctx, provenance
                )
                printed = "" if prints_no_content(command) or not outcome.output_tail.strip() else outcome.text
            finally:
                line.close()
                finishing = asyncio.to_thread(self._finish_reading, reading, printed, started_ns, taint, prepared)
                read_provenance = await finish(finishing)
        except SandboxUnavailableError as error:
            return ToolResult.failed(str(error))
        except StorageError as error:
            return ToolResult.failed(f"It was not run: the provenance of what it writes cannot be recorded. {error}")
        except OSError as error:
            hint = sandbox.workspace_problem if error.errno == errno.EACCES and prepared.sandboxed else ""
            if error.errno == errno.E2BIG:
                hint = "Put the text into a file with write_file first."
            return ToolResult.failed(f"The command could not be started: {error.strerror or error}. {hint}".rstrip())
        self.background.remember(outcome.survivors)
        hints = []
        if prepared.sandboxed:
            if outcome.exit_code == 1 and outcome.output_tail.startswith("bwrap: "):
                await asyncio.to_thread(sandbox.forget)
            find_hints = partial(find_sandbox_hints, network=policy.network, uses_landlock=sandbox.uses_landlock)
            hints = await asyncio.to_thread(find_hints, outcome, sandbox.tmp, before)
            if ctx is not None and not ctx.turn_id:  # the owner typed it, and reads the result
                hints = [_FOR_OWNER] if hints and outcome.exit_code else []
        trust = [*fetched, *([read_provenance] if printed and read_provenance is not None else [])]
        return ToolResult(
            "\n".join([outcome.text, *hints]),
            error=outcome.exit_code != 0,
            provenance=least_trusted(trust) if trust else None,
        )

    def _finish_reading(
        self,
        reading: "FileReadWatcher | None",
        printed: str,
        started_ns: int,
        taint: Provenance | None,
        prepared: _PreparedCommand,
    ) -> Provenance | None:
        """Return the provenance of what the command read. Marks what changed with that and `taint`, in all folders that
        a command may write in.
        """
        if self._marks is None or reading is None:
            return None
        try:
            read_provenance = reading.provenance(printed)
        except StorageError as error:
            log.warning("Cannot record the provenance of files: %s", error)
            read_provenance = Provenance.WEB
        finally:
            reading.close()
        known = [provenance for provenance in (read_provenance, taint) if provenance is not None]
        if not known:
            return None
        workspace, tmp, granted = self._paths.workspace, self._sandbox.tmp, prepared.grants.folders
        allowed = [folder for folder in (*self._paths.allowed, *granted) if not folder.is_relative_to(workspace)]
        folders = [workspace, workspace / SPILL_FOLDER, *([tmp] if tmp is not None else []), *allowed]
        try:
            self._marks.mark_changed(folders, started_ns, least_trusted(known), prepared.decision.brings_trees)
        except StorageError as error:
            log.warning("Cannot record the provenance of files: %s", error)
        return read_provenance

    def _start(
        self, prepared: _PreparedCommand, taint: Provenance | None
    ) -> "tuple[SandboxedCommand, frozenset[str], FileReadWatcher | None]":
        """Return how to start the command, what lies in its /tmp, and the observer of what it reads."""
        from nanobot.agent.tools.permissions import describe_tmp
        from nanobot.security.sandbox.sandbox import run_unsandboxed

        command, folder = prepared.text, prepared.folder
        line = command if os.name == "nt" else [shutil.which("bash") or "/bin/sh", "-c", command]
        if not prepared.sandboxed or isinstance(line, str):
            command_line, before = run_unsandboxed(line), frozenset[str]()
        else:
            command_line = self._sandbox.wrap(line, folder, prepared.grants, prepared.paths)
            before = describe_tmp(self._sandbox.tmp)
        reading = self._marks.watch_reads(command, folder, taint) if self._marks is not None else None
        return command_line, before, reading

    def _prepare(self, command: str, working_dir: str, paths: PathPolicy) -> "tuple[Path, GuardDecision, bool]":
        """Return the folder, the guard's decision, and whether the command can run in a sandbox. Raises PathDeniedError
        if commands cannot run there.
        """
        folder, sandboxed = _resolve_folder(paths, working_dir), self._sandbox.is_available
        return folder, self._guard.check(command, folder, sandboxed=sandboxed), sandboxed

    def _redirect(self, decision: "GuardDecision") -> tuple[Tool, dict[str, Any]] | None:
        """Return the other tool that a command means, with arguments."""
        arguments = cron_call(decision.single)
        tool = self._find_tool("cron") if arguments is not None else None
        if tool is None or arguments is None:
            return None
        return tool, repair_arguments(arguments, tool.parameters)

    async def _requested_accesses(self, needs: Sequence[str] | None, command: str) -> list[Access]:
        """Raises PathDeniedError for what nobody can grant."""
        from nanobot.agent.tools.permissions import requested_accesses

        if not needs:
            return []
        return await asyncio.to_thread(requested_accesses, needs, command, self._paths, network=self._policy.network)

    def refusal_on_terminal(self, command: str, folder: str) -> str:
        """Return why a command may not run on a person's terminal, which a sandbox would cut off; empty if it may."""
        if self._sandbox.required:
            return "tools.exec.sandbox is bwrap, and on the terminal a program runs without a sandbox."
        return self._guard.check(command, Path(folder), sandboxed=False).refusal

    async def run_for_owner(self, tools: ToolRegistry, command: str, folder: str, ctx: ToolContext) -> ToolResult:
        """Run a command that the owner typed, which needs no approval, in this folder if tools may read it."""
        try:
            await asyncio.to_thread(_resolve_folder, self._paths, folder)
        except PathDeniedError:
            folder = "."
        granted = frozenset({Access(AccessKind.COMMAND, self.target(command, folder)).rule})
        return await tools.call(self.name, {"command": command, "working_dir": folder}, replace(ctx, granted=granted))

    def target(self, command: str, working_dir: str | None) -> str:
        """Return what is approved: the command, and its folder unless that is the workspace."""
        workspace = os.path.normpath(self._paths.workspace)
        folder = os.path.normpath(self._paths.workspace / (working_dir or "."))
        return command if folder == workspace else f"{command} (in {folder})"

    def _sandbox_refusal(self, target: str, granted: frozenset[str], ctx: ToolContext | None) -> str:
        """Return why a command may not run without a sandbox; empty if it may."""
        is_shared = ctx is not None and not ctx.scope.is_owners
        if not self._sandbox.wanted and not is_shared:
            return ""
        if not self._sandbox.required and Access(AccessKind.COMMAND, target).rule in granted:
            return ""
        return self._sandbox.advice if self._sandbox.wanted else _PRIVATE_DATA


async def run_for_owner(tools: ToolRegistry, command: str, folder: str, ctx: ToolContext) -> ToolResult:
    """Run a command that the owner typed. A failure is a result too."""
    tool = tools.get("exec")
    if isinstance(tool, ExecTool):
        return await tool.run_for_owner(tools, command, folder, ctx)
    return await tools.call("exec", {"command": command}, ctx)


def check_for_terminal(tools: ToolRegistry, command: str, folder: str) -> str:
    """Return why a command that the owner typed may not run on their terminal; empty if it may."""
    tool = tools.get("exec")
    return tool.refusal_on_terminal(command, folder) if isinstance(tool, ExecTool) else ""


def command_environment(inherited: Mapping[str, str], policy: ExecPolicy) -> dict[str, str]:
    """Return a command's environment: what programs need to run, and what the owner allowed."""
    allowed = {name.upper() for name in policy.allowed_env_keys}
    passed = child_environment(inherited, allowed)
    if policy.path_prepend or policy.path_append:
        path = (policy.path_prepend, passed.get("PATH", os.defpath), policy.path_append)
        passed["PATH"] = os.pathsep.join(filter(None, path))
    return {**passed, **{name: value for name, value in _NO_TERMINAL.items() if name.upper() not in allowed}}


def _resolve_folder(paths: PathPolicy, working_dir: str) -> Path:
    """Raises PathDeniedError if commands cannot run there. Blocking."""
    try:
        folder = paths.resolve_readable(working_dir)
        if folder.is_dir():
            return folder
    except OSError as error:
        problem = f"The working_dir {working_dir} cannot be entered: {error.strerror or error}."
        raise PathDeniedError(problem) from error
    raise PathDeniedError(f"The working_dir {working_dir} is not a folder that exists.")
