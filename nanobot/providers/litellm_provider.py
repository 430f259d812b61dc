"""Providers reached through LiteLLM: endpoints that do not speak chat completions, or by choice. The only module that
imports it.

The import takes three seconds and 175 MB, so it runs in a thread when the first call is near: see `prepare`.
"""

import asyncio
import gc
import json
import logging
import os
import re
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from typing import Any, Unpack

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, LLMProvider, ModelRequest, call_context
from nanobot.providers.endpoint import CallLimits
from nanobot.providers.error_patterns import ErrorResponse, error_response_of, retry_after_s
from nanobot.providers.errors import (
    ConnectionFailedError,
    ContentFilteredError,
    ContextOverflowError,
    MalformedResponseError,
    ModelCallError,
    ProviderTimeoutError,
    StreamCutError,
)
from nanobot.providers.wire.chat import ChatReader
from nanobot.providers.wire.rows import RequestDialect, read_messages
from nanobot.providers.wire.stream import ChatEndpoint, EndpointSettings
from nanobot.providers.wire.tool_text import TextToolDeltas

_loading: "Future[Any] | None" = None
_loading_lock = threading.Lock()

_users: "weakref.WeakSet[LiteLLMProvider]" = weakref.WeakSet()

CACHE_MARKER = {"type": "ephemeral"}


def _load() -> Any:
    # Read at import. Otherwise it loads a stray .env of the working folder and downloads a price list.
    os.environ["LITELLM_MODE"] = "PRODUCTION"
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    warnings.filterwarnings("ignore", module=r"(?:litellm|pydantic)\b")  # its use of pydantic warns at run time, too
    import litellm  # 3 s, 175 MB

    gc.freeze()  # or each full collection walks it: 0.2 s in which the event loop stands still
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return litellm


def start_loading() -> "Future[Any]":
    """Start loading LiteLLM in a thread unless that was done. Returns at once."""
    global _loading
    with _loading_lock:
        if _loading is None:
            loading = _loading = Future()
            loading.set_running_or_notify_cancel()  # or a turn that is stopped while it waits would cancel it for all

            def load() -> None:
                try:
                    loading.set_result(_load())
                except BaseException as error:  # for the callers that wait; nothing else sees it in this thread
                    loading.set_exception(error)

            threading.Thread(target=load, name="load-litellm", daemon=True).start()
        return _loading


