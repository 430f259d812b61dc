"""Checks of the config, limits, clock, gateway, programs and sandbox."""

import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from nanobot.agent.tools.mcp.transport import find_program, server_environment
from nanobot.channels.registry import find, plugin_names
from nanobot.cli.doctor.checks import CheckContext, Finding, error, note, warning
from nanobot.cli.setup.probe import format_limits, missing_prices
from nanobot.config.loader import load_warnings
from nanobot.gateway.lock import find_lock_holder
from nanobot.runtime.sandbox import command_sandbox
from nanobot.utils.clock import find_zone


def config_can_be_used(context: CheckContext) -> Iterator[Finding]:
    if context.problem:
        yield error(context.problem, "Correct the file; it is never replaced by defaults.")
        return
    if not context.config_path.exists():
        yield note(f"{context.config_path}: none yet, using defaults")
        return
    yield note(str(context.config_path))
    unknown_keys = load_warnings(context.config)
    for warning_text in unknown_keys:
        yield warning(warning_text, "Correct the name, or remove the key.")
    for name in context.config.channels.enabled:
        is_told = any(f"channels.{name}" in warning_text for warning_text in unknown_keys)
        if not is_told and find(name) is None and name not in plugin_names():
            yield warning(
                f"channels.{name} is enabled, but nanobot has no channel {name} yet and no package provides one.",
                f"nanobot config set channels.{name}.enabled false",
            )


def limits_can_be_enforced(context: CheckContext) -> Iterator[Finding]:
    limits_text = format_limits(context.config)
    yield note(limits_text or "no limit is set", "" if limits_text else "Set one with limits.dailyUsd.")
    refuses = context.config.limits.unknown_price == "refuse"
    for problem in missing_prices(context.config, context.places.data):
        if refuses:
            yield error(problem, "Until then the model cannot be used, since a limit in dollars is set.")
        else:
            yield warning(problem, "Until then limits in dollars do not count it (limits.unknownPrice is allow).")


_FIRST_YEAR = 2025
_AHEAD_S = 86_400.0


def clock_is_right(context: CheckContext) -> Iterator[Finding]:
    """The machine's time looks right, as far as that can be told offline."""
    now = datetime.now().astimezone(find_zone(context.config.agents.defaults.timezone))
    if now.year < _FIRST_YEAR:
        yield error(f"The clock says {now:%Y-%m-%d %H:%M}.", "Set the clock: keys, logins and reminders depend on it.")
        return
    paths = [context.config_path, context.places.database, *context.workspace.glob("sessions/*.jsonl")]
    newest = max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)
    if newest > time.time() + _AHEAD_S:
        newest_time = datetime.fromtimestamp(newest).astimezone()
        yield warning(
            f"Files of nanobot are dated {newest_time:%Y-%m-%d %H:%M}, in the future.",
            "Set the clock: it seems to have been set back.",
        )
    yield note(f"{now:%Y-%m-%d %H:%M} ({now.tzname()})")


def gateway_is_healthy(context: CheckContext) -> Iterator[Finding]:
    """A running gateway answers and reports no problem. It need not be running."""
    holder = find_lock_holder(context.places)
    if context.gateway is not None:
        for problem in context.gateway["problems"]:
            yield error(str(problem), "See `nanobot gateway logs`.")
        yield note(f"running, pid {context.gateway['pid']}")
    elif holder is not None:
        reason = f": {context.gateway_problem}" if context.gateway_problem else ""
        yield error(f"A gateway (pid {holder.pid}) is running but does not answer{reason}.", "nanobot gateway restart")
    else:
        yield note("not running; `nanobot gateway` starts it")


def programs_are_there(context: CheckContext) -> Iterator[Finding]:
    for name, server in context.config.tools.mcp_servers.items():
        env = server_environment(context.environ, server)
        if server.command and find_program(server, env, server.folder or Path()) is None:
            yield error(
                f"The command {server.command} of the MCP server {name} is not found.",
                f"Install it, or set tools.mcpServers.{name}.command to its full path.",
            )


def commands_are_sandboxed(context: CheckContext) -> Iterator[Finding]:
    if not context.config.tools.exec.enable:
        yield note("exec is disabled")
        return
    sandbox = command_sandbox(context.config, context.places.data, context.workspace)
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
