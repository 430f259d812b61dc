"""`nanobot status`: the configuration, where each value comes from, and which model would answer and why."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot import __version__
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.work import WorkState, read_work
from nanobot.cli.commands.providers import provider_facts
from nanobot.cli.common import JsonOption, Setup, ask_gateway, read_setup
from nanobot.cli.output import Paint, print_heading, print_json, print_line, print_rows, to_one_line
from nanobot.cli.setup.probe import current_selection, format_limits, missing_prices, try_model
from nanobot.config.loader import Setting, load_warnings, sources
from nanobot.config.schema import Config
from nanobot.cron.format import format_time
from nanobot.errors import StorageError
from nanobot.runtime.sandbox import command_sandbox
from nanobot.runtime.skills import skills_loader
from nanobot.security.sandbox.sandbox import Report as SandboxReport
from nanobot.utils.locks import ProcessLease
from nanobot.utils.text import clip_line

_GATEWAY_FACTS = ("status", "pid", "uptimeS", "problems", "lastError")


def status(
    probe: Annotated[bool, typer.Option("--probe", help="Send one request to the model and time it.")] = False,
    include_defaults: Annotated[bool, typer.Option("--all", help="Show every setting, including defaults.")] = False,
    json: JsonOption = False,
) -> None:
    setup = read_setup(secrets=probe)
    report = _build_report(setup, include_defaults=include_defaults)
    if json:
        report["probe"] = try_model(setup.config, setup.data_dir) if probe else None
        print_json(report)
        return
    _print_report(report, setup.config)
    if probe:
        print_line("\nAsking the model ...")
        print_line(str(try_model(setup.config, setup.data_dir)))


def _build_report(setup: Setup, *, include_defaults: bool) -> dict[str, Any]:
    """What `--json` prints; the rows for people say the same in words."""
    config, paths = setup.config, setup.paths
    gateway = ask_gateway({"do": "report"})
    states: list[WorkState] = []
    goals: list[dict[str, str]] = []
    if paths.database.exists():
        from nanobot.agent.goals.goal import Goal  # slow to import

        with suppress(StorageError):  # `nanobot doctor` says why
            states = [task.state for task in read_work(paths.database, Task, alive=ProcessLease(paths.leases))]
            still_open = [goal for goal in read_work(paths.database, Goal) if not goal.state.is_over]
            goals = [{"session": it.session_key, "text": it.order.text, "state": it.state} for it in still_open]
    running, waiting = states.count(WorkState.RUNNING), states.count(WorkState.WAITING)
    sandbox = SandboxReport(False, "not needed: commands are disabled (tools.exec.enable is false)")
    if config.tools.exec.enable:
        sandbox = command_sandbox(config, setup.data_dir, setup.workspace).report()
    providers = provider_facts(config, os.environ, setup.data_dir)
    return {
        "version": __version__,
        "config": {"path": str(setup.config_path), "exists": setup.config_path.exists()},
        "data_dir": str(setup.data_dir),
        "workspace": str(setup.workspace),
        "model": current_selection(config, setup.data_dir),
        "probe": None,
        "providers": [facts for facts in providers if facts.key or facts.logged_in],
        "sessions": len(setup.sessions().list_sessions()),
        "gateway": {"running": gateway is not None, **{key: gateway[key] for key in _GATEWAY_FACTS if gateway}},
        "channels": _channel_states(config, gateway),
        "jobs": _summarize_jobs(setup),
        "subagents": {"running": running, "waiting": waiting},
        "goals": goals,
        "plugins": _plugin_facts(setup, gateway),
        "sandbox": sandbox,
        "skills": [
            {"name": skill.name, "available": skill.available}
            for skill in skills_loader(config, paths, setup.workspace).skills()
        ],
        "settings": sources(config) if include_defaults else _changed_settings(config),
        "missing_prices": missing_prices(config, setup.data_dir),
        "warnings": list(load_warnings(config)),
    }


def _channel_states(config: Config, gateway: Mapping[str, Any] | None) -> Mapping[str, Mapping[str, Any]]:
    """State and last error of each enabled channel."""
    names = config.channels.enabled
    if gateway is not None:
        return {name: gateway["channels"].get(name, {"state": "off", "lastError": ""}) for name in names}
    if not names:
        return {}
    from nanobot.cli.commands.gateway import offline_status  # slow to import

    return offline_status(config)


def _summarize_jobs(setup: Setup) -> dict[str, Any]:
    """`problem` says why the jobs could not be read."""
    service = setup.jobs()
    try:
        jobs = service.list_jobs()
    except StorageError as error:
        return {"count": 0, "next_run": "", "problem": str(error)}
    wakes_at_ms = jobs[0].wakes_at_ms if jobs else None
    next_run = "" if wakes_at_ms is None else format_time(wakes_at_ms, service.zone_of(jobs[0]))
    return {"count": len(jobs), "next_run": next_run, "problem": ""}


def _plugin_facts(setup: Setup, gateway: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The enabled plugins, also those that could not be loaded."""
    if not setup.config.plugins.enabled:
        return []
    from nanobot.cli.commands.tools import load_plugins  # slow to import

    plugins = load_plugins(setup)
    facts: dict[str, dict[str, Any]] = {
        package.name: {
            "name": package.name,
            "version": package.version,
            "tools": [tool.name for tool in package.tools],
            "hooks": [hook.name for hook in package.hooks],
            "troubles": [line for line in (gateway or {}).get("plugins", ()) if f" of {package.name}: " in line],
        }
        for package in plugins.packages
    }
    for problem in plugins.troubles():
        name, _, text = problem.partition(": ")
        missing = {"name": name, "version": "", "tools": [], "hooks": [], "troubles": []}
        facts.setdefault(name, missing)["troubles"].append(text)
    return [*facts.values()]


