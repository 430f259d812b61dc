"""`nanobot status`: the configuration, where each value comes from, and which model would answer and why."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot import __version__
from nanobot.agent.skills.loader import Skill
from nanobot.agent.subagent.tasks import task_counts
from nanobot.cli.commands.providers import ProviderFacts, provider_facts
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    ask_gateway,
    print_json,
    read_setup,
    to_one_line,
)
from nanobot.cli.layout import print_heading, print_line, print_rows
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

if TYPE_CHECKING:
    from nanobot.agent.goals.goal import Goal


@dataclass(frozen=True)
class StatusReport:
    version: str
    setup: Setup
    model: ProviderSelection
    providers: list[ProviderFacts]
    settings: list[Setting]
    sessions: int
    gateway: Mapping[str, Any] | None
    """The running gateway's report; None where none is running."""
    channels: Mapping[str, Mapping[str, Any]]
    """State and last error of each enabled channel."""
    jobs: "JobSummary"
    subagents: tuple[int, int]
    """Numbers of running and waiting subagents."""
    goals: list["Goal"]
    """Unfinished goals."""
    skills: tuple[Skill, ...]
    plugins: list["PluginFacts"]
    """Enabled plugins."""
    sandbox: SandboxReport
    """The sandbox of the agent's commands on this machine."""
    warnings: tuple[str, ...]
    missing_prices: list[str]
    """A sentence for each model without a known price, which dollar limits cannot count."""


@dataclass(frozen=True)
class PluginFacts:
    name: str
    version: str = ""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([*self.troubles, ", ".join([*self.tools, *self.hooks])]).removesuffix("; ")


@dataclass(frozen=True)
class JobSummary:
    count: int = 0
    next_run: str = ""
    problem: str = ""
    """Why the jobs could not be read."""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"{self.count}, next {self.next_run}" if self.next_run else str(self.count)


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
        _print_report(report)
    probe_result = _probe_model(setup, quiet=json) if probe else None
    if json:
        print_json(_as_json(report, probe_result))


def _build_report(setup: Setup, *, include_defaults: bool) -> StatusReport:
    sessions = SessionManager(setup.workspace, old_folder=setup.paths.legacy_sessions)
    skills = skills_loader(setup.config, setup.paths, setup.workspace)
    gateway = ask_gateway(setup.paths, {"do": "report"})
    return StatusReport(
        version=__version__,
        setup=setup,
        model=current_selection(setup.config, setup.data_dir),
        providers=[
            facts for facts in provider_facts(setup.config, os.environ, setup.data_dir) if facts.key or facts.logged_in
        ],
        settings=sources(setup.config) if include_defaults else list(_changed_settings(setup.config)),
        sessions=len(sessions.list_sessions()),
        gateway=gateway,
        channels=_channel_states(setup, gateway),
        jobs=_summarize_jobs(setup),
        subagents=_task_counts(setup),
        goals=_open_goals(setup),
        skills=skills.skills(),
        plugins=_plugin_facts(setup, gateway),
        sandbox=_sandbox_report(setup),
        warnings=load_warnings(setup.config),
        missing_prices=missing_prices(setup.config, setup.data_dir),
    )


