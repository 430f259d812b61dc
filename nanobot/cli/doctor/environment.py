"""Checks of the config, limits, clock, gateway, programs, sandbox, skills and plugins."""

import os
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from nanobot.agent.skills.lint import lint_skill
from nanobot.agent.skills.loader import Skill
from nanobot.agent.skills.package import read_bundle
from nanobot.agent.tools.mcp.transport import find_program, server_environment
from nanobot.channels.registry import find, plugin_names
from nanobot.cli.commands.tools import load_plugins
from nanobot.cli.doctor.checks import CheckContext, Finding, error, health_check, note, warning
from nanobot.cli.setup.probe import format_limits, missing_prices
from nanobot.config.loader import load_warnings
from nanobot.config.provider_table import find_by_name, plain_name
from nanobot.errors import NanobotError
from nanobot.gateway.process import find_lock_holder
from nanobot.plugins import HOOKS, PROVIDERS, TOOLS, load, names, offers
from nanobot.runtime.sandbox import command_sandbox
from nanobot.runtime.skills import skills_loader
from nanobot.utils.clock import find_zone
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun

_FIRST_YEAR = 2025
_AHEAD_S = 86_400.0
_FIX_ADVICE = "Ask its author, install another version, or remove it from plugins.enabled."


@health_check("config", "The config can be used", reads_config=False)
def check_config(context: CheckContext) -> Iterator[Finding]:
    if context.problem:
        yield error(context.problem, "Correct the file; it is never replaced by defaults.")
        return
    exists = context.config_path.exists()
    yield note(str(context.config_path) if exists else f"{context.config_path}: none yet, using defaults")
    unknown_keys = load_warnings(context.config)
    for text in unknown_keys:
        yield warning(text, "Correct the name, or remove the key.")
    for name in context.config.channels.enabled:
        is_told = any(f"channels.{name}" in text for text in unknown_keys)
        if not is_told and find(name) is None and name not in plugin_names():
            yield warning(
                f"channels.{name} is enabled, but nanobot has no channel {name} yet and no package provides one.",
                f"nanobot config set channels.{name}.enabled false",
            )


@health_check("limits", "Spending limits can be enforced")
def check_limits(context: CheckContext) -> Iterator[Finding]:
    limits = format_limits(context.config)
    yield note(limits or "no limit is set", "" if limits else "Set one with limits.dailyUsd.")
    for problem in missing_prices(context.config, context.data_dir):
        if context.config.limits.unknown_price == "refuse":
            yield error(problem, "Until then the model cannot be used, since a limit in dollars is set.")
        else:
            yield warning(problem, "Until then limits in dollars do not count it (limits.unknownPrice is allow).")


@health_check("clock", "The clock is right")
def check_clock(context: CheckContext) -> Iterator[Finding]:
    """The machine's time looks right, as far as that can be told offline."""
    now = datetime.now().astimezone(find_zone(context.config.agents.defaults.timezone))
    if now.year < _FIRST_YEAR:
        yield error(f"The clock says {now:%Y-%m-%d %H:%M}.", "Set the clock: keys, logins and reminders depend on it.")
        return
    files = [context.config_path, context.paths.database, *context.workspace.glob("sessions/*.jsonl")]
    newest = max((path.stat().st_mtime for path in files if path.exists()), default=0.0)
    if newest > time.time() + _AHEAD_S:
        dated = f"Files of nanobot are dated {datetime.fromtimestamp(newest):%Y-%m-%d %H:%M}, in the future."
        yield warning(dated, "Set the clock: it seems to have been set back.")
    yield note(f"{now:%Y-%m-%d %H:%M} ({now.tzname()})")


@health_check("gateway", "The gateway is healthy", reads_config=False)
def check_gateway(context: CheckContext) -> Iterator[Finding]:
    """A running gateway answers and reports no problem. It need not be running."""
    holder = find_lock_holder(context.paths)
    if context.gateway is not None:
        for problem in context.gateway["problems"]:
            yield error(str(problem), "See `nanobot gateway logs`.")
        yield note(f"running, pid {context.gateway['pid']}")
    elif holder is not None:
        reason = f": {context.gateway_problem}" if context.gateway_problem else ""
        yield error(f"A gateway (pid {holder.pid}) is running but does not answer{reason}.", "nanobot gateway restart")
    else:
        yield note("not running; `nanobot gateway` starts it")


@health_check("programs", "Programs of MCP servers are installed")
def check_programs(context: CheckContext) -> Iterator[Finding]:
    for name, server in context.config.tools.mcp_servers.items():
        env = server_environment(context.environ, server)
        if server.command and find_program(server, env, server.folder or Path()) is None:
            yield error(
                f"The command {server.command} of the MCP server {name} is not found.",
                f"Install it, or set tools.mcpServers.{name}.command to its full path.",
            )


