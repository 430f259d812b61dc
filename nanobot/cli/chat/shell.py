"""`!command` in the chat: run the user's shell command through the exec tool, with its sandbox and guards."""

from pathlib import Path

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import run_for_owner
from nanobot.bus.events import Address
from nanobot.cli.terminal import strip_control
from nanobot.messages.types import text_of
from nanobot.utils.clock import Clock

SHELL_PREFIX = "!"


async def run_shell_command(
    line: str, tools: ToolRegistry, *, session_key: str, address: Address, workspace: Path, clock: Clock
) -> tuple[list[str], bool]:
    """Run the command after the `!`; return its output lines and whether it succeeded. No model sees it."""
    command, problem = parse_shell_command(line, is_on=tools.has("exec"))
    if problem:
        return [problem], False
    context = ToolContext(session_key, address, turn_id="", workspace=workspace, clock=clock)
    result = await run_for_owner(tools, command, context)
    return output_lines(text_of(result.content)), not result.error


def parse_shell_command(line: str, *, is_on: bool) -> tuple[str, str]:
    """The command, and an error text if it cannot be run."""
    command = line.strip().removeprefix(SHELL_PREFIX).strip()
    if not command:
        return "", "Write a shell command after the !, for example: !ls"
    if not is_on:
        return "", "Shell commands are disabled. Set tools.exec.enable to true in the config."
    return command, ""


def output_lines(text: str) -> list[str]:
    """A command's output as lines for the screen."""
    return strip_control(text).expandtabs(8).splitlines()
