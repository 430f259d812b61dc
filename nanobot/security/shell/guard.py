"""The command guard: the owner's patterns first, then the rules for dangerous commands."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from nanobot.security.files.paths import PathPolicy
from nanobot.security.shell.fetches import fetches, script_fetches, unpacks
from nanobot.security.shell.parse import UNREAD, ParsedCommand, ParsedLine, read_line
from nanobot.security.shell.rules import ShellContext, find_danger, find_hidden_path
from nanobot.security.shell.wrappers import expand_wrappers


@dataclass(frozen=True, slots=True)
class GuardDecision:
    """What the guard decided on a command line. `refusal` is for the model: why not, and what to do instead."""

    refusal: str = ""
    fetches: bool = False
    """Whether its output and files may be untrusted content."""
    brings_trees: bool = False
    """Whether it may bring foreign folder trees: it fetches or unpacks."""
    single: tuple[str, ...] = ()
    """The words of the line's program, if it runs exactly one and nothing else."""


class Guard:
    """Checks command lines. `deny` and `allow` are the owner's patterns: deny wins; with `allow`, every program of a
    line must match one completely.
    """

    def __init__(self, paths: PathPolicy, deny: Sequence[str] = (), allow: Sequence[str] = ()) -> None:
        self._paths = paths
        self._deny = [re.compile(pattern) for pattern in deny]
        self._allow = [re.compile(pattern) for pattern in allow]

    def check(self, text: str, folder: Path, *, walled: bool) -> GuardDecision:
        """Check a line that is to run in `folder`. Never raises. Takes 0.1 ms usually, a second for 200 kB."""
        context = replace(self._context, folder=folder)
        line = read_line(text, {"HOME": str(context.home), "PWD": str(folder)})
        commands = list(expand_wrappers(line))
        if commands and commands[-1] is UNREAD:
            return GuardDecision(_TOO_COMPLEX)
        refusal = self._by_patterns(text, line, commands) or self._by_rules(commands, context, walled=walled)
        only = line.commands[0] if len(line.commands) == 1 and line.whole else None
        is_single = only is not None and not only.redirects and not only.background
        is_fetching = any(map(fetches, commands))
        return GuardDecision(
            refusal,
            is_fetching or any(script_fetches(command, folder) for command in commands),
            is_fetching or any(map(unpacks, commands)),
            only.argv if only is not None and is_single else (),
        )

    @cached_property
    def _context(self) -> ShellContext:
        paths = self._paths
        protected = [Path(path).expanduser().resolve() for path in paths.never_written]
        hidden = [Path(path).expanduser().resolve() for path in paths.unreadable]
        workspace = paths.workspace.resolve()
        return ShellContext(workspace, workspace, Path.home().resolve(), tuple(protected), tuple(hidden))

    def _by_patterns(self, text: str, line: ParsedLine, commands: list[ParsedCommand]) -> str:
        texts = [text, *(" ".join(command.argv) for command in commands), *(command.text for command in commands)]
        for pattern in self._deny:
            if any(pattern.search(candidate) for candidate in texts):
                return (
                    f"The owner forbids commands like this one (tools.exec.denyPatterns: {pattern.pattern}). "
                    "Find another way, or ask the owner."
                )
        if not self._allow:
            return ""
        refused = next((command for command in line.commands if not self._is_allowed(command)), None)
        if refused is None and line.commands and line.whole and not line.sets:
            return ""
        what = _describe(refused) if refused is not None else _describe_line(line)
        return (
            f"The owner allows only certain commands (tools.exec.allowPatterns), and {what} is none of them. "
            f"Allowed: {', '.join(pattern.pattern for pattern in self._allow)}."
        )

    def _is_allowed(self, command: ParsedCommand) -> bool:
        """A redirection to a file is never allowed by a pattern."""
        if _redirected_to(command):
            return False
        words = " ".join(command.argv)
        return any(pattern.fullmatch(words) for pattern in self._allow)

    def _by_rules(self, commands: list[ParsedCommand], context: ShellContext, *, walled: bool) -> str:
        for command in commands:
            if command.name == "cd" and len(command.argv) > 1 and (folder := context.resolve(command.argv[1])):
                context = replace(context, folder=folder)
            reason = find_danger(command, context)
            if reason is None and not walled:
                reason = find_hidden_path(command, context)
            if reason is not None:
                return f"This command was not run: {reason}"
        return ""


_TOO_COMPLEX = (
    "This command was not run: it is too long, has too many commands or nests them too deeply to be checked. Write it "
    "into a script with write_file, and run that."
)


def _redirected_to(command: ParsedCommand) -> list[str]:
    return [redirect.target for redirect in command.redirects if redirect.writes and redirect.target != "/dev/null"]


def _describe(command: ParsedCommand) -> str:
    targets = _redirected_to(command)
    words = f"`{' '.join(command.argv)[:80]}`"
    return f"{words}, which writes to {targets[0][:80]} by `>`," if targets else words


def _describe_line(line: ParsedLine) -> str:
    return "a line that sets variables" if line.sets and line.whole else "a line that cannot be parsed"
