"""What of a skill's requirements is missing on this machine, and how to install it."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
_SYSTEM_MANAGERS = ("apt", "dnf", "pacman", "apk", "brew", "winget")
_COMMON_PROGRAMS: dict[str, dict[str, str]] = {
    **{name: {} for name in ("curl", "ffmpeg", "jq", "pandoc", "tmux", "yt-dlp")},
    "gh": {"winget": "GitHub.cli", "pacman": "github-cli", "apk": "github-cli"},
    "git": {"winget": "Git.Git"},
    "go": {"apt": "golang-go", "dnf": "golang"},
    "node": {"apt": "nodejs", "dnf": "nodejs", "pacman": "nodejs", "apk": "nodejs"},
    "npx": {"apt": "npm", "dnf": "npm", "pacman": "npm", "apk": "npm", "brew": "node"},
    "pdftotext": {"brew": "poppler", "pacman": "poppler"} | dict.fromkeys(("apt", "dnf", "apk"), "poppler-utils"),
    "rg": dict.fromkeys(("apt", "dnf", "pacman", "apk", "brew"), "ripgrep"),
    "sqlite3": {"dnf": "sqlite", "pacman": "sqlite", "apk": "sqlite", "brew": "sqlite"},
    "uv": {"apt": "", "dnf": "uv"},
}
"""Common programs, and their package names where those differ."""


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


def how_to_install(program: str, entries: Iterable[Mapping[str, Any]] = ()) -> str:
    """Return the command that installs a program here: from the skill, else from the system's package manager.

    Installers that are present come first.
    """
    named = [
        (INSTALLERS[kind], package)
        for kind in INSTALLERS
        for entry in entries
        if entry.get("kind") == kind and (package := _package_for(program, kind, entry))
    ]
    managers = _SYSTEM_MANAGERS if program in _COMMON_PROGRAMS else ()
    common = [(INSTALLERS[kind], _COMMON_PROGRAMS[program].get(kind, program)) for kind in managers]
    for installer, package in named + common:
        if package and (not installer.program or shutil.which(installer.program)):
            return installer.command.format(package)
    return f"{named[0][0].command.format(named[0][1])}, with {named[0][0].program} installed first" if named else ""


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
