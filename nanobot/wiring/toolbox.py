"""The tools of a bot, before those that need its other parts."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.wiring import people
from nanobot.wiring.home import Home
from nanobot.wiring.jobs import cron_desk, cron_service
from nanobot.wiring.policies import tool_policies
from nanobot.wiring.review import read_back_of
from nanobot.wiring.sources import mcp_servers, own_tools

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.cron.service import CronService


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a bot, and what of them others ask for."""

    tools: ToolRegistry
    policies: ToolPolicies
    cron: Callable[[], "CronService"]
    may_speak: Callable[[str, str, str], bool]
    servers: "McpServers | None"


def toolbox(home: Home) -> Toolbox:
    """The built-in tools, the calendar, the user's own tools and those of MCP servers; nothing is started."""
    config, book = home.config, home.file_book
    is_private = partial(people.is_owners_own, config, home.pairing, home.sessions)
    policies = tool_policies(config, home.data_dir, home.workspace, is_private=is_private, environ=home.environ)
    policies = replace(policies, words_of=book.of, mark_changed=book.mark_changed, watch_reading=book.reading)
    policies = replace(policies, watch=read_back_of(config, home.workspace, policies.paths))
    tools = build_tools(policies)

    @cache
    def cron() -> "CronService":
        return cron_service(config, home.workspace, home.places, home.clock, home.sessions)

    may_speak = partial(people.may_speak, config, home.pairing)
    tools.register(CronTool(lambda: cron_desk(cron(), may_speak)))
    if config.tools.custom_tools:
        tools.add_source(own_tools(config, home.workspace))
    servers = mcp_servers(config, home.data_dir, home.workspace, home.clock)
    if servers is not None:
        tools.add_source(servers)
    return Toolbox(tools, policies, cron, may_speak, servers)
