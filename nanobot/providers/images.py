"""Image models: a prompt goes in, an image comes out. OpenAI's `images/generations` and endpoints like it, and Gemini.

Follows the public references (platform.openai.com/docs/api-reference/images, ai.google.dev/gemini-api/docs). An image
model is an LLMProvider, so that retries, the ledger and the spending limits are those of any other model call: the last
user message is the prompt, and the response's content is the image as a data URL.
"""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nanobot.config.provider_table import find_by_name, spec_for
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.net.connection import HttpError, parse_server_address
from nanobot.net.http import HttpPools, is_loopback
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse
from nanobot.providers.error_patterns import error_of, parse_error_response
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    InvalidRequestError,
    MalformedResponseError,
    ModelCallError,
    ModelNotFoundError,
    ProviderTimeoutError,
)
from nanobot.security.secrets import redact, request_secrets

if TYPE_CHECKING:
    from nanobot.config.schema import Config

DEFAULT_MODELS = {"openai": "gpt-image-1", "gemini": "gemini-2.5-flash-image"}
"""By provider, in the order in which keys are looked for."""
MAX_IMAGE_BYTES = 32 * 1024 * 1024
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024


class ImageRequestRefusedError(ModelCallError):
    """The endpoint has no such model, or rejects the request."""

    what = "The image model rejected the request"
    next_step = "Change the prompt, or set tools.image.provider and tools.image.model in the config."


@dataclass(frozen=True, slots=True)
class ImageEndpoint:
    """Address and settings of an image model."""

    provider: str
    api_base: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    config_key: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    connect_s: float = 10
    total_s: float = 300

    @property
    def speaks_gemini(self) -> bool:
        """Whether it is Google's own API, which lies beside the OpenAI-shaped one for chats."""
        return self.provider == "gemini"


