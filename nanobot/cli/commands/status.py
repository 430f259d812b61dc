"""`nanobot status`: the configuration, where each value comes from, and which model would answer and why."""

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot import __version__
from nanobot.agent.subagent.tasks import task_counts
from nanobot.cli.commands.providers import ProviderFacts, provider_facts
from nanobot.cli.common import ConfigOption, JsonOption, Setup, WorkspaceOption, ask_gateway, read_setup
from nanobot.cli.output import print_heading, print_json, print_line, print_rows, to_one_line
from nanobot.cli.setup.probe import (
    ProbeResult,
    ProviderSelection,
    current_selection,
    format_limits,
    missing_prices,
    try_model,
)
from nanobot.cli.terminal import Paint, wants_colour
from nanobot.config.loader import load_warnings
from nanobot.config.schema import Config
from nanobot.config.sources import Setting, sources
from nanobot.cron.format import format_time
from nanobot.cron.schedule import job_zone_or_host
from nanobot.cron.service import CronService
from nanobot.errors import StorageError
from nanobot.runtime.sandbox import command_sandbox
from nanobot.runtime.skills import skills_loader
from nanobot.security.sandbox.sandbox import Report as SandboxReport
from nanobot.session.manager import SessionManager
from nanobot.utils.lease import ProcessLease
from nanobot.utils.text import clip_line

_GATEWAY_FACTS = ("status", "pid", "uptimeS", "problems", "lastError")


@dataclass
class StatusReport:
    """What `--json` prints; the rows for people say the same in words."""

    version: str
    config: dict[str, Any]
    data_dir: str
    workspace: str
    model: ProviderSelection
    probe: ProbeResult | None
    providers: list[ProviderFacts]
    sessions: int
    gateway: dict[str, Any]
    channels: Mapping[str, Mapping[str, Any]]
    """State and last error of each enabled channel."""
    jobs: "JobSummary"
    subagents: dict[str, int]
    goals: list[dict[str, str]]
    """Unfinished goals."""
    plugins: list["PluginFacts"]
    """Enabled plugins."""
    sandbox: SandboxReport
    skills: list[dict[str, Any]]
    settings: list[Setting]
    missing_prices: list[str]
    """A sentence for each model without a known price, which dollar limits cannot count."""
    warnings: list[str]


@dataclass(frozen=True)
class PluginFacts:
    name: str
    version: str = ""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobSummary:
    count: int = 0
    next_run: str = ""
    problem: str = ""
    """Why the jobs could not be read."""


