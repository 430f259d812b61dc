"""Finds, checks, selects and summarizes skills.

A damaged SKILL.md raises nothing here: the skill is listed as unavailable with the reason. Listing is cheap enough for
every turn: a file is parsed when it is new or changed, else it costs one stat.
"""

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path

from nanobot.agent.skills.manual import MAX_BYTES as MAX_BYTES
from nanobot.agent.skills.manual import SKILL_FILE, Manual, Opens, body, one_line, read_manual, read_text
from nanobot.agent.skills.needs import MissingNeed, SkillNeeds, find_missing
from nanobot.security.files.open import Stamp, stamp_of
from nanobot.utils.resources import skills_dir
from nanobot.utils.text import clip, clip_line

_HOST_CACHE_S = 2.0
"""How long programs on the PATH and built-in skills are assumed unchanged."""
SUMMARY_CHARS = 8_000
"""Maximum length of the skill summaries in a prompt."""
_MAX_DESCRIPTION_CHARS = 1_024
_MAX_REQUIRES_CHARS = 500
_MAX_ALWAYS_CHARS = 16_000
_NAMES_CHARS = 1_500
"""Maximum length of the names of skills without a summary in a prompt."""

_File = tuple[str, str, str, Stamp]
"""Source, skill name, path and change stamp of a SKILL.md."""


@dataclass(frozen=True, slots=True)
class Skill:
    """The current state of a skill. Equal to a former one if nothing changed."""

    name: str
    path: Path
    source: str
    """`workspace` or `builtin`."""
    description: str
    always: bool
    missing: tuple[str, ...]
    """Its missing requirements. Empty if it can be used."""
    stamp: Stamp
    missing_hints: tuple[str, ...] = ()
    """The missing requirements, each with how to get it on this system."""
    needs: tuple[str, ...] = ()
    """The skills it needs."""
    hidden: bool = False
    """Whether prompts do not mention it (`disable-model-invocation`); a person may name it."""

    @property
    def available(self) -> bool:
        """Whether all requirements are met."""
        return not self.missing


@dataclass(frozen=True, slots=True)
class SkillCatalog:
    """The skills as shown in a prompt. The identical object while nothing changes."""

    shown: tuple[Skill, ...]
    """Skills with a summary: all by name, or if they do not fit, the most used first."""
    rest: tuple[Skill, ...] = ()
    """Skills without a summary, by name."""
    day: date | None = None
    """The day it was selected for, if there was a selection."""