class ImageProvider(LLMProvider):
    """One image model."""

    def __init__(self, endpoint: ImageEndpoint) -> None:
        super().__init__(endpoint.api_key, endpoint.api_base)
        self.name = endpoint.provider
        self._endpoint = endpoint
        self._pools = HttpPools(proxy=endpoint.proxy)

    def get_default_model(self) -> str:
        return self._endpoint.model

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Yield the Finished response with the image. Raises a ModelCallError; cancelling closes the connection."""
        del tools, max_tokens, temperature
        prompt, model = text_of(messages[-1]["content"]), model or self._endpoint.model
        try:
            async with asyncio.timeout(self._endpoint.total_s):
                ask = self._ask_gemini if self._endpoint.speaks_gemini else self._ask_openai
                yield Finished(await ask(prompt, model))
        except TimeoutError:
            raise self._error(ProviderTimeoutError, f"waited {self._endpoint.total_s:g} s for the image") from None

    async def _ask_openai(self, prompt: str, model: str) -> LLMResponse:
        fields: dict[str, Any] = {"model": model, "prompt": prompt, "n": 1}
        if not model.startswith(("gpt-image", "chatgpt-image")):  # which return nothing else, and reject the field
            fields["response_format"] = "b64_json"
        authorization = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        data = await self._post("/images/generations", fields, authorization)
        entries = data.get("data")
        entry = entries[0] if isinstance(entries, list) and entries and isinstance(entries[0], dict) else {}
        usage = data.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        tokens = {"prompt_tokens": usage.get("input_tokens"), "completion_tokens": usage.get("output_tokens")}
        image = entry.get("b64_json") or await self._fetch(entry.get("url"))
        return self._response(image, tokens)

    async def _ask_gemini(self, prompt: str, model: str) -> LLMResponse:
        fields = {
            "contents": [{"role": "user", "parts": [{"text": prompt}]}],
            "generationConfig": {"responseModalities": ["TEXT", "IMAGE"]},
        }
        key = {"x-goog-api-key": self.api_key} if self.api_key else {}
        data = await self._post(f"/models/{model}:generateContent", fields, key)
        try:
            parts = data["candidates"][0]["content"]["parts"]
            image = next((part["inlineData"]["data"] for part in parts if "inlineData" in part), None)
            said = " ".join(part["text"] for part in parts if isinstance(part.get("text"), str))
        except (KeyError, IndexError, TypeError, AttributeError):
            image, said = None, ""
        if image is None:
            raise self._error(ImageRequestRefusedError, f"no image; the model said: {said or 'nothing'}")
        usage = data.get("usageMetadata")
        usage = usage if isinstance(usage, dict) else {}
        tokens = {
            "prompt_tokens": usage.get("promptTokenCount"),
            "completion_tokens": usage.get("candidatesTokenCount"),
        }
        return self._response(image, tokens)

    def _response(self, image: object, tokens: Mapping[str, object]) -> LLMResponse:
        if not isinstance(image, str):
            raise self._error(MalformedResponseError, "no image in the response")
        counts = {name: count for name, count in tokens.items() if isinstance(count, int)}
        return LLMResponse(f"data:image/png;base64,{image}", usage=counts)

    async def _post(self, path: str, fields: Mapping[str, Any], key: Mapping[str, str]) -> dict[str, Any]:
        endpoint, body = self._endpoint, b""
        base = endpoint.api_base.rstrip("/")
        base = base.removesuffix("/openai") if endpoint.speaks_gemini else base
        headers = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "nanobot"}
        try:
            connection = await self._pools.connect(parse_server_address(f"{base}{path}"), endpoint.connect_s)
            try:
                content = json.dumps(fields).encode()
                await connection.request("POST", {**headers, **key, **endpoint.extra_headers}, content)
                while chunk := await connection.read():
                    body += chunk
                    if len(body) > _MAX_RESPONSE_BYTES:
                        raise self._error(MalformedResponseError, f"more than {_MAX_RESPONSE_BYTES >> 20} MB")
            finally:
                await connection.aclose()  # images are rare: nothing is kept open for the next one
        except (HttpError, ValueError) as error:
            raise self._error(ConnectionFailedError, str(error)) from None
        if connection.status != 200:
            parsed = parse_error_response(connection.status, body, connection.headers)
            refusal = error_of(parsed, self._target, self._secrets)
            if isinstance(refusal, InvalidRequestError | ModelNotFoundError):  # their advice is about chat models
                raise self._error(ImageRequestRefusedError, refusal.detail, connection.status)
            raise refusal
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            data = None
        if not isinstance(data, dict):
            raise self._error(MalformedResponseError, parse_error_response(200, body).message)
        return data

    async def _fetch(self, url: object) -> str | None:
        """The image behind a URL, for endpoints that return only that; None without one."""
        if not isinstance(url, str):
            return None
        from nanobot.net.egress import EgressGate, NetworkPolicy
        from nanobot.net.fetch import Fetcher, FetchLimits, FetchRequest

        policy = NetworkPolicy(owned=(self._endpoint.api_base,), proxy=self._endpoint.proxy)
        limits = FetchLimits(bytes=MAX_IMAGE_BYTES, total_s=self._endpoint.total_s)
        try:
            result = await Fetcher(EgressGate(policy), limits=limits).fetch(FetchRequest(url))
        except NanobotError as error:
            raise self._error(ConnectionFailedError, str(error)) from None
        return base64.b64encode(result.body).decode() if result.status == 200 else None

    @property
    def _target(self) -> CallTarget:
        endpoint = self._endpoint
        base = redact(endpoint.api_base, [endpoint.api_key or ""])
        return CallTarget(endpoint.provider, endpoint.model, base, endpoint.config_key)

    @property
    def _secrets(self) -> list[str]:
        return request_secrets(self._endpoint.api_key, self._endpoint.extra_headers)

    def _error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        return kind(redact(detail, self._secrets), target=self._target, status=status)


def decode_image(content: str | None) -> bytes:
    """The bytes of the image in a response; empty if there is none."""
    try:
        return base64.b64decode((content or "").partition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        return b""


def choose_image_model(config: "Config", environ: Mapping[str, str]) -> ImageEndpoint | None:
    """The image model that `tools.image` names, else that of the first provider with a key; None if there is none."""
    settings, sections = config.tools.image, config.providers.by_name()
    if not settings.enable:
        return None
    for name in DEFAULT_MODELS if settings.provider == "auto" else (settings.provider,):
        spec = find_by_name(name) or spec_for(name)
        section = sections.get(spec.name)
        base = (section.api_base if section else None) or spec.default_api_base
        key = (section.api_key if section else None) or spec.env_key(environ)
        model = settings.model or DEFAULT_MODELS.get(spec.name)
        if not base or not model or (spec.needs_key and not key and not is_loopback(urlsplit(base).hostname or "")):
            continue
        endpoint = ImageEndpoint(spec.name, base, model, key or None, f"providers.{spec.config_key}.apiKey")
        if section is None:
            return endpoint
        return ImageEndpoint(
            spec.name,
            base,
            model,
            key or None,
            endpoint.config_key,
            dict(section.extra_headers or {}),
            section.proxy or None,
            section.connect_timeout_s or endpoint.connect_s,
            section.total_timeout_s or endpoint.total_s,
        )
    return None
