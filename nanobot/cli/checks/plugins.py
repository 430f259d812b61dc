"""Plugins: what installed packages bring is wanted, can be used, and goes well."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.channels.registry import CHANNELS as OUR_CHANNELS
from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.config.paths import Places
from nanobot.config.provider_table import find_by_name, plain_name
from nanobot.config.schema import Config, PluginsConfig
from nanobot.errors import NanobotError
from nanobot.plugins import CHANNELS, HOOKS, PROVIDERS, TOOLS, Offer, load, names, offers
from nanobot.security.vault import cleaned
from nanobot.utils.text import counted

if TYPE_CHECKING:
    from nanobot.wiring.plugins import Plugins

_MEND = "Ask its author, install another version, or take it out of plugins.enabled."


def plugins_are_well(patient: Patient) -> Iterator[Finding]:
    """Each package that brings something, by its name; none of what is not switched on is loaded."""
    every, settings = offers(), patient.config.plugins
    yield from _taken_names(every)
    yield from _misfits(patient, every)
    yield from _providers(patient, every)
    if settings.enabled:
        yield from _switched_on(patient)
    for name, program in settings.commands.items():
        if shutil.which(program.command[0], path=patient.environ.get("PATH", os.defpath)) is None:
            yield error(
                f"plugins.commands.{name}: there is no program {program.command[0]}.",
                "Correct its path, or install it.",
            )
    for line in (patient.gateway or {}).get("plugins", ()):
        yield error(f"The gateway says: {line}", _MEND)
    yield from _switched_off(settings, every)


def plugins_now(config: Config, places: Places, workspace: Path) -> "Plugins":
    """What is switched on, loaded as a bot loads it."""
    from nanobot.agent.tools.builtin import build_tools  # who has no plugins does not wait for it
    from nanobot.wiring.plugins import loaded
    from nanobot.wiring.policies import tool_policies

    found = loaded(config.plugins, places.plugin_book)
    found.offer(build_tools(tool_policies(config, places.data, workspace)))
    return found


def _switched_on(patient: Patient) -> Iterator[Finding]:
    from nanobot.wiring.plugins import troubles_before  # as above

    found = plugins_now(patient.config, patient.places, patient.workspace)
    for trouble in found.troubles():
        is_there = trouble not in found.missing
        yield error(f"{trouble}.", _MEND if is_there else "Correct the name, or install it where nanobot is installed.")
    if patient.gateway is None:
        for trouble in troubles_before(patient.places.plugin_book, found.packages):
            yield error(f"{trouble.package}: when it was asked last, its hook {trouble.text}.", _MEND)
    for package in found.packages:
        brings = [*(counted(len(package.tools), "tool"),) * bool(package.tools)]
        brings += [*(counted(len(package.hooks), "hook"),) * bool(package.hooks)]
        if brings:
            yield note(f"{package.name} {package.version} is on: {', '.join(brings)}")


def _switched_off(settings: PluginsConfig, every: list[Offer]) -> Iterator[Finding]:
    off: dict[str, list[str]] = {}
    for one in every:
        if one.group in (TOOLS, HOOKS) and not names(settings.enabled, one.package):
            off.setdefault(one.package, []).append(f"{one.kind} {one.name}")
    for package, brings in off.items():
        if not names(settings.disabled, package):
            yield note(
                f"{package} is installed and off; it brings the {', the '.join(brings)}",
                f'To use it, put "{package}" into plugins.enabled.',
            )


def _taken_names(every: list[Offer]) -> Iterator[Finding]:
    """Names that lead to ours, whatever a package offers under them."""
    channels = {spec.name for spec in OUR_CHANNELS}
    for one in every:
        is_ours = one.name in channels if one.group == CHANNELS else find_by_name(one.name) is not None
        if one.group in (CHANNELS, PROVIDERS) and is_ours:
            yield warning(
                f"{one.package}: its {one.kind} {one.name} has the name of one of ours, which goes before.",
                "Its author has to give it another name.",
            )


def _misfits(patient: Patient, every: list[Offer]) -> Iterator[Finding]:
    """Channels and providers that are in use and were written for another version."""
    config = patient.config
    used = {CHANNELS: {*config.channels.enabled}, PROVIDERS: _providers_of_others(config)}
    for one in every:
        name = plain_name(one.name) if one.group == PROVIDERS else one.name
        if one.misfit and name in used.get(one.group, ()):
            yield warning(f"{one.package}: {one.misfit}.", "Install a version of it that fits.")


def _providers_of_others(config: Config) -> set[str]:
    return {plain_name(name) for name in config.providers.by_name() if find_by_name(name) is None}


def _providers(patient: Patient, every: list[Offer]) -> Iterator[Finding]:
    """Providers of packages that the config has a section for."""
    wanted = _providers_of_others(patient.config)
    for one in every:
        if (
            one.group == PROVIDERS
            and plain_name(one.name) in wanted
            and not names(patient.config.plugins.disabled, one.package)
        ):
            try:
                load(one.target)
            except Exception as broken:  # somebody else's import may do anything
                said = str(broken) if isinstance(broken, NanobotError) else f"{type(broken).__name__}: {broken}"
                yield error(f"{one.package}: its provider {one.name}: {cleaned(said)}", _MEND)
