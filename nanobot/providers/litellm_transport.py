"""The way LiteLLM goes where the config sets one: through a proxy, with a limit of its own for connecting.

Handed to LiteLLM's own client, which Anthropic, Bedrock and what else it speaks by itself go through. Only a provider
with such a setting imports this: httpx comes with it.
"""

import httpx

from nanobot.utils.http import proxy_for, ssl_context


class LiteLLMTransport(httpx.AsyncHTTPTransport):
    """httpx, with our proxy and our limit.

    LiteLLM asks by itself a second time after some failures of a connection, so those go up as one it lets pass.
    """

    @classmethod
    async def open(cls, url: str, *, proxy: str | None, connect_s: float) -> "LiteLLMTransport":
        """To whatever lives at this URL."""
        transport = cls(verify=await ssl_context(url), trust_env=False, proxy=proxy_for(url, proxy))
        transport._connect_s = connect_s
        return transport

    _connect_s: float = 10

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send it."""
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "connect": self._connect_s}
        try:
            return await super().handle_async_request(request)
        except httpx.ConnectTimeout:
            raise httpx.ReadError(f"connection error: no connection within {self._connect_s:g} s") from None
        except (httpx.ConnectError, httpx.ProxyError, httpx.RemoteProtocolError) as error:
            raise httpx.ReadError(f"connection error: {error}") from None
