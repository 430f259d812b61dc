"""`nanobot provider list`: the model providers, and which of them have a key or an account here."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nanobot.cli.common import JsonOption, read_setup
from nanobot.cli.output import Column, print_list
from nanobot.config.keypath import mask_value
from nanobot.config.paths import DataPaths
from nanobot.config.provider_table import PROVIDERS, spec_for
from nanobot.config.schema import Config
from nanobot.providers.accounts.store import AccountStore, command_name
from nanobot.utils.text import format_when


@dataclass(frozen=True)
class ProviderFacts:
    name: str
    display_name: str
    key_from: str
    """The config key or environment variable its API key comes from; empty without a key."""
    key: str
    """The key, masked."""
    api_base: str
    default_model: str
    backend: str
    local: bool
    account: bool
    """Whether it uses an account instead of an API key."""
    logged_in: str = ""
    """The account that is logged in; empty for none."""
    token_until: str = ""
    """When its token expires; it is renewed before that."""
    login_ended: bool = False
    """Whether the provider has rejected the login."""

    @property
    def key_words(self) -> str:
        if self.key:
            return f"{self.key} ({self.key_from})"
        if self.local:
            return "not needed"
        return self.account_words if self.account else "-"

    @property
    def account_words(self) -> str:
        """The account, and whether its login is still valid."""
        if not self.logged_in:
            return "not logged in"
        if self.login_ended:
            return f"login ended: {self.logged_in}; `nanobot provider login {command_name(self.name)}`"
        return f"{self.logged_in}{f', token until {self.token_until}' if self.token_until else ''}"


def list_(json: JsonOption = False) -> None:
    setup = read_setup(secrets=False)
    columns: dict[str, Column] = {
        "Provider": "name",
        "Key": lambda facts: facts.key_words,
        "Base URL": lambda facts: facts.api_base or "-",
        "Default model": lambda facts: facts.default_model or "-",
        "Backend": "backend",
    }
    providers = list(provider_facts(setup.config, os.environ, setup.data_dir))
    print_list(providers, columns, as_json=json, empty="There are no providers.")


def provider_facts(config: Config, environ: Mapping[str, str], data_dir: Path) -> Iterator[ProviderFacts]:
    """Every known provider, then custom ones from the config."""
    sections = config.providers.by_name()
    accounts = {account.provider: account for account in AccountStore.in_state(DataPaths(data_dir).state).all()}
    custom = [spec_for(name) for name in sections if not any(spec.name == name for spec in PROVIDERS)]
    for spec in (*PROVIDERS, *custom):
        section = sections.get(spec.name)
        key_from, key = spec.env_variable(environ), spec.env_key(environ) or ""
        if section and section.api_key:
            key_from, key = f"providers.{spec.config_key}.apiKey", section.api_key
        account = accounts.get(spec.name) if spec.is_oauth else None
        is_direct = spec.is_oauth or spec.is_direct("auto")
        backend = section.backend if section else "auto"
        yield ProviderFacts(
            name=spec.name,
            display_name=spec.display_name,
            key_from=key_from,
            key=str(mask_value(("apiKey",), key)),
            api_base=(section.api_base if section else None) or spec.default_api_base or "",
            default_model=spec.default_model or "",
            backend=("direct" if is_direct else "litellm") if backend == "auto" else backend,
            local=spec.is_local,
            account=spec.is_oauth,
            logged_in=f"{account.name or 'logged in'}{f' ({account.plan})' if account.plan else ''}" if account else "",
            token_until=_format_expiry(account.expires_at) if account else "",
            login_ended=bool(account and account.refused),
        )


def _format_expiry(seconds: float | None) -> str:
    try:
        return format_when(datetime.fromtimestamp(seconds).astimezone()) if seconds else ""
    except (OSError, OverflowError, ValueError):  # the server may have sent any number
        return ""
