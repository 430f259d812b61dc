"""Names at the doors: "module:Class" strings and entry points, loaded when they are first used.

So a table can name a class whose SDK is not installed, and `nanobot --help` imports none.
"""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from nanobot.errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def load(target: str) -> Any:
    """What `module:Name` names. Raises PluginError, which says whether the module or the name is missing."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise PluginError(f"{target!r} is not a name of the form module:Class.")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise PluginError(
            f"{target} cannot be loaded: {error}. Install the package it needs, or leave it out."
        ) from error
    try:
        return getattr(module, name)
    except AttributeError:
        raise PluginError(f"{target} cannot be loaded: {module_name} has no {name}.") from None


def entry_points(group: str) -> Iterator["EntryPoint"]:
    """What installed packages offer under a group such as `nanobot.providers`. Nothing is loaded yet."""
    from importlib import metadata  # 20 ms, for those who look for plugins

    yield from metadata.entry_points(group=group)
