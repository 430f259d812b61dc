"""Image models: a prompt goes in, an image comes out. OpenAI's `images/generations` and endpoints like it, and Gemini.

Follows the public references (platform.openai.com/docs/api-reference/images, ai.google.dev/gemini-api/docs). An image
model is an LLMProvider, so that retries, the ledger and the spending limits are those of any other model call: the last
user message is the prompt, and the response's content is the image as a data URL.
"""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from nanobot.config.provider_table import find_by_name, spec_for
from nanobot.errors import NanobotError
from nanobot.messages.types import text_of
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, ModelRequest
from nanobot.providers.endpoint import Endpoint
from nanobot.providers.errors import (
    ConnectionFailedError,
    ContentFilteredError,
    InvalidRequestError,
    MalformedResponseError,
    ModelCallError,
    ModelNotFoundError,
)

if TYPE_CHECKING:
    from nanobot.config.schema import Config

DEFAULT_MODELS = {"openai": "gpt-image-1", "gemini": "gemini-2.5-flash-image"}
"""By provider, in the order in which keys are looked for."""
MAX_IMAGE_BYTES = 32 * 1024 * 1024
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_TOTAL_S = 300.0
_NEXT_STEP = "Change the prompt, or set tools.image.provider and tools.image.model in the config."
"""The advice of errors whose own is about chats."""


class ImageProvider(LLMProvider):
    """One image model. Gemini is asked over Google's own API, which lies beside the OpenAI-shaped one for chats."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint.api_key, endpoint.api_base)
        self.name = endpoint.name
        self._endpoint = endpoint
        self._model = model

    def get_default_model(self) -> str:
        return self._model

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """Yield the Finished response with the image. Raises a ModelCallError; cancelling closes the connection."""
        ask = self._ask_gemini if self.name == "gemini" else self._ask_openai
        image, tokens = await ask(text_of(request.messages[-1]["content"]), request.model or self._model)
        if not isinstance(image, str):
            raise self._error(MalformedResponseError, "no image in the response")
        counts = {name: count for name, count in tokens.items() if isinstance(count, int)}
        yield Finished(LLMResponse(f"data:image/png;base64,{image}", usage=counts))

    async def _ask_openai(self, prompt: str, model: str) -> tuple[object, Mapping[str, object]]:
        fields: dict[str, Any] = {"model": model, "prompt": prompt, "n": 1}
        if not model.startswith(("gpt-image", "chatgpt-image")):  # which return nothing else, and reject the field
            fields["response_format"] = "b64_json"
        data = await self._post(f"{self._endpoint.api_base}/images/generations", fields, self._endpoint.bearer)
        entries, usage = data.get("data"), data.get("usage")
        entry = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
        usage = usage if isinstance(usage, dict) else {}
        tokens = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
        return entry.get("b64_json") or await self._fetch(entry.get("url")), tokens

    async def _ask_gemini(self, prompt: str, model: str) -> tuple[object, Mapping[str, object]]:
        fields = {
            "contents": [{"role": "user", "parts": [{"text": prompt}]}],
            "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
        }
        key = {"x-goog-api-key": self.api_key} if self.api_key else {}
        base = self._endpoint.api_base.removesuffix("/openai")
        data = await self._post(f"{base}/models/{model}:generateContent", fields, key)
        try:
            parts = data["candidates"][0]["content"]["parts"]
            image = next((part["inlineData"]["data"] for part in parts if "inlineData" in part), None)
            said = " ".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        except (KeyError, IndexError, TypeError, AttributeError):
            image, said = None, ""
        if image is None:
            error = self._error(InvalidRequestError, f"no image; the model said: {said or 'nothing'}")
            error.next_step = _NEXT_STEP
            raise error
        usage = data.get("usageMetadata")
        usage = usage if isinstance(usage, dict) else {}
        counts = {"prompt_tokens": "promptTokenCount", "completion_tokens": "candidatesTokenCount"}
        return image, {name: usage.get(field) for name, field in counts.items()}

    async def _post(self, url: str, fields: Mapping[str, Any], key: Mapping[str, str]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", **key}
        try:
            body = await self._endpoint.post(
                url, headers, json.dumps(fields).encode(), max_bytes=_MAX_RESPONSE_BYTES, model=self._model
            )
        except (ContentFilteredError, InvalidRequestError, ModelNotFoundError) as error:
            error.next_step = _NEXT_STEP
            raise
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise self._error(MalformedResponseError, f"not JSON: {body[:200].decode('utf-8', 'replace')}")
        return data

    async def _fetch(self, url: object) -> str | None:
        """The image behind a URL, for endpoints that return only that; None without one."""
        if not isinstance(url, str):
            return None
        from nanobot.net.egress import EgressGate, NetworkPolicy
        from nanobot.net.fetch import Fetcher, FetchLimits, FetchRequest

        endpoint = self._endpoint
        policy = NetworkPolicy(owned=(endpoint.api_base,), proxy=endpoint.pools.proxy)
        limits = FetchLimits(bytes=MAX_IMAGE_BYTES, total_s=endpoint.timeouts.total_s)
        try:
            result = await Fetcher(EgressGate(policy), limits=limits).fetch(FetchRequest(url))
        except NanobotError as error:
            raise self._error(ConnectionFailedError, str(error)) from None
        return base64.b64encode(result.body).decode() if result.status == 200 else None

    def _error(self, kind: type[ModelCallError], detail: str) -> ModelCallError:
        return self._endpoint.error(kind, detail, model=self._model)


def decode_image(content: str | None) -> bytes:
    """The bytes of the image in a response; empty if there is none."""
    try:
        return base64.b64decode((content or "").partition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        return b""


def choose_image_model(config: "Config", environ: Mapping[str, str]) -> ImageProvider | None:
    """The image model that `tools.image` names, else that of the first provider with a key; None if there is none."""
    settings, sections = config.tools.image, config.providers.by_name()
    for name in DEFAULT_MODELS if settings.provider == "auto" else (settings.provider,):
        spec = find_by_name(name) or spec_for(name)
        model = settings.model or DEFAULT_MODELS.get(spec.name)
        if settings.enable and model:
            endpoint = Endpoint.configured(spec, sections.get(spec.name), environ, total_s=_TOTAL_S)
            if endpoint is not None:
                return ImageProvider(endpoint, model)
    return None
