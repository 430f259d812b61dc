"""Finds, checks, selects and summarizes skills, and records their use: if not all fit into a prompt, the most used are
shown.

A damaged SKILL.md raises nothing here: the skill is listed as unavailable with the reason. Listing is cheap enough for
every turn: a file is parsed when it is new or changed, else it costs one stat.
"""

import logging
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import partial
from html import escape
from pathlib import Path

from nanobot.agent.skills.manual import (
    SKILL_FILE,
    Manual,
    ManualError,
    MissingNeed,
    Opens,
    body,
    find_missing,
    one_line,
    parse_manual,
    read_text,
)
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import text_of
from nanobot.security.files.open import Stamp, stamp_of
from nanobot.utils.database import reading, writing
from nanobot.utils.installation import skills_dir
from nanobot.utils.text import clip, clip_line

log = logging.getLogger(__name__)

_HOST_CACHE_S = 2.0
"""How long programs, environment variables and built-in skills are assumed unchanged."""
SUMMARY_CHARS = 8_000
_MAX_DESCRIPTION_CHARS = 1_024
_MAX_REQUIRES_CHARS = 500
_MAX_ALWAYS_CHARS = 16_000
_NAMES_CHARS = 1_500
_MAX_DAYS_CACHED = 32
SCHEMA = """
CREATE TABLE IF NOT EXISTS skill_use (day TEXT NOT NULL, skill TEXT NOT NULL, PRIMARY KEY (day, skill)) WITHOUT ROWID;
"""
_KEEP_USE = timedelta(days=120)
_HALF_LIFE_DAYS = 14.0
_NAMED = re.compile(r"(?<!\w)\$([\w-]+)")


