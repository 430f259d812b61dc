"""Standing approvals of the owner ("always"): `state/grants.json`, each valid for thirty days.

A grant given while untrusted content was in play counts only then, and one given otherwise only otherwise. A file that
cannot be read grants nothing and is left as it is: the owner is asked again.
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
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

VALID = timedelta(days=30)
_MAX_GRANTS = 1000
"""Grants stored at most; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A granted rule, as `kind:target`. `outside`: it counts while untrusted content is in play, and only then."""

    rule: str
    outside: bool
    made: str
    expires: str

    def holds(self, now: datetime) -> bool:
        """Whether it is valid now."""
        return now < datetime.fromisoformat(self.expires) <= now + VALID


_Change = Callable[[list[Grant]], list[Grant]]


class Grants:
    """The file of grants, shared with other processes. Methods block briefly."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock

    def holds(self, rules: Iterable[str], *, outside: bool) -> frozenset[str]:
        """Those of these rules that are granted. Never raises: a file that cannot be read grants none."""
        requested = frozenset(rules)
        try:
            return requested & {grant.rule for grant in self.all() if grant.outside is outside}
        except StorageError as error:
            log.warning("Standing approvals are ignored: %s", error)
            return frozenset()

    def all(self) -> list[Grant]:
        """The valid grants, oldest first. Raises StorageError for an unusable file."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise self._unusable(error) from error
        now = self._clock.now()
        try:
            grants = [Grant(**item) for item in json.loads(text)["grants"]]
            return [grant for grant in grants if grant.holds(now)]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise self._unusable(error) from error

    def add(self, rules: Iterable[str], *, outside: bool) -> None:
        """Grant these rules from now on. Raises StorageError."""
        now = self._clock.now()
        fresh = [Grant(rule, outside, now.isoformat(), (now + VALID).isoformat()) for rule in rules]
        renewed = {(grant.rule, grant.outside) for grant in fresh}
        self._change(lambda old: [*(grant for grant in old if (grant.rule, grant.outside) not in renewed), *fresh])

    def forget(self, rule: str) -> int:
        """Remove the grants of this rule; return how many there were. Raises StorageError."""
        gone = 0

        def without(old: list[Grant]) -> list[Grant]:
            nonlocal gone
            rest = [grant for grant in old if grant.rule != rule]
            gone = len(old) - len(rest)
            return rest

        self._change(without)
        return gone

    def _change(self, change: _Change) -> None:
        try:
            make_private_folder(self.path.parent)
            with file_lock(self.path.with_suffix(".lock")):
                grants = [asdict(grant) for grant in change(self.all())[-_MAX_GRANTS:]]
                payload = json.dumps({"version": 1, "grants": grants}, ensure_ascii=False, indent=2)
                write_atomic(self.path, payload + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error

    def _unusable(self, error: Exception) -> StorageError:
        reason = getattr(error, "strerror", None) or (
            error if isinstance(error, ValueError) else "it contains no rules"
        )
        return StorageError(
            f"{self.path} cannot be read: {reason}. Move it away; you will be asked about its rules again."
        )


NO_GRANTS = "There are no permanent approvals."


def describe_grant(grant: Grant) -> str:
    """One line for a grant."""
    when = " (while untrusted content is in play)" if grant.outside else ""
    return f"{' '.join(grant.rule.split())}{when}, until {grant.expires[:10]}"


def describe_forgotten(rule: str, count: int) -> str:
    """The answer to removing the grants of a rule."""
    if not count:
        return f"No rule is called {rule}; `list` shows those there are."
    return f"From now on I ask about {rule} again."
