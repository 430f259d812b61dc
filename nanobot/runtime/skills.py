"""The skills loader with the settings of the config, and the `/skills` command."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.skills.loader import SkillsLoader, SkillUsage
from nanobot.agent.skills.manual import one_line
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


def _setting_checker(config: Config) -> Callable[[str], bool]:
    """Return a function that tells whether a dotted config key is set. Keys of disabled sections are not."""

    @cache
    def tables() -> tuple[dict[str, Any], dict[str, Any]]:
        return config.model_dump(by_alias=True), config.model_dump()

    def is_set_in(value: Any, parts: list[str]) -> bool:
        is_on = not isinstance(value, Mapping) or value.get("enabled") is not False
        if not parts or not is_on:
            return is_on and bool(value)
        return isinstance(value, Mapping) and is_set_in(value.get(parts[0]), parts[1:])

    return lambda key: any(is_set_in(table, key.split(".")) for table in tables())


def skills_command(skills: SkillsLoader) -> "CommandEntry":
    """`/skills`: the skills and their missing requirements."""
    from nanobot.agent.command import CommandEntry  # the CLI lists skills without it

    async def answer(call: "CommandCall") -> str:
        known = await asyncio.to_thread(skills.skills)
        lines = []
        for skill in known[:_MAX_LISTED]:
            lines.append(f"{skill.name}: {clip_line(skill.description, _MAX_DESCRIPTION_CHARS)}")
            if skill.missing:
                needs = one_line(", ".join(skill.missing_hints))
                lines.append(f"  needs {clip_line(needs, 2 * _MAX_DESCRIPTION_CHARS)}")
        lines += [f"and {len(known) - _MAX_LISTED} more: nanobot skills list"] * (len(known) > _MAX_LISTED)
        return "\n".join(lines) or "There are no skills."

    return CommandEntry(answer, "skills, and what they still need")
