"""Which provider serves a model, from config and environment alone. Pure.

In this order: an explicit provider; the model's prefix; its keywords; a key in the config, gateways first; a key in the
environment. Local servers and the offline provider follow in providers/factory.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from nanobot.config.provider_table import (
    AUTO,
    DEFAULT_MODEL,
    PROVIDERS,
    ProviderSpec,
    by_keywords,
    by_prefix,
    spec_for,
    wire_model,
)

Reason = Literal["explicit", "prefix", "keyword", "key", "environment"]


class ProviderSection(Protocol):
    """The fields of `providers.<name>` that matching needs."""

    @property
    def api_key(self) -> str:
        """The key in the config; may be empty."""
        ...

    @property
    def api_base(self) -> str | None:
        """The base URL in the config, if set."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderMatch:
    """The chosen provider, the model in the owner's notation, and the reason."""

    spec: ProviderSpec
    model: str
    reason: Reason
    explanation: str

    @property
    def wire_model(self) -> str:
        """The model name to send."""
        return wire_model(self.spec, self.model)


def match_provider(
    model: str,
    provider: str,
    sections: Mapping[str, ProviderSection],
    environ: Mapping[str, str],
) -> ProviderMatch | None:
    """The provider that serves the model; None if neither config nor environment names one. Pure.

    `sections` are the providers of the config by name. The default model is not a choice: a provider that was found by
    its key alone, and is not a gateway, uses its own default model.
    """
    if provider and provider != AUTO:
        spec = spec_for(provider)
        return ProviderMatch(spec, model, "explicit", f"agents.defaults.provider is {provider}")
    by_name = _named_by_prefix(model, sections)
    if by_name and _is_usable(by_name, sections):
        return ProviderMatch(by_name, model, "prefix", f"the model begins with {model.partition('/')[0]}/")
    for spec in by_keywords(model):
        if _is_configured(spec, sections):
            return ProviderMatch(spec, model, "keyword", f"the model's name is one of {spec.display_name}")
    for spec in sorted(PROVIDERS, key=lambda spec: not spec.is_gateway):
        if _is_configured(spec, sections):
            chosen_model = (spec.default_model or model) if model == DEFAULT_MODEL else model
            return ProviderMatch(spec, chosen_model, "key", f"providers.{spec.config_key} is set up")
    return _match_environment(model, environ)


def _match_environment(model: str, environ: Mapping[str, str]) -> ProviderMatch | None:
    """The provider whose key is in the environment: one that serves the model, else the first, with its own model."""
    candidates = [*by_prefix(model), *by_keywords(model)]
    for spec in (*candidates, *PROVIDERS):
        if not spec.env_key(environ) or not spec.default_model:
            continue
        keeps_model = spec in candidates or (spec.is_gateway and model != DEFAULT_MODEL)
        explanation = f"{spec.env_variable(environ)} is in the environment"
        return ProviderMatch(spec, model if keeps_model else spec.default_model, "environment", explanation)
    return None


def _named_by_prefix(model: str, sections: Mapping[str, ProviderSection]) -> ProviderSpec | None:
    """The provider named before the first slash, including custom ones."""
    prefix, slash, _ = model.partition("/")
    custom = spec_for(prefix) if slash and prefix in sections else None
    return next(by_prefix(model), custom)


def _is_configured(spec: ProviderSpec, sections: Mapping[str, ProviderSection]) -> bool:
    section = sections.get(spec.name)
    if section is None or spec.is_oauth:
        return False
    return bool(section.api_key) or (not spec.needs_key and bool(section.api_base))


def _is_usable(spec: ProviderSpec, sections: Mapping[str, ProviderSection]) -> bool:
    """Configured, or needs no configuration: local servers, accounts, clouds with credentials of their own."""
    return spec.is_local or spec.is_oauth or spec.brings_credentials or _is_configured(spec, sections)
