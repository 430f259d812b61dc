"""Which provider serves a model, by config and environment alone. Pure.

The rule, in its order: an explicit provider; the model's prefix; its keywords; a key in the config, gateways first; a
key in the environment. Local servers that answer and the offline stand-in come after it, in providers/factory.py.
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
    """What matching needs to know of `providers.<name>`."""

    @property
    def api_key(self) -> str:
        """The key in the config, or nothing."""
        ...

    @property
    def api_base(self) -> str | None:
        """The address in the config, if one is set."""
        ...


@dataclass(frozen=True, slots=True)
class ProviderMatch:
    """The chosen provider, the model to ask it for (as the owner would write it), and why."""

    spec: ProviderSpec
    model: str
    reason: Reason
    because: str

    @property
    def wire_model(self) -> str:
        """The model as it goes out."""
        return wire_model(self.spec, self.model)


def match_provider(
    model: str,
    provider: str,
    sections: Mapping[str, ProviderSection],
    environ: Mapping[str, str],
) -> ProviderMatch | None:
    """Which provider serves the model; None where neither config nor environment says so. Pure.

    `sections` are the providers of the config by name. The default model counts as nobody's choice: a provider that
    was found by its key alone, and is no gateway to it, is asked for its own default model.
    """
    if provider and provider != AUTO:
        spec = spec_for(provider)
        return ProviderMatch(spec, model, "explicit", f"agents.defaults.provider is {provider}")
    named = _named_by_prefix(model, sections)
    if named and _is_usable(named, sections):
        return ProviderMatch(named, model, "prefix", f"the model begins with {model.partition('/')[0]}/")
    for spec in by_keywords(model):
        if _is_configured(spec, sections):
            return ProviderMatch(spec, model, "keyword", f"the model's name is one of {spec.display_name}")
    for spec in sorted(PROVIDERS, key=lambda spec: not spec.is_gateway):
        if _is_configured(spec, sections):
            asked = (spec.default_model or model) if model == DEFAULT_MODEL else model
            return ProviderMatch(spec, asked, "key", f"providers.{spec.config_key} is set up")
    return _match_environment(model, environ)


def _match_environment(model: str, environ: Mapping[str, str]) -> ProviderMatch | None:
    """The provider whose key is in the environment: one that fits the model, else the first, with its own model."""
    pointed_at = [*by_prefix(model), *by_keywords(model)]
    for spec in (*pointed_at, *PROVIDERS):
        if not spec.key_in(environ) or not spec.default_model:
            continue
        keeps_model = spec in pointed_at or (spec.is_gateway and model != DEFAULT_MODEL)
        because = f"{spec.variable_in(environ)} is in the environment"
        return ProviderMatch(spec, model if keeps_model else spec.default_model, "environment", because)
    return None


def _named_by_prefix(model: str, sections: Mapping[str, ProviderSection]) -> ProviderSpec | None:
    """The provider that the part before the first slash names, one of somebody's own too."""
    prefix, slash, _ = model.partition("/")
    own = spec_for(prefix) if slash and prefix in sections else None
    return next(by_prefix(model), own)


def _is_configured(spec: ProviderSpec, sections: Mapping[str, ProviderSection]) -> bool:
    section = sections.get(spec.name)
    if section is None or spec.is_oauth:
        return False
    return bool(section.api_key) or (not spec.needs_key and bool(section.api_base))


def _is_usable(spec: ProviderSpec, sections: Mapping[str, ProviderSection]) -> bool:
    """Set up, or in need of no setting up: local servers, accounts, clouds that bring their own credentials."""
    return spec.is_local or spec.is_oauth or spec.brings_credentials or _is_configured(spec, sections)
