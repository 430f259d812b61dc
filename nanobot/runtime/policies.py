"""The policies of tools, turns and the loop, and the tools of MCP servers and of the workspace, from the config."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.delivery import DeliveryPolicy
from nanobot.agent.loop import LoopPolicy
from nanobot.agent.pipeline.turn import TurnTimeouts
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.inbox import InboxPolicy, Mailbox
from nanobot.agent.tools.web.policy import SearchPolicy, WebPolicy
from nanobot.agent.tools.web.search import ENVIRONMENT
from nanobot.bus.events import FEED_CHANNELS, Address
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.net.egress import NetworkPolicy
from nanobot.runtime.sandbox import named_places, path_policy
from nanobot.security.secrets import find_secret
from nanobot.utils.aio import WorkerThread
from nanobot.utils.clock import Clock, find_zone

if TYPE_CHECKING:
    from nanobot.agent.tools.mcp.source import McpServers
    from nanobot.agent.tools.own import OwnTools

_SPARE_S = 300.0
"""Added to the longest configured timeout of a model or server: that one has to expire first, since it names what was
slow.
"""
_MAX_CONCURRENT_TURNS = 64
_HOOKS = 12
"""So many hooks may time out one after the other before the turn counts as hung."""


def turn_timeouts(config: Config) -> TurnTimeouts:
    """Return the timeouts of a turn, always longer than what the config allows a model, a server or a hook."""
    defaults, hooks_s = TurnTimeouts(), _HOOKS * config.plugins.hook_timeout_s
    timeouts = [server.tool_timeout for server in config.tools.mcp_servers.values()]
    for provider in config.providers.by_name().values():
        timeouts += [limit for limit in (provider.first_token_timeout_s, provider.idle_timeout_s) if limit is not None]
    return replace(
        defaults,
        run_silence=max(defaults.run_silence, max(timeouts, default=0) + _SPARE_S, hooks_s),
        other_phases=max(defaults.other_phases, hooks_s),
    )


def tool_policies(
    config: Config,
    data_dir: Path,
    workspace: Path,
    *,
    is_private: Callable[[Address], bool] = lambda chat: False,
    environ: Mapping[str, str] | None = None,
) -> ToolPolicies:
    """Return the policies of the built-in tools. `is_private`: whether the owner's mail may be shown in a chat."""
    return ToolPolicies(
        path_policy(config, data_dir, workspace),
        _exec_policy(config, data_dir),
        _inbox_policy(config, is_private),
        _web_policy(config, os.environ if environ is None else environ),
        reads_back=config.agents.defaults.review,
    )


def network_policy(config: Config) -> NetworkPolicy:
    """Return where requests of the agent may go."""
    return NetworkPolicy(tuple(config.tools.ssrf_whitelist), proxy=config.tools.web.proxy or None)


def _exec_policy(config: Config, data_dir: Path) -> ExecPolicy | None:
    settings = config.tools.exec
    if not settings.enable:
        return None
    return ExecPolicy(
        timeout_s=settings.timeout,
        path_prepend=settings.path_prepend,
        path_append=settings.path_append,
        allowed_env_keys=tuple(settings.allowed_env_keys),
        sandbox=settings.sandbox,
        network=settings.network,
        tmp=DataPaths(data_dir).tmp,
        deny=tuple(settings.deny_patterns),
        allow=tuple(settings.allow_patterns),
    )


def _web_policy(config: Config, environ: Mapping[str, str]) -> WebPolicy | None:
    web = config.tools.web
    if not web.enable:
        return None
    environment = {name: environ[name] for name in ENVIRONMENT if environ.get(name)}
    search = SearchPolicy(
        web.search.provider, web.search.api_key, web.search.base_url, web.search.max_results, environment
    )
    return WebPolicy(network_policy(config), web.fetch.max_chars, search, find_secret=find_secret)


def _inbox_policy(config: Config, is_private: Callable[[Address], bool]) -> InboxPolicy | None:
    """None without a mailbox whose owner gave consent."""
    mail = config.channels.email
    if not (mail.enabled and mail.consent_granted and mail.imap_host):
        return None

    def open_mailbox() -> Mailbox:
        from nanobot.channels.registry import load_channel  # imported on first use

        load_channel("email")  # its error names the missing package
        from nanobot.channels.email.mailbox import MailReader

        return MailReader(lambda: config.channels.email, find_zone(config.agents.defaults.timezone))

    return InboxPolicy(open_mailbox, is_private)


def own_tools(config: Config, workspace: Path, worker: WorkerThread) -> "OwnTools":
    """Return the custom tools of the workspace, not loaded yet."""
    from nanobot.agent.tools.own import OwnTools  # imported only if used

    return OwnTools(workspace, worker, named_places(config.tools.allowed_paths))


def mcp_servers(config: Config, data_dir: Path, workspace: Path, clock: Clock) -> "McpServers | None":
    """Return the configured MCP servers, not started yet; None if there are none."""
    if not config.tools.mcp_servers:
        return None
    from nanobot.agent.tools.mcp.source import McpServers  # imported only if used

    return McpServers(
        config.tools.mcp_servers,
        state_dir=DataPaths(data_dir).mcp,
        workspace=workspace,
        clock=clock,
        network=network_policy(config),
    )


def loop_policy(config: Config, environ: Mapping[str, str], streams: Callable[[str], bool]) -> LoopPolicy:
    """Return the loop's policy. `streams`: whether the channel of that name shows an answer while it is generated."""
    try:
        max_concurrent_turns = int(environ.get("NANOBOT_MAX_CONCURRENT_REQUESTS", ""))
    except ValueError:
        max_concurrent_turns = _MAX_CONCURRENT_TURNS

    def delivery(name: str) -> DeliveryPolicy:  # a channel's own settings, else those of `channels`
        channels = config.channels
        if name in FEED_CHANNELS:
            return DeliveryPolicy(progress=False)
        section = channels.section(name)
        return DeliveryPolicy(
            channels.send_progress if section.send_progress is None else section.send_progress,
            channels.send_tool_hints if section.send_tool_hints is None else section.send_tool_hints,
            channels.show_reasoning if section.show_reasoning is None else section.show_reasoning,
            streams(name),
        )

    return LoopPolicy(max_concurrent_turns, config.agents.defaults.steering == "join", delivery)
