"""`!command` in the chat: a shell command of the person's own, through the agent's exec tool and all that guards it."""

from pathlib import Path
from typing import Any, Protocol

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.shell import typed_by_owner
from nanobot.bus.events import Address
from nanobot.cli.terminal import visible
from nanobot.messages.types import text_of
from nanobot.utils.clock import Clock

MARK = "!"


class ToolCaller(Protocol):
    """Who runs tools by name."""

    def has(self, name: str) -> bool:
        """Whether there is such a tool."""
        ...

    async def call(self, name: str, params: dict[str, Any], ctx: ToolContext | None = None) -> ToolResult:
        """Run it; a failure is a result too."""
        ...


async def shell_escape(
    line: str, tools: ToolCaller, *, session_key: str, address: Address, workspace: Path, clock: Clock
) -> tuple[list[str], bool]:
    """Run what stands behind the mark; the lines of its output, and whether it went well. No model hears of it."""
    command, problem = command_of(line, is_on=tools.has("exec"))
    if problem:
        return [problem], False
    context = ToolContext(session_key, address, turn_id="", workspace=workspace, clock=clock)
    result = await tools.call("exec", {"command": command}, typed_by_owner(command, context))
    return shown_output(text_of(result.content)), not result.error


def command_of(line: str, *, is_on: bool) -> tuple[str, str]:
    """What is to be run; or why nothing is."""
    command = line.strip().removeprefix(MARK).strip()
    if not command:
        return "", "Write a shell command behind the mark, for example: !ls"
    if not is_on:
        return "", "Shell commands are off. Set tools.exec.enable to true in the config."
    return command, ""


def shown_output(text: str) -> list[str]:
    """The lines of a command's output, as a screen can show them."""
    return visible(text).expandtabs(8).splitlines()
