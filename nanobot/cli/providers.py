"""`nanobot provider list`: the ways to reach models, and which of them have a key or an account here."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from nanobot.cli.common import ConfigOption, JsonOption, read_setup, show_json, show_rows
from nanobot.config.masking import shown
from nanobot.config.paths import Places
from nanobot.config.provider_table import PROVIDERS, ProviderSpec, spec_for
from nanobot.config.schema import Config
from nanobot.providers.oauth.accounts import Account, AccountStore
from nanobot.providers.oauth.errors import spoken


@dataclass(frozen=True)
class ProviderFacts:
    """A provider as it is set up here."""

    name: str
    display_name: str
    key_from: str
    """The config key or the environment variable that holds its key; empty without one."""
    key: str
    """The key, masked."""
    api_base: str
    default_model: str
    backend: str
    local: bool
    account: bool
    """Whether it is reached by an account instead of a key."""
    logged_in: str = ""
    """Who is logged in; empty where nobody is."""
    token_until: str = ""
    """When its token ends; it is renewed before that."""
    login_ended: bool = False
    """Whether the provider takes the login no longer."""

    @property
    def key_words(self) -> str:
        """The key's state for a table."""
        if self.key:
            return f"{self.key} ({self.key_from})"
        if self.local:
            return "not needed"
        return self.account_words if self.account else "-"

    @property
    def account_words(self) -> str:
        """Who is logged in, and whether that still holds."""
        if not self.logged_in:
            return "not logged in"
        if self.login_ended:
            return f"login ended: {self.logged_in}; `nanobot provider login {spoken(self.name)}`"
        return f"{self.logged_in}{f', token until {self.token_until}' if self.token_until else ''}"


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Providers of models: keys, addresses, default models."""
    setup = read_setup(config, None, secrets=False)
    providers = list(provider_facts(setup.config, os.environ, setup.data_dir))
    if json:
        show_json([asdict(facts) for facts in providers])
        return
    show_rows(
        ("Provider", "Key", "Base URL", "Default model", "Reached by"),
        [
            (facts.name, facts.key_words, facts.api_base or "-", facts.default_model or "-", facts.backend)
            for facts in providers
        ],
        empty="There are no providers.",
    )


def provider_facts(config: Config, environ: Mapping[str, str], data_dir: Path) -> Iterator[ProviderFacts]:
    """Every provider of the table, then those that only the config knows."""
    sections = config.providers.by_name()
    accounts = {account.provider: account for account in AccountStore.in_state(Places(data_dir).state).all()}
    own = [spec_for(name) for name in sections if not any(spec.name == name for spec in PROVIDERS)]
    for spec in (*PROVIDERS, *own):
        section = sections.get(spec.name)
        key_from, key = _key(spec, section.api_key if section else "", environ)
        account = accounts.get(spec.name) if spec.is_oauth else None
        direct = spec.is_oauth or spec.is_direct("auto")
        backend = section.backend if section else "auto"
        yield ProviderFacts(
            name=spec.name,
            display_name=spec.display_name,
            key_from=key_from,
            key=str(shown(("apiKey",), key)),
            api_base=(section.api_base if section else None) or spec.default_api_base or "",
            default_model=spec.default_model or "",
            backend=("direct" if direct else "litellm") if backend == "auto" else backend,
            local=spec.is_local,
            account=spec.is_oauth,
            logged_in=_who(account) if account else "",
            token_until=_moment(account.expires_at) if account else "",
            login_ended=bool(account and account.refused),
        )


def _who(account: Account) -> str:
    return f"{account.name or 'logged in'}{f' ({account.plan})' if account.plan else ''}"


def _moment(seconds: float | None) -> str:
    try:
        return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M") if seconds else ""
    except (OSError, OverflowError, ValueError):  # an authority may say anything
        return ""


def _key(spec: ProviderSpec, in_config: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Where its key is, and the key."""
    if in_config:
        return f"providers.{spec.config_key}.apiKey", in_config
    return spec.variable_in(environ), spec.key_in(environ) or ""
