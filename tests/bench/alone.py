"""The config of figures about turns: nothing is moved into memory beside them, which no stand-in model could do."""

from pathlib import Path
from typing import Any

from nanobot.config.schema import Config


def turns_alone(home: Path | None = None, url: str | None = None) -> Config:
    """A model at this address, where one is given."""
    defaults: dict[str, Any] = {"memoryWindow": 100_000}
    if home is None or url is None:
        return Config.model_validate({"agents": {"defaults": defaults}})
    defaults |= {"provider": "custom", "model": "m", "workspace": str(home / "w")}
    return Config.model_validate({"agents": {"defaults": defaults}, "providers": {"custom": {"apiBase": url}}})
