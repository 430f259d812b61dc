"""`nanobot doctor`: run the checks, print their findings, and with `--fix` repair what is safe to repair."""

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot import __version__
from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, ask_gateway
from nanobot.cli.doctor.checks import CheckContext, CheckResult, DoctorCheck, Finding, Severity, run_checks
from nanobot.cli.doctor.connections import channel_checks, server_checks
from nanobot.cli.doctor.table import CONFIG, HEALTH, SECURITY
from nanobot.cli.output import print_json, print_line, to_one_line
from nanobot.cli.terminal import Paint, wants_colour
from nanobot.config import paths
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, NanobotError
from nanobot.security.redaction import hold_secrets, redact_all
from nanobot.security.secrets import named_secrets
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun, nearest


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Run only these checks, e.g. model or stores.")
    ] = None,
    security: Annotated[bool, typer.Option("--security", help="Run the security checks instead.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe to repair.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Skip checks that use the network.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Check the setup; with --fix, repair what is safe to repair. Exits with 1 if something is wrong."""
    started = time.monotonic()
    context = _build_context(config, workspace, resolves_secrets=not security)
    checks = [*SECURITY] if security else [*HEALTH, *_configured_checks(context.config)]
    checks = [check for check in _select_checks(checks, names or []) if not (offline and check.uses_network)]
    if context.problem and CONFIG not in checks:  # most checks are skipped then, which must not look healthy
        checks = [CONFIG, *checks]
    report = _Report(context, checks, quiet=json)
    with _silence_logging():
        report.examine()
        repaired = report.repair() if fix else []
    if json:
        print_json(report.as_json(repaired))
    else:
        typer.echo(f"\n{report.summary(fixed=fix)} ({time.monotonic() - started:.1f} s)")
    if not report.is_well:
        raise typer.Exit(1)


@contextmanager
def _silence_logging() -> Iterator[None]:
    """Silence warnings during the checks: each check reports its problems as findings."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(previous)


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


def _configured_checks(config: Config) -> list[DoctorCheck]:
    """One check for each configured MCP server and channel."""
    return [*server_checks(config.tools.mcp_servers), *channel_checks(config.channels.enabled)]


def _select_checks(checks: Sequence[DoctorCheck], names: Sequence[str]) -> list[DoctorCheck]:
    """The checks with these ids or id prefixes (`stores`); all if none is given. Raises NanobotError if unknown."""
    known = dict.fromkeys(part for check in checks for part in (check.id, check.id.partition(".")[0]))
    for name in names:
        if name not in known:
            near = " or ".join(map(repr, nearest(name, known)))
            raise NanobotError(
                f"There is no check {to_one_line(name)!r}. {f'Did you mean {near}? ' if near else ''}"
                f"Checks: {', '.join(dict.fromkeys(check.id.partition('.')[0] for check in checks))}."
            )
    return [check for check in checks if not names or {check.id, check.id.partition(".")[0]} & {*names}]


class _Report:
    """Runs the checks and prints each result as soon as it is there."""

    def __init__(self, context: CheckContext, checks: Sequence[DoctorCheck], *, quiet: bool) -> None:
        self._context = context
        self._checks = checks
        self._quiet = quiet
        self._results: dict[str, CheckResult] = {}
        self._failed = False

    @property
    def is_well(self) -> bool:
        """Whether all checks are ok and no repair failed."""
        return not self._failed and all(result.verdict == "ok" for result in self._results.values())

    def examine(self) -> None:
        """Run all checks."""
        width = max((len(check.id) for check in self._checks), default=0)
        for result in run_checks(self._checks, self._context):
            self._results[result.check.id] = result
            if not self._quiet:
                _print_result(result, width)

    def repair(self) -> list[dict[str, str]]:
        """Apply the fixes and run their checks again. Returns what was done, or why it failed, by check id."""
        repaired = []
        for result in [*self._results.values()]:
            fixes = [finding.fix for finding in result.findings if finding.fix is not None]
            for fix in fixes:
                mark = _paint().green("fixed ")
                try:
                    outcome = fix()
                except (NanobotError, OSError) as error:
                    outcome, self._failed = (
                        f"could not be repaired: {redact_all(to_one_line(error_text(error)))}",
                        True,
                    )
                    mark = _paint().red("failed")
                repaired.append({"id": result.check.id, "done": outcome})
                if not self._quiet:
                    print_line(f"{result.check.id}: {to_one_line(outcome)}", f"{mark}   ")
            if fixes:
                self._results.update((rerun.check.id, rerun) for rerun in run_checks([result.check], self._context))
        return repaired

    def summary(self, *, fixed: bool) -> str:
        """The last line: numbers of checks, errors and warnings."""
        findings = [finding for result in self._results.values() for finding in result.findings]
        errors, warnings = (sum(finding.severity is kind for finding in findings) for kind in
                            (Severity.ERROR, Severity.WARNING))  # fmt: skip
        checks = count_noun(len(self._results), "check")
        if not errors and not warnings:
            return f"{checks}, no problems."
        fixable = sum(finding.fix is not None and finding.severity is not Severity.NOTE for finding in findings)
        hint = f" --fix repairs {fixable} of them." if fixable and not fixed else ""
        counts = [count_noun(count, noun) for count, noun in ((errors, "error"), (warnings, "warning")) if count]
        return f"{checks}: {', '.join(counts)}.{hint}"

    def as_json(self, repaired: list[dict[str, str]]) -> dict[str, Any]:
        """The report for --json."""
        return {
            "version": __version__,
            "ok": self.is_well,
            "checks": [
                {
                    "id": result.check.id,
                    "about": result.check.about,
                    "verdict": result.verdict,
                    "seconds": round(result.seconds, 3),
                    "findings": [_finding_json(finding) for finding in result.findings],
                }
                for result in self._results.values()
            ],
            "repaired": repaired,
        }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity,
        "text": finding.text,
        "advice": finding.advice,
        "fixable": finding.fix is not None,
    }


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