class LiteLLMProvider(LLMProvider):
    """Any provider that LiteLLM supports. No retries, no output, no telemetry."""

    def __init__(
        self,
        api_key: str | None = None,
        api_base: str | None = None,
        default_model: str = "anthropic/claude-opus-4-5",
        *,
        litellm_prefix: str = "",
        prompt_cache: bool | None = None,
        options: Mapping[str, Any] | None = None,
        connect_s: float | None = None,
        **settings: Unpack[EndpointSettings],
    ) -> None:
        """`litellm_prefix` is prepended to each model name; leave it empty if the name has it. `options` are passed to
        LiteLLM.

        `prompt_cache` sets cache markers; None decides by the model's name. `proxy` and `connect_s` apply unless
        LiteLLM uses another SDK for the connection, as it does for Azure and what it treats as OpenAI.
        """
        super().__init__(api_key, api_base)
        self._endpoint = ChatEndpoint.create(api_base or "", api_key, settings, name="litellm")
        self.name = self._endpoint.name
        self._default_model = default_model
        self._prefix = litellm_prefix
        self._prompt_cache = prompt_cache
        self._options = dict(options or {})
        self._proxy = settings.get("proxy")
        self._connect_s = connect_s
        self._own_client: tuple[asyncio.AbstractEventLoop, Any] | None = None

    def get_default_model(self) -> str:
        return self._default_model

    def prepare(self) -> None:
        start_loading()

    async def close(self) -> None:
        """Close LiteLLM's connections. All providers share them, so the last one closes them."""
        _users.discard(self)
        if self._own_client is not None:
            await self._own_client[1].close()
            self._own_client = None
        if _users or _loading is None or not _loading.done() or _loading.exception() is not None:
            return
        litellm = _loading.result()
        await litellm.close_litellm_async_clients()
        litellm.in_memory_llm_clients_cache.flush_cache()  # otherwise the next provider gets the closed ones
        # The module-level client is not in that cache and opens a session for each event loop.
        module_transport = getattr(getattr(litellm.module_level_aclient, "client", None), "_transport", None)
        if module_transport is not None:
            await module_transport.aclose()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        request = replace(request, model=request.model or self._default_model)
        endpoint, model = self._endpoint, request.model
        litellm = await asyncio.wrap_future(start_loading())
        _users.add(self)
        parameters = await self._parameters(request)
        reader, texts = ChatReader(endpoint, model), TextToolDeltas(request.tools)
        stream: Any = None
        with closing(CallLimits(endpoint.timeouts, endpoint.target(model))) as limits:
            try:
                stream = await limits.wait(litellm.acompletion(**parameters), began=False)
                chunks = aiter(stream)
                while (chunk := await limits.wait(anext(chunks, None), began=reader.began)) is not None:
                    for delta in texts.filter(reader.read_event(chunk.model_dump(exclude_none=True))):
                        yield delta
            except ModelCallError:
                raise
            except Exception as error:  # LiteLLM raises whatever its dependencies raise
                raise self._error(error, model, began=reader.began) from None
            finally:
                if stream is not None and hasattr(stream, "aclose"):
                    await stream.aclose()
        deltas = reader.read_end()
        if not (reader.has_usage or reader.text or reader.reasoning or reader.calls):
            # What LiteLLM makes of a response that is not a completion.
            raise reader.error(MalformedResponseError, "an empty answer")
        for delta in texts.filter(deltas):
            yield delta

    async def _parameters(self, request: ModelRequest) -> dict[str, Any]:
        """The arguments of `acompletion`."""
        import httpx  # a dependency of LiteLLM

        endpoint, messages, tools = self._endpoint, request.messages, request.tools
        full_model = f"{self._prefix}/{request.model}" if self._prefix else request.model
        is_claude = "claude" in full_model.lower() or full_model.startswith("anthropic/")
        encoded = await read_messages(messages, RequestDialect())
        if is_claude:
            _restore_thinking(messages, encoded)
        effort = call_context().reasoning_effort or endpoint.reasoning_effort
        last: dict[str, Any] = next((message for message in reversed(encoded) if message["role"] != "tool"), {})
        if is_claude and last.get("tool_calls") and not last.get("thinking_blocks"):
            effort = None  # another model began this step; thinking is rejected without the earlier thinking blocks
        if is_claude if self._prompt_cache is None else self._prompt_cache:
            encoded, tools = _add_cache_markers(encoded, tools)
        parameters: dict[str, Any] = {
            "model": full_model,
            "messages": encoded,
            "tools": list(tools) or None,
            "max_tokens": request.max_tokens,
            "temperature": 1 if is_claude and effort else request.temperature,
            "reasoning_effort": effort,
            "stream": True,
            "stream_options": {"include_usage": True},
            "api_key": self.api_key or ("none" if self.api_base else None),  # its OpenAI client requires a key
            "api_base": self.api_base,
            "extra_headers": dict(endpoint.extra_headers) or None,
            "extra_body": dict(endpoint.extra_body) or None,
            "timeout": httpx.Timeout(endpoint.timeouts.total_s, connect=endpoint.timeouts.connect_s),
            "max_retries": 0,
            "num_retries": 0,
            "client": await self._client(),
            **self._options,
        }
        return {name: value for name, value in parameters.items() if value is not None}

    async def _client(self) -> Any:
        """LiteLLM's client over a transport of ours, where a proxy or a limit is set that its own would not keep."""
        if not (self._proxy or self._connect_s) or self._prefix in ("azure", "openai"):
            return None
        loop = asyncio.get_running_loop()
        if self._own_client is None or self._own_client[0] is not loop:  # connections die with the loop that made them
            from litellm.llms.custom_httpx.http_handler import AsyncHTTPHandler  # LiteLLM is loaded by now

            connect_s = self._connect_s or self._endpoint.timeouts.connect_s
            transport = await _open_transport(self.api_base or "https://", self._proxy, connect_s)
            self._own_client = (loop, AsyncHTTPHandler(transport=transport))
        return self._own_client[1]

    def _error(self, error: Exception, model: str, *, began: bool) -> ModelCallError:
        """The typed error of a LiteLLM exception: by its class, else by status and body."""
        parsed = _error_response(error)
        status = getattr(error, "status_code", None)
        status = status if isinstance(status, int) else None
        name, message = type(error).__name__, parsed.message
        kind = _ERROR_TYPES.get(name)
        if began or name == "MidStreamFallbackError":
            kind, status = StreamCutError, None
        elif _CONNECTION_FAILURE.search(message) or (name == "APIConnectionError" and "Connect" in message):
            kind, status = ConnectionFailedError, None
        elif kind is None and status is None:
            kind, message = MalformedResponseError, f"{name}: {message}"
        if kind is not None:
            return self._endpoint.error(kind, message, model=model, status=status)
        headers = getattr(error, "litellm_response_headers", None) or getattr(
            getattr(error, "response", None), "headers", {}
        )
        body = getattr(error, "body", None)
        response = error_response_of(body) if isinstance(body, dict) else parsed
        wait_s = retry_after_s(dict(headers)) or response.retry_after_s
        response = replace(response, status=status or 0, message=response.message or message, retry_after_s=wait_s)
        return self._endpoint.error_of(response, model)