class SkillsLoader:
    """The skills of a workspace, which override built-in ones of the same name. Those in `disabled` do not exist."""

    def __init__(
        self,
        workspace: Path,
        builtin_skills_dir: Path | None = None,
        disabled: Collection[str] = (),
        opener: Opens | None = None,
        *,
        usage_scores: Callable[[date], Mapping[str, float]] = lambda before: {},
        is_set: Callable[[str], bool] = lambda key: False,
        why_forbidden: Callable[[str], str] = lambda name: "",
        summary_chars: int = SUMMARY_CHARS,
    ) -> None:
        """`opener` is passed to `open` and limits where links in the workspace may lead. `usage_scores` says how much
        each skill was used before a day. `is_set` checks config keys. `why_forbidden` explains what the command sandbox
        forbids.
        """
        self._usage_scores = usage_scores
        self._opener = opener
        self.own = workspace / "skills"
        """The folder of the workspace's skills."""
        self._shipped = builtin_skills_dir or skills_dir()
        self._disabled = frozenset(disabled)
        self._is_set = is_set
        self._why_forbidden = why_forbidden
        self._chars = summary_chars
        self._manuals: dict[str, tuple[Stamp, Manual, SkillNeeds]] = {}
        self._files: list[_File] = []
        self._shipped_files: list[_File] = []
        self._refreshed_at = -_HOST_CACHE_S
        self._variables: set[str] = set()
        self._last_host: tuple[str | None, ...] = ()
        self._skills: tuple[Skill, ...] = ()
        self._catalogs: dict[date | None, SkillCatalog] = {}

    # --- listing

    def skills(self) -> tuple[Skill, ...]:
        """Return all skills by name. The identical tuple until a file, or after some seconds the host, changes."""
        now, host = time.monotonic(), self._host()
        is_refresh_due = now - self._refreshed_at >= _HOST_CACHE_S
        if is_refresh_due:
            self._refreshed_at = now
            self._shipped_files = [("builtin", *file) for file in _skill_files(self._shipped)]
        files = [*(("workspace", *file) for file in _skill_files(self.own)), *self._shipped_files]
        if is_refresh_due or files != self._files or host != self._last_host:
            by_name: dict[str, _File] = {}
            for file in files:
                if file[1] not in by_name and file[1] not in self._disabled:
                    by_name[file[1]] = file
            skills = self._load_skills(by_name)
            if skills != self._skills:
                self._skills = skills
                self._catalogs.clear()
            self._files = files
            self._variables = {name for _, _, needs in self._manuals.values() for name in needs.variables}
            self._last_host = self._host()
        return self._skills

    def _host(self) -> tuple[str | None, ...]:
        """Return the environment that decides which skills are usable."""
        return tuple(os.environ.get(name) for name in ("PATH", *sorted(self._variables)))

    def _load_skills(self, files: Mapping[str, _File]) -> tuple[Skill, ...]:
        """Return the current state of each skill, by name."""
        manuals = {name: self._manual(path, stamp) for name, (_, _, path, stamp) in files.items()}
        lacking = {name: self._missing_for(*manuals[name]) for name in files}
        needed = {name: needs.skills for name, (_, needs) in manuals.items()}
        result = []
        for name, missing in _add_needed_skills(lacking, needed).items():
            source, _, path, stamp = files[name]
            manual = manuals[name][0]
            hidden = manual.front.get("disable-model-invocation") is True
            skill = Skill(
                name=name,
                path=Path(path),
                source=source,
                description=manual.description or name,
                always=not hidden and manual.always,
                missing=tuple(need.text for need in missing),
                stamp=stamp,
                missing_hints=tuple(need.summary for need in missing),
                needs=needed[name],
                hidden=hidden,
            )
            result.append(skill)
        return tuple(sorted(result, key=lambda skill: skill.name))

    def _manual(self, path: str, stamp: Stamp) -> tuple[Manual, SkillNeeds]:
        """Return the parsed SKILL.md, reread if it changed."""
        known = self._manuals.get(path)
        if known is None or known[0] != stamp:
            manual = read_manual(Path(path), self._opener)
            known = self._manuals[path] = (stamp, manual, SkillNeeds.of(manual))
        return known[1], known[2]

    def _missing_for(self, manual: Manual, needs: SkillNeeds) -> tuple[MissingNeed, ...]:
        """Return what keeps a skill itself from being used."""
        if manual.problem:
            return (MissingNeed(manual.problem),)
        return tuple(find_missing(needs, self._is_set, self._why_forbidden))

    # --- one skill

    def get(self, name: str) -> Skill | None:
        return next((skill for skill in self.skills() if skill.name == name), None)

    def facts(self, skill: Skill) -> dict[str, object]:
        """The skill as JSON data, for commands and the page."""
        return {
            "name": skill.name,
            "description": skill.description,
            "source": skill.source,
            "path": str(skill.path),
            "always": skill.always,
            "available": skill.available,
            "missing": list(skill.missing),
            "hints": list(skill.missing_hints),
            "needs": list(skill.needs),
            "allowed_tools": list(self.needs_of(skill).tools),
        }

    def needs_of(self, skill: Skill) -> SkillNeeds:
        """Return the requirements of a skill."""
        return self._manual(str(skill.path), skill.stamp)[1]

    def find_missing(self, needs: SkillNeeds) -> tuple[MissingNeed, ...]:
        """Return what is missing for a skill that is not installed yet."""
        known = {skill.name: skill for skill in self.skills()}
        skills = (
            MissingNeed(f"skill: {name}") for name in needs.skills if name not in known or not known[name].available
        )
        return (*find_missing(needs, self._is_set, self._why_forbidden), *skills)

    def list_skills(self, filter_unavailable: bool = True) -> list[dict[str, str]]:
        """Return name, path and source of each skill, unavailable ones only if asked."""
        return [
            {"name": skill.name, "path": str(skill.path), "source": skill.source}
            for skill in self.skills()
            if skill.available or not filter_unavailable
        ]

    def load_skill(self, name: str) -> str | None:
        """Return the SKILL.md with `{baseDir}` filled in; None if it is missing or unreadable."""
        skill = self.get(name)
        if skill is None:
            return None
        text, problem = read_text(skill.path, self._opener)
        return None if problem else text.replace("{baseDir}", str(skill.path.parent))

    def load_skills_for_context(self, names: Iterable[str]) -> str:
        """Return the named skills as prompt sections, without front matter. Unreadable ones are skipped and long ones
        truncated.
        """
        parts = []
        for name in names:
            text = self.load_skill(name)
            if text is not None:
                section = clip(body(text), _MAX_ALWAYS_CHARS, "{left_out} characters left out; read the file for them")
                parts.append(f"### Skill: {name}\n\n{section}")
        return "\n\n".join(parts)

    def get_always_skills(self) -> list[str]:
        """Return the names of usable skills that belong into every prompt."""
        return [skill.name for skill in self.skills() if skill.always and skill.available]

    # --- selecting and summarizing

    def catalog(self, began: date | None = None) -> SkillCatalog:
        """Return the skills for a prompt, except those included in full. If they do not all fit, use before the day the
        session `began` decides, so that the selection is stable within a session.
        """
        skills = self.skills()
        if None in self._catalogs:  # all fit
            return self._catalogs[None]
        listed = [skill for skill in skills if not (skill.hidden or (skill.always and skill.available))]
        if self._all_fit(listed):
            return self._catalogs.setdefault(None, SkillCatalog(tuple(listed)))
        day = began or date.today()
        if day not in self._catalogs:
            if len(self._catalogs) >= _MAX_DAYS_CACHED:
                del self._catalogs[next(iter(self._catalogs))]
            self._catalogs[day] = self._select(listed, day)
        return self._catalogs[day]

    def _all_fit(self, skills: Sequence[Skill]) -> bool:
        return sum(map(_summary_length, skills)) <= self._chars

    def _select(self, skills: Sequence[Skill], day: date) -> SkillCatalog:
        scores = self._usage_scores(day)

        def rank(skill: Skill) -> tuple[object, ...]:
            return -scores.get(skill.name, 0.0), not skill.available, skill.source != "workspace", skill.name

        chars_left, shown = self._chars - min(_NAMES_CHARS, self._chars // 4), []
        for skill in sorted(skills, key=rank):
            if _summary_length(skill) <= chars_left:
                chars_left -= _summary_length(skill)
                shown.append(skill)
        return SkillCatalog(tuple(shown), tuple(skill for skill in skills if skill not in shown), day)

    def build_skills_summary(self) -> str:
        """Return the skills as XML for the model, as far as they fit; empty without skills."""
        skills = tuple(skill for skill in self.skills() if not skill.hidden)
        return self.format_catalog(
            SkillCatalog(skills) if self._all_fit(skills) else self._select(skills, date.today())
        )

    def format_catalog(self, catalog: SkillCatalog) -> str:
        """Format a catalog as XML, with how to find the skills not shown."""
        if not catalog.shown and not catalog.rest:
            return ""
        more = [self._format_rest(catalog.rest)] if catalog.rest else []
        return "\n".join(["<skills>", *map(_format_summary, catalog.shown), *more, "</skills>"])

    def _format_rest(self, rest: Sequence[Skill]) -> str:
        names: list[str] = []
        room = min(_NAMES_CHARS, self._chars // 4)
        for skill in rest:
            room -= len(skill.name) + 2
            if room < 0:
                break
            names.append(skill.name)
        unnamed = len(rest) - len(names)
        text = ", ".join(names) + (f" and {unnamed} more" if unnamed and names else "")
        folders = " and ".join(str(folder) for folder in (self.own, self._shipped) if folder.is_dir())
        hint = f"Their files are FOLDER/NAME/{SKILL_FILE}; to find one, grep for ^description in {folders}."
        return f'<more count="{len(rest)}">{escape(f"{text}. {hint}" if text else hint, quote=False)}</more>'


_MAX_DAYS_CACHED = 32
"""Number of start days whose selection is cached."""


def _add_needed_skills(
    lacking: Mapping[str, tuple[MissingNeed, ...]], needed: Mapping[str, Collection[str]]
) -> dict[str, tuple[MissingNeed, ...]]:
    """Add unusable needed skills to what each skill lacks. Skills that need each other are usable."""
    broken = {name for name, missing in lacking.items() if missing}
    while more := {
        name for name in lacking.keys() - broken if any(need not in lacking or need in broken for need in needed[name])
    }:
        broken |= more
    result = {}
    for name, missing in lacking.items():
        skills = []
        for need in needed[name]:
            if need not in lacking:
                skills.append(MissingNeed(f"skill: {need}"))
            elif need in broken and need != name:
                why = lacking[need][0].text if lacking[need] else "another skill"
                skills.append(MissingNeed(f"skill: {need}, which lacks {why}"))
        result[name] = (*missing, *skills)
    return result


def _skill_files(folder: Path) -> Iterator[tuple[str, str, Stamp]]:
    """Yield each SKILL.md one level below; nothing if the folder cannot be listed. Runs every turn."""
    try:
        with os.scandir(folder) as entries:
            candidates = [
                (entry.name, f"{entry.path}{os.sep}{SKILL_FILE}") for entry in entries if not entry.name.startswith(".")
            ]
    except OSError:
        return
    for name, path in candidates:
        try:
            status = os.stat(path)  # noqa: PTH116 a Path is slower than the stat
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):  # opening a pipe would block
            yield name, path, stamp_of(status)


def _summary_length(skill: Skill) -> int:
    return len(_format_summary(skill)) + 1


def _format_summary(skill: Skill) -> str:
    fields = {
        "name": skill.name,
        "description": clip_line(skill.description, _MAX_DESCRIPTION_CHARS),
        "location": str(skill.path),
    }
    if skill.missing or skill.needs:
        requires = ", ".join(skill.missing_hints or [f"skill: {name}" for name in skill.needs])
        fields["requires"] = clip_line(one_line(requires), _MAX_REQUIRES_CHARS)
    lines = [f"<{tag}>{escape(text, quote=False)}</{tag}>" for tag, text in fields.items()]
    return "\n".join([f'<skill available="{str(skill.available).lower()}">', *lines, "</skill>"])
