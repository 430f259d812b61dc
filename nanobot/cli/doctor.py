"""`nanobot doctor`: finds what is wrong and, with `--fix`, repairs what can be repaired safely."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any

import typer

from nanobot import __version__
from nanobot.cli.checks.channels import channel_checks
from nanobot.cli.checks.examination import Examined, examined, told
from nanobot.cli.checks.findings import Check, Finding, Patient, Severity
from nanobot.cli.checks.servers import server_checks
from nanobot.cli.checks.table import CONFIG, HEALTH, SECURITY
from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, one_line, show_json, unknown_name
from nanobot.cli.through_gateway import ask_gateway
from nanobot.config import paths
from nanobot.config.loader import load_config
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, NanobotError
from nanobot.security import vault
from nanobot.security.secrets import named_secrets
from nanobot.utils.text import counted

_WIDEST = 110
"""Longer lines are hard to read."""
_NARROWEST = 40
_COLOURS = {"ok": typer.colors.GREEN, Severity.WARNING: typer.colors.YELLOW, Severity.ERROR: typer.colors.RED}


def doctor(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Only these, such as model or stores.")
    ] = None,
    security: Annotated[bool, typer.Option("--security", help="What stands open, instead of what is broken.")] = False,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what can be repaired safely.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no model, no MCP server and no platform.")] = False,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Find what is wrong; with --fix, repair it."""
    began = time.monotonic()
    patient = _patient(config, workspace, asks=not security)
    checks = [*SECURITY] if security else [*HEALTH, *_by_name(patient.config)]
    checks = [check for check in _named(checks, names or []) if not (offline and check.asks_outside)]
    if patient.problem and CONFIG not in checks:  # most of them can say nothing then, which must not look like health
        checks = [CONFIG, *checks]
    report = _Report(patient, checks, quiet=json)
    with _no_log():
        report.examine()
        repaired = report.repair() if fix else []
    if json:
        show_json(report.as_json(repaired))
    else:
        typer.echo(f"\n{report.summary(fixed=fix)} ({time.monotonic() - began:.1f} s)")
    if not report.is_well:
        raise typer.Exit(1)


