"""Any endpoint that speaks OpenAI chat completions, reached directly. How one call goes: `completions`."""

from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, LLMProvider
from nanobot.providers.completions import Call
from nanobot.providers.exchange import Endpoint, EndpointSettings, Mended

OPENAI = "https://api.openai.com/v1"


class CustomProvider(LLMProvider):
    """A chat completions endpoint. Streams; asks again, once a field, without what the server calls unknown."""

    def __init__(
        self,
        api_key: str | None = None,
        api_base: str | None = None,
        default_model: str = "default",
        **settings: Unpack[EndpointSettings],
    ) -> None:
        self.name = settings.get("name", "custom")
        usual = Endpoint(self.name, OPENAI, api_key, f"providers.{self.name}.apiKey")
        self._endpoint = usual.with_settings(api_base, settings)
        super().__init__(api_key, self._endpoint.api_base)
        self._default_model = default_model
        self._mended: Mended | None = None

    def get_default_model(self) -> str:
        """The model asked when a call names none."""
        return self._default_model

    def prepare(self) -> None:
        """Begin to load the HTTP client in a thread."""
        self._endpoint.pools.prepare(self._endpoint.api_base)

    def watch_mends(self, told: Mended) -> None:
        """Tell of each request that is refused and sent again without a field."""
        self._mended = told

    def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Deltas as they come, then one Finished. Raises a ModelCallError; cancelling closes the connection."""
        asked = model or self._default_model
        return Call(self._endpoint, messages, tools or (), asked, max_tokens, temperature, self._mended).run()

    async def close(self) -> None:
        """Close idle connections."""
        await self._endpoint.pools.close()
