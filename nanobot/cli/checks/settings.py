"""The config: that it can be used, and what is odd about it."""

from collections.abc import Iterator

from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.config.loader import load_warnings
from nanobot.utils.text import counted


def config_can_be_used(patient: Patient) -> Iterator[Finding]:
    """It parses, its keys are known, and its secrets are where it says."""
    if patient.problem:
        yield error(patient.problem, "Correct it there; the file is never replaced by defaults.")
        return
    if not patient.config_path.exists():
        yield note(f"{patient.config_path}: none yet; the defaults hold")
        return
    yield note(str(patient.config_path))
    for told in load_warnings(patient.config):
        yield warning(told, "Correct the name, or take the key out.")


def limits_are_kept(patient: Patient) -> Iterator[Finding]:
    """What may be spent."""
    limits = patient.config.limits
    named = {"a day": limits.daily_usd, "a month": limits.monthly_usd}
    told = [f"{usd:g} USD {period}" for period, usd in named.items() if usd is not None]
    if limits.turn_tokens is not None:
        told.append(f"{counted(limits.turn_tokens, 'token')} a turn")
    yield note(", ".join(told) if told else "no limit is set", "" if told else "limits.dailyUsd sets one.")
