"""`nanobot skills`: list, show, install, validate and remove skills."""

import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanobot.agent.skills.loader import Skill, SkillsLoader
from nanobot.agent.skills.manual import LintFinding, Manual, ManualError, decode_manual, parse_manual
from nanobot.cli.common import JsonOption, read_setup, unknown_name_error
from nanobot.cli.output import Column, is_terminal, print_json, print_line, print_list, print_text, to_one_line
from nanobot.cli.setup import prompts
from nanobot.errors import NanobotError
from nanobot.runtime.skills import skills_loader
from nanobot.utils.text import count_noun, human_size

if TYPE_CHECKING:
    from nanobot.agent.skills.package import Bundle

_MAX_VALUES = 12

NameArgument = Annotated[str, typer.Argument(help="The skill's name, from `nanobot skills list`.")]


def list_(json: JsonOption = False) -> None:
    loader = _open()
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
    loader = _open()
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
    from nanobot.agent.skills.lint import find_risks, name_problem  # only some commands need it
    from nanobot.agent.skills.package import install_skill, read_bundle

    loader = _open()
    bundle = read_bundle(source.expanduser())
    try:
        manual = parse_manual(decode_manual(bundle.manual))
    except ManualError as error:
        text = f"{bundle.source} cannot be installed: {error}. `nanobot skills validate` shows what to fix."
        raise NanobotError(text) from error
    chosen = name or (bundle.name if not manual.name or name_problem(manual.name) else manual.name)
    if problem := name_problem(chosen):
        hint = "" if name else " Name it with --as NAME."
        raise NanobotError(f"{chosen!r} is not a valid skill name: it {problem}.{hint}")
    risks = find_risks(bundle)
    for line in _describe(chosen, bundle, manual, loader, risks):
        typer.echo(line)
    target = loader.own / chosen
    if os.path.lexists(target) and not replace:
        raise NanobotError(
            f"There is a skill {chosen} already, in {target}. Replace it with --replace (the old one is kept), or "
            "install this one under another name with --as NAME."
        )
    if _confirm_install(chosen, target, is_suspicious=any(risk.is_error for risk in risks), yes=yes):
        install_skill(target, bundle)
        print_line(f"Installed {chosen} into {target}. The agent can use it from the next message on.")
    else:
        print_line("Nothing was installed.")


def _describe(
    name: str, bundle: "Bundle", manual: Manual, loader: SkillsLoader, risks: Collection[LintFinding]
) -> Iterator[str]:
    """Lines about a skill: what it is for, what it requires and contains, and warnings."""
    from nanobot.agent.skills.lint import addresses_in, lint_skill

    same_name = loader.get(name)
    is_builtin = same_name is not None and same_name.source == "builtin"
    programs = [*manual.programs, " or ".join(manual.any_of)]
    others = [*dict.fromkeys([*manual.variables, manual.primary]), *manual.settings, *manual.skills]
    lists: dict[str, Iterable[str]] = {
        "replaces": [f"the built-in skill {name}, which the agent no longer sees"] * is_builtin,
        "always on": ["its text is in every prompt"] * manual.always,
        "from": [f"{bundle.source} ({count_noun(len(bundle.files), 'file')}, {human_size(bundle.size)})"],
        "license": [manual.license],
        "meant for": [manual.compatibility],
        "tools": [f"{', '.join(manual.tools)} (as declared; installing grants nothing)"] * bool(manual.tools),
        "needs": programs + others,
        "systems": manual.systems,
        "network": addresses_in(bundle),
        "brings": [f"{file.path} ({human_size(len(file.data))})" for file in bundle.files if file.is_program],
    }
    yield f"{name}: {to_one_line(manual.description) or '(no description)'}"
    for label, values in lists.items():
        shown = [to_one_line(value) for value in values if value]
        more = f" and {len(shown) - _MAX_VALUES} more" if len(shown) > _MAX_VALUES else ""
        if shown:
            yield f"  {label:<13}{', '.join(shown[:_MAX_VALUES])}{more}"
    notes = [("missing", need.summary) for need in loader.find_missing(manual)]
    notes += [("LOOK" if risk.is_error else "look at", risk.summary) for risk in risks]
    faults = lint_skill(bundle, checks_folder_name=False, with_risks=False)
    notes += [("error" if fault.is_error else "warning", fault.summary) for fault in faults]
    yield from (f"  {label:<13}{to_one_line(text)}" for label, text in notes)


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
    from nanobot.agent.skills.lint import lint_skill  # only some commands need it
    from nanobot.agent.skills.package import BundleError, read_bundle

    loader, path = _open(), path.expanduser()
    if not path.exists() and (known := loader.get(str(path))) is not None:
        path = known.path.parent
    name = path.stem
    try:
        bundle = read_bundle(path)
        # a zip may hold its files at the top level: then there is no folder whose name must match
        has_folder = path.is_dir() or path.name == "SKILL.md" or bundle.name != path.stem
        others = [skill.name for skill in loader.skills()]
        faults, name = lint_skill(bundle, checks_folder_name=has_folder, others=others), bundle.name
    except BundleError as error:
        faults = [LintFinding(str(error), path=str(path))]
    errors = sum(fault.is_error for fault in faults)
    if json:
        shown = [
            {"severity": _severity(fault), "file": fault.path, "line": fault.line, "text": fault.text}
            for fault in faults
        ]
        print_json({"path": str(path), "name": name, "valid": not errors, "faults": shown})
    else:
        for fault in faults:
            print_line(f"{_severity(fault):<7}  {to_one_line(fault.summary)}")
        counts = [(errors, "error"), (len(faults) - errors, "warning")]
        text = " and ".join(count_noun(count, noun) for count, noun in counts if count)
        print_line(f"{to_one_line(name)}: {text or 'no problems'}.")
    if errors:
        raise typer.Exit(1)


def remove(name: NameArgument, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove a skill from the workspace. It is kept in a hidden folder beside the others."""
    from nanobot.agent.skills.package import remove_skill  # only some commands need it

    skill = _get_skill(_open(), name)
    if skill.source != "workspace":
        raise NanobotError(f"{name} is built in. Disable it with agents.defaults.disabledSkills in the config.")
    folder = skill.path.parent
    if prompts.confirm_action(f"Remove {name}, {folder}?", yes=yes):
        print_line(f"Removed {name}; it is kept in {remove_skill(folder)}.")
    else:
        print_line("Kept.")


def _open() -> SkillsLoader:
    setup = read_setup(secrets=False)
    return skills_loader(setup.config, setup.paths, setup.workspace)


def _get_skill(loader: SkillsLoader, name: str) -> Skill:
    skill = loader.get(name)
    if skill is None:
        raise unknown_name_error("skill", name, [known.name for known in loader.skills()], "nanobot skills list")
    return skill


def _readiness(skill: Skill) -> str:
    if skill.missing:
        return f"needs {', '.join(skill.missing_hints)}"
    return "always on" if skill.always else "yes"


def _severity(fault: LintFinding) -> str:
    return "error" if fault.is_error else "warning"
