"""The guard as a whole: what the owner's patterns say, then what the line itself says."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from nanobot.security.paths import PathPolicy
from nanobot.security.shell.danger import Ground, danger_of, hidden_in
from nanobot.security.shell.fetches import fetches, script_fetches
from nanobot.security.shell.words import Command, Line, read_line
from nanobot.security.shell.wrappers import unwrapped


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the guard says of a command line. `refusal` is for the model: why not, and what instead."""

    refusal: str = ""
    fetches: bool = False
    """Whether what it prints and writes may be words from outside."""
    single: tuple[str, ...] = ()
    """The words of the one program that the line runs, where it is one and nothing else."""


class Guard:
    """The courtesy of one bot. `deny` and `allow` are the owner's patterns: deny wins; with `allow`, every program of a
    line must match one, whole.
    """

    def __init__(self, paths: PathPolicy, deny: Sequence[str] = (), allow: Sequence[str] = ()) -> None:
        self._paths = paths
        self._deny = [re.compile(pattern) for pattern in deny]
        self._allow = [re.compile(pattern) for pattern in allow]

    def judge(self, text: str, folder: Path, *, walled: bool) -> Judgement:
        """Read a line that is to run in `folder`. Never raises; a line of 200 kB takes a second, a usual one 0.1 ms."""
        ground = replace(self._ground, folder=folder)
        line = read_line(text, {"HOME": str(ground.home), "PWD": str(folder)})
        commands = list(unwrapped(line))
        refusal = self._by_patterns(text, line, commands) or self._by_rules(commands, ground, walled=walled)
        one = line.commands[0] if len(line.commands) == 1 and line.whole else None
        plain = one is not None and not one.redirects and not one.background
        return Judgement(
            refusal,
            any(fetches(command) or script_fetches(command, folder) for command in commands),
            one.argv if one is not None and plain else (),
        )

    @cached_property
    def _ground(self) -> Ground:
        paths = self._paths
        real = [Path(place).expanduser().resolve() for place in paths.never_written]
        hidden = [Path(place).expanduser().resolve() for place in paths.unreadable]
        workspace = paths.workspace.resolve()
        return Ground(workspace, workspace, Path.home().resolve(), tuple(real), tuple(hidden))

    def _by_patterns(self, text: str, line: Line, commands: list[Command]) -> str:
        written = [text, *(" ".join(command.argv) for command in commands), *(command.text for command in commands)]
        for pattern in self._deny:
            if any(pattern.search(one) for one in written):
                return (
                    f"The owner forbids commands like this one (tools.exec.denyPatterns: {pattern.pattern}). "
                    "Find another way, or ask the owner."
                )
        if not self._allow:
            return ""
        foreign = next((command for command in line.commands if not self._is_allowed(command)), None)
        if foreign is None and line.commands and line.whole and not line.sets:
            return ""
        what = _shown(foreign) if foreign is not None else _what_else(line)
        return (
            f"The owner allows only certain commands (tools.exec.allowPatterns), and {what} is none of them. "
            f"Allowed: {', '.join(pattern.pattern for pattern in self._allow)}."
        )

    def _is_allowed(self, command: Command) -> bool:
        """What it writes by `>` is no part of what was allowed."""
        if _written_by(command):
            return False
        said = " ".join(command.argv)
        return any(pattern.fullmatch(said) for pattern in self._allow)

    def _by_rules(self, commands: list[Command], ground: Ground, *, walled: bool) -> str:
        for command in commands:
            if command.name == "cd" and len(command.argv) > 1 and (there := ground.place(command.argv[1])):
                ground = replace(ground, folder=there)
            reason = danger_of(command, ground)
            if reason is None and not walled:
                reason = hidden_in(command, ground)
            if reason is not None:
                return f"This command was not run: {reason}"
        return ""


def _written_by(command: Command) -> list[str]:
    return [one.target for one in command.redirects if one.writes and one.target != "/dev/null"]


def _shown(command: Command) -> str:
    """A program that no pattern allows. One that writes is none that a pattern could allow."""
    written = _written_by(command)
    said = f"`{' '.join(command.argv)[:80]}`"
    return f"{said}, which writes to {written[0][:80]} by `>`," if written else said


def _what_else(line: Line) -> str:
    return "a line that sets variables" if line.sets and line.whole else "a line that cannot be taken apart"
