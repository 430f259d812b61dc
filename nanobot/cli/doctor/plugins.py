"""Check of plugins: enabled ones load and work, disabled ones are listed."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.channels.registry import CHANNELS as OUR_CHANNELS
from nanobot.cli.doctor.checks import CheckContext, Finding, error, health_check, note, warning
from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import find_by_name, plain_name
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.plugins import CHANNELS, HOOKS, PROVIDERS, TOOLS, load, names, offers
from nanobot.utils.aio import WorkerThread
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.runtime.plugins import Plugins

_FIX_ADVICE = "Ask its author, install another version, or remove it from plugins.enabled."


@health_check("plugins", "Plugins work", limit_s=30.0)
def check_plugins(context: CheckContext) -> Iterator[Finding]:
    """Findings for each package with plugins. Loads only enabled ones."""
    config, settings = context.config, context.config.plugins
    our_channels = {spec.name for spec in OUR_CHANNELS}
    external_providers = {plain_name(name) for name in config.providers.by_name() if find_by_name(name) is None}
    unused: dict[str, list[str]] = {}
    for offer in offers():
        is_disabled = names(settings.disabled, offer.package)
        if offer.group in (TOOLS, HOOKS):
            if not (is_disabled or names(settings.enabled, offer.package)):
                unused.setdefault(offer.package, []).append(f"{offer.kind} {offer.name}")
            continue
        if offer.group == CHANNELS:
            is_builtin, is_used = offer.name in our_channels, offer.name in config.channels.enabled
        else:
            is_builtin, is_used = find_by_name(offer.name) is not None, plain_name(offer.name) in external_providers
        if is_builtin:
            yield warning(
                f"{offer.package}: its {offer.kind} {offer.name} is also built in, which takes precedence.",
                "Its author has to rename it.",
            )
        if is_used and offer.misfit:
            yield warning(f"{offer.package}: {offer.misfit}.", "Install a compatible version.")
        if is_used and offer.group == PROVIDERS and not is_disabled:
            try:
                load(offer.target)
            except Exception as exc:  # importing a plugin can raise anything
                message = str(exc) if isinstance(exc, NanobotError) else f"{type(exc).__name__}: {error_text(exc)}"
                yield error(f"{offer.package}: its provider {offer.name}: {message}", _FIX_ADVICE)
    if settings.enabled:
        yield from _enabled_findings(context)
    for name, program in settings.commands.items():
        if shutil.which(program.command[0], path=context.environ.get("PATH", os.defpath)) is None:
            yield error(
                f"plugins.commands.{name}: there is no program {program.command[0]}.",
                "Correct its path, or install it.",
            )
    for line in (context.gateway or {}).get("plugins", ()):
        yield error(f"The gateway says: {line}", _FIX_ADVICE)
    for package, contents in unused.items():
        yield note(
            f"{package} is installed but not enabled; it provides the {', the '.join(contents)}",
            f'To use it, add "{package}" to plugins.enabled.',
        )


def load_plugins(config: Config, places: DataPaths, workspace: Path) -> "Plugins":
    """Load the enabled plugins as the bot does."""
    from nanobot.agent.tools.builtin import build_tools  # slow to import
    from nanobot.runtime.plugins import load_packages
    from nanobot.runtime.policies import tool_policies

    plugins = load_packages(config.plugins, WorkerThread())
    plugins.offer(build_tools(tool_policies(config, places.data, workspace)))
    return plugins


def _enabled_findings(context: CheckContext) -> Iterator[Finding]:
    plugins = load_plugins(context.config, context.paths, context.workspace)
    for problem in plugins.troubles():
        is_installed = problem not in plugins.missing
        yield error(f"{problem}.", _FIX_ADVICE if is_installed else "Correct the name, or install it beside nanobot.")
    for package in plugins.packages:
        contents = [*(count_noun(len(package.tools), "tool"),) * bool(package.tools)]
        contents += [*(count_noun(len(package.hooks), "hook"),) * bool(package.hooks)]
        if contents:
            yield note(f"{package.name} {package.version} is enabled: {', '.join(contents)}")
