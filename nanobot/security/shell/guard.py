"""The command guard: the owner's patterns first, then the rules for dangerous commands.

Some commands that the sandbox makes harmless are refused too: those that would destroy the workspace, and those where a
plain refusal explains more than an error of the sandbox.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from nanobot.security.files.paths import PathPolicy
from nanobot.security.shell.commands import SHELLS, UNREAD, Command, CommandLine, read_line
from nanobot.security.shell.programs import fetches, script_fetches, unpacks, written_words

_DEVICE = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|dm-|md|loop|mapper/|ram|mem\b|kmem\b|port\b)")
_FETCHERS = frozenset(
    {"curl", "wget", "fetch", "aria2c", "http", "https", "lynx", "w3m", "nc", "ncat", "netcat", "ftp"}
)
_DECODERS = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"})
_INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php", "lua", "osascript", "source", "."}
_FORMATTERS = frozenset({
    "mkfs", "mkswap", "mke2fs", "wipefs", "fdisk", "sfdisk", "parted", "blkdiscard", "diskutil", "cryptsetup", "hdparm",
    "format", "diskpart",
})  # fmt: skip
_POWER_UNITS = frozenset({"poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "rescue", "emergency"})
_STOPS = "it stops or restarts the machine. Ask the owner to do that."
_BE_SPECIFIC = "Name the very files or folders inside the workspace instead."


@dataclass(frozen=True, slots=True)
class _Context:
    """Where a command runs: its folder, the user's home, and the paths that commands do not write or read."""

    workspace: Path
    folder: Path
    home: Path
    protected: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    def resolve(self, word: str) -> Path | None:
        """The real path of a word, if it is a path with a known beginning."""
        word = word.removeprefix("file://")
        if word.startswith(("$(", "`", "-")) or not word:
            return None
        for name, value in {"HOME": self.home, "PWD": self.folder}.items():
            word = word.replace(f"${{{name}}}", str(value)).replace(f"${name}", str(value))
        if word == "~" or word.startswith("~/"):
            word = str(self.home) + word[1:]
        try:
            return Path(os.path.realpath(self.folder / word))
        except (OSError, ValueError):
            return None

    def is_within(self, word: str, places: tuple[Path, ...]) -> bool:
        """Whether a word names one of these paths or something inside."""
        path = self.resolve(word)
        return path is not None and any(path == place or place in path.parents for place in places)

    def covers_everything(self, word: str) -> bool:
        """Whether a word names a whole disk, home or workspace, or everything inside one."""
        stripped = re.sub(r"(?:/\.?|/?(?:\*|\.\*|\.\[!\.\]\*|\{\*,\.\*\}|\.\?\*))+$", "", word) if word != "/" else word
        if stripped != word and not stripped:
            stripped = "/" if word.startswith("/") else "."
        path = self.resolve(stripped or "/")
        if path is None:
            return False
        return any(path == whole or path in whole.parents for whole in (self.workspace, self.home)) or (
            len(path.parts) == 2 and path.is_absolute() and path.parts[1] in _TOPS
        )


_TOPS = frozenset({
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "srv", "sys", "usr",
    "var", "System", "Users", "Library",
})  # fmt: skip


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

    def check(self, text: str, folder: Path, *, sandboxed: bool) -> GuardDecision:
        """Check a line that is to run in `folder`. Never raises. Takes 0.1 ms usually, a second for 200 kB."""
        context = replace(self._context, folder=folder)
        line = read_line(text, {"HOME": str(context.home), "PWD": str(folder)})
        commands = line.programs
        if commands[-1:] == [UNREAD]:
            return GuardDecision(_TOO_COMPLEX)
        refusal = self._by_patterns(text, line, commands) or self._by_rules(commands, context, sandboxed=sandboxed)
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
    def _context(self) -> _Context:
        paths = self._paths
        protected = [Path(path).expanduser().resolve() for path in paths.never_written]
        hidden = [Path(path).expanduser().resolve() for path in paths.unreadable]
        workspace = paths.workspace.resolve()
        return _Context(workspace, workspace, Path.home().resolve(), tuple(protected), tuple(hidden))

    def _by_patterns(self, text: str, line: CommandLine, commands: list[Command]) -> str:
        texts = [text, *(" ".join(command.argv) for command in commands)]
        for pattern in self._deny:
            if any(pattern.search(candidate) for candidate in texts):
                return (
                    f"The owner forbids commands like this one (tools.exec.denyPatterns: {pattern.pattern}). "
                    "Find another way, or ask the owner."
                )
        if not self._allow:
            return ""
        refused = next((command for command in line.commands if not self._is_allowed(command)), None)
        if refused is not None:
            what = f"`{' '.join(refused.argv)[:80]}`"
            if targets := _files_redirected_to(refused):
                what += f", which writes to {targets[0][:80]} by `>`,"
        elif line.sets and line.whole:
            what = "a line that sets variables"
        elif not line.whole or not line.commands:
            what = "a line that cannot be parsed"
        else:
            return ""
        return (
            f"The owner allows only certain commands (tools.exec.allowPatterns), and {what} is none of them. "
            f"Allowed: {', '.join(pattern.pattern for pattern in self._allow)}."
        )

    def _is_allowed(self, command: Command) -> bool:
        """A redirection to a file is never allowed by a pattern."""
        words = " ".join(command.argv)
        return not _files_redirected_to(command) and any(pattern.fullmatch(words) for pattern in self._allow)

    def _by_rules(self, commands: list[Command], context: _Context, *, sandboxed: bool) -> str:
        for command in commands:
            if command.name == "cd" and len(command.argv) > 1 and (folder := context.resolve(command.argv[1])):
                context = replace(context, folder=folder)
            reason = _find_danger(command, context)
            if reason is None and not sandboxed:
                reason = _find_hidden_path(command, context)
            if reason is not None:
                return f"This command was not run: {reason}"
        return ""


