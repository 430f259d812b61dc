"""What an owner has added to a limit for its period, so that work goes on now; it holds until the period is over."""

import json
import logging
from pathlib import Path

from nanobot.utils.files import write_in_place

log = logging.getLogger(__name__)


class Raised:
    """Dollars on top of the limits, a file of a few lines that all processes of a data folder read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._known: dict[str, tuple[str, float]] = {}

    def of(self, key: str, period: str) -> float:
        """What was added to this limit in this period, as of the last look."""
        known = self._known.get(key)
        return known[1] if known is not None and known[0] == period else 0.0

    def add(self, key: str, period: str, usd: float) -> None:
        """So much more, until the period ends. Blocks. Raises OSError; within this process it holds all the same."""
        self.look()
        self._known[key] = (period, self.of(key, period) + usd)
        told = {name: [*entry] for name, entry in self._known.items()}
        write_in_place(self._path, json.dumps(told) + "\n")
        self._stamp = None

    def look(self) -> None:
        """See what other processes have added. Blocks for a moment, never raises."""
        try:
            told = self._path.stat()
            if (stamp := (told.st_mtime_ns, told.st_size)) == self._stamp:
                return
            found = json.loads(self._path.read_bytes())
            self._known = {str(key): (str(period), float(usd)) for key, (period, usd) in found.items()}
            self._stamp = stamp
        except FileNotFoundError:
            return
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("What was added to the limits cannot be read: %s", error)
