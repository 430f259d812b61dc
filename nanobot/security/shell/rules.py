"""What the command guard refuses: a rule for each program, with the reason and what to do instead.

Some commands that the sandbox makes harmless are refused too: those that would destroy the workspace, and those where a
plain refusal explains more than an error of the sandbox.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nanobot.security.shell.parse import ParsedCommand
from nanobot.security.shell.wrappers import SHELLS

Rule = Callable[[ParsedCommand, "ShellContext"], str | None]

_DEVICE = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|dm-|md|loop|mapper/|ram|mem\b|kmem\b|port\b)")
_FETCHERS = frozenset(
    {"curl", "wget", "fetch", "aria2c", "http", "https", "lynx", "w3m", "nc", "ncat", "netcat", "ftp"}
)
_DECODERS = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"})
_INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php", "lua", "osascript", "source", "."}
_STOPS = "it stops or restarts the machine. Ask the owner to do that."
_BE_SPECIFIC = "Name the very files or folders inside the workspace instead."


@dataclass(frozen=True, slots=True)
class ShellContext:
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
        for name, value in (
            ("${HOME}", self.home),
            ("$HOME", self.home),
            ("${PWD}", self.folder),
            ("$PWD", self.folder),
        ):
            word = word.replace(name, str(value))
        if word == "~" or word.startswith("~/"):
            word = str(self.home) + word[1:]
        try:
            return Path(os.path.realpath(self.folder / word))
        except (OSError, ValueError):
            return None

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


def options(command: ParsedCommand) -> str:
    """All one-letter options as one word, then the long ones."""
    short = "".join(word[1:] for word in command.argv[1:] if word.startswith("-") and not word.startswith("--"))
    return short + " " + " ".join(word for word in command.argv[1:] if word.startswith("--"))


def operands(command: ParsedCommand) -> list[str]:
    """The words that are not options."""
    words, after_options = [], False
    for word in command.argv[1:]:
        if word == "--" and not after_options:
            after_options = True
        elif after_options or not word.startswith("-") or word == "-":
            words.append(word)
    return words


def _rm(command: ParsedCommand, context: ShellContext) -> str | None:
    flags = options(command)
    recursive = "r" in flags.split(" ")[0] or "R" in flags.split(" ")[0] or "--recursive" in flags
    if "--no-preserve-root" in flags:
        return f"it would remove the root of the disk. {_BE_SPECIFIC}"
    if recursive and any(context.covers_everything(word) for word in operands(command)):
        return f"it removes a whole disk, home, system folder or workspace. {_BE_SPECIFIC}"
    return None


def _chmod(command: ParsedCommand, context: ShellContext) -> str | None:
    flags = options(command)
    recursive = "R" in flags.split(" ")[0] or "--recursive" in flags
    if recursive and any(context.covers_everything(word) for word in operands(command)[1:]):
        return f"it changes the rights or owners of a whole disk, home or system folder. {_BE_SPECIFIC}"
    return None


def _dd(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    if any(word.startswith("of=") and _DEVICE.match(word[3:]) for word in command.argv):
        return "it writes to a disk as a whole. Write to a file instead."
    return None


def _always(reason: str) -> Rule:
    return lambda command, context: reason


def _power(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    if set(command.argv[1:]) & {"--help", "--version", "-h"} and command.name != "shutdown":
        return None
    return _STOPS


def _systemctl(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    if set(operands(command)) & {"poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "rescue", "emergency"}:
        return _STOPS
    return None


def _init(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    return _STOPS if operands(command)[:1] in (["0"], ["6"]) else None


def _kill(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    if command.argv[-1] in ("-1", "1") and len(command.argv) > 2:
        return "it ends every process that it may. Name the process that you started."
    return None


def _crontab(command: ParsedCommand, context: ShellContext) -> str | None:
    del context
    if "r" in options(command).split(" ")[0]:
        return "it removes all jobs of this user. Ask the owner to do that."
    return None


def _mv(command: ParsedCommand, context: ShellContext) -> str | None:
    if any(context.covers_everything(word) for word in operands(command)[:-1]):
        return f"it moves a whole home, system folder or workspace away. {_BE_SPECIFIC}"
    return None


def _git(command: ParsedCommand, context: ShellContext) -> str | None:
    words = operands(command)
    if words[:1] == ["clean"] and "x" in options(command) and context.folder == context.workspace:
        return f"it removes everything in the workspace that git does not know. {_BE_SPECIFIC}"
    return None


_FORMATS = _always("it makes a new file system, which destroys what is on the disk. Ask the owner to do that.")
_RULES: dict[str, Rule] = {
    "rm": _rm,
    "chmod": _chmod, "chown": _chmod, "chgrp": _chmod, "setfacl": _chmod, "chattr": _chmod,
    "dd": _dd, "dcfldd": _dd,
    "mkfs": _FORMATS, "mkswap": _FORMATS, "mke2fs": _FORMATS, "wipefs": _FORMATS, "fdisk": _FORMATS,
    "sfdisk": _FORMATS, "parted": _FORMATS, "blkdiscard": _FORMATS, "diskutil": _FORMATS,
    "cryptsetup": _FORMATS, "hdparm": _FORMATS, "format": _FORMATS, "diskpart": _FORMATS,
    "shutdown": _power, "reboot": _power, "halt": _power, "poweroff": _power, "telinit": _init, "init": _init,
    "systemctl": _systemctl,
    "kill": _kill,
    "crontab": _crontab,
    "mv": _mv,
    "git": _git,
    "insmod": _always("it changes the kernel. Ask the owner to do that."),
    "rmmod": _always("it changes the kernel. Ask the owner to do that."),
    "modprobe": _always("it changes the kernel. Ask the owner to do that."),
}  # fmt: skip

_WRITES_LAST = frozenset({"cp", "mv", "install", "ln", "rsync", "scp", "link"})
_WRITES_ALL = frozenset(
    {"tee", "truncate", "rm", "rmdir", "unlink", "shred", "touch", "chmod", "chown", "mkdir", "patch"}
)
_IN_PLACE = re.compile(r"-\w*i|--in-place")
_WRITES_IN_PLACE = frozenset({"sed", "perl", "ruby", "gawk", "awk", "yq"})


def written_words(command: ParsedCommand) -> list[str]:
    """The words that name files which this command writes, as far as its words show."""
    words = operands(command)
    return [redirect.target for redirect in command.redirects if redirect.writes] + _written_by_program(command, words)


def copied_into(command: ParsedCommand) -> list[str]:
    """The words that may name the folder into which this command copies its other operands."""
    if command.name not in _WRITES_LAST:
        return []
    return [*operands(command)[-1:], *_values(command, ("-t", "--target-directory"))]


def _written_by_program(command: ParsedCommand, words: list[str]) -> list[str]:
    name = command.name
    if name in _WRITES_LAST:
        return [*copied_into(command), *(words[:-1] if name == "mv" else [])]
    if name in _WRITES_ALL:
        return words
    if name in _WRITES_IN_PLACE:
        return words if any(_IN_PLACE.match(word) for word in command.argv[1:]) else []
    if name in ("dd", "dcfldd"):
        return [word[3:] for word in command.argv if word.startswith("of=")]
    if name in ("curl", "wget", "sort", "gcc", "cc"):
        return _values(command, ("-o", "-O", "--output", "--output-document"))
    return []


def _values(command: ParsedCommand, names: tuple[str, ...]) -> list[str]:
    """The values of these options, after a space or an equals sign."""
    separate = [value for name, value in pairwise(command.argv) if name in names]
    joined = [word.partition("=") for word in command.argv if word.startswith("--")]
    return separate + [value for name, equals, value in joined if equals and name in names]


def find_danger(command: ParsedCommand, context: ShellContext) -> str | None:
    """Why this command should not run; None if no rule forbids it."""
    name = command.name.lower()
    rule = _RULES.get(name) or (_FORMATS if name.startswith("mkfs.") else None)
    if rule is not None and (reason := rule(command, context)):
        return reason
    return _fork_bomb(command) or _runs_unread(command) or _writes_protected(command, context)


def _fork_bomb(command: ParsedCommand) -> str | None:
    calls_itself = command.inside and command.name == command.inside
    if calls_itself and (command.background or command.fed_by):
        return "it starts more and more copies of itself until the machine stands still. Write a loop with an end."
    return None


def _runs_unread(command: ParsedCommand) -> str | None:
    """Refuse to run downloaded or encoded programs that nobody has read."""
    if command.name not in _INTERPRETERS and command.name != "eval":
        return None
    before = [feeder.name for feeder in command.fed_by]
    inner = [run.name for run in command.substituted]
    takes_input = command.name in _INTERPRETERS and not any(
        word and not word.startswith("-") for word in command.argv[1:] if word not in ("-s", "-")
    )
    if set(inner) & _FETCHERS or (takes_input and set(before) & _FETCHERS):
        return "it runs what it downloads, unread. Download it to a file, read it, then run the file."
    if takes_input and before and before[-1] in _DECODERS:
        return "it runs an encoded program. Write the program out in plain text."
    return None


def _writes_protected(command: ParsedCommand, context: ShellContext) -> str | None:
    for word in written_words(command):
        if _DEVICE.match(word):
            return "it writes to a disk as a whole. Write to a file instead."
        path = context.resolve(word)
        if path is None:
            continue
        is_protected = any(path == own or own in path.parents for own in context.protected)
        copies_over = command.name in _WRITES_LAST and path / Path(operands(command)[0]).name in context.protected
        if is_protected or copies_over:
            return (
                f"it writes to {word}, which belongs to nanobot's own state or is protected by the owner. Use the tool "
                "made for it, or tell the owner which change is needed."
            )
    return None


def find_hidden_path(command: ParsedCommand, context: ShellContext) -> str | None:
    """Refuse a command that names a credential path, for machines without a sandbox that hides it."""
    for word in (*command.argv[1:], *(redirect.target for redirect in command.redirects if redirect.operator != "<<<")):
        for part in {word, word.partition("=")[2], word.removeprefix("@")}:
            path = context.resolve(part) if part and "\n" not in part else None
            if path is not None and any(path == key or key in path.parents for key in context.hidden):
                return f"{word} holds secrets that commands may not touch. Ask the owner for what you need."
    return None
