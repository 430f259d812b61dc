"""JSON objects of platforms, read with care: a payload that is not as documented must not end a connection."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_LARGEST = 1 << 53


class Payload(dict[str, Any]):
    """A JSON object. What is missing or has another type reads as empty. A path names a value in inner objects."""

    @classmethod
    def of(cls, value: object) -> "Payload":
        return value if isinstance(value, cls) else cls(value) if isinstance(value, Mapping) else cls()

    @classmethod
    def parse(cls, text: str | bytes) -> "Payload":
        """The object of a JSON text; an empty one for anything else."""
        try:
            return cls.of(json.loads(text))
        except (ValueError, RecursionError):
            return cls()

    def text(self, *path: str) -> str:
        value = self._at(path)
        return value if isinstance(value, str) else ""

    def line(self, *path: str) -> str:
        """A text without line breaks."""
        return " ".join(self.text(*path).split())

    def part(self, *path: str) -> "Payload":
        return Payload.of(self._at(path))

    def parts(self, *path: str) -> "list[Payload]":
        """The objects of a list."""
        value = self._at(path)
        return [Payload.of(part) for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []

    def number(self, *path: str) -> float:
        """A positive number, also as a text; else 0."""
        value = self._at(path)
        if isinstance(value, str) and value.replace(".", "", 1).isdecimal() and len(value) < 20:
            value = float(value)
        return float(value) if isinstance(value, int | float) and 0 < value < _LARGEST else 0.0

    def time(self, *path: str, ticks_per_s: int = 1000) -> datetime | None:
        """A time that is given as a number since 1970, by default of milliseconds."""
        try:
            return datetime.fromtimestamp(self.number(*path) / ticks_per_s, UTC) if self.number(*path) else None
        except (ValueError, OverflowError, OSError):
            return None

    def iso_time(self, *path: str) -> datetime | None:
        """A time in ISO 8601; without a zone, of UTC."""
        try:
            time = datetime.fromisoformat(self.text(*path))
        except ValueError:
            return None
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)

    def _at(self, path: tuple[str, ...]) -> object:
        value: object = self
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
