"""nanobot as a library: a bot in your program, or the one of the gateway that runs.

async with Nanobot.from_config() as bot:
    print(await bot.run("What is in my workspace?"))

`bot` has the class, `result` what a run returns, `functions` tools from functions, `output` typed answers. The twin
without asyncio is `nanobot.sync`.
"""

from typing import TYPE_CHECKING, Any

from nanobot.agent.hooks import Hook
from nanobot.sdk.bot import Nanobot
from nanobot.sdk.result import ApprovalRequest, Call, OutputInvalid, RunResult, Step, TurnFailed, Usage
from nanobot.sdk.run import RunStream

if TYPE_CHECKING:
    from nanobot.agent.tools.base import ToolContext
    from nanobot.sdk.functions import File, Image, tool

__all__ = [
    "ApprovalRequest", "Call", "File", "Hook", "Image", "Nanobot", "OutputInvalid", "RunResult", "RunStream", "Step",
    "ToolContext", "TurnFailed", "Usage", "tool",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import what brings pydantic on first use."""
    if name in ("File", "Image", "tool"):
        from nanobot.sdk import functions

        return getattr(functions, name)
    if name == "ToolContext":
        from nanobot.agent.tools.base import ToolContext

        return ToolContext
    raise AttributeError(f"module 'nanobot.sdk' has no attribute {name!r}")
