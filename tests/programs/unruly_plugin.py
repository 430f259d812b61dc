"""A plugin whose tools and hooks do what no plugin should."""

import asyncio
import sys

from nanobot.agent.hooks import Hook
from nanobot.agent.tools.base import Effect, Tool, ToolResult


class OddError(BaseException):
    pass


async def raises_odd():
    raise OddError("odd")


async def exits():
    sys.exit(3)


async def interrupts():
    raise KeyboardInterrupt


async def cancels_itself():
    raise asyncio.CancelledError


async def cancels_all():
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(1)


async def number_for_text():
    return ToolResult(5)  # type: ignore[arg-type]


async def nothing_for_text():
    return ToolResult(None, error="yes", display=7, failure="x")  # type: ignore[arg-type]


async def broken_blocks():
    return ToolResult([{"type": "text"}, 7])  # type: ignore[list-item]


async def claims_trust():
    return ToolResult("hi", provenance="owner")  # type: ignore[arg-type]


async def stops_its_loop():
    asyncio.get_running_loop().stop()


async def good():
    return "good"


def tool_of(what):
    class Made(Tool):
        name, description, effect = what.__name__, "d", Effect.READ
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self):
            return await what()

    return Made()


def hook_of(what):
    class Made(Hook):
        async def on_message(self, message):
            return await what()

    return Made()
