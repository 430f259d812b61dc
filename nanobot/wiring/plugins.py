"""The tools and hooks that installed packages bring, for those packages that the config switches on.

Each package has a thread of its own, so that one that blocks holds up nobody else, and whatever is wrong with it is a
trouble with its name on it. What went wrong in the last life of a bot is kept, for `nanobot doctor`.
"""

import asyncio
import inspect
import json
import logging
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nanobot.agent.command_hook import METHODS, CommandHook
from nanobot.agent.hook_wall import Walled
from nanobot.agent.hooks import Hook
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import BUILTIN
from nanobot.agent.tools.own.aside import Aside
from nanobot.agent.tools.own.loading import UnfitToolError, check_tool
from nanobot.agent.tools.own.tool import own_tool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import PluginsConfig
from nanobot.errors import PluginError, StorageError
from nanobot.plugins import EVERY, HOOKS, TOOLS, Offer, load, names, offers, plain
from nanobot.security.environment import needed_of
from nanobot.security.vault import cleaned
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

LOADED_WITHIN_S = 10.0
_LONGEST_TOLD = 400
_MOST_KEPT = 8
"""Troubles of one hook that are kept."""
_FOR_EVER_S = 24 * 3600.0
"""The wall of hooks has a limit of its own."""
OURS = frozenset({*BUILTIN, "cron", "message", "spawn", "session_search", "save_memory", "goal"})
"""Names of tools that no package takes, also where the tool is switched off."""