async def _open_transport(url: str, proxy: str | None, connect_s: float) -> Any:
    """A transport for LiteLLM's own client, with our proxy and connect timeout."""
    import httpx

    from nanobot.net.http import connection_error_reason, proxy_for, ssl_context

    class Transport(httpx.AsyncHTTPTransport):
        """LiteLLM itself retries some connection failures, so they are raised as a type that it does not retry."""

        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "connect": connect_s}
            try:
                return await super().handle_async_request(request)
            except httpx.ConnectTimeout:
                raise httpx.ReadError(f"connection error: no connection within {connect_s:g} s") from None
            except (httpx.ConnectError, httpx.ProxyError, httpx.RemoteProtocolError) as error:
                raise httpx.ReadError(f"connection error: {connection_error_reason(error)}") from None

    return Transport(verify=await ssl_context(url), trust_env=False, proxy=proxy_for(url, proxy))


_ERROR_TYPES: dict[str, type[ModelCallError]] = {
    "Timeout": ProviderTimeoutError,
    "ContextWindowExceededError": ContextOverflowError,
    "ContentPolicyViolationError": ContentFilteredError,
    "APIResponseValidationError": MalformedResponseError,
    "JSONSchemaValidationError": MalformedResponseError,
}
_CONNECTION_FAILURE = re.compile(
    r"cannot connect to host|connection (?:error|refused|reset)|server disconnected|connect call failed|"
    r"name or service not known|all connection attempts failed",
    re.IGNORECASE,
)


def _error_response(error: Exception) -> ErrorResponse:
    """The provider's message, without LiteLLM's class names before it and object representations in it."""
    text = str(getattr(error, "message", "") or error)
    text = re.split(r"\. Handle with `litellm|\nLiteLLM Retried|\s*Traceback \(most", text)[0].strip()
    while match := re.match(r"(?:litellm\.)?\w+(?:Exception|Error|Timeout)(?: -|:)\s*|b(?=['\"])", text):
        text = text[match.end() :]
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text
    try:
        parsed = error_response_of(json.loads(text))
    except ValueError:
        return ErrorResponse(0, re.sub(r"(?:: |\s?\bssl:)<\w[^<>]*>", "", text))
    return parsed if parsed.message else replace(parsed, message=text)


def _restore_thinking(rows: Sequence[ChatMessage], messages: list[dict[str, Any]]) -> None:
    """Restore signed thinking blocks; unsigned ones come from another model and are dropped."""
    assistant_rows = iter([row for row in rows if row["role"] == "assistant"])
    for message in messages:
        if message["role"] == "assistant":
            blocks = next(assistant_rows).get("thinking_blocks") or []
            signed = [block for block in blocks if block.get("signature") or block.get("type") == "redacted_thinking"]
            if signed:
                message["thinking_blocks"] = signed


def _add_cache_markers(
    messages: list[dict[str, Any]], tools: Sequence[ToolSchema]
) -> tuple[list[dict[str, Any]], Sequence[ToolSchema]]:
    """Add cache markers to the tools, the system prompt and the last two input messages.

    Two, so that the longer next request hits the cache that this one wrote. No text changes.
    """
    marked = list(messages)
    indexes = [index for index, message in enumerate(marked) if message["role"] == "system"][-1:]
    indexes += [index for index, message in enumerate(marked) if message["role"] in ("user", "tool")][-2:]
    for index in indexes:
        message = marked[index]
        if message["role"] == "tool":
            marked[index] = {**message, "cache_control": CACHE_MARKER}
            continue
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        if blocks and (blocks[-1].get("type") != "text" or str(blocks[-1].get("text", "")).strip()):
            marked[index] = {**message, "content": [*blocks[:-1], {**blocks[-1], "cache_control": CACHE_MARKER}]}
    if tools:
        tools = [*tools[:-1], {**tools[-1], "cache_control": CACHE_MARKER}]
    return marked, tools
