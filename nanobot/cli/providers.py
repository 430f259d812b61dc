"""`nanobot provider`: the ways to reach models, and which of them have a key here."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from nanobot.cli.common import ConfigOption, JsonOption, read_setup, show_json, show_rows
from nanobot.config.masking import shown
from nanobot.config.provider_table import PROVIDERS, ProviderSpec, spec_for
from nanobot.config.schema import Config


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

    @property
    def key_words(self) -> str:
        """The key's state for a table."""
        if self.key:
            return f"{self.key} ({self.key_from})"
        if self.local:
            return "not needed"
        return "by account" if self.account else "-"


def list_(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Providers of models: keys, addresses, default models."""
    providers = list(provider_facts(read_setup(config, None).config, os.environ))
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


def provider_facts(config: Config, environ: Mapping[str, str]) -> Iterator[ProviderFacts]:
    """Every provider of the table, then those that only the config knows."""
    sections = config.providers.by_name()
    own = [spec_for(name) for name in sections if not any(spec.name == name for spec in PROVIDERS)]
    for spec in (*PROVIDERS, *own):
        section = sections.get(spec.name)
        key_from, key = _key(spec, section.api_key if section else "", environ)
        yield ProviderFacts(
            name=spec.name,
            display_name=spec.display_name,
            key_from=key_from,
            key=str(shown(("apiKey",), key)),
            api_base=(section.api_base if section else None) or spec.default_api_base or "",
            default_model=spec.default_model or "",
            backend="direct" if spec.is_direct(section.backend if section else "auto") else "litellm",
            local=spec.is_local,
            account=spec.is_oauth,
        )


def _key(spec: ProviderSpec, in_config: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Where its key is, and the key."""
    if in_config:
        return f"providers.{spec.config_key}.apiKey", in_config
    return spec.variable_in(environ), spec.key_in(environ) or ""
