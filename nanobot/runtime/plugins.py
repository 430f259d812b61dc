"""Tools and hooks of installed packages that the config enables.

Each package runs in a thread of its own, so that a blocking one delays nobody else. Problems are reported with the
package's name and saved for `nanobot doctor`.
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

from nanobot.agent.hooks.api import Hook
from nanobot.agent.hooks.command import METHODS, CommandHook
from nanobot.agent.hooks.runner import GuardedHook
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import RESERVED_NAMES
from nanobot.agent.tools.own.loading import InvalidToolError, check_tool
from nanobot.agent.tools.own.tool import wrap_tool
from nanobot.agent.tools.own.worker_loop import WorkerLoop
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import PluginsConfig
from nanobot.errors import PluginError, StorageError
from nanobot.plugins import EVERY, HOOKS, TOOLS, Offer, load, names, plain
from nanobot.plugins import offers as installed_offers
from nanobot.security.environment import child_environment
from nanobot.security.redaction import redact_all
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 10.0
_MAX_PROBLEM_CHARS = 400
_MAX_PROBLEMS = 8
"""Problems saved per hook."""
_NO_LIMIT_S = 24 * 3600.0
"""`GuardedHook` has the timeout."""

T = TypeVar("T")
_AS_HOOK: type[Hook] = Hook
_AS_TOOL: type[Tool] = Tool  # type: ignore[type-abstract]  # instances are of a subclass


@dataclass(frozen=True, slots=True)
class PluginProblem:
    package: str
    text: str

    def __str__(self) -> str:
        return f"{self.package}: {self.text}"


@dataclass(slots=True)
class PluginPackage:
    """An enabled package with what could be loaded of it."""

    name: str
    version: str
    hooks: list[GuardedHook] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    worker: WorkerLoop = field(default_factory=lambda: WorkerLoop("plugin"))


class Plugins:
    """The loaded packages of a bot."""

    def __init__(
        self, packages: Sequence[PluginPackage] = (), missing: Sequence[PluginProblem] = (), file: Path | None = None
    ) -> None:
        """`missing` are the problems of packages that are not installed; problems of hooks are saved in `file`."""
        self.packages = packages
        self.missing = missing
        self._file = file
        self._saving = threading.Lock()

    @property
    def hooks(self) -> list[GuardedHook]:
        """Their hooks, in the order of `plugins.enabled`."""
        return [hook for package in self.packages for hook in package.hooks]

    def troubles(self) -> list[PluginProblem]:
        """Return the problems of packages. Problems of hooks are in `HookRunner`."""
        loaded = [PluginProblem(package.name, text) for package in self.packages for text in package.troubles]
        return [*self.missing, *loaded]

    def offer(self, registry: ToolRegistry) -> None:
        """Register their tools. A tool whose name is taken is skipped."""
        for package in self.packages:
            for tool in package.tools:
                if tool.name in RESERVED_NAMES or registry.has(tool.name):
                    owner = "nanobot's own" if tool.name in RESERVED_NAMES else "taken"
                    package.troubles.append(f"its tool {tool.name} was skipped: the name is {owner}")
                else:
                    registry.register(tool)

    async def close(self) -> None:
        """Stop the threads and save the problems. Never raises."""
        for package in self.packages:
            package.worker.close()
        if any(hook.succeeded or hook.problems for hook in self.hooks):
            await asyncio.to_thread(self._save)

    def begin(self) -> None:
        """Log the problems. From now on each new problem of a hook is saved at once, in case the process is killed."""
        for problem in self.troubles():
            log.warning("Plugin %s.", problem)
        for hook in self.hooks:
            hook.on_problem = self._save_soon

    def _save_soon(self, name: str, problem: str) -> None:
        asyncio.get_running_loop().run_in_executor(None, self._save)

    def _save(self) -> None:
        """Save the problems. A saved problem stays until the same method of the same hook succeeds."""
        if self._file is None:
            return
        with self._saving:
            saved = _read_saved(self._file)
            data = dict(saved)
            for package in self.packages:
                lines = [line for hook in package.hooks for line in _open_problems(hook, _saved_lines(saved, package))]
                data[plain(package.name)] = {"version": package.version, "troubles": lines}
            data = {name: item for name, item in data.items() if item["troubles"]}
            try:
                if data != saved:
                    make_private_folder(self._file.parent)
                    write_atomic(self._file, json.dumps(data, ensure_ascii=False, indent=2))
            except (OSError, StorageError) as error:
                log.warning("The problems of plugins cannot be saved: %s", error)


def _open_problems(hook: GuardedHook, before: Sequence[str]) -> list[str]:
    """Return the problems of a hook: the saved ones whose method has not succeeded since, and the new ones."""
    saved = [line for line in before if line.startswith(f"{hook.name}: ")]
    still_open = [line for line in saved if line.removeprefix(f"{hook.name}: ").partition(" ")[0] not in hook.succeeded]
    now = [f"{hook.name}: {problem}" for problem in hook.problems]
    return [*dict.fromkeys([*still_open, *now])][-_MAX_PROBLEMS:]


def _saved_lines(saved: Mapping[str, Mapping[str, Any]], package: PluginPackage) -> list[str]:
    """Return the saved problems of this version of a package."""
    last = saved.get(plain(package.name))
    return [str(line) for line in last["troubles"]] if last is not None and last["version"] == package.version else []


def saved_problems(file: Path, packages: Sequence[PluginPackage]) -> list[PluginProblem]:
    """Return the saved problems of hooks, for the same versions of the packages only."""
    saved = _read_saved(file)
    return [PluginProblem(package.name, line) for package in packages for line in _saved_lines(saved, package)]


def _read_saved(file: Path) -> dict[str, dict[str, Any]]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    entries = data.items() if isinstance(data, dict) else ()
    return {
        name: saved
        for name, saved in entries
        if isinstance(saved, dict) and isinstance(saved.get("troubles"), list) and "version" in saved
    }


async def open_plugins(config: PluginsConfig, file: Path) -> Plugins:
    """Load the enabled packages. If none is enabled, installed packages are not looked up."""
    return await asyncio.to_thread(load_packages, config, file) if config.enabled else Plugins()


def command_hooks(config: PluginsConfig, folder: Path, environ: Mapping[str, str]) -> list[GuardedHook]:
    """Return the programs configured as hooks. They run in `folder`, where no tool can write files that they would
    load.
    """
    hooks = []
    for name, command in config.commands.items():
        hook = CommandHook(command.command, folder=folder, env={**child_environment(environ), **command.env})
        hook.guard = command.guard
        methods = frozenset(METHODS[event] for event in command.on)
        hooks.append(GuardedHook(hook, f"plugins.commands.{name}", config.hook_timeout_s, methods=methods))
    return hooks


def load_packages(config: PluginsConfig, file: Path, timeout_s: float = LOAD_TIMEOUT_S) -> Plugins:
    """Load the enabled packages in parallel. Blocks for at most `timeout_s`; never raises for a package."""
    if not config.enabled:
        return Plugins()
    every = installed_offers()
    enabled = [
        offer for offer in every if names(config.enabled, offer.package) and not names(config.disabled, offer.package)
    ]
    by_package: dict[str, list[Offer]] = {}
    for offer in enabled:
        by_package.setdefault(plain(offer.package), []).append(offer)
    order = {plain(name): position for position, name in enumerate(config.enabled)}
    chosen = sorted(by_package, key=lambda name: order.get(name, len(order)))
    loaders = [_Loader(by_package[name], config) for name in chosen]
    deadline = time.monotonic() + timeout_s
    packages = [loader.package(deadline, timeout_s) for loader in loaders]
    return Plugins(packages, _missing_packages(config, every), file)


def _missing_packages(config: PluginsConfig, every: Sequence[Offer]) -> list[PluginProblem]:
    installed = {plain(offer.package) for offer in every}
    available = ", ".join(sorted(installed)) or "none"
    text = f"plugins.enabled lists it, but no installed package of that name provides plugins. Available: {available}"
    return [PluginProblem(name, text) for name in config.enabled if name != EVERY and plain(name) not in installed]


class _Loader:
    """Loads one package in a daemon thread, since importing it runs arbitrary code."""

    def __init__(self, offers: Sequence[Offer], config: PluginsConfig) -> None:
        self._offers = offers
        self._config = config
        self._loaded: list[PluginPackage] = []
        self._thread = threading.Thread(target=self._load, name=f"loading {offers[0].package}", daemon=True)
        self._thread.start()

    def package(self, deadline: float, timeout_s: float) -> PluginPackage:
        """Return the package, or an empty one with the problem if it is not loaded by the deadline."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._loaded:
            return self._loaded[0]
        slow = PluginPackage(self._offers[0].package, self._offers[0].version)
        slow.troubles.append(f"it was skipped: loading it took more than {timeout_s:g} s")
        return slow

    def _load(self) -> None:
        package = PluginPackage(self._offers[0].package, self._offers[0].version)
        settings = settings_of(self._config, package.name)
        for offer in self._offers:
            try:
                self._add(offer, package, settings)
            except (Exception, SystemExit) as error:  # third-party code: import and constructor may raise anything
                ours = isinstance(error, PluginError | InvalidToolError)
                error_text = str(error) if ours else traceback.format_exception_only(error)[-1]
                problem = redact_all(f"its {offer.kind} {offer.name} was skipped: {error_text}")
                package.troubles.append(clip_line(" ".join(problem.split()), _MAX_PROBLEM_CHARS))
        self._loaded.append(package)

    def _add(self, offer: Offer, package: PluginPackage, settings: Mapping[str, Any]) -> None:
        if offer.group not in (HOOKS, TOOLS):
            return
        if offer.misfit:
            raise PluginError(offer.misfit)
        if offer.group == HOOKS:
            name, run_on = f"{offer.name} of {package.name}", partial(package.worker.run, limit_s=_NO_LIMIT_S)
            package.hooks.append(
                GuardedHook(_instantiate(offer, _AS_HOOK, settings), name, self._config.hook_timeout_s, run_on)
            )
        else:
            tool = _instantiate(offer, _AS_TOOL, settings)
            check_tool(tool)
            package.tools.append(wrap_tool(tool, package.worker))


def _instantiate(offer: Offer, kind: type[T], settings: Mapping[str, Any]) -> T:
    """Return the object of an entry point: an instance, or a class instantiated with `settings` if it takes them."""
    loaded: Any = load(offer.target)
    if isinstance(loaded, type) and issubclass(loaded, kind):
        make: Any = loaded
        loaded = make(settings=dict(settings)) if "settings" in inspect.signature(make).parameters else make()
    if isinstance(loaded, kind):
        return loaded
    raise PluginError(f"{offer.target} does not derive from {kind.__module__}.{kind.__name__}")


def settings_of(config: PluginsConfig, package: str) -> dict[str, Any]:
    """Return the config section of this package, unvalidated."""
    section = next((value for name, value in (config.model_extra or {}).items() if plain(name) == plain(package)), None)
    return dict(section) if isinstance(section, Mapping) else {}
