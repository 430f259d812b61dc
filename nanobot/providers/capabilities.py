"""What endpoints accept, learned from their error responses and stored so that a rejected field is sent only once.

A fact is `drop FIELD` (the endpoint rejects it; also `drop images`) or `need THING`: `need max_completion_tokens` in
place of `max_tokens`, `need reasoning_content`, `need merged_users`, `need responses`.
"""

import json
from pathlib import Path

from nanobot.utils.files import make_private_folder, write_atomic

Facts = frozenset[str]


class CapabilityStore:
    """`state/capabilities.json`. An unreadable file counts as empty; a failed write is ignored."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Facts] | None = None

    def get(self, api_base: str, model: str) -> Facts:
        """What is known about one model at one endpoint."""
        if self._known is None:
            self._known = self._load()
        return self._known.get(_key(api_base, model), frozenset())

    def learn(self, api_base: str, model: str, fact: str) -> bool:
        """Add a fact. Return False if it was known already: then retrying would change nothing."""
        before, stored = self.get(api_base, model), self._load()  # another process may have written since
        key = _key(api_base, model)
        self._known = {**(self._known or {}), **stored, key: before | stored.get(key, frozenset()) | {fact}}
        if fact in before:
            return False
        if self._path is not None:
            data = {name: sorted(facts) for name, facts in self._known.items()}
            try:
                make_private_folder(self._path.parent)
                write_atomic(self._path, json.dumps(data, indent=2) + "\n")
            except OSError:
                pass  # this process knows it; the next one learns it again
        return True

    def _load(self) -> dict[str, Facts]:
        try:
            data = json.loads(self._path.read_bytes()) if self._path is not None else {}
            return {name: frozenset(map(str, facts)) for name, facts in data.items()}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return {}


def _key(api_base: str, model: str) -> str:
    return f"{api_base.rstrip('/')} {model}"