@health_check("sandbox", "Commands run in a sandbox")
def check_sandbox(context: CheckContext) -> Iterator[Finding]:
    if not context.config.tools.exec.enable:
        yield note("exec is disabled")
        return
    sandbox = command_sandbox(context.config, context.data_dir, context.workspace)
    report = sandbox.report()
    if sandbox.required and not report.is_available:
        yield error(report.summary, "Do that, or set tools.exec.sandbox to auto.")
    elif report.is_partial:
        yield warning(
            "Commands are confined by Landlock alone, which cannot stop them from changing permissions and times of "
            "files outside the workspace (chmod, touch).",
            f"{report.summary.partition(': ')[2]} `nanobot doctor --security` lists what is enforced.",
        )
    else:
        yield note(report.summary)


@health_check("skills", "Skills can be used")
def check_skills(context: CheckContext) -> Iterator[Finding]:
    loader = skills_loader(context.config, context.paths, context.workspace)
    skills = loader.skills()
    for skill in skills:
        if skill.source == "workspace":
            yield from _check_own_skill(skill)
    unusable = [skill.name for skill in skills if skill.missing and skill.source != "workspace"]
    if unusable:
        text = f"{count_noun(len(unusable), 'built-in skill')} cannot be used here: {', '.join(unusable)}."
        yield note(text, "`nanobot skills list` shows what each needs.")
    for skill in skills:
        variables = [name for name in skill.manual.variables if context.environ.get(name)]
        if hidden := ", ".join(name for name in variables if name not in context.config.tools.exec.allowed_env_keys):
            text = f"The skill {skill.name} needs {hidden}, which commands do not get."
            yield note(text, f"Add what its commands need to tools.exec.allowedEnvKeys: {hidden}")
    if rest := loader.catalog().rest:
        yield note(
            f"{count_noun(len(rest), 'skill has', 'skills have')} no summary in the prompt: not all of them fit.",
            "Remove what you do not use, or raise agents.defaults.skillsPromptChars.",
        )


def _check_own_skill(skill: Skill) -> Iterator[Finding]:
    """Why a skill of the workspace cannot be used; for a usable one, its format errors."""
    reason, advice = skill.missing[0] if skill.missing else "", f"nanobot skills validate {skill.path.parent}"
    if "SKILL.md" in reason:
        yield warning(f"The skill {skill.name} cannot be read: {reason}.", advice)
    elif reason:
        needs = f"The skill {skill.name} needs {', '.join(skill.missing_hints)}."
        yield warning(needs, "Install it, or remove the skill: nanobot skills remove.")
    else:
        try:
            faults = [fault for fault in lint_skill(read_bundle(skill.path)) if fault.is_error]
        except (NanobotError, OSError) as exc:
            yield note(f"The skill {skill.name} is not valid for installation: {error_text(exc)}")
            return
        if faults:
            count = count_noun(len(faults), "format error")
            yield note(f"The skill {skill.name} works but has {count}: {faults[0].summary}", advice)


@health_check("plugins", "Plugins work", limit_s=30.0)
def check_plugins(context: CheckContext) -> Iterator[Finding]:
    """Findings for each package with plugins. Loads only enabled ones."""
    config, settings = context.config, context.config.plugins
    external_providers = {plain_name(name) for name in config.providers.by_name() if find_by_name(name) is None}
    unused: dict[str, list[str]] = {}
    for offer in offers():
        is_disabled = names(settings.disabled, offer.package)
        if offer.group in (TOOLS, HOOKS):
            if not (is_disabled or names(settings.enabled, offer.package)):
                unused.setdefault(offer.package, []).append(f"{offer.kind} {offer.name}")
            continue
        if is_provider := offer.group == PROVIDERS:
            is_builtin, is_used = find_by_name(offer.name) is not None, plain_name(offer.name) in external_providers
        else:
            is_builtin, is_used = find(offer.name) is not None, offer.name in config.channels.enabled
        if is_builtin:
            yield warning(
                f"{offer.package}: its {offer.kind} {offer.name} is also built in, which takes precedence.",
                "Its author has to rename it.",
            )
        if is_used and offer.misfit:
            yield warning(f"{offer.package}: {offer.misfit}.", "Install a compatible version.")
        if is_used and is_provider and not is_disabled:
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


def _enabled_findings(context: CheckContext) -> Iterator[Finding]:
    plugins = load_plugins(context)
    for problem in plugins.troubles():
        is_installed = problem not in plugins.missing
        yield error(f"{problem}.", _FIX_ADVICE if is_installed else "Correct the name, or install it beside nanobot.")
    for package in plugins.packages:
        contents = [*(count_noun(len(package.tools), "tool"),) * bool(package.tools)]
        contents += [*(count_noun(len(package.hooks), "hook"),) * bool(package.hooks)]
        if contents:
            yield note(f"{package.name} {package.version} is enabled: {', '.join(contents)}")