def _changed_settings(config: Config) -> list[Setting]:
    """The settings that come from the environment or differ from the default: old configs contain all of them."""
    defaults = {setting.key: setting.value for setting in sources(Config())}
    return [
        setting
        for setting in sources(config)
        if setting.source == "environment"
        or (setting.source != "default" and setting.value != defaults.get(setting.key))
    ]


def _print_report(report: Mapping[str, Any], config: Config) -> None:
    gateway, channels, jobs = report["gateway"], report["channels"], report["jobs"]
    is_running, (running, waiting) = gateway["running"], report["subagents"].values()
    states = ", ".join(
        f"{name} {facts['state']}" if is_running or facts["state"] == "failed" else name
        for name, facts in channels.items()
    )
    unavailable = sum(not skill["available"] for skill in report["skills"])
    rows = {
        "Model": str(report["model"]),
        "Config": report["config"]["path"] + ("" if report["config"]["exists"] else " (none yet; using defaults)"),
        "Data": report["data_dir"],
        "Workspace": report["workspace"]
        + ("" if Path(report["workspace"]).is_dir() else " (created at first message)"),
        "Sessions": str(report["sessions"]),
        "Gateway": "not running; `nanobot gateway` starts it",
        "Channels": states or "none yet; `nanobot channels login telegram` sets one up",
        "Jobs": jobs["problem"] or str(jobs["count"]) + (f", next {jobs['next_run']}" if jobs["next_run"] else ""),
        "Subagents": f"{running} running, {waiting} waiting" if running or waiting else "none running",
        "Goals": ", ".join(f"{clip_line(goal['text'], 50)} ({goal['state']})" for goal in report["goals"]) or "none",
        "Sandbox": report["sandbox"].summary,
        "Limits": format_limits(config) or "none",
        "Skills": str(len(report["skills"])) + (f" ({unavailable} with missing requirements)" if unavailable else ""),
    }
    problems = [f"{name}: {facts['lastError']}" for name, facts in channels.items() if facts["lastError"]]
    if is_running:
        rows["Gateway"] = f"running (pid {gateway['pid']}), {gateway['status']}"
        problems = gateway["problems"]
    is_all = any(setting.source == "default" for setting in report["settings"])
    sections: dict[str, list[tuple[str, ...]]] = {
        "Plugins": [
            (
                f"{plugin['name']} {plugin['version']}".strip(),
                "; ".join(filter(None, [*plugin["troubles"], ", ".join([*plugin["tools"], *plugin["hooks"]])])),
            )
            for plugin in report["plugins"]
        ],
        "Keys": [(facts.name, f"{facts.key}  {facts.key_from}") for facts in report["providers"] if facts.key],
        "Accounts": [(facts.name, facts.account_words) for facts in report["providers"] if facts.logged_in],
        "Settings" if is_all else "Settings that differ from the defaults": [
            (
                setting.key,  # a value as in the config file, without quotes around a text
                setting.value
                if isinstance(setting.value, str) and setting.value
                else dumps(setting.value, ensure_ascii=False),
                setting.source if setting.source in ("file", "default") else f"{setting.where} ({setting.source})",
            )
            for setting in report["settings"]
        ],
    }

    typer.echo(Paint.on(sys.stdout).bold(f"nanobot {report['version']}") + "\n")
    print_rows(rows.items())
    if problems := [*report["missing_prices"], *problems]:
        print_heading("Problems")
        for problem in problems:
            print_line(to_one_line(problem), "  ")
    for heading, section in sections.items():
        if section:
            print_heading(heading)
            print_rows(section)
