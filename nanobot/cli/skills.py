"""`nanobot skills`: what the agent has learnt to do, and what a skill still needs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from nanobot.agent.skills import Skill, SkillsLoader
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    read_setup,
    say_text,
    show_json,
    show_rows,
    unknown_name,
)
from nanobot.errors import NanobotError


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """All skills, and whether each can be used here."""
    skills = _loader(config, workspace).skills()
    if json:
        show_json([_facts(skill) for skill in skills])
        return
    show_rows(
        ("Skill", "From", "Ready", "What for"),
        [(skill.name, skill.source, _readiness(skill), skill.description) for skill in skills],
        empty="There are no skills.",
    )


def show(
    name: Annotated[str, typer.Argument(help="The skill's name, as `nanobot skills list` shows it.")],
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """What a skill tells the agent."""
    loader = _loader(config, workspace)
    skills = {skill.name: skill for skill in loader.skills()}
    if name not in skills:
        raise unknown_name("skill", name, skills, "nanobot skills list")
    text = loader.load_skill(name)
    if json:
        show_json({**_facts(skills[name]), "text": text})
    elif text is None:
        raise NanobotError(f"The skill {name} cannot be read: {_readiness(skills[name])}. Mend {skills[name].path}.")
    else:
        say_text(text)


def _loader(config: Path | None, workspace: Path | None) -> SkillsLoader:
    setup = read_setup(config, workspace, secrets=False)
    return SkillsLoader(setup.workspace, disabled=setup.config.agents.defaults.disabled_skills)


def _facts(skill: Skill) -> dict[str, object]:
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": str(skill.path),
        "always": skill.always,
        "available": skill.available,
        "missing": list(skill.missing),
    }


def _readiness(skill: Skill) -> str:
    if skill.missing:
        return f"needs {', '.join(skill.missing)}"
    return "always on" if skill.always else "yes"
