"""The tools of a bot that need none of its other parts."""

import asyncio
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from nanobot.agent.command import TYPED, CommandCall, CommandEntry, is_from_owner
from nanobot.agent.goals.tool import GoalTool
from nanobot.agent.recovery import is_accepted
from nanobot.agent.subagent.spawn import SpawnTool
from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.builtin import ToolPolicies, register_builtin
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.images import ImageTool
from nanobot.agent.tools.message import MessageTool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.session_search import SessionSearchTool
from nanobot.agent.tools.shell import ExecTool
from nanobot.bus.events import InboundMessage
from nanobot.cron.commands import ANSWERS, CHANGES, parse_answer, run_command
from nanobot.errors import StorageError
from nanobot.providers.images import choose_image_model
from nanobot.providers.metering import Spending
from nanobot.providers.resilience import ChosenProvider, ResilientProvider
from nanobot.runtime.policies import mcp_servers, network_policy, own_tools, tool_policies
from nanobot.runtime.services import Services

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.agent.tools.own import OwnTools
    from nanobot.cron.service import CronService
    from nanobot.cron.tool_backend import CronToolBackend

_WORDS_COUNT_S = 24 * 60 * 60
"""How long after a reminder a word can answer it."""

SERVICE_TOOLS: tuple[type[Tool], ...] = (CronTool, GoalTool, MessageTool, SessionSearchTool, SpawnTool)
"""Tools of every bot that are registered where their service is created."""


class Toolbox:
    """The tools of a bot with their policies: built-in and custom tools, MCP servers. Nothing is started."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.tools = ToolRegistry()
        self.policies = self._make_policies()
        self.servers: McpServers | None = None
        self._builtin: list[Tool] = []
        self._own: OwnTools | None = None
        self._renew_builtin()
        self.tools.register(CronTool(self.cron_backend))
        self._renew_own(self.policies)
        self._add_servers()

    @cached_property
    def cron(self) -> "CronService":
        """The jobs of the workspace, with those of earlier releases. None runs before it is started."""
        from nanobot.cron.service import CronService  # imported on first use: 40 ms

        services, config = self.services, self.services.config
        cron = CronService(
            services.workspace / "cron" / "jobs.json",
            clock=services.clock,
            timezone=config.agents.defaults.timezone,
            channels={**config.channels.enabled_by_name(), "web": config.gateway.web.enabled},
            was_started=lambda job, due: is_accepted(
                services.places.turns, services.sessions, job.run_session, due.message_id
            ),
            data_dir=services.places.data,
        )
        cron.adopt(services.places.legacy_jobs)
        return cron

    def cron_backend(self) -> "CronToolBackend":
        """Return the jobs as the `cron` tool uses them."""
        from nanobot.cron.tool_backend import CronToolBackend  # imported on first use

        return CronToolBackend(self.cron, self.services.privacy.is_allowed)

    async def renew(self) -> None:
        """Replace the tools after a change of the config. Running turns keep their tools."""
        config = self.services.config
        former, self.policies = self.policies, self._make_policies()
        self._renew_builtin()
        self._renew_own(former)
        if self.servers is None:
            self._add_servers()
        else:
            await self.servers.change(config.tools.mcp_servers, network_policy(config))

    def _make_policies(self) -> ToolPolicies:
        services = self.services
        policies = tool_policies(
            services.config,
            services.data_dir,
            services.workspace,
            is_private=services.privacy.is_owners_own,
            environ=services.environ,
        )
        return replace(policies, marks=services.file_provenance)

    def _renew_builtin(self) -> None:
        former = {tool.name: tool for tool in self._builtin}
        self._builtin = register_builtin(self.policies, self.tools)
        for tool in self._builtin:
            before = former.pop(tool.name, None)
            if isinstance(tool, ExecTool) and isinstance(before, ExecTool):
                tool.background = before.background
        for name in former:
            self.tools.unregister(name)

    def _renew_own(self, former: ToolPolicies) -> None:
        is_enabled = self.services.config.tools.custom_tools
        if self._own is not None and not (is_enabled and former.paths.allowed == self.policies.paths.allowed):
            self._own.withdraw(self.tools)
            self.tools.remove_source(self._own)
            self._own = None
        if is_enabled and self._own is None:
            self._own = own_tools(self.services.config, self.services.workspace, self.services.worker)
            self.tools.add_source(self._own)

    def _add_servers(self) -> None:
        services = self.services
        self.servers = mcp_servers(services.config, services.data_dir, services.workspace, services.clock)
        if self.servers is not None:
            self.tools.add_source(self.servers)


def offer_image_tool(toolbox: Toolbox, spending: Spending) -> None:
    """Register the `image` tool where an image model can be reached; called again after a change of the config."""
    toolbox.tools.unregister(ImageTool.name)
    image_model = choose_image_model(toolbox.services.config, toolbox.services.environ)
    if image_model is not None:
        metered = spending.add_meter(image_model, image_model.name)
        model = ChosenProvider(metered, image_model.name, image_model.get_default_model())
        provider = ResilientProvider([model])
        toolbox.tools.register(ImageTool(provider, toolbox.policies.paths))


def cron_command(toolbox: Toolbox) -> CommandEntry:
    """`/cron`: the jobs of the chat and answers to its reminders; for the owner, all jobs."""

    async def answer(call: CommandCall) -> str:
        word = call.argument.partition(" ")[0].lower()
        if word in CHANGES and not is_from_owner(call.message):
            return "Only an owner may change jobs."
        if word in ANSWERS and call.message.origin not in TYPED:
            return "Only a person may answer a reminder."
        return await asyncio.to_thread(run_command, toolbox.cron_backend(), call.argument, call.scope.chat)

    return CommandEntry(answer, "jobs and reminders", "remove | enable | disable | run")


async def reminder_answer(toolbox: Toolbox, message: InboundMessage) -> str | None:
    """The `/cron` command meant by `done`, `snooze 1h` or `tomorrow` right after a reminder in the chat, else None."""
    is_words_only = message.origin in TYPED and not message.media and not message.attachments
    answer = parse_answer(message.own_words) if is_words_only else None
    if answer is None or (message.in_group and not message.is_mentioned):
        return None
    try:
        job = await asyncio.to_thread(toolbox.cron.last_delivered, message.address)
        session = await asyncio.to_thread(toolbox.services.sessions.get_or_create, message.session_key)
    except StorageError:
        return None  # the turn reports it
    if job is None:
        return None
    delivered = job.runs.delivered_ms / 1000
    if toolbox.services.clock.now().timestamp() - delivered > _WORDS_COUNT_S:
        return None
    if session.message_count and session.updated_at.timestamp() > delivered:
        return None  # the chat went on since
    return f"/cron {answer[0]} {job.id} {answer[1]}".strip()
