"""Skills: folders with a SKILL.md that teach the agent how something is done. Found, checked, summed up, read.

A SKILL.md is somebody's file. However damaged, it raises nothing here: the skill is listed as unavailable, with the
reason. Listing is cheap enough to do every turn: a file is read and parsed when it is new or has changed, else it costs
a stat.
"""

import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from nanobot.utils.resources import skills_dir

SKILL_FILE = "SKILL.md"
_HOST_FOR_S = 2.0
"""How long the programs on the PATH, and the skills that come with nanobot, are taken to be as they were."""
MAX_BYTES = 256_000
"""A larger SKILL.md is no text for a prompt."""

_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)\n*", re.DOTALL | re.MULTILINE)
_BARE_TEXT_WITH_COLON = re.compile(r"^([A-Za-z][\w-]*): +(?![\"'\[{|>&*!%@`#])(.*:.*)$", re.MULTILINE)
_NESTING = "[{-:?"
"""One of these stands at each level of YAML."""
_MOST_LEVELS = 200
_OUR_METADATA = ("nanobot", "openclaw")
_SYSTEMS = {"macos": "darwin", "windows": "win32"}

_Opens = Callable[[str, int], int]
_Stamp = tuple[int, int, int]
_File = tuple[str, str, str, _Stamp]
"""Of a SKILL.md: its source, its skill's name, its path."""


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill as it is right now. Equal to an earlier one where nothing about it has changed."""

    name: str
    path: Path
    source: str
    """`workspace` or `builtin`."""
    description: str
    always: bool
    missing: tuple[str, ...]
    """What it needs and does not find, each in words. Empty where it can be used."""
    stamp: _Stamp

    @property
    def available(self) -> bool:
        """Whether everything it needs is here."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class _Manual:
    """What a SKILL.md says about itself, and what keeps it from being read."""

    stamp: _Stamp
    front: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