T = TypeVar("T")
_AS_HOOK: type[Hook] = Hook
_AS_TOOL: type[Tool] = Tool  # type: ignore[type-abstract]  # what is made is of a class of theirs


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is wrong with a package."""

    package: str
    text: str

    def __str__(self) -> str:
        return f"{self.package}: {self.text}"


@dataclass(slots=True)
class Package:
    """One that is switched on, and what of it could be used."""

    name: str
    version: str
    hooks: list[Walled] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    aside: Aside = field(default_factory=lambda: Aside("plugin"))


class Plugins:
    """What packages bring to a bot."""

    def __init__(
        self, packages: Sequence[Package] = (), missing: Sequence[Trouble] = (), book: Path | None = None
    ) -> None:
        """`missing` is what is wrong with packages that are not there; `book` keeps what went wrong."""
        self.packages = packages
        self.missing = missing
        self._book = book
        self._keeping = threading.Lock()

    @property
    def hooks(self) -> list[Walled]:
        """Their hooks, in the order of `plugins.enabled`."""
        return [hook for package in self.packages for hook in package.hooks]

    def troubles(self) -> list[Trouble]:
        """What is wrong, but for what hooks did: that the wall knows."""
        found = [Trouble(package.name, text) for package in self.packages for text in package.troubles]
        return [*self.missing, *found]

    def offer(self, registry: ToolRegistry) -> None:
        """Add their tools; none takes a name that another has."""
        for package in self.packages:
            for tool in package.tools:
                if tool.name in OURS or registry.has(tool.name):
                    whose = "nanobot's own" if tool.name in OURS else "another's"
                    package.troubles.append(f"its tool {tool.name} is left out: the name is {whose}")
                else:
                    registry.register(tool)

    async def close(self) -> None:
        """Let go of their threads, and keep what went wrong in this life. Never raises."""
        for package in self.packages:
            package.aside.close()
        if any(hook.well or hook.troubles for hook in self.hooks):
            await asyncio.to_thread(self._keep)

    def begin(self) -> None:
        """Say what is wrong, and from now on keep at once what goes wrong with a hook: nobody knows how a life ends."""
        for trouble in self.troubles():
            log.warning("The plugin %s.", trouble)
        for hook in self.hooks:
            hook.tell = self._told

    def _told(self, name: str, trouble: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._keep)

    def _keep(self) -> None:
        """What went wrong in an earlier life stands until the same method of the same hook has gone well."""
        if self._book is None:
            return
        with self._keeping:
            noted = _noted(self._book)
            told = dict(noted)
            for package in self.packages:
                lines = [line for hook in package.hooks for line in _lines_of(hook, _lines_in(noted, package))]
                told[plain(package.name)] = {"version": package.version, "troubles": lines}
            told = {name: one for name, one in told.items() if one["troubles"]}
            try:
                if told != noted:
                    make_private_folder(self._book.parent)
                    write_atomic(self._book, json.dumps(told, ensure_ascii=False, indent=2))
            except (OSError, StorageError) as error:
                log.warning("What is wrong with plugins cannot be kept: %s", error)


def _lines_of(hook: Walled, before: Sequence[str]) -> list[str]:
    """What is known to be wrong with a hook: what went wrong before and has not gone well since, and what does now."""
    mine = [line for line in before if line.startswith(f"{hook.name}: ")]
    open_still = [line for line in mine if line.removeprefix(f"{hook.name}: ").partition(" ")[0] not in hook.well]
    now = [f"{hook.name}: {trouble}" for trouble in hook.troubles]
    return [*dict.fromkeys([*open_still, *now])][-_MOST_KEPT:]


def _lines_in(noted: Mapping[str, Mapping[str, Any]], package: Package) -> list[str]:
    """What is noted of this very version of a package."""
    last = noted.get(plain(package.name))
    return [str(line) for line in last["troubles"]] if last is not None and last["version"] == package.version else []


def troubles_before(book: Path, packages: Sequence[Package]) -> list[Trouble]:
    """What went wrong with their hooks when they were asked last. Of another version of a package, nothing."""
    noted = _noted(book)
    return [Trouble(package.name, line) for package in packages for line in _lines_in(noted, package)]


def _noted(book: Path) -> dict[str, dict[str, Any]]:
    try:
        told = json.loads(book.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = told.items() if isinstance(told, dict) else ()
    return {
        name: noted
        for name, noted in entries
        if isinstance(noted, dict) and isinstance(noted.get("troubles"), list) and "version" in noted
    }


async def plugins_of(config: PluginsConfig, book: Path) -> Plugins:
    """What the config switches on; where that is nothing, nobody looks for packages."""
    return await asyncio.to_thread(loaded, config, book) if config.enabled else Plugins()


def command_hooks(config: PluginsConfig, folder: Path, environ: Mapping[str, str]) -> list[Walled]:
    """The programs that the config names as hooks. They run in a folder where no tool writes what they could load."""
    made = []
    for name, one in config.commands.items():
        hook = CommandHook(one.command, folder=folder, env={**needed_of(environ), **one.env})
        hook.guard = one.guard
        only = frozenset(METHODS[event] for event in one.on)
        made.append(Walled(hook, f"plugins.commands.{name}", config.hook_timeout_s, only=only))
    return made


def loaded(config: PluginsConfig, book: Path, within_s: float = LOADED_WITHIN_S) -> Plugins:
    """Load what is switched on, packages side by side. Blocks so long at most; never raises for a package."""
    if not config.enabled:
        return Plugins()
    every = offers()
    on = [one for one in every if names(config.enabled, one.package) and not names(config.disabled, one.package)]
    by_package: dict[str, list[Offer]] = {}
    for one in on:
        by_package.setdefault(plain(one.package), []).append(one)
    order = {plain(name): place for place, name in enumerate(config.enabled)}
    chosen = sorted(by_package, key=lambda name: order.get(name, len(order)))
    loading = [_Loading(by_package[name], config) for name in chosen]
    deadline = time.monotonic() + within_s
    packages = [one.package(deadline, within_s) for one in loading]
    return Plugins(packages, _not_there(config, every), book)


def _not_there(config: PluginsConfig, every: Sequence[Offer]) -> list[Trouble]:
    there = {plain(one.package) for one in every}
    known = ", ".join(sorted(there)) or "none"
    text = f"plugins.enabled names it, and no installed package of that name brings anything. Those that do: {known}"
    return [Trouble(name, text) for name in config.enabled if name != EVERY and plain(name) not in there]


class _Loading:
    """A package that is being loaded. Its modules are Python that runs: in a thread nobody has to wait for."""

    def __init__(self, offered: Sequence[Offer], config: PluginsConfig) -> None:
        self._offered = offered
        self._config = config
        self._came: list[Package] = []
        self._thread = threading.Thread(target=self._load, name=f"loading {offered[0].package}", daemon=True)
        self._thread.start()

    def package(self, deadline: float, within_s: float) -> Package:
        """What came of it; of one that takes longer nothing, also later."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._came:
            return self._came[0]
        slow = Package(self._offered[0].package, self._offered[0].version)
        slow.troubles.append(f"it is left out: loading it took more than {within_s:g} s")
        return slow

    def _load(self) -> None:
        package = Package(self._offered[0].package, self._offered[0].version)
        settings = settings_of(self._config, package.name)
        for offer in self._offered:
            try:
                self._take(offer, package, settings)
            except (Exception, SystemExit) as error:  # the wall of a plugin: its import and constructor may do anything
                ours = isinstance(error, PluginError | UnfitToolError)
                said = str(error) if ours else traceback.format_exception_only(error)[-1]
                told = cleaned(f"its {offer.kind} {offer.name} is left out: {said}")
                package.troubles.append(clip_line(" ".join(told.split()), _LONGEST_TOLD))
        self._came.append(package)

    def _take(self, offer: Offer, package: Package, settings: Mapping[str, Any]) -> None:
        if offer.group not in (HOOKS, TOOLS):
            return
        if offer.misfit:
            raise PluginError(offer.misfit)
        if offer.group == HOOKS:
            name, place = f"{offer.name} of {package.name}", partial(package.aside.run, limit_s=_FOR_EVER_S)
            package.hooks.append(Walled(_made(offer, _AS_HOOK, settings), name, self._config.hook_timeout_s, place))
        else:
            tool = _made(offer, _AS_TOOL, settings)
            check_tool(tool)
            package.tools.append(own_tool(tool, package.aside))


def _made(offer: Offer, kind: type[T], settings: Mapping[str, Any]) -> T:
    """What an entry point names: a class, made with its settings where it takes them, or an object made already."""
    found: Any = load(offer.target)
    if isinstance(found, type) and issubclass(found, kind):
        make: Any = found
        found = make(settings=dict(settings)) if "settings" in inspect.signature(make).parameters else make()
    if isinstance(found, kind):
        return found
    raise PluginError(f"{offer.target} is none: it does not derive from {kind.__module__}.{kind.__name__}")


def settings_of(config: PluginsConfig, package: str) -> dict[str, Any]:
    """The section of this package, as it stands in the file."""
    found = next((one for name, one in (config.model_extra or {}).items() if plain(name) == plain(package)), None)
    return dict(found) if isinstance(found, Mapping) else {}
