"""Running checks: side by side, each behind a wall and with a limit of time, told in the order of their table.

A check that hangs is a finding, and keeps nobody: its thread is left behind with the process.
"""

import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nanobot.cli.checks.findings import Check, Finding, Patient, Severity, error, note
from nanobot.errors import NanobotError
from nanobot.security.vault import cleaned

_UNREAD = "not examined: the config cannot be used"


@dataclass(frozen=True, slots=True)
class Examined:
    """A check and what it found."""

    check: Check
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`ok`, or the worst that was found."""
        found = {finding.severity for finding in self.findings}
        return next((severity for severity in (Severity.ERROR, Severity.WARNING) if severity in found), "ok")


@dataclass(slots=True)
class _Run:
    """A check at work."""

    check: Check
    patient: Patient
    began: float = field(default_factory=time.monotonic)
    findings: tuple[Finding, ...] | None = None
    seconds: float = 0.0

    def work(self) -> None:
        try:
            self.findings = tuple(self.check.find(self.patient))
        except (NanobotError, OSError) as refused:
            self.findings = (error(cleaned(told(refused)), "Put this right, and run it again."),)
        except Exception as broken:  # the wall of a check: one that breaks is a finding, and our bug
            said = cleaned(f"{type(broken).__name__}: {broken}")
            self.findings = (error(f"This check broke: {said}", "This is a bug in nanobot; please report it."),)
        self.seconds = time.monotonic() - self.began


def told(refused: NanobotError | OSError) -> str:
    """What refused, in words: an error of the disk without its number."""
    if isinstance(refused, OSError) and refused.strerror and refused.filename:
        return f"{os.fsdecode(refused.filename)}: {refused.strerror}."
    return str(refused)


def examined(checks: Sequence[Check], patient: Patient) -> Iterator[Examined]:
    """What each found, as soon as it and all before it are done."""
    ready = [check for check in checks if not (check.reads_config and patient.problem)]
    runs = {check.id: _Run(check, patient) for check in ready}
    threads = {name: threading.Thread(target=run.work, name=f"check {name}", daemon=True) for name, run in runs.items()}
    for thread in threads.values():
        thread.start()
    for check in checks:
        run = runs.get(check.id)
        if run is None:
            yield Examined(check, (note(_UNREAD),))
            continue
        threads[check.id].join(max(0.0, check.limit_s - (time.monotonic() - run.began)))
        if run.findings is None:
            hung = error(f"no answer within {check.limit_s:g} s", "See what it waits for, and run it again.")
            yield Examined(check, (hung,), check.limit_s)
        else:
            yield Examined(check, run.findings, run.seconds)
