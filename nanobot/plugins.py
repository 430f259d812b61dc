"""Names at the doors: "module:Class" strings and entry points, loaded when they are first used.

So a table can name a class whose SDK is not installed, and `nanobot --help` imports none. A plugin is an installed
package that offers names under our groups of entry points; whose they are and whether they fit is known before anything
of it is loaded.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nanobot import __version__
from nanobot.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CHANNELS, PROVIDERS, TOOLS, HOOKS = (f"nanobot.{kind}" for kind in ("channels", "providers", "tools", "hooks"))
"""The groups of entry points under which packages offer what they bring."""
EVERY = "*"
"""In `plugins.enabled`: whatever is installed."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point of an installed package."""

    group: str
    name: str
    target: str
    package: str
    version: str
    misfit: str = ""
    """Why it is not for this nanobot; empty where it is."""

    @property
    def kind(self) -> str:
        """`channel`, `provider`, `tool` or `hook`."""
        return self.group.removeprefix("nanobot.").removesuffix("s")


def load(target: str) -> Any:
    """What `module:Name` names. Raises PluginError, which says whether the module or the name is missing.

    An entry point may also say `module:Name.within [extra]`; extras are the installer's matter.
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
    except SystemExit as error:  # a script, made an entry point: it ends itself, and not the gateway
        raise PluginError(f"{target} cannot be loaded: its module calls sys.exit when it is imported.") from error
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        raise PluginError(f"{target} cannot be loaded: {module_name} has no {name}.") from None


def entry_points(group: str) -> Iterator["EntryPoint"]:
    """What installed packages offer under a group such as `nanobot.providers`. Nothing is loaded yet."""
    from importlib import metadata  # 20 ms, for those who look for plugins

    yield from metadata.entry_points(group=group)


def offers(*groups: str) -> list[Offer]:
    """All that installed packages offer under these groups, all four where none is named; by package and name."""
    found = {
        Offer(group, point.name, point.value, package_of(point), *_version_of(point))
        for group in groups or (CHANNELS, PROVIDERS, TOOLS, HOOKS)
        for point in entry_points(group)
    }
    return sorted(found, key=lambda one: (plain(one.package), one.group, one.name, one.target))


def package_of(point: "EntryPoint") -> str:
    """The name of the package that offers it, as installers know it."""
    found: str | None = point.dist.metadata["Name"] if point.dist is not None else None
    return found or "an unnamed package"


def plain(package: str) -> str:
    """A package's name as installers compare it (packaging.python.org/specifications/name-normalization)."""
    return re.sub(r"[-_.]+", "-", package).lower()


def names(listed: Iterable[str], package: str) -> bool:
    """Whether a list of the config names this package; `*` names all."""
    return any(one == EVERY or plain(one) == plain(package) for one in listed)


def _version_of(point: "EntryPoint") -> tuple[str, str]:
    """Its version, and why that is not for this nanobot."""
    if point.dist is None:
        return "", ""
    wanted = next((text for line in point.dist.requires or () if (text := _wanted_of_us(line))), "")
    misfit = f"it is written for nanobot {wanted}, and this is {__version__}" if not _fits(wanted) else ""
    return str(point.dist.metadata["Version"] or ""), misfit


def _wanted_of_us(requirement: str) -> str:
    """The versions of nanobot that a line of its requirements asks for; empty for another package's line."""
    found = _REQUIREMENT.match(requirement.partition(";")[0])
    return found[2].strip(" ()") if found is not None and plain(found[1]) == "nanobot" else ""


def _fits(wanted: str) -> bool:
    """Whether this version is one of these. What we do not understand is left to the installer, who let it in."""
    return all(_holds(*found.groups()) for found in map(_CLAUSE.fullmatch, wanted.split(",")) if found is not None)


def _holds(sign: str, version: str) -> bool:
    asked, ours = _numbers(version), _numbers(__version__)
    size = max(len(asked), len(ours))
    there, here = asked + (0,) * (size - len(asked)), ours + (0,) * (size - len(ours))
    same = ours[: len(asked)] == asked if version.endswith("*") else here == there
    return {
        "==": same,
        "!=": not same,
        ">=": here >= there,
        "<=": here <= there,
        ">": here > there,
        "<": here < there,
        "~=": here >= there and ours[: len(asked) - 1] == asked[:-1],
    }[sign]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(.*)")
_CLAUSE = re.compile(r"\s*(==|!=|>=|<=|~=|>|<)\s*v?(\d+(?:\.\d+)*(?:\.\*)?)\s*")