@dataclass(frozen=True, slots=True)
class _File:
    """A SKILL.md that was found."""

    source: str
    name: str
    path: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Skill:
    """The current state of a skill. Equal to a former one if nothing changed."""

    name: str
    path: Path
    source: str
    """`workspace` or `builtin`."""
    stamp: Stamp
    manual: Manual
    missing: tuple[str, ...]
    """Its missing requirements. Empty if it can be used."""
    missing_hints: tuple[str, ...] = ()
    """The missing requirements, each with how to get it on this system."""

    @property
    def description(self) -> str:
        return self.manual.description or self.name

    @property
    def always(self) -> bool:
        """Whether its whole text belongs into every prompt."""
        return self.manual.always and not self.manual.hidden

    @property
    def available(self) -> bool:
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
    whole: tuple[Skill, ...] = ()
    """Skills whose whole text is in the prompt."""


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
        self.own = workspace / "skills"
        self._shipped = builtin_skills_dir or skills_dir()
        self._disabled = frozenset(disabled)
        self._opener = opener
        self._usage_scores = usage_scores
        self._is_set = is_set
        self._why_forbidden = why_forbidden
        self._chars = summary_chars
        self._names_chars = min(_NAMES_CHARS, summary_chars // 4)
        self._manuals: dict[str, tuple[Stamp, Manual]] = {}
        self._files: list[_File] = []
        self._shipped_files: list[_File] = []
        self._refreshed_at = -_HOST_CACHE_S
        self._skills: tuple[Skill, ...] = ()
        self._catalogs: dict[date | None, SkillCatalog] = {}

    # --- listing

    def skills(self) -> tuple[Skill, ...]:
        """Return all skills by name. The identical tuple until a file, or after some seconds the host, changes."""
        now = time.monotonic()
        is_refresh_due = now - self._refreshed_at >= _HOST_CACHE_S
        if is_refresh_due:
            self._refreshed_at = now
            self._shipped_files = [*_find_files("builtin", self._shipped)]
        files = [*_find_files("workspace", self.own), *self._shipped_files]
        if is_refresh_due or files != self._files:
            skills, self._files = self._load(files), files
            if skills != self._skills:
                self._skills = skills
                self._catalogs.clear()
        return self._skills

    def _load(self, files: Iterable[_File]) -> tuple[Skill, ...]:
        """Return the current state of each skill, by name. A file that changed is read again."""
        by_name: dict[str, _File] = {}
        for file in files:
            if file.name not in self._disabled:
                by_name.setdefault(file.name, file)
        manuals: dict[str, Manual] = {}
        for name, file in sorted(by_name.items()):
            if self._manuals.get(file.path, (None,))[0] != file.stamp:
                try:
                    manual = parse_manual(read_text(file.path, self._opener))
                except ManualError as error:
                    manual = Manual(error)
                self._manuals[file.path] = (file.stamp, manual)
            manuals[name] = self._manuals[file.path][1]
        missing = {name: [*find_missing(manual, self._is_set, self._why_forbidden)] for name, manual in manuals.items()}
        _add_needed_skills(missing, {name: manual.skills for name, manual in manuals.items()})
        return tuple(
            Skill(
                name,
                Path(by_name[name].path),
                by_name[name].source,
                by_name[name].stamp,
                manual,
                missing=tuple(need.text for need in missing[name]),
                missing_hints=tuple(need.summary for need in missing[name]),
            )
            for name, manual in manuals.items()
        )

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
            "needs": list(skill.manual.skills),
            "allowed_tools": list(skill.manual.tools),
        }

    def find_missing(self, manual: Manual) -> list[MissingNeed]:
        """Return what is missing for a skill that is not installed yet."""
        usable = {skill.name for skill in self.skills() if skill.available}
        skills = (MissingNeed(f"skill: {name}") for name in manual.skills if name not in usable)
        return [*find_missing(manual, self._is_set, self._why_forbidden), *skills]

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
        try:
            return read_text(skill.path, self._opener).replace("{baseDir}", str(skill.path.parent)) if skill else None
        except ManualError:
            return None

    def load_skills_for_context(self, names: Iterable[str]) -> str:
        """Return the named skills as prompt sections, without front matter. Unreadable ones are skipped and long ones
        truncated.
        """
        parts = []
        for name in names:
            if (text := self.load_skill(name)) is not None:
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
        skills, day = self.skills(), began or date.today()
        for key in (None, day):  # None: all fit
            if key in self._catalogs:
                return self._catalogs[key]
        whole = tuple(skill for skill in skills if skill.always and skill.available)
        listed = [skill for skill in skills if not skill.manual.hidden and skill not in whole]
        if len(self._catalogs) >= _MAX_DAYS_CACHED:
            del self._catalogs[next(iter(self._catalogs))]
        catalog = replace(self._select(listed, day), whole=whole)
        self._catalogs[catalog.day] = catalog
        return catalog

    def _select(self, skills: Sequence[Skill], day: date) -> SkillCatalog:
        """Return all skills if their summaries fit, else the most used and the names of the rest."""
        sizes = {skill.name: len(_format_summary(skill)) + 1 for skill in skills}
        if sum(sizes.values()) <= self._chars:
            return SkillCatalog(tuple(skills))
        scores = self._usage_scores(day)

        def rank(skill: Skill) -> tuple[object, ...]:
            return -scores.get(skill.name, 0.0), not skill.available, skill.source != "workspace", skill.name

        chars_left, shown = self._chars - self._names_chars, []
        for skill in sorted(skills, key=rank):
            if sizes[skill.name] <= chars_left:
                chars_left -= sizes[skill.name]
                shown.append(skill)
        names = {skill.name for skill in shown}
        return SkillCatalog(tuple(shown), tuple(skill for skill in skills if skill.name not in names), day)

    def build_skills_summary(self) -> str:
        """Return the skills as XML for the model, as far as they fit; empty without skills."""
        skills = [skill for skill in self.skills() if not skill.manual.hidden]
        return self.format_catalog(self._select(skills, date.today()))

    def format_catalog(self, catalog: SkillCatalog) -> str:
        """Format a catalog as XML, with how to find the skills not shown."""
        if not catalog.shown and not catalog.rest:
            return ""
        more = [self._format_rest(catalog.rest)] if catalog.rest else []
        return "\n".join(["<skills>", *map(_format_summary, catalog.shown), *more, "</skills>"])

    def _format_rest(self, rest: Sequence[Skill]) -> str:
        names: list[str] = []
        for skill in rest:
            if len(", ".join([*names, skill.name])) > self._names_chars:
                break
            names.append(skill.name)
        unnamed = f" and {len(rest) - len(names)} more" if names and len(names) < len(rest) else ""
        folders = " and ".join(str(folder) for folder in (self.own, self._shipped) if folder.is_dir())
        hint = f"Their files are FOLDER/NAME/{SKILL_FILE}; to find one, grep for ^description in {folders}."
        text = f"{', '.join(names)}{unnamed}. {hint}" if names else hint
        return f'<more count="{len(rest)}">{escape(text, quote=False)}</more>'


