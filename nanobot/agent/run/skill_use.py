"""Which skills are used: where many do not all fit a prompt, those are shown that were of use before."""

import os
import re
from pathlib import Path

from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.skill.manual import SKILL_FILE
from nanobot.agent.skills import Skill, SkillsLoader
from nanobot.messages.types import text_of

_NAMED = re.compile(r"(?<!\w)\$([\w-]+)")
_NOTHING = Verdict()


class SkillUse:
    """The hook that remembers it. It forbids nothing, and costs nothing where no skill is meant."""

    def __init__(self, skills: SkillsLoader) -> None:
        self._skills = skills

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """A skill whose file is read, or from whose folder something is run, is used; so is one a person names."""
        used = [*self._meant(planned), *self._named(planned)]
        book = self._skills.book
        if not used or book is None:
            return _NOTHING

        def remember() -> None:
            for skill in used:
                book.note_used(skill.name)

        return Verdict(when_done=[remember])

    def _meant(self, planned: PlannedCall) -> list[Skill]:
        arguments = planned.call.arguments
        if planned.call.name == "read_file":
            path = str(arguments.get("path") or "")
            if not path.endswith(SKILL_FILE):
                return []
            place = os.path.normpath(planned.context.workspace / Path(path))
            return [skill for skill in self._skills.skills() if str(skill.path) == place]
        command = str(arguments.get("command") or "") if planned.call.name == "exec" else ""
        if "skills" not in command:
            return []
        return [skill for skill in self._skills.skills() if f"skills/{skill.name}/" in command.replace(os.sep, "/")]

    def _named(self, planned: PlannedCall) -> list[Skill]:
        row = next((row for row in reversed(planned.rows) if row.get("role") == "user"), None)
        text = text_of(row.get("content")) if row is not None else ""
        names = set(_NAMED.findall(text)) if "$" in text else set()
        return [skill for skill in self._skills.skills() if skill.name in names] if names else []
