"""`nanobot doctor`: run the checks, print their findings, and with `--fix` repair what is safe to repair."""

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, NamedTuple

import typer

from nanobot import __version__
from nanobot.cli.common import JsonOption, Setup, ask_gateway, read_setup, unknown_name_error
from nanobot.cli.doctor import environment, files, security  # noqa: F401 they add checks
from nanobot.cli.doctor.checks import HEALTH, SECURITY, CheckContext, CheckResult, DoctorCheck, Severity, run_checks
from nanobot.cli.doctor.connections import connection_checks
from nanobot.cli.output import Paint, print_json, print_line, to_one_line
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, NanobotError
from nanobot.security.secrets import redact_all
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import count_noun

__all__ = ["HEALTH", "SECURITY", "doctor"]  # the tables are complete once this module is imported


class Repair(NamedTuple):
    id: str
    done: str
    """What was done, or why it failed."""
    succeeded: bool


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Run only these checks, e.g. model or stores.")
    ] = None,
    only_security: Annotated[bool, typer.Option("--security", help="Run the security checks instead.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what is safe to repair.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Skip checks that use the network.")] = False,
    json: JsonOption = False,
) -> None:
    """Check the setup; with --fix, repair what is safe to repair. Exits with 1 if something is wrong."""
    started = time.monotonic()
    context = _build_context(secrets=not only_security)
    checks = SECURITY if only_security else [*HEALTH, *connection_checks(context.config)]
    checks = [check for check in _select_checks(checks, names or []) if not (offline and check.uses_network)]
    if context.problem and not any(check.id == "config" for check in checks):
        checks = [HEALTH[0], *checks]  # most checks are skipped then, which must not look healthy
    width = max((len(check.id) for check in checks), default=0)
    results: dict[str, CheckResult] = {}
    logged_below = logging.root.manager.disable
    logging.disable(logging.WARNING)  # each check reports its problems as findings
    try:
        for result in run_checks(checks, context):
            results[result.check.id] = result
            if not json:
                _print_result(result, width)
        repairs = _repair(results, context) if fix else []
    finally:
        logging.disable(logged_below)
    is_well = all(result.verdict == "ok" for result in results.values()) and all(it.succeeded for it in repairs)
    if json:
        repaired = [{"id": repair.id, "done": repair.done} for repair in repairs]
        shown = [_to_json(result) for result in results.values()]
        print_json({"version": __version__, "ok": is_well, "checks": shown, "repaired": repaired})
    else:
        paint = Paint.on(sys.stdout)
        for repair in repairs:
            mark = paint.green("fixed ") if repair.succeeded else paint.red("failed")
            print_line(f"{repair.id}: {to_one_line(repair.done)}", f"{mark}   ")
        print_line(f"\n{_summary([*results.values()], fixed=fix)} ({time.monotonic() - started:.1f} s)")
    if not is_well:
        raise typer.Exit(1)


def _build_context(*, secrets: bool) -> CheckContext:
    """The context of the checks. A config that cannot be used is replaced by defaults, with its problem noted."""
    problem = gateway_problem = ""
    gateway = None
    try:
        setup = read_setup(warns=False, secrets=secrets)
    except ConfigError as error:
        setup, problem = Setup.of(Config.model_construct()), str(error)
    try:
        gateway = ask_gateway({"do": "report"})
    except NanobotError as error:
        gateway_problem = str(error)
    return CheckContext(
        **vars(setup), environ=os.environ, problem=problem, gateway=gateway, gateway_problem=gateway_problem
    )


def _select_checks(checks: Sequence[DoctorCheck], names: Sequence[str]) -> Sequence[DoctorCheck]:
    """The checks with these ids or id prefixes (`stores`); all if none is given. Raises NanobotError if unknown."""
    groups = dict.fromkeys(check.id.partition(".")[0] for check in checks)
    known = groups | dict.fromkeys(check.id for check in checks)
    for name in names:
        if name not in known:
            raise unknown_name_error("check", name, known, hint=f"Checks: {', '.join(groups)}.")
    return [check for check in checks if not names or {check.id, check.id.partition(".")[0]} & {*names}]


def _repair(results: dict[str, CheckResult], context: CheckContext) -> list[Repair]:
    """Apply the fixes and run their checks again."""
    repairs = []
    for result in [*results.values()]:
        fixes = [finding.fix for finding in result.findings if finding.fix is not None]
        for fix in fixes:
            try:
                repairs.append(Repair(result.check.id, fix(), succeeded=True))
            except (NanobotError, OSError) as error:
                reason = f"could not be repaired: {redact_all(to_one_line(error_text(error)))}"
                repairs.append(Repair(result.check.id, reason, succeeded=False))
        if fixes:
            results.update((rerun.check.id, rerun) for rerun in run_checks([result.check], context))
    return repairs


def _to_json(result: CheckResult) -> dict[str, object]:
    findings = [
        {"severity": it.severity, "text": it.text, "advice": it.advice, "fixable": it.fix is not None}
        for it in result.findings
    ]
    check, seconds = result.check, round(result.seconds, 3)
    return {"id": check.id, "about": check.about, "verdict": result.verdict, "seconds": seconds, "findings": findings}


def _summary(results: Sequence[CheckResult], *, fixed: bool) -> str:
    findings = [finding for result in results for finding in result.findings]
    counts = Counter(finding.severity for finding in findings)
    kinds = ((Severity.ERROR, "error"), (Severity.WARNING, "warning"))
    problems = ", ".join(count_noun(counts[kind], noun) for kind, noun in kinds if counts[kind])
    fixable = sum(finding.fix is not None and finding.severity is not Severity.NOTE for finding in findings)
    hint = f" --fix repairs {fixable} of them." if fixable and not fixed else ""
    return count_noun(len(results), "check") + (f": {problems}.{hint}" if problems else ", no problems.")


def _print_result(result: CheckResult, width: int) -> None:
    """Print the findings of a check, and below those that share an advice the advice."""
    paint = Paint.on(sys.stdout)
    colour = {"ok": paint.green, Severity.WARNING: paint.yellow, Severity.ERROR: paint.red}[result.verdict]
    problems = [finding for finding in result.findings if finding.severity is not Severity.NOTE]
    head, indent = f"{colour(result.verdict.ljust(7))}  {result.check.id.ljust(width)}  ", " " * (width + 11)
    if not problems:
        text = ". ".join(to_one_line(finding.text).removesuffix(".") for finding in result.findings)
        print_line(text or result.check.about, head)
    for advice, findings in groupby(problems or result.findings, lambda finding: to_one_line(finding.advice)):
        for finding in findings:
            if problems:
                print_line(to_one_line(finding.text), head)
                head = indent
        if advice:
            print_line(advice, f"{indent}-> ")
