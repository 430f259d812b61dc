"""What of a skill's requirements is missing on this machine, and how to install it."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanobot.agent.skills.manual import SYSTEMS, Manual

_SAFE = re.compile(r"[\w@][\w@./:+~=#?&%-]{0,300}")
"""Characters allowed in a name or address that is put into a command for a person."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One installer: its program, the command, and the entry keys that name the package."""

    program: str
    command: str
    keys: Sequence[str] = ("package",)


INSTALLERS = {
    "apt": InstallStep("apt-get", "sudo apt-get install {}", ("package", "formula")),
    "dnf": InstallStep("dnf", "sudo dnf install {}"),
    "pacman": InstallStep("pacman", "sudo pacman -S {}"),
    "apk": InstallStep("apk", "sudo apk add {}"),
    "brew": InstallStep("brew", "brew install {}", ("formula", "package", "cask")),
    "winget": InstallStep("winget", "winget install {}", ("package", "id")),
    "scoop": InstallStep("scoop", "scoop install {}"),
    "choco": InstallStep("choco", "choco install {}"),
    "uv": InstallStep("uv", "uv tool install {}"),
    "pipx": InstallStep("pipx", "pipx install {}"),
    "pip": InstallStep("pip", "pip install {}"),
    "node": InstallStep("npm", "npm install -g {}"),
    "npm": InstallStep("npm", "npm install -g {}"),
    "go": InstallStep("go", "go install {}", ("module", "package")),
    "cargo": InstallStep("cargo", "cargo install {}", ("crate", "package")),
    "download": InstallStep("", "download {}", ("url",)),
}
"""Installers by `kind` of an `install` entry, in order of preference."""


@dataclass(frozen=True, slots=True)
class MissingNeed:
    """A missing requirement and how to get it; `how` is empty if unknown."""

    text: str
    how: str = ""

    @property
    def summary(self) -> str:
        """The requirement and how to get it, in one line."""
        return f"{self.text} ({self.how})" if self.how else self.text


def find_missing(
    manual: Manual, is_set: Callable[[str], bool], why_forbidden: Callable[[str], str]
) -> Iterator[MissingNeed]:
    """Yield what keeps a skill from being used here, except other skills.

    `is_set` checks the config, `why_forbidden` the sandbox.
    """
    if manual.error:
        yield MissingNeed(str(manual.error))
    if manual.systems and sys.platform not in manual.systems:
        yield MissingNeed(f"system: {' or '.join(manual.systems)}")
    absent = [name for name in manual.programs if shutil.which(name) is None]
    for name in absent:
        yield MissingNeed(f"program: {name}", how_to_install(name, manual.install))
    if manual.any_of and not any(map(shutil.which, manual.any_of)):
        commands = (how_to_install(name, manual.install) for name in manual.any_of)
        yield MissingNeed(f"program: {' or '.join(manual.any_of)}", next(filter(None, commands), ""))
    for name in manual.variables:
        if not os.environ.get(name):
            yield MissingNeed(f"environment variable: {name}")
    for key in manual.settings:
        if not is_set(key):
            yield MissingNeed(f"setting: {key}")
    for name in () if absent else manual.sandbox:  # probing the sandbox is the slowest check
        if why := why_forbidden(name):
            yield MissingNeed(f"sandbox: {name}", why)


def how_to_install(program: str, entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the command of the skill's `install` entries that installs a program here; empty if there is none.

    Installers that are present come first.
    """
    commands = [
        (installer.program, installer.command.format(package))
        for kind, installer in INSTALLERS.items()
        for entry in entries
        if entry.get("kind") == kind and (package := _package_for(program, kind, entry))
    ]
    for installer_program, command in commands:
        if not installer_program or shutil.which(installer_program):
            return command
    return f"{commands[0][1]}, with {commands[0][0]} installed first" if commands else ""


def _package_for(program: str, kind: str, entry: Mapping[str, Any]) -> str:
    """Return the package that an `install` entry names for this program on this system; empty if it names none."""
    programs, systems = (_as_list(entry.get(key)) for key in ("bins", "os"))
    package = next((value for key in INSTALLERS[kind].keys if isinstance(value := entry.get(key), str)), "")
    if (programs and program not in programs) or not _SAFE.fullmatch(package):
        return ""
    if systems and sys.platform not in [SYSTEMS.get(name, name) for name in systems]:
        return ""
    return f"{package}@latest" if kind == "go" and "@" not in package else package


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value] if value else []
