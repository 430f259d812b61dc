"""What a check is, whom it examines, and what it finds."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.config.paths import Places
from nanobot.config.schema import Config


class Severity(StrEnum):
    """How much a finding matters."""

    NOTE = "note"
    """Good to know; nothing is wrong."""
    WARNING = "warning"
    """It works, but not as it should."""
    ERROR = "error"
    """Something does not work, or stands open."""


Fix = Callable[[], str]
"""Puts it right and says what was done. Raises OSError or NanobotError where it could not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check saw. `advice` is what its owner does about it; `fix` does it, where that is safe."""

    severity: Severity
    text: str
    advice: str = ""
    fix: Fix | None = None


def note(text: str, advice: str = "", fix: Fix | None = None) -> Finding:
    """Good to know."""
    return Finding(Severity.NOTE, text, advice, fix)


def warning(text: str, advice: str, fix: Fix | None = None) -> Finding:
    """Not as it should be."""
    return Finding(Severity.WARNING, text, advice, fix)


def error(text: str, advice: str, fix: Fix | None = None) -> Finding:
    """Does not work, or stands open."""
    return Finding(Severity.ERROR, text, advice, fix)


@dataclass(frozen=True, slots=True)
class Patient:
    """What is examined."""

    config: Config
    """The one in use; the defaults where it cannot be read."""
    config_path: Path
    places: Places
    workspace: Path
    environ: Mapping[str, str]
    problem: str = ""
    """Why the config cannot be used."""
    gateway: Mapping[str, Any] | None = None
    """What the gateway that runs says of itself."""
    gateway_problem: str = ""
    """Why it says nothing, though it runs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that is looked at, by itself: whatever it raises and however long it takes, the others go on."""

    id: str
    about: str
    """What holds where it finds nothing."""
    find: Callable[[Patient], Iterable[Finding]]
    limit_s: float = 10.0
    reads_config: bool = True
    """Whether it says nothing of use without a config."""
    asks_outside: bool = False
    """Whether it asks a model, a platform or an MCP server."""
