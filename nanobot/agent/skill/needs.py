"""What a skill asks for, what of that this machine lacks, and how it is had here."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nanobot.agent.skill.manual import Manual, names, table, words

SYSTEMS = {"macos": "darwin", "windows": "win32"}
"""What people call a system, and what Python does."""
_SAFE = re.compile(r"[\w@][\w@./:+~=#?&%-]{0,300}")
"""What a name or address may be made of that is put into a command for a person to type."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to install: by which program, which keys of an entry name the thing, and the command."""

    program: str
    keys: tuple[str, ...]
    command: str


WAYS = {
    "apt": Way("apt-get", ("package", "formula"), "sudo apt-get install {}"),
    "dnf": Way("dnf", ("package",), "sudo dnf install {}"),
    "pacman": Way("pacman", ("package",), "sudo pacman -S {}"),
    "apk": Way("apk", ("package",), "sudo apk add {}"),
    "brew": Way("brew", ("formula", "package", "cask"), "brew install {}"),
    "winget": Way("winget", ("package", "id"), "winget install {}"),
    "scoop": Way("scoop", ("package",), "scoop install {}"),
    "choco": Way("choco", ("package",), "choco install {}"),
    "uv": Way("uv", ("package",), "uv tool install {}"),
    "pipx": Way("pipx", ("package",), "pipx install {}"),
    "pip": Way("pip", ("package",), "pip install {}"),
    "node": Way("npm", ("package",), "npm install -g {}"),
    "npm": Way("npm", ("package",), "npm install -g {}"),
    "go": Way("go", ("module", "package"), "go install {}"),
    "cargo": Way("cargo", ("crate", "package"), "cargo install {}"),
    "download": Way("", ("url",), "download {}"),
}
"""Each `kind` of an entry of `install`, those first that are asked first."""
_OF_THE_SYSTEM = ("apt", "dnf", "pacman", "apk", "brew", "winget")
_USUAL = {
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
"""Programs that skills ask for time and again, and their packages where those are called otherwise."""


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that is missing, in words, and how it is had; no words where nobody can say."""

    text: str
    how: str = ""

    @property
    def told(self) -> str:
        """Both in one line."""
        return f"{self.text} ({self.how})" if self.how else self.text


@dataclass(frozen=True, slots=True)
class Needs:
    """What a skill asks for."""

    systems: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    """Programs of which one is enough."""
    variables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """Keys of the config, with dots, that have to be set."""
    skills: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    """What it says it will use. A wish: nothing is granted by it."""
    primary: str = ""
    """The environment variable with its key, where it names one."""
    install: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, manual: Manual) -> "Needs":
        """What a SKILL.md asks for; what is of a wrong kind is passed over."""
        front, ours = manual.front, manual.ours
        requires = table(front.get("requires")) | table(ours.get("requires"))
        entries = ours.get("install")
        systems = (name.lower() for name in names(ours.get("os")))
        primary = ours.get("primaryEnv")
        skills = [
            *names(requires.get("skills")),
            *names(ours.get("skills")),
            *(name for where in (ours, front) for key in ("depends", "depends-on") for name in words(where.get(key))),
        ]
        return cls(
            systems=tuple(SYSTEMS.get(name, name) for name in systems),
            programs=tuple(names(requires.get("bins"))),
            any_of=tuple(names(requires.get("anyBins"))),
            variables=tuple(names(requires.get("env"))),
            settings=tuple(names(requires.get("config"))),
            skills=tuple(dict.fromkeys(skills)),
            tools=tuple(words(front.get("allowed-tools"))),
            primary=primary if isinstance(primary, str) else "",
            install=tuple(one for one in entries if isinstance(one, dict)) if isinstance(entries, list) else (),
        )


def lacks(needs: Needs, is_set: Callable[[str], bool]) -> Iterator[Lack]:
    """What of it this machine does not have; other skills are for who knows them all. `is_set` knows the config."""
    if needs.systems and sys.platform not in needs.systems:
        yield Lack(f"system: {' or '.join(needs.systems)}")
    for name in needs.programs:
        if shutil.which(name) is None:
            yield Lack(f"program: {name}", how_to_install(name, needs.install))
    if needs.any_of and not any(map(shutil.which, needs.any_of)):
        hows = (how_to_install(name, needs.install) for name in needs.any_of)
        yield Lack(f"program: {' or '.join(needs.any_of)}", next(filter(None, hows), ""))
    for name in needs.variables:
        if not os.environ.get(name):
            yield Lack(f"environment variable: {name}")
    for key in needs.settings:
        if not is_set(key):
            yield Lack(f"setting: {key}")


def how_to_install(program: str, entries: tuple[Mapping[str, Any], ...] = ()) -> str:
    """The command that installs a program on this system: as the skill says, else as its system calls the package.

    Ways whose own program is here go before those that would have to be installed first.
    """
    ways: list[tuple[bool, str]] = []
    for kind, way in WAYS.items():
        for entry in entries:
            if entry.get("kind") == kind and _is_for(entry, program) and (command := _command(way, entry)):
                is_here = not way.program or shutil.which(way.program) is not None
                ways.append((is_here, command if is_here else f"{command}, with {way.program} installed first"))
    if not any(is_here for is_here, _ in ways) and (usual := _usual(program)):
        return usual
    return next((command for is_here, command in ways if is_here), ways[0][1] if ways else "")


def _is_for(entry: Mapping[str, Any], program: str) -> bool:
    programs = names(entry.get("bins"))
    systems = [SYSTEMS.get(name, name) for name in names(entry.get("os"))]
    return (not programs or program in programs) and (not systems or sys.platform in systems)


def _command(way: Way, entry: Mapping[str, Any]) -> str:
    """The command for a person; nothing where the entry names nothing that may stand in one."""
    thing = next((found for key in way.keys if isinstance(found := entry.get(key), str)), "")
    if not _SAFE.fullmatch(thing):
        return ""
    if way.program == "go" and "@" not in thing:
        thing += "@latest"
    return way.command.format(thing)


def _usual(program: str) -> str:
    """As the package manager of this system calls it; nothing for programs we do not know."""
    packages = _USUAL.get(program)
    if packages is None:
        return ""
    for kind in _OF_THE_SYSTEM:
        package = packages.get(kind, program)
        if package and shutil.which(WAYS[kind].program):
            return WAYS[kind].command.format(package)
    return ""
