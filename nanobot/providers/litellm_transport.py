"""An HTTP transport for LiteLLM's own client, with our proxy and connect timeout.

Used for Anthropic, Bedrock and whatever else LiteLLM speaks itself. Separate because it imports httpx: only a provider
with such a setting loads it.
"""

import httpx

from nanobot.net.http import connection_error_reason, proxy_for, ssl_context


class LiteLLMTransport(httpx.AsyncHTTPTransport):
    """An httpx transport with our proxy and connect timeout.

    LiteLLM itself retries some connection failures, so they are raised as a type that it does not retry.
    """

    @classmethod
    async def open(cls, url: str, *, proxy: str | None, connect_s: float) -> "LiteLLMTransport":
        transport = cls(verify=await ssl_context(url), trust_env=False, proxy=proxy_for(url, proxy))
        transport._connect_s = connect_s
        return transport

    _connect_s: float = 10

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "connect": self._connect_s}
        try:
            return await super().handle_async_request(request)
        except httpx.ConnectTimeout:
            raise httpx.ReadError(f"connection error: no connection within {self._connect_s:g} s") from None
        except (httpx.ConnectError, httpx.ProxyError, httpx.RemoteProtocolError) as error:
            raise httpx.ReadError(f"connection error: {connection_error_reason(error)}") from None
