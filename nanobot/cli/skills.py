"""`nanobot skills`: what the agent has learnt to do, what that still needs, and how a skill comes in and goes."""

from pathlib import Path
from typing import Annotated

import typer

from nanobot.agent.skill.needs import Needs
from nanobot.agent.skills import Skill, SkillsLoader
from nanobot.cli import questions
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    one_line,
    read_setup,
    say_text,
    show_json,
    show_rows,
    unknown_name,
)
from nanobot.cli.skill_offer import offer_facts, told_offer
from nanobot.config.paths import Places
from nanobot.errors import NanobotError
from nanobot.utils.text import counted
from nanobot.wiring.skills import skills_of

NameArgument = Annotated[str, typer.Argument(help="The skill's name, as `nanobot skills list` shows it.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """All skills, and whether each can be used here."""
    loader = _loader(config, workspace)
    skills = loader.skills()
    if json:
        show_json([_facts(skill, loader.needs_of(skill)) for skill in skills])
        return
    show_rows(
        ("Skill", "From", "Ready", "What for"),
        [(skill.name, skill.source, _readiness(skill), skill.description) for skill in skills],
        empty="There are no skills.",
    )


def show(
    name: NameArgument, config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False
) -> None:
    """What a skill tells the agent."""
    loader = _loader(config, workspace)
    skill = _named(loader, name)
    text = loader.load_skill(name)
    if json:
        show_json({**_facts(skill, loader.needs_of(skill)), "text": text})
    elif text is None:
        raise NanobotError(f"The skill {name} cannot be read: {_readiness(skill)}. Mend {skill.path}.")
    else:
        say_text(text)
        if skill.missing:
            typer.echo(f"It cannot be used here: it {one_line(_readiness(skill))}.", err=True)


def install(
    source: Annotated[Path, typer.Argument(metavar="PATH-or-ZIP", help="A folder with a SKILL.md, or a zip of one.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, unless it hides something.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of one of its name.")] = False,
    name: Annotated[str, typer.Option("--as", metavar="NAME", help="Under another name than its own.")] = "",
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show what a skill asks for and brings, ask, and take it into the workspace."""
    from nanobot.agent.skill.bundle import read_bundle  # what only this command needs
    from nanobot.agent.skill.installing import Installer

    loader = _loader(config, workspace)
    assert loader.book is not None  # noqa: S101 _loader gives it one
    installer = Installer(loader.own, loader.book)
    try:
        offer = installer.offer(read_bundle(source.expanduser()), name)
    except OSError as error:
        raise NanobotError(f"{source} cannot be read: {error.strerror or error}. Check its rights.") from error
    missing = loader.lacking(offer.needs)
    is_ours = (known := loader.get(offer.name)) is not None and known.source == "builtin"
    if not json:
        typer.echo("\n".join(told_offer(offer, missing, is_ours=is_ours)))
    place = loader.own / offer.name
    if offer.stands and not replace:
        raise NanobotError(
            f"There is a skill {offer.name} already, in {place}. --replace puts this one in its place and keeps the "
            "old one; --as NAME gives this one another name."
        )
    agreed = _agreed(offer.name, place, is_grave=bool(offer.grave), yes=yes, asks=not json)
    if agreed:
        place = installer.install(offer, replaces=replace)
    if json:
        show_json(
            {
                **offer_facts(offer, missing, is_ours=is_ours),
                "installed": agreed,
                "path": str(place) if agreed else None,
            }
        )
    elif agreed:
        typer.echo(f"Installed {offer.name} into {place}. It is there from the next message on.")
    else:
        typer.echo("Nothing was installed.")
    if not agreed and json:
        raise typer.Exit(1)


def _agreed(name: str, place: Path, *, is_grave: bool, yes: bool, asks: bool) -> bool:
    """Whether the person says yes. What hides something is not agreed to unseen: its name has to be typed."""
    if yes and not is_grave:
        return True
    if not asks:
        return False
    try:
        if is_grave:
            return (
                questions.ask(f"It hides something, as you see above. To install it all the same, type {name}") == name
            )
        return questions.confirm(f"Install it into {place}?")
    except EOFError:
        advice = "Look at it, and install it in a terminal." if is_grave else "Add --yes where nobody can be asked."
        raise NanobotError(f"Nothing was installed: nobody answered. {advice}") from None


def validate(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A folder with a SKILL.md, the file, a zip, or a name.")],
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Say all that is wrong with a skill, with the line and what to do; exit 1 where it has an error."""
    from nanobot.agent.skill.bundle import BundleError, read_bundle  # what only this command needs
    from nanobot.agent.skill.faults import Fault, facts_of, faults_of

    loader = _loader(config, workspace)
    path = path.expanduser()
    if not path.exists() and (known := loader.get(str(path))) is not None:
        path = known.path.parent
    try:
        bundle = read_bundle(path)
        others = {skill.name: skill.needs for skill in loader.skills()}
        faults = faults_of(bundle, is_named=_has_a_folder(path, bundle.name), others=others)
        name = bundle.name
    except BundleError as error:
        faults, name = [Fault(str(error), "", path=str(path))], path.stem
    except OSError as error:
        raise NanobotError(f"{path} cannot be read: {error.strerror or error}. Check its rights.") from error
    errors = sum(fault.is_error for fault in faults)
    if json:
        show_json({"path": str(path), "name": name, "valid": not errors, "faults": [*map(facts_of, faults)]})
    else:
        for fault in faults:
            typer.echo(f"{'error  ' if fault.is_error else 'warning'}  {one_line(fault.told)}")
        typer.echo(_verdict(name, errors, len(faults) - errors))
    if errors:
        raise typer.Exit(1)


def _has_a_folder(path: Path, name: str) -> bool:
    """Whether the skill has a folder of its own, whose name counts: a zip may hold its files bare."""
    return path.is_dir() or path.name == "SKILL.md" or name != path.stem


def _verdict(name: str, errors: int, warnings: int) -> str:
    counts = [counted(errors, "error")] * bool(errors) + [counted(warnings, "warning")] * bool(warnings)
    return f"{one_line(name)}: {' and '.join(counts) or 'nothing is wrong'}."


def remove(
    name: NameArgument, yes: YesOption = False, config: ConfigOption = None, workspace: WorkspaceOption = None
) -> None:
    """Take a skill out of the workspace; it is kept beside the others, hidden."""
    from nanobot.agent.skill.installing import Installer  # what only this command needs

    loader = _loader(config, workspace)
    skill = _named(loader, name)
    if skill.source != "workspace":
        raise NanobotError(f"{name} comes with nanobot. agents.defaults.disabledSkills switches it off.")
    if not yes and not questions.confirm(f"Remove {name}, {skill.path.parent}?"):
        typer.echo("Kept.")
        return
    assert loader.book is not None  # noqa: S101 _loader gives it one
    kept = Installer(loader.own, loader.book).remove(name)
    typer.echo(f"Removed {name}; it is kept in {kept}.")


def approve(
    name: NameArgument, yes: YesOption = False, config: ConfigOption = None, workspace: WorkspaceOption = None
) -> None:
    """Say that the programs of an installed skill may be as they are now."""
    loader = _loader(config, workspace)
    skill = _named(loader, name)
    book = loader.book
    assert book is not None  # noqa: S101 _loader gives it one
    installed = book.installed().get(name)
    if installed is None or skill.source != "workspace":
        raise NanobotError(f"{name} was not installed by `nanobot skills install`: there is nothing to approve.")
    now = loader.programs_of(skill)
    changed = [path for path, digest in now.items() if installed.programs.get(path) != digest]
    if not changed:
        typer.echo(f"The programs of {name} are as they were installed.")
        return
    typer.echo(
        "\n".join(
            ["Changed since it was installed:", *(f"  {one_line(str(skill.path.parent / path))}" for path in changed)]
        )
    )
    if not yes and not questions.confirm("Have you looked at them, and may they be so?"):
        typer.echo(f"{name} stays switched off.")
        return
    book.note_installed(name, installed.source, now)
    typer.echo(f"{name} can be used again.")


def _loader(config: Path | None, workspace: Path | None) -> SkillsLoader:
    setup = read_setup(config, workspace, secrets=False)
    return skills_of(setup.config, Places(setup.data_dir), setup.workspace)


def _named(loader: SkillsLoader, name: str) -> Skill:
    skill = loader.get(name)
    if skill is None:
        raise unknown_name("skill", name, [one.name for one in loader.skills()], "nanobot skills list")
    return skill


def _facts(skill: Skill, needs: Needs) -> dict[str, object]:
    return {
        "name": skill.name,
        "description": skill.description,
        "source": skill.source,
        "path": str(skill.path),
        "always": skill.always,
        "available": skill.available,
        "missing": list(skill.missing),
        "told": list(skill.told),
        "needs": list(skill.needs),
        "allowed_tools": list(needs.tools),
    }


def _readiness(skill: Skill) -> str:
    if skill.missing:
        return f"needs {', '.join(skill.told)}"
    return "always on" if skill.always else "yes"
