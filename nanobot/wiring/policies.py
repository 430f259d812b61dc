"""What the built-in tools may do and how long a turn is waited for, as the config says."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from nanobot.agent.pipeline.work import Patience
from nanobot.agent.tools.builtin import ToolPolicies
from nanobot.agent.tools.inbox import InboxPolicy, Mailbox
from nanobot.agent.tools.shell import ExecPolicy
from nanobot.agent.tools.web.engines import ENVIRONMENT
from nanobot.agent.tools.web.policy import SearchPolicy, WebPolicy
from nanobot.bus.events import Address
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.security import vault
from nanobot.security.network import NetworkPolicy
from nanobot.utils.clock import zone_named
from nanobot.wiring.walls import path_policy

_SPARE_S = 300.0
"""Beyond the longest silence that the config allows: its own limit has to come first, since that says what was slow."""
_HOOKS = 12
"""So many may use up their time one after the other without being taken for a turn that hangs."""


def patience_of(config: Config) -> Patience:
    """How long a turn is waited for: always longer than what the config lets a model, a server or a hook take."""
    usual, hooks_s = Patience(), _HOOKS * config.plugins.hook_timeout_s
    silences = [server.tool_timeout for server in config.tools.mcp_servers.values()]
    for provider in config.providers.by_name().values():
        silences += [limit for limit in (provider.first_token_timeout_s, provider.idle_timeout_s) if limit is not None]
    return replace(
        usual,
        run_silence=max(usual.run_silence, max(silences, default=0) + _SPARE_S, hooks_s),
        any_other=max(usual.any_other, hooks_s),
    )


def tool_policies(
    config: Config,
    data_dir: Path,
    workspace: Path,
    *,
    is_private: Callable[[Address], bool] = lambda chat: False,
    environ: Mapping[str, str] | None = None,
) -> ToolPolicies:
    """What the built-in tools may do, as the config says. `is_private`: where the owner's mails may be told of."""
    return ToolPolicies(
        path_policy(config, data_dir, workspace),
        _exec_policy(config, data_dir),
        _inbox_policy(config, is_private),
        _web_policy(config, os.environ if environ is None else environ),
    )


def network_policy(config: Config) -> NetworkPolicy:
    """Where requests of the agent may go, as the config says."""
    return NetworkPolicy(tuple(config.tools.ssrf_whitelist), proxy=config.tools.web.proxy or None)


def _exec_policy(config: Config, data_dir: Path) -> ExecPolicy | None:
    settings = config.tools.exec
    if not settings.enable:
        return None
    return ExecPolicy(
        timeout_s=settings.timeout,
        path_append=settings.path_append,
        allowed_env_keys=tuple(settings.allowed_env_keys),
        sandbox=settings.sandbox,
        network=settings.network,
        cache=Places(data_dir).sandbox,
        tmp=Places(data_dir).tmp,
        deny=tuple(settings.deny_patterns),
        allow=tuple(settings.allow_patterns),
    )


def _web_policy(config: Config, environ: Mapping[str, str]) -> WebPolicy | None:
    web = config.tools.web
    if not web.enable:
        return None
    found = {name: environ[name] for name in ENVIRONMENT if environ.get(name)}
    search = SearchPolicy(web.search.provider, web.search.api_key, web.search.base_url, web.search.max_results, found)
    return WebPolicy(network_policy(config), web.fetch.max_chars, search, find_secret=vault.secret_in)


def _inbox_policy(config: Config, is_private: Callable[[Address], bool]) -> InboxPolicy | None:
    """None without a mailbox whose owner has given consent."""
    mail = config.channels.email
    if not (mail.enabled and mail.consent_granted and mail.imap_host):
        return None

    def open_mailbox() -> Mailbox:
        from nanobot.channels.registry import load_channel  # nothing of mail before somebody wants to read some

        load_channel("email")  # says what to install, where something is missing
        from nanobot.channels.email.reading import MailReader

        return MailReader(lambda: config.channels.email, zone_named(config.agents.defaults.timezone))

    return InboxPolicy(open_mailbox, is_private)
