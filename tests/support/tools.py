"""Calling a tool, files for it to work on, and tools that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import Tool, ToolResult
from nanobot.messages.types import ChatMessage
from nanobot.testing import Bot, calls

Call = Callable[..., Awaitable[ToolResult]]


def lay(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write files and their folders."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


async def call_in_turn(bot: Bot, name: str, text: str = "go", /, **arguments: Any) -> ChatMessage:
    """Have the model call a tool in a turn of the owner's, and return what it gets back."""
    bot.provider.script(calls((name, arguments)), "done")
    await bot.say(text)
    return bot.requests[-1][-1]


class DeafTool(Tool):
    """A tool that ignores cancellation until `over` is set."""

    name = "deaf"
    description = "does not stop"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.over = asyncio.Event()

    async def execute(self, **kwargs: Any) -> str:
        self.running.set()
        while not self.over.is_set():
            try:
                await self.over.wait()
            except asyncio.CancelledError:
                continue
        return "much too late"
