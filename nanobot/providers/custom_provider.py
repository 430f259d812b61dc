"""A provider for any endpoint that speaks OpenAI chat completions or Responses. See `wire.stream` for how a call
proceeds.
"""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Unpack

from nanobot.providers.base import Delta, LLMProvider, ModelRequest
from nanobot.providers.endpoint import HttpResponse
from nanobot.providers.error_patterns import parse_error_response
from nanobot.providers.wire.chat import ChatCall
from nanobot.providers.wire.stream import ChatEndpoint, EndpointSettings, FixupCallback, WireCall

log = logging.getLogger(__name__)

_LIST_TIMEOUT_S = 5.0
_KEY_CHECK_PATHS = {"openrouter": "/key"}
"""Where `/models` answers without a key."""
_LENGTH_FIELDS = ("context_length", "max_model_len", "context_window")
"""Where endpoints list a model's window: OpenRouter and others, vLLM, Groq."""
OPENAI = "https://api.openai.com/v1"


class EndpointProvider(LLMProvider):
    """A provider with one chat endpoint."""

    def __init__(self, endpoint: ChatEndpoint, default_model: str) -> None:
        super().__init__(endpoint.api_key, endpoint.api_base)
        self.name = endpoint.name
        self._endpoint = endpoint
        self._default_model = default_model
        self._on_fixup: FixupCallback | None = None

    def get_default_model(self) -> str:
        return self._default_model

    def prepare(self) -> None:
        self._endpoint.pools.prepare(self._endpoint.api_base)

    def on_fixup(self, callback: FixupCallback) -> None:
        self._on_fixup = callback

    async def close(self) -> None:
        await self._endpoint.pools.close()


class CustomProvider(EndpointProvider):
    """An endpoint of one of the two OpenAI APIs. Streams. If the server rejects a field as unknown, the request is sent
    again without it.
    """

    def __init__(
        self,
        api_key: str | None = None,
        api_base: str | None = None,
        default_model: str = "default",
        *,
        api_type: str = "chat_completions",
        **settings: Unpack[EndpointSettings],
    ) -> None:
        super().__init__(ChatEndpoint.create(api_base or OPENAI, api_key, settings, name="custom"), default_model)
        self._call: type[WireCall] = ChatCall
        if api_type == "responses":
            from nanobot.providers.wire.responses import ResponsesCall  # few endpoints need it

            self._call = ResponsesCall

    async def list_models(self) -> tuple[str, ...]:
        """The models of `GET /models`, without embeddings; empty if the endpoint lists none in time. Never raises."""
        return tuple(name for name in await self._listed() if name and "embed" not in name.lower())

    async def check_key(self) -> None:
        """As in LLMProvider, with a request that is free."""
        response = await self._get(_KEY_CHECK_PATHS.get(self.name, "/models"))
        if response.status >= 400 and response.status != 403:  # a restricted key may chat, but not list models
            raise self._endpoint.error_of(parse_error_response(response.status, response.body))

    async def context_length(self, model: str) -> int | None:
        entry = (await self._listed()).get(model, {})
        lengths = [entry[field] for field in _LENGTH_FIELDS if isinstance(entry.get(field), int)]
        return next((length for length in lengths if length > 0), None)

    async def _listed(self) -> dict[str, dict[str, Any]]:
        """The entries of `GET /models` by model. Never raises."""
        try:
            return {str(entry["id"]): entry for entry in json.loads((await self._get("/models")).body)["data"]}
        except Exception as error:  # any server may be there, and the list is only an offer
            log.debug("%s lists no models: %s", self.name, type(error).__name__)
            return {}

    async def _get(self, path: str) -> HttpResponse:
        endpoint = self._endpoint
        return await endpoint.fetch("GET", endpoint.api_base + path, endpoint.bearer, timeout_s=_LIST_TIMEOUT_S)

    def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        request = replace(request, model=request.model or self._default_model)
        return self._call(self._endpoint, request, self._on_fixup).run()
