"""`nanobot doctor`: run the checks, print their findings, and with `--fix` repair what is safe to repair.

A new check is a function in a module of `cli/doctor` and an entry here; its id is promised to scripts.
"""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from nanobot import __version__
from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, ask_gateway, unknown_name_error
from nanobot.cli.doctor import environment, files, model, plugins, security, skills, stores
from nanobot.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, Severity, run_checks
from nanobot.cli.doctor.connections import connection_checks
from nanobot.cli.output import print_json, print_line, to_one_line
from nanobot.cli.terminal import Paint, wants_colour
from nanobot.config import paths
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, NanobotError
from nanobot.security.secrets import hold_secrets, named_secrets, redact_all
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun

CONFIG = DoctorCheck("config", "The config can be used", environment.config_can_be_used, reads_config=False)
HEALTH = (
    CONFIG,
    DoctorCheck("limits", "Spending limits can be enforced", environment.limits_can_be_enforced),
    DoctorCheck("model", "The model answers and calls tools", model.model_works, 90.0, uses_network=True),
    DoctorCheck(
        "files.private", "Config and state are readable only by you", files.files_are_private, reads_config=False
    ),
    DoctorCheck("files.owner", "All files belong to you", files.files_belong_to_user, reads_config=False),
    DoctorCheck("files.folders", "Folders are writable", files.folders_are_there, reads_config=False),
    DoctorCheck("files.templates", "The workspace has its files", files.templates_are_there, reads_config=False),
    DoctorCheck("files.leftovers", "No temporary files are left over", files.no_leftover_files, reads_config=False),
    DoctorCheck("disk", "The disk has free space", files.disk_has_room, reads_config=False),
    DoctorCheck("clock", "The clock is right", environment.clock_is_right),
    DoctorCheck("stores.database", "The database is intact", stores.database_is_sound, 30.0, reads_config=False),
    DoctorCheck("stores.sessions", "Conversations can be read", stores.sessions_can_be_read, 60.0, reads_config=False),
    DoctorCheck("stores.jobs", "Jobs can be read", stores.jobs_can_be_read),
    DoctorCheck("stores.pairing", "Pairing state can be read", stores.pairing_can_be_read),
    DoctorCheck(
        "stores.provenance", "The provenance of files can be read", stores.provenance_can_be_read, reads_config=False
    ),
    DoctorCheck("skills", "Skills can be used", skills.skills_can_be_used),
    DoctorCheck("gateway", "The gateway is healthy", environment.gateway_is_healthy, reads_config=False),
    DoctorCheck("programs", "Programs of MCP servers are installed", environment.programs_are_there),
    DoctorCheck("plugins", "Plugins work", plugins.plugins_are_healthy, 30.0),
    DoctorCheck("sandbox", "Commands run in a sandbox", environment.commands_are_sandboxed),
)
"""Run by `nanobot doctor`, followed by a check for each configured MCP server and channel."""

