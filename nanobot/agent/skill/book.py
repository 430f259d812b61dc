"""What nanobot keeps of skills: which programs came with an installed one, and on which days each was used.

    state/skills/installed.json     {version, skills: {name: {from, at, programs: {path: sha256}}}}
    state/skills/used.json          {version, used: {name: [days]}}

No tool can write there. A file that cannot be read counts as empty, which is said in the log, and is left as it is.
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

_REMEMBERED = timedelta(days=120)
_HALF_LIFE_DAYS = 14.0


@dataclass(frozen=True, slots=True)
class Installed:
    """How a skill came here, and the programs it brought."""

    source: str
    at: str
    programs: Mapping[str, str] = field(default_factory=dict)


class SkillBook:
    """The two files, shared with every other process of this data folder. Methods block; none is slow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._installed = folder / "installed.json"
        self._used = folder / "used.json"
        self._said: set[tuple[str, str]] = set()
        self._last: tuple[tuple[int, int, int], dict[str, Installed]] | None = None

    def installed(self) -> dict[str, Installed]:
        """The skills that were installed, by name. Asked often: the file is read when it has changed."""
        try:
            status = self._installed.stat()
        except OSError:
            return {}
        stamp = status.st_ino, status.st_mtime_ns, status.st_size
        if self._last is None or self._last[0] != stamp:
            found = {}
            for name, one in _table(self._installed, "skills").items():
                programs = one.get("programs") if isinstance(one, dict) else None
                if isinstance(programs, dict):
                    found[name] = Installed(str(one.get("from", "")), str(one.get("at", "")), programs)
            self._last = (stamp, found)
        return self._last[1]

    def note_installed(self, name: str, source: str, programs: Mapping[str, str]) -> None:
        """From now on these programs, as they are, belong to the skill. Raises StorageError."""
        told = asdict(Installed(source, datetime.now().astimezone().isoformat(timespec="seconds"), dict(programs)))
        told["from"] = told.pop("source")
        self._change(self._installed, "skills", lambda skills: {**skills, name: told})

    def forget(self, name: str) -> None:
        """Nothing is known of how this skill came here. Raises StorageError."""
        self._change(
            self._installed, "skills", lambda skills: {one: told for one, told in skills.items() if one != name}
        )

    def note_used(self, name: str) -> None:
        """It was used today. Never raises: it is forgotten then."""
        today = date.today()
        if (name, today.isoformat()) in self._said:
            return
        self._said.add((name, today.isoformat()))

        def with_today(used: dict[str, Any]) -> dict[str, Any]:
            oldest = (today - _REMEMBERED).isoformat()
            kept = {one: [day for day in _days(days) if day >= oldest] for one, days in used.items()}
            kept[name] = sorted({*kept.get(name, ()), today.isoformat()})
            return {one: days for one, days in kept.items() if days}

        try:
            self._change(self._used, "used", with_today)
        except StorageError as error:
            log.warning("That the skill %s was used is not remembered: %s", name, error)

    def worth(self, before: date) -> dict[str, float]:
        """How much each skill was used before that day, what is long ago counting little."""
        found = {}
        for name, days in _table(self._used, "used").items():
            ages = [(before - date.fromisoformat(day)).days for day in _days(days)]
            found[name] = sum(0.5 ** (age / _HALF_LIFE_DAYS) for age in ages if age > 0)
        return found

    def _change(self, path: Path, key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        try:
            make_private_folder(self.folder)
            with locked(path.with_suffix(".lock")):
                told = {"version": 1, key: change(_read(path, key))}
                write_atomic(path, json.dumps(told, ensure_ascii=False, indent=2) + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise refusal(f"{path} cannot be changed", error) from error


def _table(path: Path, key: str) -> dict[str, Any]:
    """What a file holds; nothing where it is not there or damaged."""
    try:
        return _read(path, key)
    except (OSError, StorageError) as error:
        log.warning("%s", error)
        return {}


def _read(path: Path, key: str) -> dict[str, Any]:
    """What a file holds; nothing where it is not there. Raises OSError, StorageError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))[key]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}. Move it away; skills count as copied by hand then.") from error
    if not isinstance(found, dict):
        raise StorageError(f"{path} is damaged. Move it away; skills count as copied by hand then.")
    return found


def _days(days: object) -> list[str]:
    """Those of them that are days."""
    found = []
    for day in days if isinstance(days, list) else []:
        try:
            found.append(date.fromisoformat(day).isoformat())
        except (TypeError, ValueError):
            continue
    return found
