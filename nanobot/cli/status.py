"""`nanobot status`: what is configured, where each value comes from, and which model would answer and why."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot import __version__
from nanobot.agent.skills import Skill
from nanobot.agent.tasks import counts_of
from nanobot.cli.common import ConfigOption, JsonOption, Setup, WorkspaceOption, one_line, read_setup, show_json
from nanobot.cli.providers import ProviderFacts, provider_facts
from nanobot.cli.through_gateway import ask_gateway
from nanobot.cli.trial import Choice, Trial, choice_now, try_model
from nanobot.config.loader import load_warnings
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.config.sources import Setting, sources
from nanobot.cron.service import CronService
from nanobot.cron.wording import job_zone_or_host, told_instant
from nanobot.errors import StorageError
from nanobot.security.sandbox import walls
from nanobot.session.manager import SessionManager
from nanobot.utils.text import clip_line
from nanobot.wiring.skills import skills_of
from nanobot.wiring.walls import command_walls

if TYPE_CHECKING:
    from nanobot.agent.goals.goal import Goal


@dataclass(frozen=True)
class Report:
    """Everything there is to say."""

    version: str
    setup: Setup
    model: Choice
    providers: list[ProviderFacts]
    settings: list[Setting]
    sessions: int
    gateway: Mapping[str, Any] | None
    """What it says of itself; None where none runs."""
    channels: tuple[str, ...]
    """Those that are switched on."""
    jobs: "Jobs"
    subagents: tuple[int, int]
    """How many run, and how many wait."""
    goals: list["Goal"]
    """Those that are open."""
    skills: tuple[Skill, ...]
    plugins: list["PluginFacts"]
    """Those that are switched on."""
    sandbox: walls.Report
    """What stands around the commands of the agent on this machine."""
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class PluginFacts:
    """An installed package, what of it is used, and what is wrong with it."""

    name: str
    version: str = ""
    tools: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "; ".join([*self.troubles, ", ".join([*self.tools, *self.hooks])]).removesuffix("; ")


@dataclass(frozen=True)
class Jobs:
    """The jobs of the workspace."""

    count: int = 0
    next_run: str = ""
    problem: str = ""
    """Why nobody knows."""

    def __str__(self) -> str:
        if self.problem:
            return self.problem
        return f"{self.count}, next {self.next_run}" if self.next_run else str(self.count)


def status(
    probe: Annotated[bool, typer.Option("--probe", help="Ask the model for real, and say how long it took.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Every setting, defaults too.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """What is configured, and where each value comes from."""
    setup = read_setup(config, workspace, secrets=probe)
    report = _report(setup, everything=everything)
    if not json:
        typer.echo("\n".join(_lines(report)))
    trial = _probe(setup, quiet=json) if probe else None
    if json:
        show_json(_as_json(report, trial))


def _report(setup: Setup, *, everything: bool) -> Report:
    sessions = SessionManager(setup.workspace, old_folder=Places(setup.data_dir).old_sessions)
    skills = skills_of(setup.config, Places(setup.data_dir), setup.workspace)
    return Report(
        version=__version__,
        setup=setup,
        model=choice_now(setup.config, setup.data_dir),
        providers=[
            facts for facts in provider_facts(setup.config, os.environ, setup.data_dir) if facts.key or facts.logged_in
        ],
        settings=sources(setup.config) if everything else list(_unusual(setup.config)),
        sessions=len(sessions.list_sessions()),
        gateway=ask_gateway(Places(setup.data_dir), {"do": "report"}),
        channels=tuple(setup.config.channels.enabled),
        jobs=_jobs(setup),
        subagents=counts_of(Places(setup.data_dir).tasks),
        goals=_goals(setup),
        skills=skills.skills(),
        plugins=_plugins(setup),
        sandbox=_sandbox(setup),
        warnings=load_warnings(setup.config),
    )


def _goals(setup: Setup) -> list["Goal"]:
    folder = Places(setup.data_dir).goals
    if not folder.is_dir():
        return []
    from nanobot.agent.goals.store import GoalStore  # who has none does not wait for it

    try:
        return [goal for goal in GoalStore(folder).all() if not goal.state.is_over]
    except OSError:
        return []


def _jobs(setup: Setup) -> Jobs:
    service = CronService(
        Places(setup.data_dir).jobs_of(setup.workspace), timezone=setup.config.agents.defaults.timezone
    )
    try:
        jobs = service.list_jobs()
    except StorageError as error:
        return Jobs(problem=str(error))
    if not jobs or jobs[0].state.next_run_at_ms is None:
        return Jobs(len(jobs))
    return Jobs(len(jobs), told_instant(jobs[0].state.next_run_at_ms, job_zone_or_host(jobs[0], service.timezone)))


def _plugins(setup: Setup) -> list[PluginFacts]:
    if not setup.config.plugins.enabled:
        return []
    from nanobot.cli.checks.plugins import plugins_now  # who has none does not wait for it
    from nanobot.wiring.plugins import troubles_before

    places = Places(setup.data_dir)
    found = plugins_now(setup.config, places, setup.workspace)
    told = [*found.troubles(), *troubles_before(places.plugin_book, found.packages)]
    there = {package.name: package for package in found.packages}
    return [
        PluginFacts(
            name,
            there[name].version if name in there else "",
            tuple(tool.name for tool in there[name].tools) if name in there else (),
            tuple(hook.name for hook in there[name].hooks) if name in there else (),
            tuple(one.text for one in told if one.package == name),
        )
        for name in dict.fromkeys([*there, *(one.package for one in told)])
    ]


def _sandbox(setup: Setup) -> walls.Report:
    if not setup.config.tools.exec.enable:
        return walls.Report(False, "not needed: tools.exec.enable is false, no command runs")
    return command_walls(setup.config, setup.data_dir, setup.workspace).report()


def _gateway_words(gateway: Mapping[str, Any] | None) -> str:
    if gateway is None:
        return "not running; `nanobot gateway` starts it"
    return f"running (pid {gateway['pid']}), {gateway['status']}"


def _subagent_words(running: int, waiting: int) -> str:
    return f"{running} running, {waiting} waiting" if running or waiting else "none running"


def _goal_words(goals: Sequence["Goal"]) -> str:
    return ", ".join(f"{clip_line(goal.text, 50)} ({goal.state})" for goal in goals) or "none"


def _channel_words(report: Report) -> str:
    if not report.channels:
        return "none yet; `nanobot channels login telegram` sets one up"
    if report.gateway is None:
        return ", ".join(report.channels)
    told = report.gateway["channels"]
    return ", ".join(f"{name} {told[name]['state']}" if name in told else f"{name} off" for name in report.channels)


def _unusual(config: Config) -> Iterator[Setting]:
    """The settings that the environment made, or that differ from the default: old configs hold all of them."""
    defaults = {setting.key: setting.value for setting in sources(Config())}
    for setting in sources(config):
        is_new = setting.source != "default" and setting.value != defaults.get(setting.key)
        if setting.source == "environment" or is_new:
            yield setting


def _probe(setup: Setup, *, quiet: bool) -> Trial:
    """One real completion. Raises ProviderError, which says what to change."""
    if not quiet:
        typer.echo("\nAsking the model ...")
    trial = try_model(setup.config, setup.data_dir)
    if not quiet:
        typer.echo(trial)
    return trial


def _lines(report: Report) -> Iterator[str]:
    setup = report.setup
    lacking = sum(not skill.available for skill in report.skills)
    yield typer.style(f"nanobot {report.version}", bold=True)
    yield ""
    yield from _columns(
        [
            ("Model", str(report.model)),
            ("Config", str(setup.config_path) + ("" if setup.config_path.exists() else " (none yet; defaults hold)")),
            ("Data", str(setup.data_dir)),
            ("Workspace", str(setup.workspace) + ("" if setup.workspace.is_dir() else " (made at the first message)")),
            ("Sessions", str(report.sessions)),
            ("Gateway", _gateway_words(report.gateway)),
            ("Channels", _channel_words(report)),
            ("Jobs", str(report.jobs)),
            ("Subagents", _subagent_words(*report.subagents)),
            ("Goals", _goal_words(report.goals)),
            ("Sandbox", report.sandbox.summary),
            ("Skills", f"{len(report.skills)}" + (f", {lacking} without something they need" if lacking else "")),
        ]
    )
    if report.gateway is not None and report.gateway["problems"]:
        yield from _heading("Problems")
        yield from (f"  {one_line(problem)}" for problem in report.gateway["problems"])
    if report.plugins:
        yield from _heading("Plugins")
        yield from _columns([(f"{one.name} {one.version}".strip(), str(one)) for one in report.plugins])
    if report.providers:
        keys = [(facts.name, f"{facts.key}  {facts.key_from}") for facts in report.providers if facts.key]
        accounts = [(facts.name, facts.account_words) for facts in report.providers if facts.logged_in]
        for heading, rows in (("Keys", keys), ("Accounts", accounts)):
            if rows:
                yield from _heading(heading)
                yield from _columns(rows)
    if report.settings:
        yield from _heading(
            "Settings"
            if any(s.source == "default" for s in report.settings)
            else "Settings that differ from the defaults"
        )
        yield from _columns([(setting.key, _value(setting.value), _where(setting)) for setting in report.settings])


def _heading(text: str) -> tuple[str, str]:
    return "", typer.style(text, bold=True)


def _columns(rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    """Aligned cells; all of it is ASCII or at the end of the line."""
    cells = [tuple(map(one_line, row)) for row in rows]
    widths = [min(max(map(len, column)), 50) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _value(value: object) -> str:
    """As the config file would have it, without the quotes around a text."""
    return value if isinstance(value, str) and value else dumps(value, ensure_ascii=False)


def _where(setting: Setting) -> str:
    return setting.source if setting.source in ("file", "default") else f"{setting.where} ({setting.source})"


def _as_json(report: Report, trial: Trial | None) -> dict[str, Any]:
    return {
        "version": report.version,
        "config": {"path": str(report.setup.config_path), "exists": report.setup.config_path.exists()},
        "data_dir": str(report.setup.data_dir),
        "workspace": str(report.setup.workspace),
        "model": asdict(report.model),
        "probe": asdict(trial) if trial else None,
        "providers": [asdict(facts) for facts in report.providers],
        "sessions": report.sessions,
        "gateway": _of_gateway(report.gateway),
        "channels": _of_channels(report),
        "jobs": asdict(report.jobs),
        "subagents": {"running": report.subagents[0], "waiting": report.subagents[1]},
        "goals": [{"session": one.session_key, "text": one.text, "state": one.state} for one in report.goals],
        "plugins": [asdict(one) for one in report.plugins],
        "sandbox": asdict(report.sandbox),
        "skills": [{"name": skill.name, "available": skill.available} for skill in report.skills],
        "settings": [asdict(setting) for setting in report.settings],
        "warnings": list(report.warnings),
    }


def _of_gateway(gateway: Mapping[str, Any] | None) -> dict[str, Any]:
    if gateway is None:
        return {"running": False}
    told = ("status", "pid", "uptimeS", "problems", "lastError")
    return {"running": True, **{name: gateway[name] for name in told}}


def _of_channels(report: Report) -> dict[str, Any]:
    told = report.gateway["channels"] if report.gateway is not None else {}
    return {name: told.get(name, {"state": "off", "lastError": ""}) for name in report.channels}
