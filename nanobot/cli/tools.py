"""`nanobot tools`: what the agent can call, and what a crash may repeat of it."""

import asyncio

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import build_tools
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.message import MessageTool
from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, read_setup, show_json, show_rows
from nanobot.config.paths import Places
from nanobot.utils.clock import SystemClock
from nanobot.wiring.policies import tool_policies
from nanobot.wiring.sources import mcp_servers, own_tools


def list_(config: ConfigOption = None, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """What the agent can call. Of MCP servers what they offered last: none is started."""
    setup = read_setup(config, workspace, secrets=False)
    tools = build_tools(tool_policies(setup.config, setup.data_dir, setup.workspace))
    if setup.config.tools.custom_tools:
        asyncio.run(own_tools(setup.config, setup.workspace).refresh(tools))
    servers = mcp_servers(setup.config, setup.data_dir, setup.workspace, SystemClock())
    if servers is not None:
        asyncio.run(servers.recall())
        for tool in servers.tools():
            tools.register(tool)
    if setup.config.plugins.enabled:
        from nanobot.wiring.plugins import loaded  # who has none does not wait for it

        loaded(setup.config.plugins, Places(setup.data_dir).plugin_book).offer(tools)
    # Every bot has two more, which need services: their classes tell of them as well.
    shown: list[Tool | type[Tool]] = sorted([*tools, CronTool, MessageTool], key=lambda tool: tool.name)
    if json:
        show_json(
            [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "effect": tool.effect,
                    "parameters": tool.parameters,
                }
                for tool in shown
            ]
        )
        return
    show_rows(
        ("Tool", "Effect", "What it does"),
        [(tool.name, tool.effect, tool.description.strip().split("\n")[0]) for tool in shown],
        empty="No tool is switched on.",
    )
