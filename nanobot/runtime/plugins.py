"""Tools and hooks of installed packages, and programs as hooks, that the config enables.

Those of packages run in the thread of foreign code, so that a blocking one delays nobody. Problems are logged, and
reported by the running process with the package's name.

A program reads the event as JSON on stdin. It exits with 0 and prints nothing, or one of {"deny": REASON},
{"text": TEXT}, {"arguments": {...}}. Anything else is a failure of the hook. Its child processes end with it.
"""

import asyncio
import inspect
import json
import logging
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from nanobot.agent.hooks import Deny, Hook, NewArguments, NewResult, NewText
from nanobot.agent.hooks.runner import GuardedHook
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import RESERVED_NAMES
from nanobot.agent.tools.own import InvalidToolError, OwnTool, check_tool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import PluginsConfig
from nanobot.errors import PluginError
from nanobot.plugins import EVERY, HOOKS, TOOLS, Offer, load, names, plain
from nanobot.plugins import offers as installed_offers
from nanobot.runtime.services import Services
from nanobot.security.secrets import redact_all
from nanobot.utils.aio import WorkerThread
from nanobot.utils.processes import child_environment, child_process
from nanobot.utils.text import clip_line

log = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 10.0
_MAX_PROBLEM_CHARS = 400
METHODS = {
    "message": "on_message",
    "request": "on_request",
    "answer": "on_answer",
    "beforeTool": "before_tool",
    "afterTool": "after_tool",
    "turnEnd": "on_turn_end",
}
"""Event names on the wire and in the config, with the hook method of each."""
_REPLIES: Mapping[str, Mapping[str, type]] = {
    "on_message": {"text": NewText, "deny": Deny},
    "before_tool": {"arguments": NewArguments, "deny": Deny},
    "after_tool": {"text": NewResult},
}
"""What a program may reply, by method."""
_MAX_OUTPUT_BYTES = 1_000_000

T = TypeVar("T")
_AS_HOOK: type[Hook] = Hook
_AS_TOOL: type[Tool] = Tool  # type: ignore[type-abstract]  # instances are of a subclass


class CommandHookError(Exception):
    """The program failed or its output is not allowed; the text says which."""


async def run_command_hook(
    command: Sequence[str], folder: Path, env: Mapping[str, str], method: str, seen: Any
) -> object:
    """Run the program in this folder with this environment; return its reply as the hook method would.

    Cancelling kills the program and its children. Raises CommandHookError, OSError.
    """
    event = next(event for event, name in METHODS.items() if name == method)
    with tempfile.TemporaryFile() as stdin:
        stdin.write(json.dumps({"event": event, **asdict(seen)}, default=str).encode())
        stdin.seek(0)
        async with child_process(command, cwd=folder, env=env, stdin=stdin.fileno()) as child:
            stdout, stderr = await asyncio.gather(_read_all(child.stdout), _read_all(child.stderr))
            code = await child.wait()
    if code != 0:
        last = (stderr.decode("utf-8", "replace").strip().splitlines() or ["no error output"])[-1]
        raise CommandHookError(f"it exited with {code}: {last[:200]}")
    try:
        reply = json.loads(stdout) if stdout.strip() else {}
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise CommandHookError(f"its output is not a JSON object: {stdout[:80]!r}")
    for name, make in _REPLIES.get(method, {}).items():
        if isinstance(value := reply.get(name), dict if name == "arguments" else str):
            made: object = make(value)
            return made
    if reply:
        raise CommandHookError(f"its output has {', '.join(sorted(reply))[:80]}, which is not allowed for this event")
    return None


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream, but keep only the first `_MAX_OUTPUT_BYTES`."""
    output = bytearray()
    while chunk := await stream.read(65_536):
        output += chunk[: max(0, _MAX_OUTPUT_BYTES - len(output))]
    return bytes(output)


@dataclass(slots=True)
class PluginPackage:
    """An enabled package with what could be loaded of it."""

    name: str
    version: str
    hooks: list[GuardedHook] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Plugins:
    """The loaded packages of a bot, in the order of `plugins.enabled`."""

    packages: Sequence[PluginPackage] = ()
    missing: Sequence[str] = ()
    """The problems of packages that are not installed."""

    @property
    def hooks(self) -> list[GuardedHook]:
        return [hook for package in self.packages for hook in package.hooks]

    def troubles(self) -> list[str]:
        """Return the problems of packages, each with the package's name. Problems of hooks are in `HookRunner`."""
        return [*self.missing, *(f"{package.name}: {text}" for package in self.packages for text in package.problems)]

    def offer(self, registry: ToolRegistry) -> None:
        """Register their tools. A tool whose name is taken is skipped."""
        for package in self.packages:
            for tool in package.tools:
                if tool.name in RESERVED_NAMES or registry.has(tool.name):
                    owner = "nanobot's own" if tool.name in RESERVED_NAMES else "taken"
                    package.problems.append(f"its tool {tool.name} was skipped: the name is {owner}")
                else:
                    registry.register(tool)