_TOO_COMPLEX = (
    "This command was not run: it is too long, has too many commands or nests them too deeply to be checked. Write it "
    "into a script with write_file, and run that."
)


def _files_redirected_to(command: Command) -> list[str]:
    return [redirect.target for redirect in command.redirects if redirect.writes and redirect.target != "/dev/null"]


def _find_danger(command: Command, context: _Context) -> str | None:
    """Why this command should not run; None if nothing forbids it."""
    argv, words, covers_everything = command.argv, command.operands, context.covers_everything
    short = "".join(word[1:] for word in argv[1:] if re.match(r"-(?!-)", word))
    long = " ".join(word for word in argv[1:] if word.startswith("--"))
    is_recursive = "R" in short or "--recursive" in long
    match command.name.lower():
        case "rm" if "--no-preserve-root" in long:
            return f"it would remove the root of the disk. {_BE_SPECIFIC}"
        case "rm" if (is_recursive or "r" in short) and any(map(covers_everything, words)):
            return f"it removes a whole disk, home, system folder or workspace. {_BE_SPECIFIC}"
        case "chmod" | "chown" | "chgrp" | "setfacl" | "chattr" if is_recursive and any(
            map(covers_everything, words[1:])
        ):
            return f"it changes the rights or owners of a whole disk, home or system folder. {_BE_SPECIFIC}"
        case "mv" if any(map(covers_everything, words[:-1])):
            return f"it moves a whole home, system folder or workspace away. {_BE_SPECIFIC}"
        case "git" if words[:1] == ["clean"] and "x" in short + long and context.folder == context.workspace:
            return f"it removes everything in the workspace that git does not know. {_BE_SPECIFIC}"
        case name if name.startswith("mkfs.") or name in _FORMATTERS:
            return "it makes a new file system, which destroys what is on the disk. Ask the owner to do that."
        case "reboot" | "halt" | "poweroff" if {"--help", "--version", "-h"}.isdisjoint(argv):
            return _STOPS
        case "shutdown":
            return _STOPS
        case "systemctl" if not _POWER_UNITS.isdisjoint(words):
            return _STOPS
        case "init" | "telinit" if words[:1] in (["0"], ["6"]):
            return _STOPS
        case "kill" if argv[-1] in ("-1", "1") and len(argv) > 2:
            return "it ends every process that it may. Name the process that you started."
        case "crontab" if "r" in short:
            return "it removes all jobs of this user. Ask the owner to do that."
        case "insmod" | "rmmod" | "modprobe":
            return "it changes the kernel. Ask the owner to do that."
    if command.inside and command.name == command.inside and (command.background or command.fed_by):
        return "it starts more and more copies of itself until the machine stands still. Write a loop with an end."
    return _runs_unread(command) or _writes_protected(command, context)


def _runs_unread(command: Command) -> str | None:
    """Refuse to run downloaded or encoded programs that nobody has read."""
    if command.name not in _INTERPRETERS and command.name != "eval":
        return None
    before = [feeder.name for feeder in command.fed_by]
    takes_input = command.name in _INTERPRETERS and not any(
        word and not word.startswith("-") for word in command.argv[1:] if word not in ("-s", "-")
    )
    sources = {inner.name for inner in command.substituted} | (set(before) if takes_input else set())
    if sources & _FETCHERS:
        return "it runs what it downloads, unread. Download it to a file, read it, then run the file."
    if takes_input and before and before[-1] in _DECODERS:
        return "it runs an encoded program. Write the program out in plain text."
    return None


def _writes_protected(command: Command, context: _Context) -> str | None:
    for word in written_words(command):
        if _DEVICE.match(word):
            return "it writes to a disk as a whole. Write to a file instead."
        if context.is_within(word, context.protected):
            return (
                f"it writes to {word}, which belongs to nanobot's own state or is protected by the owner. Use the tool "
                "made for it, or tell the owner which change is needed."
            )
    return None


def _find_hidden_path(command: Command, context: _Context) -> str | None:
    """Refuse a command that names a credential path, for machines without a sandbox that hides it."""
    for word in (*command.argv[1:], *(redirect.target for redirect in command.redirects if redirect.operator != "<<<")):
        for part in {word, word.partition("=")[2], word.removeprefix("@")}:
            if "\n" not in part and context.is_within(part, context.hidden):
                return f"{word} holds secrets that commands may not touch. Ask the owner for what you need."
    return None
