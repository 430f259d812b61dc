"""Calling a tool, and tools that misbehave."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from nanobot.agent.tools.base import Tool, ToolResult

Call = Callable[..., Awaitable[ToolResult]]


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
