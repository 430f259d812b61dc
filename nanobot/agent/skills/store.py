"""What nanobot stores about skills: the programs of installed ones, and the days each was used.

state/skills/installed.json     {version, skills: {name: {from, at, programs: {path: sha256}}}}
state/skills/used.json          {version, used: {name: [days]}}

No tool can write there. An unreadable file counts as empty, is logged, and is left as it is.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.security.files.open import Stamp, stamp_of
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

_KEEP_USE = timedelta(days=120)
_HALF_LIFE_DAYS = 14.0


@dataclass(frozen=True, slots=True)
class Installed:
    """The origin of an installed skill and its programs."""

    source: str
    at: str
    programs: Mapping[str, str] = field(default_factory=dict)


class SkillStore:
    """The two files, shared with other processes of this data folder. Methods block briefly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._installed = folder / "installed.json"
        self._used = folder / "used.json"
        self._recorded: set[tuple[str, str]] = set()
        self._last: tuple[Stamp, dict[str, Installed]] | None = None

    def installed(self) -> dict[str, Installed]:
        """Return the installed skills by name. The file is reread only when it changed."""
        try:
            stamp = stamp_of(self._installed.stat())
        except OSError:
            return {}
        if self._last is None or self._last[0] != stamp:
            result = {}
            for name, entry in _read_or_empty(self._installed, "skills").items():
                programs = entry.get("programs") if isinstance(entry, dict) else None
                if isinstance(programs, dict):
                    result[name] = Installed(str(entry.get("from", "")), str(entry.get("at", "")), programs)
            self._last = (stamp, result)
        return self._last[1]

    def note_installed(self, name: str, source: str, programs: Mapping[str, str]) -> None:
        """Record these programs with their digests for the skill. Raises StorageError."""
        data = asdict(Installed(source, datetime.now().astimezone().isoformat(timespec="seconds"), dict(programs)))
        data["from"] = data.pop("source")
        self._change(self._installed, "skills", lambda skills: {**skills, name: data})

    def forget(self, name: str) -> None:
        """Delete the record of an installed skill. Raises StorageError."""
        self._change(
            self._installed, "skills", lambda skills: {entry: data for entry, data in skills.items() if entry != name}
        )

    def note_used(self, name: str) -> None:
        """Record that it was used today. Never raises."""
        today = date.today()
        if (name, today.isoformat()) in self._recorded:
            return
        self._recorded.add((name, today.isoformat()))

        def add_today(used: dict[str, Any]) -> dict[str, Any]:
            oldest = (today - _KEEP_USE).isoformat()
            recent = {entry: [day for day in _valid_days(days) if day >= oldest] for entry, days in used.items()}
            recent[name] = sorted({*recent.get(name, ()), today.isoformat()})
            return {entry: days for entry, days in recent.items() if days}

        try:
            self._change(self._used, "used", add_today)
        except StorageError as error:
            log.warning("the use of the skill %s cannot be saved: %s", name, error)

    def usage_scores(self, before: date) -> dict[str, float]:
        """Return a usage score by skill for the days before this one; older use counts less."""
        result = {}
        for name, days in _read_or_empty(self._used, "used").items():
            ages = [(before - date.fromisoformat(day)).days for day in _valid_days(days)]
            result[name] = sum(0.5 ** (age / _HALF_LIFE_DAYS) for age in ages if age > 0)
        return result

    def _change(self, path: Path, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        try:
            make_private_folder(self.folder)
            with file_lock(path.with_suffix(".lock")):
                data = {"version": 1, key: change(_read(path, key))}
                write_atomic(path, json.dumps(data, ensure_ascii=False, indent=2) + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{path} cannot be changed", error) from error


def _read_or_empty(path: Path, key: str) -> dict[str, Any]:
    """Read a file; empty if it is missing or damaged."""
    try:
        return _read(path, key)
    except (OSError, StorageError) as error:
        log.warning("%s", error)
        return {}


def _read(path: Path, key: str) -> dict[str, Any]:
    """Read a file; empty if it is missing. Raises OSError, StorageError."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))[key]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}. Move it away; skills then count as copied by hand.") from error
    if not isinstance(result, dict):
        raise StorageError(f"{path} is damaged. Move it away; skills then count as copied by hand.")
    return result


def _valid_days(days: object) -> list[str]:
    """Return the valid dates."""
    result = []
    for day in days if isinstance(days, list) else []:
        try:
            result.append(date.fromisoformat(day).isoformat())
        except (TypeError, ValueError):
            continue
    return result
