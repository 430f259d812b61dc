"""What is around nanobot: the clock, programs it needs, and the gateway."""

import shutil
import time
from collections.abc import Iterator
from datetime import datetime

from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.gateway.lock import holder_of
from nanobot.utils.clock import zone_named
from nanobot.wiring.walls import command_walls

_FIRST_YEAR = 2025
_AHEAD_S = 86_400.0


def clock_is_right(patient: Patient) -> Iterator[Finding]:
    """The time of this machine, as far as it can be judged without asking anybody."""
    now = datetime.now().astimezone(zone_named(patient.config.agents.defaults.timezone))
    if now.year < _FIRST_YEAR:
        yield error(f"The clock says {now:%Y-%m-%d %H:%M}.", "Set it: keys, logins and reminders depend on it.")
        return
    kept = [patient.config_path, patient.places.journal, *patient.workspace.glob("sessions/*.jsonl")]
    newest = max((path.stat().st_mtime for path in kept if path.exists()), default=0.0)
    if newest > time.time() + _AHEAD_S:
        ahead = datetime.fromtimestamp(newest).astimezone()
        yield warning(
            f"Files of ours are from {ahead:%Y-%m-%d %H:%M}, which is still to come.",
            "Set the clock: it seems to have gone back.",
        )
    yield note(f"{now:%Y-%m-%d %H:%M} ({now.tzname()})")


def gateway_is_well(patient: Patient) -> Iterator[Finding]:
    """Whether it runs, answers and is well. One that does not run is nothing wrong."""
    holder = holder_of(patient.places)
    if patient.gateway is not None:
        for problem in patient.gateway["problems"]:
            yield error(str(problem), "See `nanobot gateway logs`.")
        yield note(f"runs, pid {patient.gateway['pid']}")
    elif holder is not None:
        told = f": {patient.gateway_problem}" if patient.gateway_problem else ""
        yield error(f"A gateway (pid {holder.pid}) runs, and does not answer{told}.", "nanobot gateway restart")
    else:
        yield note("not running; `nanobot gateway` starts it")


def programs_are_there(patient: Patient) -> Iterator[Finding]:
    """The commands of MCP servers."""
    where = patient.environ.get("PATH", "")
    added = patient.config.tools.exec.path_append
    for name, server in patient.config.tools.mcp_servers.items():
        if server.command and shutil.which(server.command, path=f"{where}:{added}" if added else where) is None:
            yield error(
                f"The MCP server {name} is started by {server.command}, which is not found.",
                f"Install it, or write its whole path into tools.mcpServers.{name}.command.",
            )


def commands_are_walled(patient: Patient) -> Iterator[Finding]:
    """What the exec tool runs in, on this machine."""
    if not patient.config.tools.exec.enable:
        yield note("exec is switched off")
        return
    walls = command_walls(patient.config, patient.places.data, patient.workspace)
    report = walls.report()
    if walls.required and not report.stands:
        yield error(report.summary, "Do that, or set tools.exec.sandbox to auto.")
    else:
        yield note(report.summary)