async def load_plugins(
    services: Services, tools: ToolRegistry
) -> tuple[list[GuardedHook], Callable[[], Sequence[str]]]:
    """Load the enabled plugins and register their tools. Return the hooks of plugins and programs, and a function that
    returns the problems of plugins.
    """
    settings = services.config.plugins
    plugins = await asyncio.to_thread(load_packages, settings, services.worker)
    plugins.offer(tools)
    for trouble in plugins.troubles():
        log.warning("Plugin %s.", trouble)
    return [*plugins.hooks, *command_hooks(settings, services.data_dir, services.environ)], plugins.troubles


def command_hooks(config: PluginsConfig, folder: Path, environ: Mapping[str, str]) -> list[GuardedHook]:
    """Return the programs configured as hooks. They run in `folder`, where no tool can write files that they would
    load.
    """
    hooks = []
    for name, command in config.commands.items():
        call = partial(run_command_hook, command.command, folder, {**child_environment(environ), **command.env})
        methods = frozenset(METHODS[event] for event in command.on)
        hooks.append(
            GuardedHook(f"plugins.commands.{name}", call, methods, command.guard, timeout_s=config.hook_timeout_s)
        )
    return hooks


def load_packages(config: PluginsConfig, worker: WorkerThread, timeout_s: float = LOAD_TIMEOUT_S) -> Plugins:
    """Load the enabled packages, to run in `worker`. Blocks for at most `timeout_s` a package; never raises for one.
    If none is enabled, installed packages are not looked up.
    """
    if not config.enabled:
        return Plugins()
    every = installed_offers()
    by_package: dict[str, list[Offer]] = {}
    for offer in every:
        if names(config.enabled, offer.package) and not names(config.disabled, offer.package):
            by_package.setdefault(plain(offer.package), []).append(offer)
    order = {plain(name): position for position, name in enumerate(config.enabled)}
    packages = []
    for name in sorted(by_package, key=lambda name: order.get(name, len(order))):
        package = PluginPackage(by_package[name][0].package, by_package[name][0].version)
        # A daemon thread: importing a package runs arbitrary code, which may never end.
        thread = threading.Thread(target=_load_package, args=(package, by_package[name], config, worker), daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():  # it may still change the package
            problem = f"it was skipped: loading it took more than {timeout_s:g} s"
            package = PluginPackage(package.name, package.version, problems=[problem])
        packages.append(package)
    installed = {plain(offer.package) for offer in every}
    available = ", ".join(sorted(installed)) or "none"
    text = f"plugins.enabled lists it, but no installed package of that name provides plugins. Available: {available}"
    missing = [f"{name}: {text}" for name in config.enabled if name != EVERY and plain(name) not in installed]
    return Plugins(packages, missing)


def _load_package(package: PluginPackage, offers: Sequence[Offer], config: PluginsConfig, worker: WorkerThread) -> None:
    """Load the hooks and tools of a package into it."""
    sections = (value for name, value in (config.model_extra or {}).items() if plain(name) == plain(package.name))
    section = next(sections, None)  # unvalidated
    settings = dict(section) if isinstance(section, Mapping) else {}
    for offer in offers:
        if offer.group not in (HOOKS, TOOLS):
            continue
        try:
            if offer.misfit:
                raise PluginError(offer.misfit)
            if offer.group == HOOKS:
                hook, name = _instantiate(offer, _AS_HOOK, settings), f"{offer.name} of {package.name}"
                package.hooks.append(GuardedHook.of(hook, name, config.hook_timeout_s, worker))
            else:
                tool = _instantiate(offer, _AS_TOOL, settings)
                check_tool(tool)
                package.tools.append(OwnTool(tool, worker))
        except (Exception, SystemExit) as error:  # third-party code: import and constructor may raise anything
            ours = isinstance(error, PluginError | InvalidToolError)
            reason = str(error) if ours else traceback.format_exception_only(error)[-1]
            problem = redact_all(f"its {offer.kind} {offer.name} was skipped: {reason}")
            package.problems.append(clip_line(" ".join(problem.split()), _MAX_PROBLEM_CHARS))


def _instantiate(offer: Offer, kind: type[T], settings: Mapping[str, Any]) -> T:
    """Return the object of an entry point: an instance, or a class instantiated with `settings` if it takes them."""
    loaded: Any = load(offer.target)
    if isinstance(loaded, type) and issubclass(loaded, kind):
        make: Any = loaded
        loaded = make(settings=dict(settings)) if "settings" in inspect.signature(make).parameters else make()
    if isinstance(loaded, kind):
        return loaded
    raise PluginError(f"{offer.target} does not derive from {kind.__module__}.{kind.__name__}")
