"""The skills loader with the settings of the config, and the `/skills` command."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.skills.loader import Skill, SkillsLoader
from nanobot.agent.skills.manual import one_line
from nanobot.agent.skills.usage import SkillUsage
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathPolicy
from nanobot.utils.text import clip_line

if TYPE_CHECKING:
    from nanobot.agent.command import CommandCall, CommandEntry

_MAX_DESCRIPTION_CHARS = 100
_MAX_LISTED = 50


def skills_loader(config: Config, places: DataPaths, workspace: Path, paths: PathPolicy | None = None) -> SkillsLoader:
    """Create the loader of a workspace's skills. `paths` limits where links may lead; None follows all."""
    defaults = config.agents.defaults
    return SkillsLoader(
        workspace,
        disabled=frozenset(defaults.disabled_skills),
        opener=Opener(paths).descriptor if paths is not None else None,
        usage_scores=SkillUsage(places.database).scores,
        is_set=_setting_checker(config),
        why_forbidden=_sandbox_checker(config),
        summary_chars=defaults.skills_prompt_chars,
    )


def _sandbox_checker(config: Config) -> Callable[[str], str]:
    """Return a function that says why the command sandbox blocks a skill's requirement, and how to allow it."""

    @cache
    def why_forbidden(name: str) -> str:
        if name != "sockets" or not config.tools.exec.enable or config.tools.exec.sandbox != "auto":
            return ""
        if shutil.which("bwrap") is not None:  # whether it works is not probed: this runs at each start
            return ""
        from nanobot.security.sandbox.landlock import can_scope  # imported only for skills that need it

        return "Landlock alone closes them; install bubblewrap" if can_scope() else ""

    return why_forbidden


def skills_command(skills: SkillsLoader) -> "CommandEntry":
    """`/skills`: the skills and their missing requirements."""
    from nanobot.agent.command import CommandEntry  # the CLI lists skills without it

    async def answer(call: "CommandCall") -> str:
        known = await asyncio.to_thread(skills.skills)
        rows = [_format_skill(skill) for skill in known[:_MAX_LISTED]]
        more = [f"and {len(known) - _MAX_LISTED} more: nanobot skills list"] if len(known) > _MAX_LISTED else []
        return "\n".join([*rows, *more]) or "There are no skills."

    return CommandEntry(answer, "skills, and what they still need")


def _format_skill(skill: Skill) -> str:
    text = f"{skill.name}: {clip_line(skill.description, _MAX_DESCRIPTION_CHARS)}"
    if skill.missing:
        text += f"\n  needs {clip_line(one_line(', '.join(skill.missing_hints)), 2 * _MAX_DESCRIPTION_CHARS)}"
    return text


def _setting_checker(config: Config) -> Callable[[str], bool]:
    """Return a function that tells whether a dotted config key is set. Keys of disabled sections are not."""

    @cache
    def tables() -> tuple[dict[str, Any], dict[str, Any]]:
        return config.model_dump(by_alias=True), config.model_dump()

    def is_set(key: str) -> bool:
        return any(_is_set_in(table, key.split(".")) for table in tables())

    return is_set


def _is_set_in(value: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(value, Mapping) or value.get("enabled") is False:
            return False
        value = value.get(part)
    return bool(value) and not (isinstance(value, Mapping) and value.get("enabled") is False)
