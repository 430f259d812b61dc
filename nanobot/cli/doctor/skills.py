"""Check of skills: unmet requirements, variables that commands do not get."""

from collections.abc import Iterator

from nanobot.agent.skills.bundle import read_bundle
from nanobot.agent.skills.lint import lint_skill
from nanobot.agent.skills.loader import Skill
from nanobot.cli.doctor.checks import CheckContext, Finding, note, warning
from nanobot.errors import NanobotError
from nanobot.runtime.skills import skills_loader
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun


def skills_can_be_used(context: CheckContext) -> Iterator[Finding]:
    loader = skills_loader(context.config, context.places, context.workspace)
    skills = loader.skills()
    for skill in skills:
        if skill.source == "workspace":
            yield from _workspace_skill_findings(skill)
    unusable = [skill.name for skill in skills if skill.missing and skill.source != "workspace"]
    if unusable:
        names = ", ".join(unusable)
        text = f"{count_noun(len(unusable), 'built-in skill')} cannot be used here: {names}."
        yield note(text, "`nanobot skills list` shows what each needs.")
    for skill in skills:
        variables = [name for name in loader.needs_of(skill).variables if context.environ.get(name)]
        if hidden := ", ".join(name for name in variables if name not in context.config.tools.exec.allowed_env_keys):
            text = f"The skill {skill.name} needs {hidden}, which commands do not get."
            yield note(text, f"Add what its commands need to tools.exec.allowedEnvKeys: {hidden}")
    shelf = loader.catalog()
    if shelf.rest:
        yield note(
            f"{count_noun(len(shelf.rest), 'skill has', 'skills have')} no summary in the prompt: not all of them fit.",
            "Remove what you do not use, or raise agents.defaults.skillsPromptChars.",
        )


def _workspace_skill_findings(skill: Skill) -> Iterator[Finding]:
    """Why a workspace skill cannot be used; for a usable one, its format errors."""
    reason = skill.missing[0] if skill.missing else ""
    if "SKILL.md" in reason:
        advice = f"nanobot skills validate {skill.path.parent}"
        yield warning(f"The skill {skill.name} cannot be read: {reason}.", advice)
    elif reason:
        text = ", ".join(skill.missing_hints)
        yield warning(
            f"The skill {skill.name} needs {text}.", "Install it, or remove the skill: nanobot skills remove."
        )
    else:
        try:
            faults = [fault for fault in lint_skill(read_bundle(skill.path)) if fault.is_error]
        except (NanobotError, OSError) as exc:
            yield note(f"The skill {skill.name} is not valid for installation: {error_text(exc)}")
            return
        if faults:
            text = (
                f"The skill {skill.name} works but has {count_noun(len(faults), 'format error')}: {faults[0].summary}"
            )
            yield note(text, f"nanobot skills validate {skill.path.parent}")
