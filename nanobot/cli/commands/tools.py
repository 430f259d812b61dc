"""`nanobot tools`: list the tools the agent can call."""

import asyncio
import os
import sys

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import build_tools
from nanobot.agent.tools.images import ImageTool
from nanobot.cli.commands.mcp import read_server_setup
from nanobot.cli.common import JsonOption
from nanobot.cli.output import Column, print_line, print_list
from nanobot.cli.terminal import is_terminal
from nanobot.providers.images import choose_image_model
from nanobot.runtime.policies import mcp_servers, own_tools, tool_policies
from nanobot.runtime.toolbox import SERVICE_TOOLS
from nanobot.utils.aio import WorkerThread
from nanobot.utils.clock import SystemClock


def list_(json: JsonOption = False) -> None:
    """List the tools the agent can call. MCP tools are those offered last time; no server is started."""
    setup = read_server_setup()
    worker = WorkerThread()
    tools = build_tools(tool_policies(setup.config, setup.data_dir, setup.workspace))
    if setup.config.tools.custom_tools:
        asyncio.run(own_tools(setup.config, setup.workspace, worker).refresh(tools))
    servers = mcp_servers(setup.config, setup.data_dir, setup.workspace, SystemClock())
    if servers is not None:
        asyncio.run(servers.load_listings())
        offered = servers.tools()
        for tool in [*offered, *servers.in_requests(offered)]:
            tools.register(tool)
    if setup.config.plugins.enabled:
        from nanobot.runtime.plugins import load_packages  # slow to import

        load_packages(setup.config.plugins, worker).offer(tools)
    # These need the services of a running bot, but their classes have name and description too.
    shown: list[Tool | type[Tool]] = [*tools, *SERVICE_TOOLS]
    if choose_image_model(setup.config, os.environ) is not None:
        shown.append(ImageTool)
    shown.sort(key=lambda tool: tool.name)
    columns: dict[str, Column] = {
        "Tool": "name",
        "Effect": "effect",
        "What it does": lambda tool: tool.description.strip().split("\n")[0].split(". ")[0],
    }
    print_list(
        shown,
        columns,
        as_json=json,
        empty="No tool is enabled.",
        to_json=lambda tool: {key: getattr(tool, key) for key in ("name", "description", "effect", "parameters")},
    )
    if is_terminal(sys.stdout) and not json:
        print_line("Effect: read changes nothing, repeatable may run twice, once may not.", err=True)
