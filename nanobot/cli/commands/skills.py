"""`nanobot skills`: list, show, install, validate and remove skills."""

import os
import shutil
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.agent.skills.loader import Skill, SkillsLoader
from nanobot.agent.skills.needs import MissingNeed
from nanobot.cli.common import JsonOption, Setup, read_setup, unknown_name_error
from nanobot.cli.output import Column, print_json, print_line, print_list, print_text, to_one_line
from nanobot.cli.setup import prompts
from nanobot.cli.terminal import is_terminal
from nanobot.errors import NanobotError
from nanobot.runtime.skills import skills_loader
from nanobot.utils.text import count_noun, human_size

if TYPE_CHECKING:
    from nanobot.agent.skills.install import Installer, SkillOffer

_MAX_VALUES = 12

NameArgument = Annotated[str, typer.Argument(help="The skill's name, from `nanobot skills list`.")]


def list_(json: JsonOption = False) -> None:
    loader, _ = _open()
    skills = loader.skills()
    columns: dict[str, Column] = {
        "Skill": "name",
        "From": "source",
        "Ready": lambda skill: f"needs {', '.join(skill.missing)}" if skill.missing else _readiness(skill),
        "Description": "description",
    }
    print_list(skills, columns, as_json=json, empty="There are no skills.", to_json=loader.facts)
    if is_terminal(sys.stdout) and not json and any(skill.missing for skill in skills):
        print_line("`nanobot skills show NAME` says how to install what a skill needs.", err=True)


def show(name: NameArgument, json: JsonOption = False) -> None:
    """Print the instructions a skill gives to the agent."""
    loader, _ = _open()
    skill, text = _get_skill(loader, name), loader.load_skill(name)
    if json:
        print_json({**loader.facts(skill), "text": text})
    elif text is None:
        raise NanobotError(f"The skill {name} cannot be read: {_readiness(skill)}. Correct {skill.path}.")
    else:
        print_text(text)
        if skill.missing:
            print_line(f"It cannot be used here: it {to_one_line(_readiness(skill))}.", err=True)


def install(
    source: Annotated[Path, typer.Argument(metavar="PATH-or-ZIP", help="A folder with a SKILL.md, or a zip of one.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, unless it is suspicious.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the skill of the same name.")] = False,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Install it under this name.")] = "",
) -> None:
    """Show what a skill requires and contains, ask for confirmation, and install it into the workspace."""
    from nanobot.agent.skills.bundle import read_bundle  # only some commands need it

    loader, setup = _open()
    installer = _installer(setup)
    offer = installer.offer(read_bundle(source.expanduser()), name)
    for line in _format_offer(offer, loader.find_missing(offer.needs), loader.get(offer.name)):
        typer.echo(line)
    target = loader.own / offer.name
    if offer.exists and not replace:
        raise NanobotError(
            f"There is a skill {offer.name} already, in {target}. Replace it with --replace (the old one is kept), or "
            "install this one under another name with --as NAME."
        )
    if _confirm_install(offer.name, target, is_suspicious=offer.is_suspicious, yes=yes):
        target = installer.install(offer, replaces=replace)
        print_line(f"Installed {offer.name} into {target}. The agent can use it from the next message on.")
    else:
        print_line("Nothing was installed.")


def _format_offer(offer: "SkillOffer", missing: Collection[MissingNeed], same_name: Skill | None) -> Iterator[str]:
    """Lines about a skill: what it is for, what it requires and contains, and warnings."""
    bundle, manual, needs = offer.bundle, offer.manual, offer.needs
    size = f"{count_noun(len(bundle.files), 'file')}, {human_size(bundle.size)}"
    is_builtin = same_name is not None and same_name.source == "builtin"
    programs = (*needs.programs, *needs.any_of)
    variables = filter(None, dict.fromkeys((*needs.variables, needs.primary)))
    lists: dict[str, list[str]] = {
        "replaces": [f"the built-in skill {offer.name}, which the agent no longer sees"] * is_builtin,
        "always on": ["its text is in every prompt"] * manual.always,
        "from": [f"{bundle.source} ({size})"],
        "license": [offer.license],
        "meant for": [manual.front.get("compatibility") or ""],
        "tools": [f"{', '.join(needs.tools)} (as declared; installing grants nothing)"] * bool(needs.tools),
        "programs": [name if shutil.which(name) else f"{name} (not installed)" for name in programs],
        "variables": [name if os.environ.get(name) else f"{name} (not set)" for name in variables],
        "settings": [*needs.settings],
        "skills": [*needs.skills],
        "systems": [*needs.systems],
        "network": [*offer.addresses],
        "brings": [f"{path} ({human_size(len(data))})" for path, data in offer.programs.items()],
    }
    notes = [("missing", need.summary) for need in missing]
    notes += [("LOOK" if risk.is_error else "look at", risk.summary) for risk in offer.risks]
    notes += [("error" if fault.is_error else "warning", fault.summary) for fault in offer.faults]
    yield f"{offer.name}: {to_one_line(manual.description) or '(no description)'}"
    for label, values in lists.items():
        shown = [to_one_line(value) for value in values if value]
        more = f" and {len(shown) - _MAX_VALUES} more" if len(shown) > _MAX_VALUES else ""
        if shown:
            yield f"  {label:<13}{', '.join(shown[:_MAX_VALUES])}{more}"
    for label, text in notes:
        yield f"  {label:<13}{to_one_line(text)}"


