"""An HTTP client for OAuth servers: JSON responses as dicts, typed failures, no token in any text."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from nanobot.net.http import connection_error_reason, is_loopback, load_httpx
from nanobot.net.pools import HttpPools
from nanobot.providers.accounts.errors import AuthorityAnswerError, AuthorityUnreachableError, LoginNeededError
from nanobot.providers.error_patterns import retry_after_s
from nanobot.providers.errors import CallTarget, ModelCallError, ModelOverloadedError, RateLimitedError
from nanobot.security.secrets import redact

CONNECT_S = 10
TOTAL_S = 30
_MAX_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class OAuthResponse:
    """A response of an OAuth server."""

    status: int
    data: dict[str, Any]
    retry_after_s: float | None = None

    def text(self, name: str) -> str:
        """A string field; empty if missing."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float | None:
        """A numeric field."""
        value = self.data.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def error(self) -> str:
        """The error code (RFC 6749, 5.2); OpenAI nests it one level deeper."""
        error = self.data.get("error")
        if isinstance(error, dict):
            return next((text for name in ("code", "type") if isinstance(text := error.get(name), str)), "error")
        return error if isinstance(error, str) else ""

    @property
    def reason(self) -> str:
        """The server's explanation of an error."""
        for holder in (self.data.get("error"), self.data.get("error_details"), self.data):
            if isinstance(holder, dict):
                for name in ("error_description", "message", "detail"):
                    if isinstance(text := holder.get(name), str) and text:
                        return text
        return self.error or f"HTTP {self.status}"


class OAuthHttpClient:
    """Sends requests to one OAuth server for one provider."""

    def __init__(self, pools: HttpPools, provider: str, authority: str) -> None:
        self._pools = pools
        self.target = CallTarget(provider, api_base=authority)

    async def post(self, url: str, form: Mapping[str, str], secrets: Sequence[str] = ()) -> OAuthResponse:
        """Send a form. Raises a ModelCallError if there is no response; an error response is returned."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return await self._send("POST", url, urlencode(form).encode(), headers, secrets)

    async def get(self, url: str, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> OAuthResponse:
        """Fetch a URL. Raises as `post` does."""
        return await self._send("GET", url, None, headers, secrets)

    def error_for(self, response: OAuthResponse, secrets: Sequence[str] = ()) -> ModelCallError:
        """The typed error of a response that reports one or lacks the expected data."""
        kind: type[ModelCallError] = LoginNeededError
        if response.status == 429:
            kind = RateLimitedError
        elif response.status >= 500 or response.status == 408:
            kind = ModelOverloadedError
        elif response.status < 400:
            kind = AuthorityAnswerError
        return self.error(kind, response.reason, secrets, response.status, response.retry_after_s)

    def error(
        self,
        kind: type[ModelCallError],
        detail: str,
        secrets: Sequence[str] = (),
        status: int | None = None,
        wait_s: float | None = None,
    ) -> ModelCallError:
        """A typed error with the secrets redacted."""
        return kind(redact(detail, secrets), target=self.target, status=status, retry_after_s=wait_s)

    async def _send(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str], secrets: Sequence[str]
    ) -> OAuthResponse:
        load_httpx()
        import httpx

        all_headers = {"Accept": "application/json", "User-Agent": "nanobot", **headers}
        try:
            async with asyncio.timeout(TOTAL_S), self._pools.borrow_client(url) as client:
                timeout = httpx.Timeout(None, connect=CONNECT_S)
                request = client.build_request(method, url, content=content, headers=all_headers, timeout=timeout)
                response = await client.send(request, stream=True)
                try:
                    body = b""
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > _MAX_BYTES:
                            raise self.error(AuthorityAnswerError, "more than 1 MB", secrets)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise self.error(AuthorityUnreachableError, f"no answer within {TOTAL_S} s", secrets) from None
        except (httpx.HTTPError, httpx.InvalidURL, TypeError, ValueError) as error:
            raise self.error(AuthorityUnreachableError, connection_error_reason(error), secrets) from None
        return OAuthResponse(response.status_code, _parse_object(body), retry_after_s(response.headers))


def _parse_object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def address_problem(address: str) -> str:
    """Why tokens must not be fetched from this address; empty if they may."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.query or parts.fragment:
        return "it is not the address of a server"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "it must begin with https://"
