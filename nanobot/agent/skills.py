"""Skills: folders with a SKILL.md that teach the agent how something is done. Found, checked, chosen, summed up.

A SKILL.md is somebody's file. However damaged, it raises nothing here: the skill is listed as unavailable, with the
reason. Listing is cheap enough to do every turn: a file is read and parsed when it is new or has changed, else it costs
a stat. What one skill is and needs is in `agent/skill`.
"""

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path
from typing import Any

from nanobot.agent.skill.book import SkillBook
from nanobot.agent.skill.manual import MAX_BYTES as MAX_BYTES
from nanobot.agent.skill.manual import SKILL_FILE, Manual, Opens, Stamp, body, one_line, read_manual, read_text
from nanobot.agent.skill.needs import Lack, Needs, lacks
from nanobot.agent.skill.programs import Digests
from nanobot.utils.resources import skills_dir
from nanobot.utils.text import clip, clip_line

_HOST_FOR_S = 2.0
"""How long the programs on the PATH, and the skills that come with nanobot, are taken to be as they were."""
SUMMARY_CHARS = 8_000
"""How much of a prompt the summaries of skills may take."""
_LONGEST_DESCRIPTION = 1_024
_LONGEST_REQUIRES = 500
_LONGEST_ALWAYS = 16_000
_NAMES_CHARS = 1_500
"""As many names of skills without a summary stand in a prompt."""