def _confirm_install(name: str, target: Path, *, is_suspicious: bool, yes: bool) -> bool:
    """Ask whether to install. A suspicious skill needs its name typed, even with --yes."""
    if yes and not is_suspicious:
        return True
    try:
        if is_suspicious:
            return prompts.ask(f"This skill is suspicious, see above. To install it anyway, type {name}") == name
        return prompts.confirm(f"Install it into {target}?")
    except EOFError:
        advice = "Review it and install it in a terminal." if is_suspicious else "Add --yes to install without asking."
        raise NanobotError(f"Nothing was installed: no interactive input. {advice}") from None


def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder with a SKILL.md, the file, a zip, or a name.")],
    json: JsonOption = False,
) -> None:
    """Check a skill and report problems with line numbers; exits with 1 if it has errors."""
    from nanobot.agent.skills.bundle import BundleError, read_bundle  # only some commands need it
    from nanobot.agent.skills.lint import LintFinding, lint_skill

    loader, _ = _open()
    path = path.expanduser()
    if not path.exists() and (known := loader.get(str(path))) is not None:
        path = known.path.parent
    try:
        bundle = read_bundle(path)
        # a zip may hold its files at the top level: then there is no folder whose name must match
        has_folder = path.is_dir() or path.name == "SKILL.md" or bundle.name != path.stem
        others = [skill.name for skill in loader.skills()]
        faults, name = lint_skill(bundle, checks_folder_name=has_folder, others=others), bundle.name
    except BundleError as error:
        faults, name = [LintFinding(str(error), path=str(path))], path.stem
    errors = sum(fault.is_error for fault in faults)
    if json:
        shown = [fault.to_json() for fault in faults]
        print_json({"path": str(path), "name": name, "valid": not errors, "faults": shown})
    else:
        for fault in faults:
            print_line(f"{'error  ' if fault.is_error else 'warning'}  {to_one_line(fault.summary)}")
        counts = [(errors, "error"), (len(faults) - errors, "warning")]
        text = " and ".join(count_noun(count, noun) for count, noun in counts if count)
        print_line(f"{to_one_line(name)}: {text or 'no problems'}.")
    if errors:
        raise typer.Exit(1)


def remove(name: NameArgument, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove a skill from the workspace. It is kept in a hidden folder beside the others."""
    loader, setup = _open()
    skill = _get_skill(loader, name)
    if skill.source != "workspace":
        raise NanobotError(f"{name} is built in. Disable it with agents.defaults.disabledSkills in the config.")
    if prompts.confirm_action(f"Remove {name}, {skill.path.parent}?", yes=yes):
        print_line(f"Removed {name}; it is kept in {_installer(setup).remove(name)}.")
    else:
        print_line("Kept.")


def _open() -> tuple[SkillsLoader, Setup]:
    setup = read_setup(secrets=False)
    return skills_loader(setup.config, setup.paths, setup.workspace), setup


def _installer(setup: Setup) -> "Installer":
    from nanobot.agent.skills.install import Installer  # only some commands need it

    return Installer(setup.workspace / "skills", setup.paths.skills / "installing.lock")


def _get_skill(loader: SkillsLoader, name: str) -> Skill:
    skill = loader.get(name)
    if skill is None:
        raise unknown_name_error("skill", name, [known.name for known in loader.skills()], "nanobot skills list")
    return skill


def _readiness(skill: Skill) -> str:
    if skill.missing:
        return f"needs {', '.join(skill.missing_hints)}"
    return "always on" if skill.always else "yes"
