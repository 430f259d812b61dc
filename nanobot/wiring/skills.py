"""Skills as the config wants them: which there are, what of the config they may ask for, and the `/skills` command."""

import asyncio
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.skill.book import SkillBook
from nanobot.agent.skill.manual import one_line
from nanobot.agent.skills import Skill, SkillsLoader
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.security.opening import Opener
from nanobot.security.paths import PathPolicy
from nanobot.utils.text import clip_line

if TYPE_CHECKING:
    from nanobot.agent.desk import Asked, CommandEntry

_DESCRIBED = 100
_LISTED = 50


def skills_of(config: Config, places: Places, workspace: Path, paths: PathPolicy | None = None) -> SkillsLoader:
    """The skills of a workspace. `paths` says where links in it may lead; None follows them all."""
    defaults = config.agents.defaults
    return SkillsLoader(
        workspace,
        disabled=frozenset(defaults.disabled_skills),
        opener=Opener(paths).descriptor if paths is not None else None,
        book=SkillBook(places.skills),
        is_set=_setting_of(config),
        summary_chars=defaults.skills_prompt_chars,
    )


def skills_command(skills: SkillsLoader) -> "dict[str, CommandEntry]":
    """`/skills`: which there are, and what they lack."""
    from nanobot.agent.desk import CommandEntry  # who only lists skills does not wait for a turn's rooms

    async def answer(asked: "Asked") -> str:
        found = await asyncio.to_thread(skills.skills)
        rows = [_row(skill) for skill in found[:_LISTED]]
        more = [f"and {len(found) - _LISTED} more: nanobot skills list"] if len(found) > _LISTED else []
        return "\n".join([*rows, *more]) or "There are no skills."

    return {"skills": CommandEntry(answer, "what the agent has learnt to do, and what a skill still needs")}


def _row(skill: Skill) -> str:
    needs = f"\n  needs {clip_line(one_line(', '.join(skill.told)), 2 * _DESCRIBED)}" if skill.missing else ""
    return f"{skill.name}: {clip_line(skill.description, _DESCRIBED)}{needs}"


def _setting_of(config: Config) -> Callable[[str], bool]:
    """Whether a key with dots has a value that counts; what is switched off has none."""

    @cache
    def tables() -> tuple[dict[str, Any], dict[str, Any]]:
        return config.model_dump(by_alias=True), config.model_dump()

    def is_set(key: str) -> bool:
        return any(_holds(table, key.split(".")) for table in tables())

    return is_set


def _holds(value: Any, parts: list[str]) -> bool:
    for part in parts:
        if not isinstance(value, Mapping) or value.get("enabled") is False:
            return False
        value = value.get(part)
    return bool(value) and not (isinstance(value, Mapping) and value.get("enabled") is False)
