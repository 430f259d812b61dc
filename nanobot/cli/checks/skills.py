"""Skills: those that cannot be used, and why; those whose programs changed; what commands do not see."""

from collections.abc import Iterator

from nanobot.agent.skill.bundle import read_bundle
from nanobot.agent.skill.faults import faults_of
from nanobot.agent.skills import Skill, SkillsLoader
from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.errors import NanobotError
from nanobot.utils.text import counted
from nanobot.wiring.skills import skills_of


def skills_can_be_used(patient: Patient) -> Iterator[Finding]:
    """What the agent was taught can be done here."""
    loader = skills_of(patient.config, patient.places, patient.workspace)
    skills = loader.skills()
    for skill in skills:
        if skill.source == "workspace":
            yield from _own(skill)
    lacking = [skill.name for skill in skills if skill.missing and skill.source != "workspace"]
    if lacking:
        names = ", ".join(lacking)
        told = f"{counted(len(lacking), 'built-in skill')} cannot be used here: {names}."
        yield note(told, "`nanobot skills list` says what each needs; fine where you do not want it.")
    yield from _unseen(loader, skills, patient)
    shelf = loader.shelf()
    if shelf.rest:
        yield note(
            f"{counted(len(shelf.rest), 'skill has', 'skills have')} no summary in the prompt: they do not all fit.",
            "Remove what you do not use, or raise agents.defaults.skillsPromptChars.",
        )


def _own(skill: Skill) -> Iterator[Finding]:
    """Why a skill of the person's cannot be used; of one that can, what is wrong with its form."""
    why = skill.missing[0] if skill.missing else ""
    if why.startswith("program changed"):
        advice = f"Look at it, then: nanobot skills approve {skill.name}"
        yield error(f"The skill {skill.name} is switched off: {why}.", advice)
    elif "SKILL.md" in why:
        advice = f"nanobot skills validate {skill.path.parent}"
        yield warning(f"The skill {skill.name} cannot be read: {why}.", advice)
    elif why:
        told = ", ".join(skill.told)
        yield warning(
            f"The skill {skill.name} needs {told}.", "Install it, or remove the skill: nanobot skills remove."
        )
    else:
        try:
            faults = [fault for fault in faults_of(read_bundle(skill.path)) if fault.is_error]
        except (NanobotError, OSError) as error_:
            yield note(f"The skill {skill.name} could not be installed elsewhere: {error_}")
            return
        if faults:
            told = f"The skill {skill.name} works, and has {counted(len(faults), 'fault')}: {faults[0].told}"
            yield note(told, f"nanobot skills validate {skill.path.parent}")


def _unseen(loader: SkillsLoader, skills: tuple[Skill, ...], patient: Patient) -> Iterator[Finding]:
    """Variables that a skill asks for, which are set and not handed to commands."""
    handed = set(patient.config.tools.exec.allowed_env_keys)
    for skill in skills:
        unseen = [name for name in loader.needs_of(skill).variables if name not in handed and patient.environ.get(name)]
        if unseen:
            names = ", ".join(unseen)
            told = f"The skill {skill.name} asks for {names}, which commands do not see."
            yield note(told, f"Add to tools.exec.allowedEnvKeys what its commands need: {names}")
