"""A check, what it may find, and running all of them: in parallel, each with a timeout, in the order of the tables."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from nanobot.cli.common import Setup
from nanobot.errors import NanobotError
from nanobot.security.secrets import redact_all
from nanobot.utils.storage_error import error_text


class Severity(StrEnum):
    """How much a finding matters."""

    NOTE = "note"
    """Information; nothing is wrong."""
    WARNING = "warning"
    """It works, but should be changed."""
    ERROR = "error"
    """Something does not work, or is insecure."""


Fix = Callable[[], str]
"""Repairs the problem and returns what was done. Raises OSError or NanobotError if it fails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. `advice` tells the owner what to do; `fix` does it, where that is safe."""

    severity: Severity
    text: str
    advice: str = ""
    fix: Fix | None = None


note = partial(Finding, Severity.NOTE)
warning = partial(Finding, Severity.WARNING)
error = partial(Finding, Severity.ERROR)


@dataclass(frozen=True)
class CheckContext(Setup):
    """What the checks examine. The config is the defaults if the file cannot be used."""

    environ: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    """Why the config cannot be used."""
    gateway: Mapping[str, Any] | None = None
    """The report of the running gateway."""
    gateway_problem: str = ""
    """Why a running gateway gave no report."""


FindFunction = Callable[[CheckContext], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class DoctorCheck:
    """One check. What it raises or how long it takes does not affect the others."""

    id: str
    """Promised to scripts."""
    about: str
    """What is true if it finds nothing."""
    find: FindFunction
    limit_s: float = 10.0
    reads_config: bool = True
    """Whether to skip it if the config cannot be used."""
    uses_network: bool = False
    """Whether it sends requests to a model, a platform or an MCP server."""

    def run(self, context: CheckContext) -> "CheckResult":
        if self.reads_config and context.problem:
            return CheckResult(self, (note("skipped: the config cannot be used"),))
        started = time.monotonic()
        try:
            findings = tuple(self.find(context))
        except (NanobotError, OSError) as exc:
            findings = (error(error_text(exc), "Fix this and run the check again."),)
        except Exception as exc:  # one crashing check must not stop the others
            message = f"{type(exc).__name__}: {error_text(exc)}"
            findings = (error(f"This check crashed: {message}", "This is a bug in nanobot; please report it."),)
        # error texts of a server may contain a key
        safe = (replace(it, text=redact_all(it.text), advice=redact_all(it.advice)) for it in findings)
        return CheckResult(self, tuple(safe), time.monotonic() - started)


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: DoctorCheck
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`ok`, or the worst severity."""
        severities = {finding.severity for finding in self.findings}
        return next((severity for severity in (Severity.ERROR, Severity.WARNING) if severity in severities), "ok")


HEALTH: list[DoctorCheck] = []
"""Run by `nanobot doctor`, followed by a check for each configured MCP server and channel."""
SECURITY: list[DoctorCheck] = []
"""Run by `nanobot doctor --security`."""


def _add_to(checks: list[DoctorCheck], id_: str, about: str, **options: Any) -> Callable[[FindFunction], FindFunction]:
    def add(find: FindFunction) -> FindFunction:
        checks.append(DoctorCheck(id_, about, find, **options))
        return find

    return add


health_check, security_check = partial(_add_to, HEALTH), partial(_add_to, SECURITY)
"""Add the decorated function to the table: `@health_check(id, about)`, and options of DoctorCheck."""


def run_checks(checks: Sequence[DoctorCheck], context: CheckContext) -> Iterator[CheckResult]:
    """Run all checks at once; yield each result as soon as it and all before it are done.

    The thread of a check that times out is left behind: asyncio's would keep the process from ending.
    """

    def work(check: DoctorCheck, result: Future[CheckResult]) -> None:
        result.set_result(check.run(context))

    started = time.monotonic()
    results: list[Future[CheckResult]] = [Future() for _ in checks]
    for check, result in zip(checks, results, strict=True):
        threading.Thread(target=work, args=(check, result), name=f"check {check.id}", daemon=True).start()
    for check, result in zip(checks, results, strict=True):
        try:
            yield result.result(max(0.0, check.limit_s - (time.monotonic() - started)))
        except TimeoutError:
            finding = error(f"no answer within {check.limit_s:g} s", "Find out what it is waiting for.")
            yield CheckResult(check, (finding,), check.limit_s)