@contextmanager
def _no_log() -> Iterator[None]:
    """What a check meets is told as its finding, and not once more between the findings."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def _patient(config: Path | None, workspace: Path | None, *, asks: bool) -> Patient:
    """Whom we examine; where the config cannot be used, with as much of it as can be known. `asks`: for secrets."""
    paths.use_config(config)
    problem = ""
    try:
        loaded = load_config(must_exist=config is not None, secrets=asks)
    except ConfigError as error:
        loaded, problem = Config.model_construct(), str(error)
    vault.hold(lambda: named_secrets(loaded.model_dump(), os.environ))
    places = Places(paths.get_data_dir())
    gateway, gateway_problem = None, ""
    try:
        gateway = ask_gateway(places, {"do": "report"})
    except NanobotError as error:
        gateway_problem = str(error)
    return Patient(
        loaded,
        paths.get_config_path(),
        places,
        paths.absolute(workspace or loaded.workspace_path),
        os.environ,
        problem,
        gateway,
        gateway_problem,
    )


def _by_name(config: Config) -> list[Check]:
    """The checks of what the config names."""
    return [*server_checks(config.tools.mcp_servers), *channel_checks(config.channels.enabled)]


def _named(checks: Sequence[Check], names: Sequence[str]) -> list[Check]:
    """The checks of these ids, or of these beginnings of ids; all where none is named. Raises NanobotError."""
    known = dict.fromkeys(part for check in checks for part in (check.id, check.id.partition(".")[0]))
    for name in names:
        if name not in known:
            raise unknown_name("check", name, known, "nanobot doctor --json")
    return [check for check in checks if not names or {check.id, check.id.partition(".")[0]} & {*names}]


class _Report:
    """What was found, told as it is found."""

    def __init__(self, patient: Patient, checks: Sequence[Check], *, quiet: bool) -> None:
        self._patient = patient
        self._checks = checks
        self._quiet = quiet
        self._found: dict[str, Examined] = {}
        self._failed = False

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong, and nothing that was tried failed."""
        return not self._failed and all(one.verdict == "ok" for one in self._found.values())

    def examine(self) -> None:
        """Run all checks."""
        width = max((len(check.id) for check in self._checks), default=0)
        for one in examined(self._checks, self._patient):
            self._found[one.check.id] = one
            if not self._quiet:
                typer.echo("\n".join(_lines(one, width)))

    def repair(self) -> list[dict[str, str]]:
        """Apply what fixes there are, and look again at what they are about; what was done, or why not."""
        done = []
        for one in [*self._found.values()]:
            fixes = [finding.fix for finding in one.findings if finding.fix is not None]
            for fix in fixes:
                mark = typer.style("fixed ", fg="green")
                try:
                    did = fix()
                except (NanobotError, OSError) as error:
                    did, self._failed = f"could not be repaired: {one_line(told(error))}", True
                    mark = typer.style("failed", fg="red")
                done.append({"id": one.check.id, "done": did})
                if not self._quiet:
                    typer.echo(f"{mark}   {one.check.id}: {one_line(did)}")
            if fixes:
                self._found.update((again.check.id, again) for again in examined([one.check], self._patient))
        return done

    def summary(self, *, fixed: bool) -> str:
        """The last line."""
        findings = [finding for one in self._found.values() for finding in one.findings]
        errors, warnings = (sum(finding.severity is kind for finding in findings) for kind in
                            (Severity.ERROR, Severity.WARNING))  # fmt: skip
        checks = counted(len(self._found), "check")
        if not errors and not warnings:
            return f"{checks}, nothing is wrong."
        can = sum(finding.fix is not None and finding.severity is not Severity.NOTE for finding in findings)
        hint = f" --fix repairs {can} of them." if can and not fixed else ""
        told = [f"{count} {what}" for count, what in ((errors, "wrong"), (warnings, "to look at")) if count]
        return f"{checks}: {', '.join(told)}.{hint}"

    def as_json(self, repaired: list[dict[str, str]]) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            "version": __version__,
            "ok": self.is_well,
            "checks": [
                {
                    "id": one.check.id,
                    "about": one.check.about,
                    "verdict": one.verdict,
                    "seconds": round(one.seconds, 3),
                    "findings": [_finding_json(finding) for finding in one.findings],
                }
                for one in self._found.values()
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


def _lines(one: Examined, width: int) -> Iterator[str]:
    """A line a check, and below it what is to be done."""
    mark = typer.style(one.verdict.ljust(7), fg=_COLOURS[one.verdict], bold=one.verdict != "ok")
    loud = [finding for finding in one.findings if finding.severity is not Severity.NOTE]
    notes = [finding for finding in one.findings if finding.severity is Severity.NOTE]
    indent = width + 11
    head = f"{mark}  {one.check.id.ljust(width)}  "
    if not loud:
        told = "; ".join(one_line(finding.text).removesuffix(".") for finding in notes)
        yield from _wrapped(head, told or one.check.about, indent)
    told_of = loud or notes
    for finding, after in zip_longest(told_of, told_of[1:]):
        if loud:
            yield from _wrapped(head, one_line(finding.text), indent)
            head = " " * indent
        advice = one_line(finding.advice)
        if advice and (after is None or one_line(after.advice) != advice):  # said once, below all that it is for
            yield from _wrapped(f"{' ' * indent}-> ", advice, indent + 3)


def _wrapped(head: str, text: str, indent: int) -> Iterable[str]:
    columns = min(get_terminal_size().columns, _WIDEST)
    above = []
    if columns - indent < _NARROWEST:  # no room for columns: the text goes below its head
        above = [head.rstrip()] if head[0] != " " else []
        head, indent = ("    -> ", 7) if head.endswith("-> ") else ("    ", 4)
    lines = wrap(text, max(columns - indent, 1), break_long_words=False, break_on_hyphens=False) or [""]
    return [*above, f"{head}{lines[0]}".rstrip(), *(" " * indent + line for line in lines[1:])]
