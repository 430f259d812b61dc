"""Parses SKILL.md, its text and its front matter, and says what of its requirements is missing on this machine.

The format is that of agentskills.io (https://agentskills.io/specification) and of OpenClaw
(https://docs.openclaw.ai/tools/skills): `metadata` is a table, or the same as JSON text.
"""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from nanobot.errors import NanobotError
from nanobot.utils.text import nearest

SKILL_FILE = "SKILL.md"
MAX_BYTES = 256_000
SYSTEMS = {"macos": "darwin", "windows": "win32"}
"""Common system names, and Python's."""

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)\n*", re.DOTALL | re.MULTILINE)
_BARE_TEXT_WITH_COLON = re.compile(r"^([A-Za-z][\w-]*): +(?![\"'\[{|>&*!%@`#])(.*:.*)$", re.MULTILINE)
_NESTING = "[{-:?"
"""Each YAML level has at least one of these characters. Deeply nested input crashes the C loader."""
_MAX_LEVELS = 500
_SIMPLE_KEY = re.compile(r"[A-Za-z][\w-]*")
_SIMPLE_TEXT = re.compile(r"[A-Za-z](?:[^:#]|:(?=\S))*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "null", "true", "false"})
"""YAML reads them as something else than text."""
_WORD = re.compile(r"[^\s,(]+(?:\([^)]*\))?")
"""A word of a list in one text, such as `allowed-tools`; `Bash(git log:*)` is one."""
_AGENTS = ("nanobot", "openclaw", "clawdbot", "clawdis")
"""Keys of `metadata` for agents like this one; the last two are former names of OpenClaw."""

Opens = Callable[[str, int], int]


class ManualError(NanobotError):
    """A SKILL.md that cannot be read; `line` is where, 0 for the whole file."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(problem)
        self.line = line


@dataclass(frozen=True, slots=True)
class LintFinding:
    text: str
    line: int = 0
    """In SKILL.md unless `path` says otherwise; 0 for the whole file."""
    is_error: bool = True
    """An error keeps a skill from being found, read or trusted; a warning does not."""
    path: str = SKILL_FILE

    @property
    def summary(self) -> str:
        """The finding in one line, with its place."""
        return f"{self.path}:{self.line}: {self.text}" if self.line else f"{self.path}: {self.text}"


@dataclass(frozen=True, slots=True)
class Manual:
    """The front matter of a SKILL.md. A value of a wrong type counts as not given and is one of the `findings`."""

    error: ManualError | None = None
    """Why it cannot be read; nothing else is known then."""
    yaml: str | None = None
    """The text of the front matter; None without one."""
    findings: Sequence[LintFinding] = ()
    name: str = ""
    description: str = ""
    license: str = ""
    compatibility: str = ""
    always: bool = False
    """Whether its whole text belongs into every prompt."""
    hidden: bool = False
    """Whether prompts do not mention it; a person may name it."""
    tools: Sequence[str] = ()
    """Tools it says it uses. Grants nothing."""
    systems: Sequence[str] = ()
    programs: Sequence[str] = ()
    any_of: Sequence[str] = ()
    """Programs of which one is enough."""
    variables: Sequence[str] = ()
    settings: Sequence[str] = ()
    """Dotted config keys that must be set."""
    sandbox: Sequence[str] = ()
    """What the sandbox must allow its commands; `sockets`: Unix sockets."""
    skills: Sequence[str] = ()
    primary: str = ""
    """The environment variable of its key, if named."""
    install: Sequence[Mapping[str, Any]] = ()
    """How to install its programs: entries with a `kind` and a package."""


def read_text(path: Path | str, opener: Opens | None = None) -> str:
    """Return the text of a SKILL.md with plain line ends. Raises ManualError."""
    try:
        with open(path, "rb", opener=opener) as file:
            return decode_manual(file.read(MAX_BYTES + 1))
    except OSError as error:
        raise ManualError(f"{SKILL_FILE} cannot be read: {error.strerror}") from error


def decode_manual(data: bytes) -> str:
    """Like `read_text`, for the file's bytes."""
    if len(data) > MAX_BYTES:
        raise ManualError(f"{SKILL_FILE} is larger than {MAX_BYTES // 1000} kB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ManualError(f"{SKILL_FILE} is not UTF-8 text") from None
    if "\0" in text:
        raise ManualError(f"{SKILL_FILE} is not text")
    return text.replace("\r\n", "\n")


def body(text: str) -> str:
    return _FRONT_MATTER.sub("", text, count=1).strip()


def parse_manual(text: str, *, finds_unknown: bool = False) -> Manual:
    """Parse a SKILL.md; without front matter nothing is known. Raises ManualError.

    Tabs and text with a colon, such as `description: Use it when: ...`, are accepted although they are not valid YAML.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return Manual()
    yaml, findings = match[1], list[LintFinding]()
    try:
        front = _load(yaml)
    except ManualError as error:
        yaml = _BARE_TEXT_WITH_COLON.sub(lambda match: f"{match[1]}: {json.dumps(match[2])}", yaml.expandtabs(2))
        try:
            front = _load(yaml)
        except ManualError:
            raise error from None
        problem = "This is not valid YAML; nanobot accepts it, other agents do not. Quote text with `: `."
        findings.append(LintFinding(problem, error.line, is_error=False))
    return _read_fields(_Table(front, (), yaml, findings), finds_unknown)


def _load(text: str) -> dict[str, Any]:
    """Parse a YAML table. Raises ManualError."""
    if (front := _load_simple(text)) is not None:
        return front
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(text), dict):
            return value
    import yaml  # imported on first use: 17 ms and 2.5 MB

    if sum(map(text.count, _NESTING)) > _MAX_LEVELS:
        raise ManualError(f"front matter of {SKILL_FILE} is not valid YAML for a skill: it has too many levels", 1)
    try:
        loaded = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are the safe ones
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = min(mark.line, text.count("\n")) + 2 if mark else 1
        raise ManualError(f"front matter of {SKILL_FILE} is not valid YAML, line {line}", line) from None
    except (ValueError, RecursionError):  # an invalid date; deep nesting
        raise ManualError(f"front matter of {SKILL_FILE} is not valid YAML", 1) from None
    if loaded is not None and not isinstance(loaded, dict):
        raise ManualError(f"front matter of {SKILL_FILE} is not a list of `key: value` lines", 1)
    return loaded or {}


def _load_simple(text: str) -> dict[str, Any] | None:
    """Parse front matter as most skills have it without importing YAML: each line a key with words, `true`, `false`, or
    text, lists and tables as JSON writes them. None if there is anything else.
    """
    front: dict[str, Any] = {}
    for line in text.rstrip("\n").split("\n"):
        key, _, value = line.partition(": ")
        value = value.strip()
        if not (line.isprintable() and _SIMPLE_KEY.fullmatch(key)) or key.lower() in _YAML_WORDS:
            return None
        if value in ("true", "false"):
            front[key] = value == "true"
        elif value.startswith(('"', "[", "{")):
            try:
                front[key] = json.loads(value)
            except (ValueError, RecursionError):
                return None
        elif _SIMPLE_TEXT.fullmatch(value) and value.lower() not in _YAML_WORDS:
            front[key] = value
        else:
            return None
    return front


@dataclass(slots=True)
class _Table:
    """A table of the front matter. Reading a field adds a finding if its value has a wrong type."""

    values: Mapping[str, Any]
    path: tuple[str, ...]
    yaml: str
    findings: list[LintFinding]
    known: set[str] = field(default_factory=set)

    def note(self, key: str, text: str, *, is_error: bool = True) -> None:
        self.findings.append(LintFinding(text, line_of(self.yaml, (*self.path, key)), is_error))

    def get(self, key: str, kinds: type | tuple[type, ...], expected: str) -> Any:
        """The value, None if there is none of these types."""
        self.known.add(key)
        value = self.values.get(key)
        if value is None or isinstance(value, kinds):
            return value
        self.note(key, f"{'.'.join((*self.path, key))} must be {expected}.")
        return None

    def text(self, key: str, max_chars: int | None = None) -> str:
        value = self.get(key, str, "a string")
        if value is not None and max_chars and not 0 < len(value) <= max_chars:
            self.note(key, f"{key} must be a string that is not empty, of at most {max_chars} characters.")
        return one_line(value or "")

    def flag(self, key: str) -> bool:
        return self.get(key, bool, "true or false") is True

    def names(self, key: str, *, are_words: bool = False) -> list[str]:
        value = self.get(key, (str, list), "a list of strings") or ()
        if isinstance(value, str):
            value = _WORD.findall(value) if are_words else [value]
        return [name for name in value if isinstance(name, str) and name]

    def table(self, key: str) -> "_Table":
        """A table, or JSON text that holds one (trailing commas allowed); an empty one if it is neither."""
        value = self.values.get(key)
        if isinstance(value, str) and value.lstrip().startswith("{"):
            with suppress(ManualError):
                self.values = {**self.values, key: _load(value)}
        return _Table(self.get(key, dict, "an object {...}") or {}, (*self.path, key), self.yaml, self.findings)

    def note_unknown(self, *, if_similar: bool = True) -> None:
        """Add a warning for fields that nobody read: for all, or for those that are almost named like one."""
        for key in self.values.keys() - self.known:
            similar = nearest(str(key), self.known, 1, cutoff=0.75)
            if similar or not if_similar:
                hint = f"Did you mean {similar[0]}?" if similar else f"Known are {', '.join(sorted(self.known))}."
                self.note(key, f"{'.'.join((*self.path, str(key)))} is an unknown field. {hint}", is_error=False)


def _read_fields(top: _Table, finds_unknown: bool) -> Manual:
    agents = map(top.table("metadata").table, _AGENTS)
    ours = next((table for table in agents if table.values), replace(top, values={}, known=set()))
    requires, common = ours.table("requires"), top.table("requires")
    for key in ("name", "description"):
        if key not in top.values:
            top.note(key, f"{key} is missing.")

    def required(key: str) -> list[str]:
        return requires.names(key) + common.names(key)

    depends = [table.names(key, are_words=True) for table in (ours, top) for key in ("depends", "depends-on")]
    skills = [*required("skills"), *ours.names("skills"), *chain(*depends)]
    install = ours.get("install", list, "a list of objects") or ()
    manual = Manual(
        yaml=top.yaml,
        findings=top.findings,
        name=top.text("name"),
        description=top.text("description", 1024),
        license=top.text("license"),
        compatibility=top.text("compatibility", 500),
        always=top.flag("always") | ours.flag("always"),
        hidden=top.flag("disable-model-invocation"),
        tools=top.names("allowed-tools", are_words=True),
        systems=[SYSTEMS.get(name.lower(), name.lower()) for name in ours.names("os")],
        programs=required("bins"),
        any_of=required("anyBins"),
        variables=required("env"),
        settings=required("config"),
        sandbox=required("sandbox"),
        skills=list(dict.fromkeys(skills)),
        primary=ours.text("primaryEnv"),
        install=[entry for entry in install if isinstance(entry, dict)],
    )
    if finds_unknown:
        top.note_unknown()
        ours.note_unknown()
        requires.note_unknown(if_similar=False)
    return manual


def line_of(yaml: str, keys: Sequence[object]) -> int:
    """Return the line in SKILL.md of the field at this path of keys, as far as it is found; else 1."""
    end = 0
    for key in keys:
        match = re.compile(rf"""(?<![\w-])["']?{re.escape(str(key))}["']?\s*:""").search(yaml, end)
        end = match.end() if match else end
    return yaml.count("\n", 0, end) + 2 if end else 1


def one_line(text: str) -> str:
    return " ".join(text.split())


# --- requirements

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