SECURITY = (
    DoctorCheck(
        "secrets.files", "Config and state are readable only by you", files.files_are_private, reads_config=False
    ),
    DoctorCheck("secrets.kept", "Key files are readable only by you", security.secret_files_are_private),
    DoctorCheck("secrets.plain", "No API key is stored as plain text", security.no_plain_keys),
    DoctorCheck("access.everybody", "Only known people can talk to the bot", security.senders_are_restricted),
    DoctorCheck("approval.off", "Untrusted content cannot act without approval", security.approval_is_on),
    DoctorCheck("approval.always", "Few permanent approvals", security.few_permanent_approvals),
    DoctorCheck("exec.walls", "Commands are confined to the sandbox", security.commands_are_confined),
    DoctorCheck("paths.wide", "Tools can write only where needed", security.write_access_is_narrow),
    DoctorCheck("network.whitelist", "Web tools cannot reach the local network", security.ssrf_whitelist_is_narrow),
    DoctorCheck("network.doors", "No port is open to other machines", security.no_open_ports),
    DoctorCheck("network.plain", "No API key is sent over plain http", security.no_plain_http_keys),
    DoctorCheck("code.foreign", "No unreviewed code runs", security.no_unchosen_code),
)
"""Run by `nanobot doctor --security`."""


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Run only these checks, e.g. model or stores.")
    ] = None,
    only_security: Annotated[bool, typer.Option("--security", help="Run the security checks instead.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe to repair.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Skip checks that use the network.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Check the setup; with --fix, repair what is safe to repair. Exits with 1 if something is wrong."""
    started = time.monotonic()
    context = _build_context(config, workspace, resolves_secrets=not only_security)
    checks = [*SECURITY] if only_security else [*HEALTH, *connection_checks(context.config)]
    checks = [check for check in _select_checks(checks, names or []) if not (offline and check.uses_network)]
    if context.problem and CONFIG not in checks:  # most checks are skipped then, which must not look healthy
        checks = [CONFIG, *checks]
    width = max((len(check.id) for check in checks), default=0)
    results: dict[str, CheckResult] = {}
    logged_below = logging.root.manager.disable
    logging.disable(logging.WARNING)  # each check reports its problems as findings
    try:
        for result in run_checks(checks, context):
            results[result.check.id] = result
            if not json:
                _print_result(result, width)
        repairs = [*_repair(results, context, quiet=json)] if fix else []
    finally:
        logging.disable(logged_below)
    is_well = all(result.verdict == "ok" for result in results.values()) and all(it.succeeded for it in repairs)
    if json:
        shown = [
            {
                "id": result.check.id,
                "about": result.check.about,
                "verdict": result.verdict,
                "seconds": round(result.seconds, 3),
                "findings": [
                    {"severity": it.severity, "text": it.text, "advice": it.advice, "fixable": it.fix is not None}
                    for it in result.findings
                ],
            }
            for result in results.values()
        ]
        repaired = [{"id": repair.id, "done": repair.done} for repair in repairs]
        print_json({"version": __version__, "ok": is_well, "checks": shown, "repaired": repaired})
    else:
        count, seconds = count_noun(len(results), "check"), time.monotonic() - started
        typer.echo(f"\n{count}{_summary(results.values(), fixed=fix)} ({seconds:.1f} s)")
    if not is_well:
        raise typer.Exit(1)


def _build_context(config: Path | None, workspace: Path | None, *, resolves_secrets: bool) -> CheckContext:
    """The context of the checks. A config that cannot be used is replaced by defaults, with its problem noted."""
    paths.use_config(config)
    problem = ""
    try:
        loaded = load_config(must_exist=config is not None, secrets=resolves_secrets)
    except ConfigError as error:
        loaded, problem = Config.model_construct(), str(error)
    hold_secrets(lambda: named_secrets(loaded.model_dump(), os.environ))
    places = DataPaths(paths.get_data_dir())
    gateway, gateway_problem = None, ""
    try:
        gateway = ask_gateway(places, {"do": "report"})
    except NanobotError as error:
        gateway_problem = str(error)
    return CheckContext(
        loaded,
        paths.get_config_path(),
        places,
        paths.absolute(workspace or loaded.workspace_path),
        os.environ,
        problem,
        gateway,
        gateway_problem,
    )


def _select_checks(checks: Sequence[DoctorCheck], names: Sequence[str]) -> list[DoctorCheck]:
    """The checks with these ids or id prefixes (`stores`); all if none is given. Raises NanobotError if unknown."""
    known = dict.fromkeys(part for check in checks for part in (check.id, check.id.partition(".")[0]))
    for name in names:
        if name not in known:
            groups = ", ".join(dict.fromkeys(check.id.partition(".")[0] for check in checks))
            raise unknown_name_error("check", name, known, hint=f"Checks: {groups}.")
    return [check for check in checks if not names or {check.id, check.id.partition(".")[0]} & {*names}]


class _Repair(NamedTuple):
    id: str
    done: str
    """What was done, or why it failed."""
    succeeded: bool


def _repair(results: dict[str, CheckResult], context: CheckContext, *, quiet: bool) -> Iterator[_Repair]:
    """Apply the fixes and run their checks again."""
    for result in [*results.values()]:
        fixes = [finding.fix for finding in result.findings if finding.fix is not None]
        for fix in fixes:
            try:
                repair = _Repair(result.check.id, fix(), succeeded=True)
            except (NanobotError, OSError) as error:
                reason = redact_all(to_one_line(error_text(error)))
                repair = _Repair(result.check.id, f"could not be repaired: {reason}", succeeded=False)
            if not quiet:
                mark = _paint().green("fixed ") if repair.succeeded else _paint().red("failed")
                print_line(f"{repair.id}: {to_one_line(repair.done)}", f"{mark}   ")
            yield repair
        if fixes:
            results.update((rerun.check.id, rerun) for rerun in run_checks([result.check], context))


def _summary(results: Iterable[CheckResult], *, fixed: bool) -> str:
    """The numbers of errors and warnings."""
    findings = [finding for result in results for finding in result.findings]
    counts = Counter(finding.severity for finding in findings)
    kinds = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
    problems = ", ".join(count_noun(counts[kind], noun) for kind, noun in kinds if counts[kind])
    fixable = sum(finding.fix is not None and finding.severity is not Severity.NOTE for finding in findings)
    hint = f" --fix repairs {fixable} of them." if fixable and not fixed else ""
    return f": {problems}.{hint}" if problems else ", no problems."


def _print_result(result: CheckResult, width: int) -> None:
    """Print the findings of a check, and below them the advice."""
    paint = _paint()
    colour = {"ok": paint.green, Severity.WARNING: paint.yellow, Severity.ERROR: paint.red}[result.verdict]
    problems = [finding for finding in result.findings if finding.severity is not Severity.NOTE]
    notes = [finding for finding in result.findings if finding.severity is Severity.NOTE]
    head = f"{colour(result.verdict.ljust(7))}  {result.check.id.ljust(width)}  "
    indent = " " * (width + 11)
    if not problems:
        text = "; ".join(to_one_line(finding.text).removesuffix(".") for finding in notes)
        print_line(text or result.check.about, head)
    shown = problems or notes
    for finding, after in zip_longest(shown, shown[1:]):
        if problems:
            print_line(to_one_line(finding.text), head)
            head = indent
        advice = to_one_line(finding.advice)
        if advice and (after is None or to_one_line(after.advice) != advice):  # once, below the findings that share it
            print_line(advice, f"{indent}-> ")


def _paint() -> Paint:
    return Paint(wants_colour(sys.stdout))
