"""What endpoints turned out to take, learned from their refusals, kept so that a mistake is made once."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.utils.files import make_private_folder, write_atomic


@dataclass(frozen=True, slots=True)
class Learned:
    """What was learned about one model at one endpoint."""

    dropped: frozenset[str] = frozenset()
    """Fields it calls unknown or unsupported."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Fields it wants under another name."""
    needs: frozenset[str] = frozenset()
    """What it cannot do without: `reasoning_content`, `merged_users`."""


class CapabilityStore:
    """`state/capabilities.json`. What cannot be read counts as nothing learned; a disk that refuses is no failure."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, Learned] | None = None

    def get(self, api_base: str, model: str) -> Learned:
        """What is known of a model at an endpoint."""
        if self._known is None:
            self._known = self._load()
        return self._known.get(_key(api_base, model), Learned())

    def learn(
        self,
        api_base: str,
        model: str,
        *,
        drop: str | None = None,
        rename: tuple[str, str] | None = None,
        need: str = "",
    ) -> bool:
        """Remember one thing more. False when it was known already: then trying again would change nothing."""
        known = self.get(api_base, model)
        new = Learned(
            known.dropped | ({drop} if drop else set()),
            known.renamed | ({rename[0]: rename[1]} if rename else {}),
            known.needs | ({need} if need else set()),
        )
        if new == known:
            return False
        # Another process may have learned something meanwhile.
        self._known = {**self._load(), **(self._known or {}), _key(api_base, model): new}
        self._save()
        return True

    def _load(self) -> dict[str, Learned]:
        if self._path is None:
            return {}
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return (
            {key: _learned(entry) for key, entry in data.items() if isinstance(entry, dict)}
            if isinstance(data, dict)
            else {}
        )

    def _save(self) -> None:
        if self._path is None:
            return
        data = {
            key: {"dropped": sorted(entry.dropped), "renamed": entry.renamed, "needs": sorted(entry.needs)}
            for key, entry in sorted((self._known or {}).items())
        }
        try:
            make_private_folder(self._path.parent)
            write_atomic(self._path, json.dumps(data, indent=2) + "\n")
        except OSError:
            pass  # it is learned for this process, and again by the next


def _key(api_base: str, model: str) -> str:
    return f"{api_base.rstrip('/')} {model}"


def _learned(entry: dict[str, Any]) -> Learned:
    renamed = entry.get("renamed")
    return Learned(
        _words(entry.get("dropped")),
        {str(old): str(new) for old, new in renamed.items()} if isinstance(renamed, dict) else {},
        _words(entry.get("needs")),
    )


def _words(value: object) -> frozenset[str]:
    return frozenset(map(str, value)) if isinstance(value, list) else frozenset()
