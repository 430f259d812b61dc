"""Standing approvals of the owner ("always"), each valid for thirty days.

A grant given while untrusted content was in play counts only then, and one given otherwise only otherwise. Grants that
cannot be read count for nothing: the owner is asked again.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.utils.clock import Clock
from nanobot.utils.database import reading, writing

log = logging.getLogger(__name__)

SCHEMA = """
CREATE TABLE IF NOT EXISTS grants (
    rule TEXT NOT NULL, outside INTEGER NOT NULL, made TEXT NOT NULL, PRIMARY KEY (rule, outside)) WITHOUT ROWID;
"""
VALID = timedelta(days=30)
NO_GRANTS = "There are no permanent approvals."


@dataclass(frozen=True, slots=True)
class Grant:
    """A granted rule, as `kind:target`. `outside`: it counts while untrusted content is in play, and only then."""

    rule: str
    outside: bool
    made: str
    expires: str


class Grants:
    """The grants in the database, shared with other processes. Methods block briefly."""

    def __init__(self, database: Path, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def holds(self, rules: Iterable[str], *, outside: bool) -> frozenset[str]:
        """Those of these rules that are granted. Never raises."""
        try:
            return frozenset(rules) & {grant.rule for grant in self.all() if grant.outside is outside}
        except StorageError as error:
            log.warning("Standing approvals are ignored: %s", error)
            return frozenset()

    def all(self) -> list[Grant]:
        """The valid grants, oldest first. Raises StorageError."""
        now, grants = self._clock.now(), []
        with reading(self._database, SCHEMA) as db:
            for rule, outside, made in db.execute("SELECT rule, outside, made FROM grants ORDER BY made"):
                expires = datetime.fromisoformat(made) + VALID
                if now < expires <= now + VALID:  # one from the future, as a changed clock makes it, is not valid
                    grants.append(Grant(rule, bool(outside), made, expires.isoformat()))
        return grants

    def add(self, rules: Iterable[str], *, outside: bool) -> None:
        """Grant these rules from now on. Raises StorageError."""
        made = self._clock.now().isoformat()
        with writing(self._database, SCHEMA) as db:
            db.executemany("INSERT OR REPLACE INTO grants VALUES (?, ?, ?)", [(rule, outside, made) for rule in rules])

    def forget(self, rule: str) -> int:
        """Remove the grants of this rule; return how many there were. Raises StorageError."""
        with writing(self._database, SCHEMA) as db:
            return db.execute("DELETE FROM grants WHERE rule = ?", (rule,)).rowcount


def describe_grant(grant: Grant) -> str:
    """One line for a grant."""
    when = " (while untrusted content is in play)" if grant.outside else ""
    return f"{' '.join(grant.rule.split())}{when}, until {grant.expires[:10]}"


def describe_forgotten(rule: str, count: int) -> str:
    """The answer to removing the grants of a rule."""
    if not count:
        return f"No rule is called {rule}; `list` shows those there are."
    return f"From now on I ask about {rule} again."
