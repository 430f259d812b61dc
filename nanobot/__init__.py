"""nanobot: a personal AI agent that one person owns.

Reading order: messages -> bus -> agent/turn -> agent/run/runner -> agent/pipeline -> agent/loop -> runtime.
docs/architecture.md draws the floors; import-linter keeps them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanobot.sdk import Nanobot

__version__ = "0.1.0"
__all__ = ["Nanobot", "__version__"]


def __getattr__(name: str) -> object:
    """`nanobot.Nanobot`, imported when somebody asks: `nanobot --help` must not pay for it."""
    if name == "Nanobot":
        from nanobot.sdk import Nanobot

        return Nanobot
    raise AttributeError(f"module 'nanobot' has no attribute {name!r}")