class SkillsLoader:
    """The skills of a workspace, before built-in ones of the same name. Those named in `disabled` do not exist."""

    def __init__(
        self,
        workspace: Path,
        builtin_skills_dir: Path | None = None,
        disabled: Collection[str] = (),
        opener: _Opens | None = None,
    ) -> None:
        """`opener` is handed to `open`: it says where links in the workspace may lead."""
        self._opener = opener
        self._own = workspace / "skills"
        self._shipped = builtin_skills_dir or skills_dir()
        self._disabled = frozenset(disabled)
        self._manuals: dict[str, _Manual] = {}
        self._known: dict[str, Skill] = {}
        self._files: list[_File] = []
        self._shipped_files: list[_File] = []
        self._looked_at = -_HOST_FOR_S
        self._variables: set[str] = set()
        self._last_host: tuple[str | None, ...] = ()
        self._skills: tuple[Skill, ...] = ()

    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name. The very same tuple while neither a file nor, for a few seconds, the host changes."""
        now, host = time.monotonic(), self._host()
        is_time = now - self._looked_at >= _HOST_FOR_S
        if is_time:
            self._looked_at = now
            self._shipped_files = [("builtin", *file) for file in _skill_files(self._shipped)]
        files = [*(("workspace", *file) for file in _skill_files(self._own)), *self._shipped_files]
        if is_time or files != self._files or host != self._last_host:
            found: dict[str, Skill] = {}
            for source, name, path, stamp in files:
                if name not in found and name not in self._disabled:
                    found[name] = self._look_at(name, path, source, stamp)
            self._skills = tuple(found[name] for name in sorted(found))
            self._files = files
            self._variables = {name for path in self._known for name in _variables(self._manuals[path].front)}
            self._last_host = self._host()
        return self._skills

    def _host(self) -> tuple[str | None, ...]:
        """What of the environment decides which skills can be used."""
        return tuple(os.environ.get(name) for name in ("PATH", *sorted(self._variables)))

    def list_skills(self, filter_unavailable: bool = True) -> list[dict[str, str]]:
        """Name, path and source of each skill; those that lack something only where asked for."""
        return [
            {"name": skill.name, "path": str(skill.path), "source": skill.source}
            for skill in self.skills()
            if skill.available or not filter_unavailable
        ]

    def load_skill(self, name: str) -> str | None:
        """The whole SKILL.md with `{baseDir}` filled in; None where there is none or it cannot be read."""
        skill = next((skill for skill in self.skills() if skill.name == name), None)
        if skill is None:
            return None
        text, problem = _read_text(skill.path, self._opener)
        return None if problem else text.replace("{baseDir}", str(skill.path.parent))

    def load_skills_for_context(self, names: Iterable[str]) -> str:
        """The named skills as parts of a prompt, without front matter; what cannot be read is left out."""
        texts = ((name, self.load_skill(name)) for name in names)
        return "\n\n".join(f"### Skill: {name}\n\n{_body(text)}" for name, text in texts if text is not None)

    def get_always_skills(self) -> list[str]:
        """The names of usable skills that ask to be in every prompt."""
        return [skill.name for skill in self.skills() if skill.always and skill.available]

    def get_skill_metadata(self, name: str) -> dict[str, Any] | None:
        """The front matter of a skill; None where there is no such skill or no front matter that can be read."""
        skill = next((skill for skill in self.skills() if skill.name == name), None)
        return dict(self._manuals[str(skill.path)].front) or None if skill else None

    def build_skills_summary(self, *, leave_out: Collection[str] = ()) -> str:
        """Every skill but those left out in a few lines of XML for the model; empty without any."""
        skills = [skill for skill in self.skills() if skill.name not in leave_out]
        return "\n".join(["<skills>", *map(_summary, skills), "</skills>"]) if skills else ""

    def _look_at(self, name: str, path: str, source: str, stamp: _Stamp) -> Skill:
        manual = self._manuals.get(path)
        if manual is None or manual.stamp != stamp:
            manual = self._manuals[path] = _read_manual(Path(path), stamp, self._opener)
            self._known.pop(path, None)
        ours = _our_metadata(manual.front)
        missing = (manual.problem,) if manual.problem else tuple(_missing(ours))
        known = self._known.get(path)
        if known is None or known.missing != missing:
            known = self._known[path] = Skill(
                name=name,
                path=Path(path),
                source=source,
                description=_one_line(manual.front.get("description")) or name,
                always=manual.front.get("always") is True or ours.get("always") is True,
                missing=missing,
                stamp=stamp,
            )
        return known


def _skill_files(folder: Path) -> Iterator[tuple[str, str, _Stamp]]:
    """Each SKILL.md one level below; nothing where the folder cannot be listed. Every turn asks, so it is kept lean."""
    try:
        with os.scandir(folder) as entries:
            places = [(entry.name, f"{entry.path}{os.sep}{SKILL_FILE}") for entry in entries]
    except OSError:
        return
    for name, path in places:
        try:
            status = os.stat(path)  # noqa: PTH116 a Path costs more than the look
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):  # opening a pipe of that name would wait for ever
            yield name, path, (status.st_ino, status.st_mtime_ns, status.st_size)


def _read_text(path: Path, opener: _Opens | None) -> tuple[str, str]:
    """The text of a SKILL.md with plain line ends, or why there is none."""
    try:
        with open(path, "rb", opener=opener) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        return "", f"{SKILL_FILE} cannot be read: {error.strerror}"
    if len(data) > MAX_BYTES:
        return "", f"{SKILL_FILE} is larger than {MAX_BYTES // 1000} kB"
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return "", f"{SKILL_FILE} is not UTF-8 text"
    if "\0" in text:
        return "", f"{SKILL_FILE} is not text"
    return text.replace("\r\n", "\n"), ""


def _read_manual(path: Path, stamp: _Stamp, opener: _Opens | None) -> _Manual:
    text, problem = _read_text(path, opener)
    match = _FRONT_MATTER.match(text)
    if problem or match is None:
        return _Manual(stamp, problem=problem)  # without front matter, the folder's name is all that is known
    front, problem = _parse(match[1])
    return _Manual(stamp, front, problem)


def _parse(front_matter: str) -> tuple[dict[str, Any], str]:
    """Front matter as a table, or what is wrong with it."""
    import yaml  # 17 ms, paid where there is a skill to read

    # Many skills in the world say `description: Use it when: ...`, which YAML takes for a table in a table.
    mended = _BARE_TEXT_WITH_COLON.sub(lambda match: f"{match[1]}: {json.dumps(match[2])}", front_matter)
    for text in dict.fromkeys((front_matter, mended)):
        # The loader in C takes a tenth of the time; nested deeply enough, a file of somebody's ends the process there.
        shallow = sum(map(text.count, _NESTING)) <= _MOST_LEVELS
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader) if shallow else yaml.SafeLoader
        try:
            front = yaml.load(text, loader)  # noqa: S506 - both are the safe ones
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 2}" if mark else ""
            problem = f"front matter of {SKILL_FILE} is not valid YAML{where}"
        except (ValueError, RecursionError):  # a date that is none; brackets in brackets in brackets
            problem = f"front matter of {SKILL_FILE} is not valid YAML"
        else:
            if front is None or isinstance(front, dict):
                return front or {}, ""
            problem = f"front matter of {SKILL_FILE} is not a list of `key: value` lines"
    return {}, problem


def _our_metadata(front: dict[str, Any]) -> dict[str, Any]:
    """The part of `metadata` that speaks to agents like this one; metadata may be a table or JSON text."""
    metadata = _table(front.get("metadata"))
    return next((found for key in _OUR_METADATA if (found := _table(metadata.get(key)))), {})


def _table(value: object) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _names(value: object) -> list[str]:
    """A list of names, or one name alone."""
    return [name for name in (value if isinstance(value, list) else [value]) if isinstance(name, str) and name]


def _missing(ours: dict[str, Any]) -> Iterator[str]:
    """What the skill asks for and this machine does not have."""
    systems = [_SYSTEMS.get(name.lower(), name.lower()) for name in _names(ours.get("os"))]
    if systems and sys.platform not in systems:
        yield f"system: {' or '.join(systems)}"
    requires = _table(ours.get("requires"))
    for name in _names(requires.get("bins")):
        if shutil.which(name) is None:
            yield f"program: {name}"
    any_of = _names(requires.get("anyBins"))
    if any_of and not any(map(shutil.which, any_of)):
        yield f"program: {' or '.join(any_of)}"
    for name in _names(requires.get("env")):
        if not os.environ.get(name):
            yield f"environment variable: {name}"


def _variables(front: dict[str, Any]) -> list[str]:
    """The environment variables a skill asks for."""
    return _names(_table(_our_metadata(front).get("requires")).get("env"))


def _one_line(value: object) -> str:
    return " ".join(str(value).split()) if isinstance(value, str | int | float) else ""


def _body(text: str) -> str:
    return _FRONT_MATTER.sub("", text, count=1).strip()


def _summary(skill: Skill) -> str:
    fields = {"name": skill.name, "description": skill.description, "location": str(skill.path)}
    if skill.missing:
        fields["requires"] = ", ".join(skill.missing)
    lines = [f"<{tag}>{escape(text, quote=False)}</{tag}>" for tag, text in fields.items()]
    return "\n".join([f'<skill available="{str(skill.available).lower()}">', *lines, "</skill>"])
