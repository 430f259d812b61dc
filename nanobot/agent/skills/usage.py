"""Records on which days skills are used. If not all fit into a prompt, the most used are shown."""

import logging
import os
import re
from collections.abc import Iterator
from datetime import date, timedelta
from functools import partial
from pathlib import Path

from nanobot.agent.skills.loader import SkillsLoader
from nanobot.agent.skills.manual import SKILL_FILE
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import text_of
from nanobot.utils.database import reading, writing

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS skill_use (day TEXT NOT NULL, skill TEXT NOT NULL, PRIMARY KEY (day, skill)) WITHOUT ROWID;
"""
_KEEP_USE = timedelta(days=120)
_HALF_LIFE_DAYS = 14.0
_NAMED = re.compile(r"(?<!\w)\$([\w-]+)")


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