_File = tuple[str, str, str, Stamp]
"""Of a SKILL.md: its source, its skill's name, its path, and what tells whether it has changed."""


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
    stamp: Stamp
    told: tuple[str, ...] = ()
    """The same, each with how it is had on this system."""
    needs: tuple[str, ...] = ()
    """The skills it needs."""
    hidden: bool = False
    """Whether no prompt speaks of it (`disable-model-invocation`): it is for a person to name."""

    @property
    def available(self) -> bool:
        """Whether everything it needs is here."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class Shelf:
    """The skills as a prompt shows them. The very same one while nothing of it has changed."""

    shown: tuple[Skill, ...]
    """Those with a summary: all by name, or where they do not fit, those of most use first."""
    rest: tuple[Skill, ...] = ()
    """Those without, by name."""
    day: date | None = None
    """On which day it was chosen by use, where there was a choice."""


class SkillsLoader:
    """The skills of a workspace, before built-in ones of the same name. Those named in `disabled` do not exist."""

    def __init__(
        self,
        workspace: Path,
        builtin_skills_dir: Path | None = None,
        disabled: Collection[str] = (),
        opener: Opens | None = None,
        *,
        book: SkillBook | None = None,
        is_set: Callable[[str], bool] = lambda key: False,
        summary_chars: int = SUMMARY_CHARS,
    ) -> None:
        """`opener` is handed to `open`: it says where links in the workspace may lead. `book` knows which programs came
        with installed skills, and what was used; `is_set` which keys of the config are set.
        """
        self.book = book
        self._opener = opener
        self.own = workspace / "skills"
        """Where the person's own are."""
        self._shipped = builtin_skills_dir or skills_dir()
        self._disabled = frozenset(disabled)
        self._is_set = is_set
        self._chars = summary_chars
        self._manuals: dict[str, tuple[Stamp, Manual, Needs]] = {}
        self._known: dict[str, Skill] = {}
        self._digests = Digests()
        self._files: list[_File] = []
        self._shipped_files: list[_File] = []
        self._looked_at = -_HOST_FOR_S
        self._variables: set[str] = set()
        self._last_host: tuple[str | None, ...] = ()
        self._skills: tuple[Skill, ...] = ()
        self._shelves: dict[date | None, Shelf] = {}

    # --- finding

    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name. The very same tuple while neither a file nor, for a few seconds, the host changes."""
        now, host = time.monotonic(), self._host()
        is_time = now - self._looked_at >= _HOST_FOR_S
        if is_time:
            self._looked_at = now
            self._shipped_files = [("builtin", *file) for file in _skill_files(self._shipped)]
        files = [*(("workspace", *file) for file in _skill_files(self.own)), *self._shipped_files]
        if is_time or files != self._files or host != self._last_host:
            found: dict[str, _File] = {}
            for file in files:
                if file[1] not in found and file[1] not in self._disabled:
                    found[file[1]] = file
            looked_at = self._look_at(found)
            if looked_at != self._skills:
                self._skills = looked_at
                self._shelves.clear()
            self._files = files
            self._variables = {name for _, _, needs in self._manuals.values() for name in needs.variables}
            self._last_host = self._host()
        return self._skills

    def _host(self) -> tuple[str | None, ...]:
        """What of the environment decides which skills can be used."""
        return tuple(os.environ.get(name) for name in ("PATH", *sorted(self._variables)))

    def _look_at(self, files: Mapping[str, _File]) -> tuple[Skill, ...]:
        """Each of them as it is now, by name."""
        manuals = {name: self._manual(path, stamp) for name, (_, _, path, stamp) in files.items()}
        lacking = {name: self._lacking(files[name], *manuals[name]) for name in files}
        needed = {name: needs.skills for name, (_, needs) in manuals.items()}
        found = []
        for name, lack in _with_needed(lacking, needed).items():
            source, _, path, stamp = files[name]
            manual = manuals[name][0]
            hidden = manual.front.get("disable-model-invocation") is True
            skill = Skill(
                name=name,
                path=Path(path),
                source=source,
                description=manual.description or name,
                always=not hidden and manual.always,
                missing=tuple(one.text for one in lack),
                stamp=stamp,
                told=tuple(one.told for one in lack),
                needs=needed[name],
                hidden=hidden,
            )
            known = self._known.get(path)
            if known != skill:
                self._known[path] = known = skill
            found.append(known)
        return tuple(sorted(found, key=lambda skill: skill.name))

    def _manual(self, path: str, stamp: Stamp) -> tuple[Manual, Needs]:
        """What a SKILL.md says, read again where it has changed."""
        known = self._manuals.get(path)
        if known is None or known[0] != stamp:
            manual = read_manual(Path(path), self._opener)
            known = self._manuals[path] = (stamp, manual, Needs.of(manual))
        return known[1], known[2]

    def _lacking(self, file: _File, manual: Manual, needs: Needs) -> tuple[Lack, ...]:
        """What keeps a skill by itself from being used."""
        source, name, path, _ = file
        if manual.problem:
            return (Lack(manual.problem),)
        installed = self.book.installed().get(name) if self.book is not None and source == "workspace" else None
        if installed is not None:
            here = self._digests.of(Path(path).parent)
            changed = sorted(one for one, digest in here.items() if installed.programs.get(one) != digest)
            if changed:
                how = f"look at it, then `nanobot skills approve {name}`"
                return (Lack(f"program changed since it was installed: {', '.join(changed[:3])}", how),)
        return tuple(lacks(needs, self._is_set))

    # --- one skill

    def get(self, name: str) -> Skill | None:
        """The skill of this name."""
        return next((skill for skill in self.skills() if skill.name == name), None)

    def needs_of(self, skill: Skill) -> Needs:
        """What it asks for."""
        return self._manual(str(skill.path), skill.stamp)[1]

    def lacking(self, needs: Needs) -> tuple[Lack, ...]:
        """What of this the machine does not have: of a skill that is not here yet."""
        known = {skill.name: skill for skill in self.skills()}
        skills = (Lack(f"skill: {name}") for name in needs.skills if name not in known or not known[name].available)
        return (*lacks(needs, self._is_set), *skills)

    def programs_of(self, skill: Skill) -> dict[str, str]:
        """The programs in its folder, each with its digest."""
        return self._digests.of(skill.path.parent)

    def list_skills(self, filter_unavailable: bool = True) -> list[dict[str, str]]:
        """Name, path and source of each skill; those that lack something only where asked for."""
        return [
            {"name": skill.name, "path": str(skill.path), "source": skill.source}
            for skill in self.skills()
            if skill.available or not filter_unavailable
        ]

    def load_skill(self, name: str) -> str | None:
        """The whole SKILL.md with `{baseDir}` filled in; None where there is none or it cannot be read."""
        skill = self.get(name)
        if skill is None:
            return None
        text, problem = read_text(skill.path, self._opener)
        return None if problem else text.replace("{baseDir}", str(skill.path.parent))

    def load_skills_for_context(self, names: Iterable[str]) -> str:
        """The named skills as parts of a prompt, without front matter; what cannot be read is left out, and of a very
        long one the end."""
        parts = []
        for name in names:
            text = self.load_skill(name)
            if text is not None:
                told = clip(body(text), _LONGEST_ALWAYS, "{left_out} characters left out; read the file for them")
                parts.append(f"### Skill: {name}\n\n{told}")
        return "\n\n".join(parts)

    def get_always_skills(self) -> list[str]:
        """The names of usable skills that ask to be in every prompt."""
        return [skill.name for skill in self.skills() if skill.always and skill.available]

    def get_skill_metadata(self, name: str) -> dict[str, Any] | None:
        """The front matter of a skill; None where there is no such skill or no front matter that can be read."""
        skill = self.get(name)
        return dict(self._manual(str(skill.path), skill.stamp)[0].front) or None if skill else None

    # --- choosing, and summing up

    def shelf(self, began: date | None = None) -> Shelf:
        """The skills as a prompt shows them, but for those that stand in it whole. Where they do not all fit, what was
        used before the day a session `began` decides, so that within a session they stay where they are."""
        skills = self.skills()
        if None in self._shelves:  # there is room for all
            return self._shelves[None]
        listed = [skill for skill in skills if not (skill.hidden or (skill.always and skill.available))]
        if self._fit(listed):
            return self._shelves.setdefault(None, Shelf(tuple(listed)))
        day = began or date.today()
        if day not in self._shelves:
            if len(self._shelves) >= _DAYS_KEPT:
                del self._shelves[next(iter(self._shelves))]
            self._shelves[day] = self._chosen(listed, day)
        return self._shelves[day]

    def _fit(self, skills: Sequence[Skill]) -> bool:
        return sum(map(_length, skills)) <= self._chars

    def _chosen(self, skills: Sequence[Skill], day: date) -> Shelf:
        worth = self.book.worth(day) if self.book is not None else {}

        def rank(skill: Skill) -> tuple[object, ...]:
            return -worth.get(skill.name, 0.0), not skill.available, skill.source != "workspace", skill.name

        left, shown = self._chars - min(_NAMES_CHARS, self._chars // 4), []
        for skill in sorted(skills, key=rank):
            if _length(skill) <= left:
                left -= _length(skill)
                shown.append(skill)
        return Shelf(tuple(shown), tuple(skill for skill in skills if skill not in shown), day)

    def build_skills_summary(self) -> str:
        """Every skill in a few lines of XML for the model, as far as they fit; empty without skills."""
        skills = tuple(skill for skill in self.skills() if not skill.hidden)
        return self.summary_of(Shelf(skills) if self._fit(skills) else self._chosen(skills, date.today()))

    def summary_of(self, shelf: Shelf) -> str:
        """What a shelf shows, in XML, and by which names and where the rest is found."""
        if not shelf.shown and not shelf.rest:
            return ""
        more = [self._more(shelf.rest)] if shelf.rest else []
        return "\n".join(["<skills>", *map(_summary, shelf.shown), *more, "</skills>"])

    def _more(self, rest: Sequence[Skill]) -> str:
        names: list[str] = []
        room = min(_NAMES_CHARS, self._chars // 4)
        for skill in rest:
            room -= len(skill.name) + 2
            if room < 0:
                break
            names.append(skill.name)
        unnamed = len(rest) - len(names)
        told = ", ".join(names) + (f" and {unnamed} more" if unnamed and names else "")
        folders = " and ".join(str(folder) for folder in (self.own, self._shipped) if folder.is_dir())
        how = f"Their files are FOLDER/NAME/{SKILL_FILE}; to find one, grep for ^description in {folders}."
        return f'<more count="{len(rest)}">{escape(f"{told}. {how}" if told else how, quote=False)}</more>'


_DAYS_KEPT = 32
"""Days that sessions began on, of which the choice is kept."""


def _with_needed(
    lacking: Mapping[str, tuple[Lack, ...]], needed: Mapping[str, Collection[str]]
) -> dict[str, tuple[Lack, ...]]:
    """What each skill lacks, with the skills it needs that cannot be used. Skills that need each other can be."""
    broken = {name for name, lack in lacking.items() if lack}
    while more := {
        name for name in lacking.keys() - broken if any(one not in lacking or one in broken for one in needed[name])
    }:
        broken |= more
    found = {}
    for name, lack in lacking.items():
        skills = []
        for one in needed[name]:
            if one not in lacking:
                skills.append(Lack(f"skill: {one}"))
            elif one in broken and one != name:
                why = lacking[one][0].text if lacking[one] else "another skill"
                skills.append(Lack(f"skill: {one}, which lacks {why}"))
        found[name] = (*lack, *skills)
    return found


def _skill_files(folder: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Each SKILL.md one level below; nothing where the folder cannot be listed. Every turn asks, so it is kept lean."""
    try:
        with os.scandir(folder) as entries:
            places = [
                (entry.name, f"{entry.path}{os.sep}{SKILL_FILE}") for entry in entries if not entry.name.startswith(".")
            ]
    except OSError:
        return
    for name, path in places:
        try:
            status = os.stat(path)  # noqa: PTH116 a Path costs more than the look
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):  # opening a pipe of that name would wait for ever
            yield name, path, (status.st_ino, status.st_mtime_ns, status.st_size)


def _length(skill: Skill) -> int:
    return len(_summary(skill)) + 1


def _summary(skill: Skill) -> str:
    fields = {
        "name": skill.name,
        "description": clip_line(skill.description, _LONGEST_DESCRIPTION),
        "location": str(skill.path),
    }
    if skill.missing or skill.needs:
        requires = ", ".join(skill.told or [f"skill: {name}" for name in skill.needs])
        fields["requires"] = clip_line(one_line(requires), _LONGEST_REQUIRES)
    lines = [f"<{tag}>{escape(text, quote=False)}</{tag}>" for tag, text in fields.items()]
    return "\n".join([f'<skill available="{str(skill.available).lower()}">', *lines, "</skill>"])
