"""The models of a bot."""

from collections.abc import Callable

from nanobot.agent.run.spec import Model, RunLimits
from nanobot.config.provider_table import context_window
from nanobot.config.schema import Config
from nanobot.providers.base import LLMProvider
from nanobot.providers.chain import Chains, with_preset


class ConfiguredModels:
    """Models as the config, the environment and this machine offer them. Each is made once, when first asked for."""

    def __init__(
        self,
        config: Config,
        chains: Chains,
        model: str | None,
        provider: LLMProvider | None,
        metered: Callable[[LLMProvider, str], LLMProvider],
    ) -> None:
        """`metered` puts the meter around a provider of that name, one that is handed in too."""
        self._config = config
        self._chains = chains
        self._model = model
        self._provider_name = type(provider).__name__
        self._provider = metered(provider, self._provider_name) if provider is not None else None
        self._made: dict[str | None, Model] = {}

    async def get(self, wanted: str | None) -> Model:
        """The model of that name or preset; the configured one for None."""
        wanted = wanted or self._model
        made = self._made.get(wanted)
        if made is None:
            made = self._made[wanted] = await self._make(wanted)
        return made

    def names(self) -> list[str]:
        """The presets, and the word for the configured model."""
        return [*self._config.model_presets, "default"]

    async def close(self) -> None:
        """Let go of every provider's connections."""
        for provider in {id(model.provider): model.provider for model in self._made.values()}.values():
            await provider.close()

    async def _make(self, wanted: str | None) -> Model:
        config, name = self._config, wanted
        if wanted in config.model_presets:
            config, name = with_preset(config, wanted), None
        if self._provider is not None:
            provider = self._provider
            active = config.active_preset().model if config is not self._config else None
            asked = name or active or provider.get_default_model()
            return Model(provider, self._provider_name, asked, "handed in", _limits(config, asked))
        chosen = await self._chains.choose(config, name)
        return Model(chosen.provider, chosen.name, chosen.model, chosen.reason, _limits(config, chosen.model))


def _limits(config: Config, model: str) -> RunLimits:
    defaults, active, usual = config.agents.defaults, config.active_preset(), RunLimits()
    return RunLimits(
        max_steps=defaults.max_tool_iterations,
        max_tokens=active.max_tokens or usual.max_tokens,
        temperature=usual.temperature if active.temperature is None else active.temperature,
        window_tokens=active.context_window_tokens or context_window(model),
        max_result_chars=defaults.max_tool_result_chars,
    )