def _add_needed_skills(missing: Mapping[str, list[MissingNeed]], needed: Mapping[str, Sequence[str]]) -> None:
    """Add unusable needed skills to what each skill lacks. Skills that need each other are usable."""
    reasons = {name: needs[0].text for name, needs in missing.items() if needs}
    while more := [
        name
        for name in missing.keys() - reasons.keys()
        if any(need not in missing or need in reasons for need in needed[name])
    ]:
        reasons |= dict.fromkeys(more, "another skill")
    for name, needs in missing.items():
        for need in needed[name]:
            if need not in missing:
                needs.append(MissingNeed(f"skill: {need}"))
            elif need in reasons and need != name:
                needs.append(MissingNeed(f"skill: {need}, which lacks {reasons[need]}"))


def _find_files(source: str, folder: Path) -> Iterator[_File]:
    """Yield each SKILL.md one level below; nothing if the folder cannot be listed. Runs every turn."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".")]
    except OSError:
        return
    for name in names:
        path = f"{folder}{os.sep}{name}{os.sep}{SKILL_FILE}"
        try:
            status = os.stat(path)  # noqa: PTH116 a Path is slower than the stat
        except (OSError, ValueError):
            continue
        if stat.S_ISREG(status.st_mode):  # opening a pipe would block
            yield _File(source, name, path, stamp_of(status))


def _format_summary(skill: Skill) -> str:
    fields = {
        "name": skill.name,
        "description": clip_line(skill.description, _MAX_DESCRIPTION_CHARS),
        "location": str(skill.path),
    }
    if skill.missing or skill.manual.skills:
        requires = ", ".join(skill.missing_hints or [f"skill: {name}" for name in skill.manual.skills])
        fields["requires"] = clip_line(one_line(requires), _MAX_REQUIRES_CHARS)
    lines = [f"<{tag}>{escape(text, quote=False)}</{tag}>" for tag, text in fields.items()]
    return "\n".join([f'<skill available="{str(skill.available).lower()}">', *lines, "</skill>"])


# --- use


class SkillUsage:
    """The days on which skills were used, in the bot's database. Methods block briefly and never raise."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._recorded: set[tuple[str, date]] = set()

    def note_used(self, name: str) -> None:
        today = date.today()
        if (name, today) in self._recorded:
            return
        self._recorded.add((name, today))
        try:
            with writing(self._database, SCHEMA) as db:
                db.execute("DELETE FROM skill_use WHERE day < ?", ((today - _KEEP_USE).isoformat(),))
                db.execute("INSERT OR IGNORE INTO skill_use VALUES (?, ?)", (today.isoformat(), name))
        except StorageError as error:
            log.warning("the use of the skill %s cannot be saved: %s", name, error)

    def scores(self, before: date) -> dict[str, float]:
        """Return a usage score by skill for the days before this one; older use counts less."""
        scores: dict[str, float] = {}
        try:
            with reading(self._database, SCHEMA) as db:
                query = "SELECT skill, day FROM skill_use WHERE day < ?"
                for name, day in db.execute(query, (before.isoformat(),)):
                    age_days = (before - date.fromisoformat(day)).days
                    scores[name] = scores.get(name, 0.0) + 0.5 ** (age_days / _HALF_LIFE_DAYS)
        except StorageError as error:
            log.warning("%s", error)
        return scores


class SkillUsageRecorder:
    """The hook that records it. It never denies."""

    def __init__(self, skills: SkillsLoader, usage: SkillUsage) -> None:
        self._skills = skills
        self._usage = usage

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Record skills whose SKILL.md is read, whose files are run, or that a person names with `$`."""
        return Verdict(on_success=[partial(self._usage.note_used, name) for name in self._used_skills(planned)])

    def _used_skills(self, planned: PlannedCall) -> Iterator[str]:
        name, arguments = planned.call.name, planned.call.arguments
        command = str(arguments.get("command")).replace(os.sep, "/") if name == "exec" else ""
        path = str(arguments.get("path")) if name == "read_file" else ""
        path = os.path.normpath(planned.context.workspace / path) if path.endswith(SKILL_FILE) else ""
        prompt = next((row for row in reversed(planned.rows) if row.get("role") == "user"), None)
        named = _NAMED.findall(text_of(prompt.get("content"))) if prompt is not None else []
        for skill in self._skills.skills() if named or path or "skills/" in command else ():
            if skill.name in named or str(skill.path) == path or f"skills/{skill.name}/" in command:
                yield skill.name