def status(
    probe: Annotated[bool, typer.Option("--probe", help="Send one request to the model and time it.")] = False,
    include_defaults: Annotated[bool, typer.Option("--all", help="Show every setting, including defaults.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show the configuration, and where each value comes from."""
    setup = read_setup(config, workspace, secrets=probe)
    report = _build_report(setup, include_defaults=include_defaults)
    if not json:
        _print_report(report, setup.config)
    if probe:
        if not json:
            print_line("\nAsking the model ...")
        report.probe = try_model(setup.config, setup.data_dir)
        if not json:
            print_line(str(report.probe))
    if json:
        print_json(report)


def _build_report(setup: Setup, *, include_defaults: bool) -> StatusReport:
    config, paths = setup.config, setup.paths
    gateway = ask_gateway(paths, {"do": "report"})
    gateway_facts = {} if gateway is None else {key: gateway[key] for key in _GATEWAY_FACTS}
    try:
        running, waiting = task_counts(paths.database, ProcessLease(paths.leases))
    except StorageError:
        running, waiting = 0, 0
    sandbox = SandboxReport(False, "not needed: commands are disabled (tools.exec.enable is false)")
    if config.tools.exec.enable:
        sandbox = command_sandbox(config, setup.data_dir, setup.workspace).report()
    providers = provider_facts(config, os.environ, setup.data_dir)
    skills = skills_loader(config, paths, setup.workspace).skills()
    return StatusReport(
        version=__version__,
        config={"path": str(setup.config_path), "exists": setup.config_path.exists()},
        data_dir=str(setup.data_dir),
        workspace=str(setup.workspace),
        model=current_selection(config, setup.data_dir),
        probe=None,
        providers=[facts for facts in providers if facts.key or facts.logged_in],
        sessions=len(SessionManager(setup.workspace, old_folder=paths.legacy_sessions).list_sessions()),
        gateway={"running": gateway is not None, **gateway_facts},
        channels=_channel_states(setup, gateway),
        jobs=_summarize_jobs(setup),
        subagents={"running": running, "waiting": waiting},
        goals=_open_goals(setup),
        plugins=_plugin_facts(setup, gateway),
        sandbox=sandbox,
        skills=[{"name": skill.name, "available": skill.available} for skill in skills],
        settings=sources(config) if include_defaults else list(_changed_settings(config)),
        missing_prices=missing_prices(config, setup.data_dir),
        warnings=list(load_warnings(config)),
    )


def _channel_states(setup: Setup, gateway: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    names = setup.config.channels.enabled
    if gateway is not None:
        return {name: gateway["channels"].get(name, {"state": "off", "lastError": ""}) for name in names}
    if not names:
        return {}
    from nanobot.cli.commands.channels import offline_status  # slow to import

    return offline_status(setup.config)


def _open_goals(setup: Setup) -> list[dict[str, str]]:
    if not setup.paths.database.exists():
        return []
    from nanobot.agent.goals.goal import read_goals  # slow to import

    try:
        goals = [goal for goal in read_goals(setup.paths.database) if not goal.state.is_over]
    except StorageError:
        return []
    return [{"session": goal.session_key, "text": goal.order.text, "state": goal.state} for goal in goals]


def _summarize_jobs(setup: Setup) -> JobSummary:
    service = CronService(setup.paths.jobs_file(setup.workspace), timezone=setup.config.agents.defaults.timezone)
    try:
        jobs = service.list_jobs()
    except StorageError as error:
        return JobSummary(problem=str(error))
    if not jobs or jobs[0].state.wakes_at_ms is None:
        return JobSummary(len(jobs))
    return JobSummary(len(jobs), format_time(jobs[0].state.wakes_at_ms, job_zone_or_host(jobs[0], service.timezone)))


def _plugin_facts(setup: Setup, gateway: Mapping[str, Any] | None) -> list[PluginFacts]:
    if not setup.config.plugins.enabled:
        return []
    from nanobot.cli.doctor.plugins import load_plugins  # slow to import

    plugins = load_plugins(setup.config, setup.paths, setup.workspace)
    problems, hook_problems = plugins.troubles(), (gateway or {}).get("plugins", ())
    facts = {
        package.name: PluginFacts(
            package.name,
            package.version,
            tuple(tool.name for tool in package.tools),
            tuple(hook.name for hook in package.hooks),
        )
        for package in plugins.packages
    }
    for problem in problems:
        facts.setdefault(problem.package, PluginFacts(problem.package))
    return [
        replace(
            known,
            troubles=(
                *(problem.text for problem in problems if problem.package == name),
                *(line for line in hook_problems if f" of {name}: " in line),
            ),
        )
        for name, known in facts.items()
    ]


def _changed_settings(config: Config) -> Iterator[Setting]:
    """The settings that come from the environment or differ from the default: old configs contain all of them."""
    defaults = {setting.key: setting.value for setting in sources(Config())}
    for setting in sources(config):
        is_new = setting.source != "default" and setting.value != defaults.get(setting.key)
        if setting.source == "environment" or is_new:
            yield setting


def _print_report(report: StatusReport, config: Config) -> None:
    gateway, channels, jobs = report.gateway, report.channels, report.jobs
    is_running, (running, waiting) = gateway["running"], report.subagents.values()
    states = ", ".join(
        f"{name} {facts['state']}" if is_running or facts["state"] == "failed" else name
        for name, facts in channels.items()
    )
    unavailable = sum(not skill["available"] for skill in report.skills)
    rows = {
        "Model": str(report.model),
        "Config": report.config["path"] + ("" if report.config["exists"] else " (none yet; using defaults)"),
        "Data": report.data_dir,
        "Workspace": report.workspace + ("" if Path(report.workspace).is_dir() else " (created at first message)"),
        "Sessions": str(report.sessions),
        "Gateway": "not running; `nanobot gateway` starts it",
        "Channels": states or "none yet; `nanobot channels login telegram` sets one up",
        "Jobs": jobs.problem or (f"{jobs.count}, next {jobs.next_run}" if jobs.next_run else str(jobs.count)),
        "Subagents": f"{running} running, {waiting} waiting" if running or waiting else "none running",
        "Goals": ", ".join(f"{clip_line(goal['text'], 50)} ({goal['state']})" for goal in report.goals) or "none",
        "Sandbox": report.sandbox.summary,
        "Limits": format_limits(config) or "none",
        "Skills": str(len(report.skills)) + (f" ({unavailable} with missing requirements)" if unavailable else ""),
    }
    channel_problems = [f"{name}: {facts['lastError']}" for name, facts in channels.items() if facts["lastError"]]
    if is_running:
        rows["Gateway"] = f"running (pid {gateway['pid']}), {gateway['status']}"
        channel_problems = gateway["problems"]
    is_all = any(setting.source == "default" for setting in report.settings)
    sections: dict[str, list[tuple[str, ...]]] = {
        "Plugins": [
            (
                f"{plugin.name} {plugin.version}".strip(),
                "; ".join([*plugin.troubles, ", ".join([*plugin.tools, *plugin.hooks])]).removesuffix("; "),
            )
            for plugin in report.plugins
        ],
        "Keys": [(facts.name, f"{facts.key}  {facts.key_from}") for facts in report.providers if facts.key],
        "Accounts": [(facts.name, facts.account_words) for facts in report.providers if facts.logged_in],
        "Settings" if is_all else "Settings that differ from the defaults": [
            (setting.key, _format_value(setting.value), _format_source(setting)) for setting in report.settings
        ],
    }

    typer.echo(Paint(wants_colour(sys.stdout)).bold(f"nanobot {report.version}") + "\n")
    print_rows(rows.items())
    if problems := [*report.missing_prices, *channel_problems]:
        print_heading("Problems")
        for problem in problems:
            print_line(to_one_line(problem), "  ")
    for heading, section in sections.items():
        if section:
            print_heading(heading)
            print_rows(section)


def _format_value(value: object) -> str:
    """As in the config file, without quotes around a string."""
    return value if isinstance(value, str) and value else dumps(value, ensure_ascii=False)


def _format_source(setting: Setting) -> str:
    return setting.source if setting.source in ("file", "default") else f"{setting.where} ({setting.source})"
