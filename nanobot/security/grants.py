"""What the owner said "always" to: `state/grants.json`, a rule a line of it, each for thirty days.

A yes that was given while words from outside were in play is kept apart from one that was not, and neither counts for
the other. A file that cannot be read grants nothing, and is left as it is: the owner is asked again.
"""

import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.utils.clock import Clock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

VALID = timedelta(days=30)
_MOST = 1000
"""Rules that are kept; of more the oldest go."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One rule, as `kind:target`. `outside`: it holds where words from outside are in play, and only there."""

    rule: str
    outside: bool
    made: str
    expires: str

    def holds(self, now: datetime) -> bool:
        """Whether it counts at this moment."""
        return now < datetime.fromisoformat(self.expires) <= now + VALID


_Change = Callable[[list[Grant]], list[Grant]]


class Grants:
    """The file, shared with every other process of this data folder. Methods block; none is slow."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def holds(self, rules: Iterable[str], *, outside: bool) -> frozenset[str]:
        """Those of these rules that always hold. Never raises: of a file that cannot be read, none."""
        wanted = frozenset(rules)
        try:
            return wanted & {one.rule for one in self.all() if one.outside is outside}
        except StorageError as error:
            log.warning("Nothing is allowed for always: %s", error)
            return frozenset()

    def all(self) -> list[Grant]:
        """What holds now, the oldest first. Raises StorageError for a file that cannot be used."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable(error) from error
        now = self._clock.now()
        try:
            found = [Grant(**one) for one in json.loads(text)["grants"]]
            return [one for one in found if one.holds(now)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unusable(error) from error

    def add(self, rules: Iterable[str], *, outside: bool) -> None:
        """These hold from now on. Raises StorageError."""
        now = self._clock.now()
        fresh = [Grant(rule, outside, now.isoformat(), (now + VALID).isoformat()) for rule in rules]
        names = {(one.rule, one.outside) for one in fresh}
        self._change(lambda old: [*(one for one in old if (one.rule, one.outside) not in names), *fresh])

    def forget(self, rule: str) -> int:
        """Ask about this rule again; how many stood under it. Raises StorageError."""
        gone = 0

        def without(old: list[Grant]) -> list[Grant]:
            nonlocal gone
            rest = [one for one in old if one.rule != rule]
            gone = len(old) - len(rest)
            return rest

        self._change(without)
        return gone

    def _change(self, change: _Change) -> None:
        try:
            make_private_folder(self.path.parent)
            with locked(self.path.with_suffix(".lock")):
                kept = [asdict(one) for one in change(self.all())[-_MOST:]]
                told = json.dumps({"version": 1, "grants": kept}, ensure_ascii=False, indent=2)
                write_atomic(self.path, told + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise refusal(f"{self.path} cannot be changed", error) from error

    def _unusable(self, error: Exception) -> StorageError:
        reason = getattr(error, "strerror", None) or (error if isinstance(error, ValueError) else "it holds no rules")
        return StorageError(
            f"{self.path} cannot be read: {reason}. Move it away; what it allowed for always is asked about again."
        )


NOTHING_ALWAYS = "Nothing is allowed for always."


def told(grant: Grant) -> str:
    """A rule in a line."""
    when = " (while words from outside are in play)" if grant.outside else ""
    return f"{' '.join(grant.rule.split())}{when}, until {grant.expires[:10]}"


def forgotten(rule: str, count: int) -> str:
    """What a person is told who let a rule be forgotten."""
    if not count:
        return f"No rule is called {rule}; `list` shows those there are."
    return f"From now on I ask about {rule} again."
