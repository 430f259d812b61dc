"""Loads "module:Class" names and entry points of plugins, on first use.

So a registry can name a class whose SDK is not installed, and `nanobot --help` imports none. A plugin is an installed
package with entry points in our groups; its name and version are checked before any of its code is loaded.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nanobot import __version__
from nanobot.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CHANNELS, PROVIDERS, TOOLS, HOOKS = (f"nanobot.{kind}" for kind in ("channels", "providers", "tools", "hooks"))
"""Entry point groups for plugins."""
EVERY = "*"
"""In `plugins.enabled`: all installed plugins."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point of an installed package."""

    group: str
    name: str
    target: str
    package: str
    version: str
    misfit: str = ""
    """Why it is incompatible with this version of nanobot; empty if it is compatible."""

    @property
    def kind(self) -> str:
        """`channel`, `provider`, `tool` or `hook`."""
        return self.group.removeprefix("nanobot.").removesuffix("s")


def load(target: str) -> Any:
    """Import the object named `module:Name`. Raises PluginError, which says whether module or name is missing.

    Also accepts the entry point syntax `module:Name.attribute [extra]`; extras are ignored.
    """
    module_name, _, name = target.partition("[")[0].strip().partition(":")
    if not module_name or not name:
        raise PluginError(f"{target!r} is not a name of the form module:Class.")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise PluginError(
            f"{target} cannot be loaded: {error}. Install the package it needs, or leave it out."
        ) from error
    except SystemExit as error:  # a script as entry point must not end the gateway
        raise PluginError(f"{target} cannot be loaded: its module calls sys.exit when it is imported.") from error
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        raise PluginError(f"{target} cannot be loaded: {module_name} has no {name}.") from None


def entry_points(*groups: str) -> Iterator["EntryPoint"]:
    """Entry points of installed packages in groups such as `nanobot.providers`, not loaded.

    Blocks for about 10 ms: it reads the metadata of all packages.
    """
    from importlib import metadata  # lazy: 20 ms

    every = metadata.entry_points()
    for group in groups:
        yield from every.select(group=group)


def offers(*groups: str) -> list[Offer]:
    """Entry points in these groups (default: all four), sorted by package and name."""
    unique = {
        Offer(point.group, point.name, point.value, package_of(point), *_version_of(point))
        for point in entry_points(*(groups or (CHANNELS, PROVIDERS, TOOLS, HOOKS)))
    }
    return sorted(unique, key=lambda offer: (plain(offer.package), offer.group, offer.name, offer.target))


def package_of(point: "EntryPoint") -> str:
    name: str | None = point.dist.metadata["Name"] if point.dist is not None else None
    return name or "an unnamed package"


def plain(package: str) -> str:
    """Normalize a package name (packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def names(entries: Iterable[str], package: str) -> bool:
    """Whether a list in the config contains this package; `*` matches all."""
    return any(entry == EVERY or plain(entry) == plain(package) for entry in entries)


def _version_of(point: "EntryPoint") -> tuple[str, str]:
    """The package's version, and why it is incompatible."""
    if point.dist is None:
        return "", ""
    from packaging.requirements import InvalidRequirement, Requirement  # only if a plugin is installed

    misfit = ""
    for line in point.dist.requires or ():
        with suppress(InvalidRequirement):  # the installer has accepted it
            requirement = Requirement(line)
            if plain(requirement.name) == "nanobot" and not requirement.specifier.contains(__version__, True):
                misfit = f"it is written for nanobot {requirement.specifier}, and this is {__version__}"
    return str(point.dist.metadata["Version"] or ""), misfit
