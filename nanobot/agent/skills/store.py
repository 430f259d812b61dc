"""Remembers on which days skills were used."""

import json
import logging
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from nanobot.errors import StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

_KEEP_USE = timedelta(days=120)
_HALF_LIFE_DAYS = 14.0


class SkillUsage:
    """The days on which skills were used, in a file shared with other processes. Methods block briefly.

    No tool can write there. A damaged file counts as empty, is logged, and is left as it is.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._recorded: set[tuple[str, str]] = set()

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
            self._change(add_today)
        except StorageError as error:
            log.warning("the use of the skill %s cannot be saved: %s", name, error)

    def usage_scores(self, before: date) -> dict[str, float]:
        """Return a usage score by skill for the days before this one; older use counts less."""
        result = {}
        for name, days in _read_or_empty(self._path).items():
            ages = [(before - date.fromisoformat(day)).days for day in _valid_days(days)]
            result[name] = sum(0.5 ** (age / _HALF_LIFE_DAYS) for age in ages if age > 0)
        return result

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        try:
            make_private_folder(self._path.parent)
            with file_lock(self._path.with_suffix(".lock")):
                data = {"version": 1, "used": change(_read(self._path))}
                write_atomic(self._path, json.dumps(data, ensure_ascii=False, indent=2) + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self._path} cannot be changed", error) from error


def _read_or_empty(path: Path) -> dict[str, Any]:
    """Read a file; empty if it is missing or damaged."""
    try:
        return _read(path)
    except (OSError, StorageError) as error:
        log.warning("%s", error)
        return {}


def _read(path: Path) -> dict[str, Any]:
    """Read a file; empty if it is missing. Raises OSError, StorageError."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))["used"]
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}. Move it away.") from error
    if not isinstance(result, dict):
        raise StorageError(f"{path} is damaged. Move it away.")
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
