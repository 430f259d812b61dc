"""What a skill requires, what of that is missing on this machine, and how to install it."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanobot.agent.skills.manual import Manual, names, table, words

SYSTEMS = {"macos": "darwin", "windows": "win32"}
"""Common system names, and Python's."""
_SAFE = re.compile(r"[\w@][\w@./:+~=#?&%-]{0,300}")
"""Characters allowed in a name or address that is put into a command for a person."""


@dataclass(frozen=True, slots=True)
class InstallStep:
    """One installer: its program, the entry keys that name the package, and the command."""

    program: str
    keys: tuple[str, ...]
    command: str


INSTALLERS = {
    "apt": InstallStep("apt-get", ("package", "formula"), "sudo apt-get install {}"),
    "dnf": InstallStep("dnf", ("package",), "sudo dnf install {}"),
    "pacman": InstallStep("pacman", ("package",), "sudo pacman -S {}"),
    "apk": InstallStep("apk", ("package",), "sudo apk add {}"),
    "brew": InstallStep("brew", ("formula", "package", "cask"), "brew install {}"),
    "winget": InstallStep("winget", ("package", "id"), "winget install {}"),
    "scoop": InstallStep("scoop", ("package",), "scoop install {}"),
    "choco": InstallStep("choco", ("package",), "choco install {}"),
    "uv": InstallStep("uv", ("package",), "uv tool install {}"),
    "pipx": InstallStep("pipx", ("package",), "pipx install {}"),
    "pip": InstallStep("pip", ("package",), "pip install {}"),
    "node": InstallStep("npm", ("package",), "npm install -g {}"),
    "npm": InstallStep("npm", ("package",), "npm install -g {}"),
    "go": InstallStep("go", ("module", "package"), "go install {}"),
    "cargo": InstallStep("cargo", ("crate", "package"), "cargo install {}"),
    "download": InstallStep("", ("url",), "download {}"),
}
"""Installers by `kind` of an `install` entry, in order of preference."""
_SYSTEM_MANAGERS = ("apt", "dnf", "pacman", "apk", "brew", "winget")
_COMMON_PROGRAMS = {
    "curl": {},
    "ffmpeg": {},
    "gh": {"winget": "GitHub.cli", "pacman": "github-cli", "apk": "github-cli"},
    "git": {"winget": "Git.Git"},
    "go": {"apt": "golang-go", "dnf": "golang"},
    "jq": {},
    "node": {"apt": "nodejs", "dnf": "nodejs", "pacman": "nodejs", "apk": "nodejs"},
    "npx": {"apt": "npm", "dnf": "npm", "pacman": "npm", "apk": "npm", "brew": "node"},
    "pandoc": {},
    "pdftotext": {"brew": "poppler", "pacman": "poppler"} | dict.fromkeys(("apt", "dnf", "apk"), "poppler-utils"),
    "rg": dict.fromkeys(("apt", "dnf", "pacman", "apk", "brew"), "ripgrep"),
    "sqlite3": {"dnf": "sqlite", "pacman": "sqlite", "apk": "sqlite", "brew": "sqlite"},
    "tmux": {},
    "uv": {"apt": "", "dnf": "uv"},
    "yt-dlp": {},
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


@dataclass(frozen=True, slots=True)
class SkillNeeds:
    """The requirements of a skill."""

    systems: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    """Programs of which one is enough."""
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Dotted config keys that must be set."""
    sandbox: tuple[str, ...] = ()
    """What the sandbox must allow its commands; `sockets`: Unix sockets."""
    skills: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """Tools it says it uses. Grants nothing."""
    primary: str = ""
    """The environment variable of its key, if named."""
    install: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, manual: Manual) -> "SkillNeeds":
        """Read the requirements from a SKILL.md; values of a wrong type are ignored."""
        front, ours = manual.front, manual.ours
        requires = table(front.get("requires")) | table(ours.get("requires"))
        entries = ours.get("install")
        systems = (name.lower() for name in names(ours.get("os")))
        primary = ours.get("primaryEnv")
        skills = [
            *names(requires.get("skills")),
            *names(ours.get("skills")),
            *(name for source in (ours, front) for key in ("depends", "depends-on") for name in words(source.get(key))),
        ]
        return cls(
            systems=tuple(SYSTEMS.get(name, name) for name in systems),
            programs=tuple(names(requires.get("bins"))),
            any_of=tuple(names(requires.get("anyBins"))),
            variables=tuple(names(requires.get("env"))),
            settings=tuple(names(requires.get("config"))),
            sandbox=tuple(names(requires.get("sandbox"))),
            skills=tuple(dict.fromkeys(skills)),
            tools=tuple(words(front.get("allowed-tools"))),
            primary=primary if isinstance(primary, str) else "",
            install=tuple(entry for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else (),
        )


def find_missing(
    needs: SkillNeeds, is_set: Callable[[str], bool], why_forbidden: Callable[[str], str]
) -> Iterator[MissingNeed]:
    """Yield what this machine lacks, except other skills.

    `is_set` checks the config, `why_forbidden` the sandbox.
    """
    if needs.systems and sys.platform not in needs.systems:
        yield MissingNeed(f"system: {' or '.join(needs.systems)}")
    for name in needs.programs:
        if shutil.which(name) is None:
            yield MissingNeed(f"program: {name}", how_to_install(name, needs.install))
    if needs.any_of and not any(map(shutil.which, needs.any_of)):
        commands = (how_to_install(name, needs.install) for name in needs.any_of)
        yield MissingNeed(f"program: {' or '.join(needs.any_of)}", next(filter(None, commands), ""))
    for name in needs.variables:
        if not os.environ.get(name):
            yield MissingNeed(f"environment variable: {name}")
    for key in needs.settings:
        if not is_set(key):
            yield MissingNeed(f"setting: {key}")
    if all(map(shutil.which, needs.programs)):  # probing the sandbox is the slowest check
        yield from (MissingNeed(f"sandbox: {name}", why) for name in needs.sandbox if (why := why_forbidden(name)))


def how_to_install(program: str, entries: tuple[Mapping[str, Any], ...] = ()) -> str:
    """Return the command that installs a program here: from the skill, else from the system's package manager.

    Installers that are present come first.
    """
    commands: dict[str, str] = {}
    """By the program that it needs, which may be missing."""
    for kind, installer in INSTALLERS.items():
        for entry in (entry for entry in entries if entry.get("kind") == kind):
            programs, systems = names(entry.get("bins")), [SYSTEMS.get(name, name) for name in names(entry.get("os"))]
            package = next((value for key in installer.keys if isinstance(value := entry.get(key), str)), "")
            is_for_this = (not programs or program in programs) and (not systems or sys.platform in systems)
            if is_for_this and _SAFE.fullmatch(package):
                package += "@latest" * (kind == "go" and "@" not in package)
                commands.setdefault(installer.program, installer.command.format(package))
    for needed, command in commands.items():
        if not needed or shutil.which(needed):
            return command
    for kind in _SYSTEM_MANAGERS if program in _COMMON_PROGRAMS else ():
        package = _COMMON_PROGRAMS[program].get(kind, program)
        if package and shutil.which(INSTALLERS[kind].program):
            return INSTALLERS[kind].command.format(package)
    return next((f"{command}, with {needed} installed first" for needed, command in commands.items()), "")
