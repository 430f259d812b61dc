"""nanobot: a personal AI agent that one person owns. docs/architecture.md describes the packages."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanobot.sdk import Nanobot

__version__ = "0.1.0"
__all__ = ["Nanobot", "__version__"]


def __getattr__(name: str) -> object:
    """Import `Nanobot` lazily, so that `nanobot --help` stays fast."""
    if name == "Nanobot":
        from nanobot.sdk import Nanobot

        return Nanobot
    raise AttributeError(f"module 'nanobot' has no attribute {name!r}")
