"""The models of a bot."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from nanobot.agent.engine.spec import Model, RunLimits
from nanobot.config.provider_table import context_window
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.providers.base import LLMProvider
from nanobot.providers.factory import ProviderChains, with_preset
from nanobot.session.manager import Session
from nanobot.utils.text import nearest

_ASK_WINDOW_AFTER_S = 1.0
"""A single answer is mostly over by then, and needs no list of models."""


class SessionModels:
    """Models from the config, the environment and local servers, created on first use."""

    def __init__(
        self,
        config: Config,
        chains: ProviderChains,
        model: str | None,
        provider: LLMProvider | None,
        metered: Callable[[LLMProvider, str], LLMProvider],
    ) -> None:
        """`metered` wraps a provider of that name with the usage meter, also one passed in."""
        self._config = config
        self._chains = chains
        self._model = model
        self._provider_name = type(provider).__name__
        self._provider = metered(provider, self._provider_name) if provider is not None else None
        self._models: dict[str | None, Model] = {}
        self._former_models: list[Model] = []
        """Of settings that have changed since: turns that run may still ask them."""
        self._asking: set[asyncio.Task[None]] = set()

    async def get(self, name: str | None) -> Model:
        """Return the model of that name or preset, the configured one for None."""
        name = name or self._model
        model = self._models.get(name)
        if model is None:
            model = self._models[name] = await self._create(name)
            self._ask_window(name, model)
        return model

    def _ask_window(self, name: str | None, model: Model) -> None:
        """Ask the endpoint for the model's context window in the background, unless the config sets one."""
        config = with_preset(self._config, name) if name in self._config.model_presets else self._config
        if config.active_preset().context_window_tokens or model.is_stand_in:
            return

        async def ask() -> None:
            await asyncio.sleep(_ASK_WINDOW_AFTER_S)
            length = await model.provider.context_length(model.name)
            if length and self._models.get(name) is model:
                self._models[name] = replace(model, limits=replace(model.limits, window_tokens=length))

        task = asyncio.create_task(ask(), name="context window")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def of_session(self, session: Session) -> Model:
        """Return the model of a session: the one this process was started with, else the one chosen by `/model`."""
        return await self.get(self._model or session.metadata.get("model"))

    async def choose(self, session: Session, name: str | None) -> Model:
        """Set the session's model; None means the configured one. The caller stores the session.

        Raises ConfigError if the provider lists its models and this is none of them.
        """
        model = await self.get(name)
        offered = () if name is None or name in self._config.model_presets else await model.provider.list_models()
        if offered and model.name not in offered:
            similar = nearest(model.name, offered)
            hint = f"Did you mean {' or '.join(similar)}?" if similar else "`/model` lists its models."
            raise ConfigError(f"{model.provider_name} has no model {model.name!r}. {hint}")
        self._model = None  # the later choice counts
        session.metadata.pop("model", None)
        if name is not None:
            session.metadata["model"] = name
        return await self.get(name)

    async def choices(self, session: Session) -> list[str]:
        """Return what `/model` accepts: the presets, `default`, and the models that the session's provider lists."""
        model = await self.of_session(session)
        return [*dict.fromkeys([*self._config.model_presets, "default", *await model.provider.list_models()])]

    def renew(self) -> None:
        """Create each model again on its next use, after a change of the config."""
        self._former_models += self._models.values()
        self._models.clear()

    async def close(self) -> None:
        """Close the connections of all providers."""
        for task in self._asking:
            task.cancel()
        if self._asking:
            await asyncio.wait({*self._asking})
        models = [*self._former_models, *self._models.values()]
        for provider in {id(model.provider): model.provider for model in models}.values():
            await provider.close()

    async def _create(self, name: str | None) -> Model:
        config, model_name = self._config, name
        if name in config.model_presets:
            config, model_name = with_preset(config, name), None
        if self._provider is not None:
            provider = self._provider
            active = config.active_preset().model if config is not self._config else None
            model_name = model_name or active or provider.get_default_model()
            return Model(provider, self._provider_name, model_name, _limits(config, model_name))
        chosen = await self._chains.choose(config, model_name)
        return Model(chosen.provider, chosen.name, chosen.model, _limits(config, chosen.model))


def _limits(config: Config, model: str) -> RunLimits:
    defaults, active, usual = config.agents.defaults, config.active_preset(), RunLimits()
    return RunLimits(
        max_steps=defaults.max_tool_iterations,
        max_tokens=active.max_tokens or usual.max_tokens,
        temperature=usual.temperature if active.temperature is None else active.temperature,
        window_tokens=active.context_window_tokens or context_window(model),
        max_result_chars=defaults.max_tool_result_chars,
    )
