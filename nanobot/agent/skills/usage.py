"""Records which skills are used. If not all fit into a prompt, the most used are shown."""

import os
import re
from pathlib import Path

from nanobot.agent.skills.loader import Skill, SkillsLoader
from nanobot.agent.skills.manual import SKILL_FILE
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.messages.types import text_of

_NAMED = re.compile(r"(?<!\w)\$([\w-]+)")
_NO_VERDICT = Verdict()


class SkillUsageRecorder:
    """The hook that records it. It never denies."""

    def __init__(self, skills: SkillsLoader) -> None:
        self._skills = skills

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Record skills whose SKILL.md is read, whose files are run, or that a person names with `$`."""
        used = [*self._skills_accessed(planned), *self._skills_named(planned)]
        usage = self._skills.usage
        if not used or usage is None:
            return _NO_VERDICT

        def record() -> None:
            for skill in used:
                usage.note_used(skill.name)

        return Verdict(on_success=[record])

    def _skills_accessed(self, planned: PlannedCall) -> list[Skill]:
        arguments = planned.call.arguments
        if planned.call.name == "read_file":
            path = str(arguments.get("path") or "")
            if not path.endswith(SKILL_FILE):
                return []
            path_read = os.path.normpath(planned.context.workspace / Path(path))
            return [skill for skill in self._skills.skills() if str(skill.path) == path_read]
        command = str(arguments.get("command") or "") if planned.call.name == "exec" else ""
        if "skills" not in command:
            return []
        return [skill for skill in self._skills.skills() if f"skills/{skill.name}/" in command.replace(os.sep, "/")]

    def _skills_named(self, planned: PlannedCall) -> list[Skill]:
        row = next((row for row in reversed(planned.rows) if row.get("role") == "user"), None)
        text = text_of(row.get("content")) if row is not None else ""
        names = set(_NAMED.findall(text)) if "$" in text else set()
        return [skill for skill in self._skills.skills() if skill.name in names] if names else []
