"""What endpoints accept, learned from their error responses and stored so that a rejected field is sent only once."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.utils.files import make_private_folder, write_atomic

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class EndpointCapabilities:
    """What is known about one model at one endpoint."""

    dropped: frozenset[str] = frozenset()
    """Fields it rejects."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Fields it wants under another name."""
    needs: frozenset[str] = frozenset()
    """What it requires: `reasoning_content`, `merged_users`."""


class CapabilityStore:
    """`state/capabilities.json`. An unreadable file counts as empty; a failed write is ignored."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._known: dict[str, EndpointCapabilities] | None = None

    def get(self, api_base: str, model: str) -> EndpointCapabilities:
        if self._known is None:
            self._known = self._load()
        return self._known.get(_key(api_base, model), EndpointCapabilities())

    def learn(
        self,
        api_base: str,
        model: str,
        *,
        drop: str | None = None,
        rename: tuple[str, str] | None = None,
        need: str = "",
    ) -> bool:
        """Add one fact. Return False if it was known already: then retrying would change nothing."""
        before, key = self.get(api_base, model), _key(api_base, model)
        self._known = {**(self._known or {}), **self._load()}  # another process may have written since
        stored = self._known.get(key, before)
        self._known[key] = updated = EndpointCapabilities(
            before.dropped | stored.dropped | ({drop} if drop else set()),
            before.renamed | stored.renamed | ({rename[0]: rename[1]} if rename else {}),
            before.needs | stored.needs | ({need} if need else set()),
        )
        if updated == before:
            return False
        self._save()
        return True

    def _load(self) -> dict[str, EndpointCapabilities]:
        if self._path is None or not self._path.exists():
            return {}
        try:
            return _codec().validate_json(self._path.read_bytes())
        except (OSError, ValueError):
            return {}

    def _save(self) -> None:
        if self._path is None or self._known is None:
            return
        try:
            make_private_folder(self._path.parent)
            write_atomic(self._path, _codec().dump_json(self._known, indent=2).decode() + "\n")
        except OSError:
            pass  # this process knows it; the next one learns it again


@cache
def _codec() -> "TypeAdapter[dict[str, EndpointCapabilities]]":
    from pydantic import TypeAdapter  # only where something was learned

    return TypeAdapter(dict[str, EndpointCapabilities])


def _key(api_base: str, model: str) -> str:
    return f"{api_base.rstrip('/')} {model}"
