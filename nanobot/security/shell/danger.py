"""What the courtesy guard refuses, a row each: programs, and when their words are dangerous.

A row gives a reason and what to do instead, for a model that meant well. What a wall makes harmless is refused too when
its only effect would be on the workspace, or when a plain no says more than an odd error of the wall.
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from nanobot.security.shell.words import Command
from nanobot.security.shell.wrappers import SHELLS

Rule = Callable[[Command, "Ground"], str | None]

_DEVICE = re.compile(r"/dev/(?:sd|hd|vd|xvd|nvme|mmcblk|disk|dm-|md|loop|mapper/|ram|mem\b|kmem\b|port\b)")
_FETCHERS = frozenset(
    {"curl", "wget", "fetch", "aria2c", "http", "https", "lynx", "w3m", "nc", "ncat", "netcat", "ftp"}
)
_DECODERS = frozenset({"base64", "base32", "xxd", "openssl", "gunzip", "zcat", "uudecode", "rev", "tr"})
_INTERPRETERS = SHELLS | {"python", "python3", "perl", "ruby", "node", "php", "lua", "osascript", "source", "."}
_STOPS = "it stops or restarts the machine. Ask the owner to do that."
_ELSEWHERE = "Name the very files or folders inside the workspace instead."


@dataclass(frozen=True, slots=True)
class Ground:
    """Where a command stands: its folder, the home of its user, and the places that commands do not write or see."""

    workspace: Path
    folder: Path
    home: Path
    guarded: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    def place(self, word: str) -> Path | None:
        """Where a word leads, if it is a path whose beginning is known."""
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

    def holds_everything(self, word: str) -> bool:
        """Whether a word names a whole disk, home or workspace, or all that is in one."""
        stripped = re.sub(r"(?:/\.?|/?(?:\*|\.\*|\.\[!\.\]\*|\{\*,\.\*\}|\.\?\*))+$", "", word) if word != "/" else word
        if stripped != word and not stripped:
            stripped = "/" if word.startswith("/") else "."
        place = self.place(stripped or "/")
        if place is None:
            return False
        return any(place == whole or place in whole.parents for whole in (self.workspace, self.home)) or (
            len(place.parts) == 2 and place.is_absolute() and place.parts[1] in _TOPS
        )


_TOPS = frozenset({
    "bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "srv", "sys", "usr",
    "var", "System", "Users", "Library",
})  # fmt: skip


def options(command: Command) -> str:
    """All one-letter options in a row, and the long ones behind them."""
    short = "".join(word[1:] for word in command.argv[1:] if word.startswith("-") and not word.startswith("--"))
    return short + " " + " ".join(word for word in command.argv[1:] if word.startswith("--"))


def operands(command: Command) -> list[str]:
    """The words that are no options."""
    found, plain = [], False
    for word in command.argv[1:]:
        if word == "--" and not plain:
            plain = True
        elif plain or not word.startswith("-") or word == "-":
            found.append(word)
    return found


def _rm(command: Command, ground: Ground) -> str | None:
    said = options(command)
    recursive = "r" in said.split(" ")[0] or "R" in said.split(" ")[0] or "--recursive" in said
    if "--no-preserve-root" in said:
        return f"it is told to remove the root of the disk. {_ELSEWHERE}"
    if recursive and any(ground.holds_everything(word) for word in operands(command)):
        return f"it removes a whole disk, home, system folder or workspace. {_ELSEWHERE}"
    return None


def _chmod(command: Command, ground: Ground) -> str | None:
    said = options(command)
    recursive = "R" in said.split(" ")[0] or "--recursive" in said
    if recursive and any(ground.holds_everything(word) for word in operands(command)[1:]):
        return f"it changes the rights or owners of a whole disk, home or system folder. {_ELSEWHERE}"
    return None


def _dd(command: Command, ground: Ground) -> str | None:
    del ground
    if any(word.startswith("of=") and _DEVICE.match(word[3:]) for word in command.argv):
        return "it writes to a disk as a whole. Write to a file instead."
    return None


def _always(reason: str) -> Rule:
    return lambda command, ground: reason


def _power(command: Command, ground: Ground) -> str | None:
    del ground
    if set(command.argv[1:]) & {"--help", "--version", "-h"} and command.name != "shutdown":
        return None
    return _STOPS


def _systemctl(command: Command, ground: Ground) -> str | None:
    del ground
    if set(operands(command)) & {"poweroff", "reboot", "halt", "kexec", "suspend", "hibernate", "rescue", "emergency"}:
        return _STOPS
    return None


def _init(command: Command, ground: Ground) -> str | None:
    del ground
    return _STOPS if operands(command)[:1] in (["0"], ["6"]) else None


def _kill(command: Command, ground: Ground) -> str | None:
    del ground
    if command.argv[-1] in ("-1", "1") and len(command.argv) > 2:
        return "it ends every process that it may. Name the process that you started."
    return None


def _crontab(command: Command, ground: Ground) -> str | None:
    del ground
    if "r" in options(command).split(" ")[0]:
        return "it removes all jobs of this user. Ask the owner to do that."
    return None


def _mv(command: Command, ground: Ground) -> str | None:
    if any(ground.holds_everything(word) for word in operands(command)[:-1]):
        return f"it moves a whole home, system folder or workspace away. {_ELSEWHERE}"
    return None


def _git(command: Command, ground: Ground) -> str | None:
    words = operands(command)
    if words[:1] == ["clean"] and "x" in options(command) and ground.folder == ground.workspace:
        return f"it removes everything in the workspace that git does not know. {_ELSEWHERE}"
    return None


_MAKES_DISK = _always("it makes a new file system, which destroys what is on the disk. Ask the owner to do that.")
_RULES: dict[str, Rule] = {
    "rm": _rm,
    "chmod": _chmod, "chown": _chmod, "chgrp": _chmod, "setfacl": _chmod, "chattr": _chmod,
    "dd": _dd, "dcfldd": _dd,
    "mkfs": _MAKES_DISK, "mkswap": _MAKES_DISK, "mke2fs": _MAKES_DISK, "wipefs": _MAKES_DISK, "fdisk": _MAKES_DISK,
    "sfdisk": _MAKES_DISK, "parted": _MAKES_DISK, "blkdiscard": _MAKES_DISK, "diskutil": _MAKES_DISK,
    "cryptsetup": _MAKES_DISK, "hdparm": _MAKES_DISK, "format": _MAKES_DISK, "diskpart": _MAKES_DISK,
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


def written(command: Command) -> list[str]:
    """The words that name what this command writes, as far as its words tell."""
    words = operands(command)
    return [redirect.target for redirect in command.redirects if redirect.writes] + _written_by_program(command, words)


def copied_into(command: Command) -> list[str]:
    """The words that may name a folder into which this command puts what its other words name."""
    if command.name not in _WRITES_LAST:
        return []
    return [*operands(command)[-1:], *_values(command, ("-t", "--target-directory"))]


def _written_by_program(command: Command, words: list[str]) -> list[str]:
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


def _values(command: Command, names: tuple[str, ...]) -> list[str]:
    """The values of these options, behind a space or an equals sign."""
    behind = [value for name, value in pairwise(command.argv) if name in names]
    joined = [word.partition("=") for word in command.argv if word.startswith("--")]
    return behind + [value for name, equals, value in joined if equals and name in names]


def danger_of(command: Command, ground: Ground) -> str | None:
    """Why this command should not run; None where nothing speaks against it."""
    name = command.name.lower()
    rule = _RULES.get(name) or (_MAKES_DISK if name.startswith("mkfs.") else None)
    if rule is not None and (reason := rule(command, ground)):
        return reason
    return _bomb(command) or _blind(command) or _writes(command, ground)


def _bomb(command: Command) -> str | None:
    calls_itself = command.inside and command.name == command.inside
    if calls_itself and (command.background or command.fed_by):
        return "it makes more and more of itself until the machine stands still. Write a loop with an end."
    return None


def _blind(command: Command) -> str | None:
    """A program that somebody else wrote, run unread."""
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
        return "it runs a hidden program. Write down in plain words what is to be run."
    return None


def _writes(command: Command, ground: Ground) -> str | None:
    for word in written(command):
        if _DEVICE.match(word):
            return "it writes to a disk as a whole. Write to a file instead."
        place = ground.place(word)
        if place is None:
            continue
        inner = next((own for own in ground.guarded if place == own or own in place.parents), None)
        into = command.name in _WRITES_LAST and place / Path(operands(command)[0]).name in ground.guarded
        if inner is not None or into:
            return (
                f"it writes to {word}, which belongs to nanobot's own state or is protected by the owner. Use the tool "
                "made for it, or tell the owner which change is needed."
            )
    return None


def hidden_in(command: Command, ground: Ground) -> str | None:
    """A place of keys that a command names, for machines where no wall hides it."""
    for word in (*command.argv[1:], *(redirect.target for redirect in command.redirects if redirect.operator != "<<<")):
        for part in {word, word.partition("=")[2], word.removeprefix("@")}:
            place = ground.place(part) if part and "\n" not in part else None
            if place is not None and any(place == key or key in place.parents for key in ground.hidden):
                return f"{word} holds secrets that commands may not touch. Ask the owner for what you need."
    return None