def _channel_states(setup: Setup, gateway: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    names = setup.config.channels.enabled
    if gateway is not None:
        return {name: gateway["channels"].get(name, {"state": "off", "lastError": ""}) for name in names}
    if not names:
        return {}
    from nanobot.cli.commands.channels import offline_status  # slow to import

    return offline_status(setup.config)


def _task_counts(setup: Setup) -> tuple[int, int]:
    try:
        return task_counts(setup.paths.database, ProcessLease(setup.paths.leases))
    except StorageError:
        return 0, 0


def _open_goals(setup: Setup) -> list["Goal"]:
    if not setup.paths.database.exists():
        return []
    from nanobot.agent.goals.goal import read_goals  # slow to import

    try:
        return [goal for goal in read_goals(setup.paths.database) if not goal.state.is_over]
    except StorageError:
        return []


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
    problems = plugins.troubles()
    of_hooks = (gateway or {}).get("plugins", ())
    by_name = {package.name: package for package in plugins.packages}
    return [
        PluginFacts(
            name,
            by_name[name].version if name in by_name else "",
            tuple(tool.name for tool in by_name[name].tools) if name in by_name else (),
            tuple(hook.name for hook in by_name[name].hooks) if name in by_name else (),
            (
                *(problem.text for problem in problems if problem.package == name),
                *(line for line in of_hooks if f" of {name}: " in line),
            ),
        )
        for name in dict.fromkeys([*by_name, *(problem.package for problem in problems)])
    ]


def _sandbox_report(setup: Setup) -> SandboxReport:
    if not setup.config.tools.exec.enable:
        return SandboxReport(False, "not needed: commands are disabled (tools.exec.enable is false)")
    return command_sandbox(setup.config, setup.data_dir, setup.workspace).report()


def _format_gateway(gateway: Mapping[str, Any] | None) -> str:
    if gateway is None:
        return "not running; `nanobot gateway` starts it"
    return f"running (pid {gateway['pid']}), {gateway['status']}"


def _format_subagents(running: int, waiting: int) -> str:
    return f"{running} running, {waiting} waiting" if running or waiting else "none running"


def _format_goals(goals: Sequence["Goal"]) -> str:
    return ", ".join(f"{clip_line(goal.text, 50)} ({goal.state})" for goal in goals) or "none"


def _format_channels(report: StatusReport) -> str:
    if not report.channels:
        return "none yet; `nanobot channels login telegram` sets one up"
    is_running = report.gateway is not None
    states = {name: facts["state"] for name, facts in report.channels.items()}
    return ", ".join(f"{name} {state}" if is_running or state == "failed" else name for name, state in states.items())


def _problems(report: StatusReport) -> list[str]:
    """Problems reported by the running gateway; without one, what keeps channels from starting."""
    if report.gateway is not None:
        return list(report.gateway["problems"])
    return [f"{name}: {facts['lastError']}" for name, facts in report.channels.items() if facts["lastError"]]


def _changed_settings(config: Config) -> Iterator[Setting]:
    """The settings that come from the environment or differ from the default: old configs contain all of them."""
    defaults = {setting.key: setting.value for setting in sources(Config())}
    for setting in sources(config):
        is_new = setting.source != "default" and setting.value != defaults.get(setting.key)
        if setting.source == "environment" or is_new:
            yield setting


def _probe_model(setup: Setup, *, quiet: bool) -> ProbeResult:
    """Send one real request. Raises ProviderError, which says what to change."""
    if not quiet:
        print_line("\nAsking the model ...")
    probe_result = try_model(setup.config, setup.data_dir)
    if not quiet:
        print_line(str(probe_result))
    return probe_result


def _print_report(report: StatusReport) -> None:
    setup = report.setup
    unavailable = sum(not skill.available for skill in report.skills)
    typer.echo(Paint(wants_colour(sys.stdout)).bold(f"nanobot {report.version}") + "\n")
    print_rows(
        [
            ("Model", str(report.model)),
            ("Config", str(setup.config_path) + ("" if setup.config_path.exists() else " (none yet; using defaults)")),
            ("Data", str(setup.data_dir)),
            ("Workspace", str(setup.workspace) + ("" if setup.workspace.is_dir() else " (created at first message)")),
            ("Sessions", str(report.sessions)),
            ("Gateway", _format_gateway(report.gateway)),
            ("Channels", _format_channels(report)),
            ("Jobs", str(report.jobs)),
            ("Subagents", _format_subagents(*report.subagents)),
            ("Goals", _format_goals(report.goals)),
            ("Sandbox", report.sandbox.summary),
            ("Limits", format_limits(setup.config) or "none"),
            (
                "Skills",
                f"{len(report.skills)}" + (f" ({unavailable} with missing requirements)" if unavailable else ""),
            ),
        ]
    )
    if problems := [*report.missing_prices, *_problems(report)]:
        print_heading("Problems")
        for problem in problems:
            print_line(to_one_line(problem), "  ")
    if report.plugins:
        print_heading("Plugins")
        print_rows((f"{plugin.name} {plugin.version}".strip(), str(plugin)) for plugin in report.plugins)
    if report.providers:
        keys = [(facts.name, f"{facts.key}  {facts.key_from}") for facts in report.providers if facts.key]
        accounts = [(facts.name, facts.account_words) for facts in report.providers if facts.logged_in]
        for heading, rows in (("Keys", keys), ("Accounts", accounts)):
            if rows:
                print_heading(heading)
                print_rows(rows)
    if report.settings:
        print_heading(
            "Settings"
            if any(s.source == "default" for s in report.settings)
            else "Settings that differ from the defaults"
        )
        print_rows((setting.key, _format_value(setting.value), _format_source(setting)) for setting in report.settings)


def _format_value(value: object) -> str:
    """As in the config file, without quotes around a string."""
    return value if isinstance(value, str) and value else dumps(value, ensure_ascii=False)


def _format_source(setting: Setting) -> str:
    return setting.source if setting.source in ("file", "default") else f"{setting.where} ({setting.source})"


def _as_json(report: StatusReport, probe_result: ProbeResult | None) -> dict[str, Any]:
    return {
        "version": report.version,
        "config": {"path": str(report.setup.config_path), "exists": report.setup.config_path.exists()},
        "data_dir": str(report.setup.data_dir),
        "workspace": str(report.setup.workspace),
        "model": asdict(report.model),
        "probe": asdict(probe_result) if probe_result else None,
        "providers": [asdict(facts) for facts in report.providers],
        "sessions": report.sessions,
        "gateway": _gateway_facts(report.gateway),
        "channels": report.channels,
        "jobs": asdict(report.jobs),
        "subagents": {"running": report.subagents[0], "waiting": report.subagents[1]},
        "goals": [{"session": goal.session_key, "text": goal.text, "state": goal.state} for goal in report.goals],
        "plugins": [asdict(plugin) for plugin in report.plugins],
        "sandbox": asdict(report.sandbox),
        "skills": [{"name": skill.name, "available": skill.available} for skill in report.skills],
        "settings": [asdict(setting) for setting in report.settings],
        "missing_prices": report.missing_prices,
        "warnings": list(report.warnings),
    }


def _gateway_facts(gateway: Mapping[str, Any] | None) -> dict[str, Any]:
    if gateway is None:
        return {"running": False}
    return {"running": True, **{name: gateway[name] for name in ("status", "pid", "uptimeS", "problems", "lastError")}}
