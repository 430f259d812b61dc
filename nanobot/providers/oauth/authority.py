"""Asking an authority: one request over HTTP, its answer as a plain dict, its failures typed. No token is in a text."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from nanobot.providers.errors import CallTarget, ModelCallError, ModelOverloadedError, RateLimitedError
from nanobot.providers.failures import retry_after_s
from nanobot.providers.oauth.errors import AuthorityAnswerError, AuthorityUnreachableError, LoginNeededError
from nanobot.security.secrets import redact
from nanobot.utils.clients import load_httpx, reason_of
from nanobot.utils.http import HttpPools, is_loopback

CONNECT_S = 10
WHOLE_S = 30
_LARGEST = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """What an authority answered."""

    status: int
    data: dict[str, Any]
    retry_after_s: float | None = None

    def word(self, name: str) -> str:
        """A text in it; empty where there is none."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float | None:
        """A number in it."""
        value = self.data.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    @property
    def error(self) -> str:
        """The error's code (RFC 6749, 5.2); OpenAI puts it one level down."""
        error = self.data.get("error")
        if isinstance(error, dict):
            return next((word for name in ("code", "type") if isinstance(word := error.get(name), str)), "error")
        return error if isinstance(error, str) else ""

    @property
    def reason(self) -> str:
        """What is wrong, in its own words."""
        for holder in (self.data.get("error"), self.data.get("error_details"), self.data):
            if isinstance(holder, dict):
                for name in ("error_description", "message", "detail"):
                    if isinstance(word := holder.get(name), str) and word:
                        return word
        return self.error or f"HTTP {self.status}"


class Asker:
    """Asks one authority, on behalf of one provider."""

    def __init__(self, pools: HttpPools, provider: str, authority: str) -> None:
        self._pools = pools
        self.target = CallTarget(provider, api_base=authority)

    async def post(self, url: str, form: Mapping[str, str], secrets: Sequence[str] = ()) -> Reply:
        """Send a form. Raises a ModelCallError where there is no answer; a refusal is a reply like any other."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        return await self._ask("POST", url, urlencode(form).encode(), headers, secrets)

    async def get(self, url: str, headers: Mapping[str, str], secrets: Sequence[str] = ()) -> Reply:
        """Fetch. Raises as `post` does."""
        return await self._ask("GET", url, None, headers, secrets)

    def trouble(self, reply: Reply, secrets: Sequence[str] = ()) -> ModelCallError:
        """What a reply that is neither an answer nor a refusal of the account comes to."""
        kind: type[ModelCallError] = LoginNeededError
        if reply.status == 429:
            kind = RateLimitedError
        elif reply.status >= 500 or reply.status == 408:
            kind = ModelOverloadedError
        elif reply.status < 400:
            kind = AuthorityAnswerError
        return self.error(kind, reply.reason, secrets, reply.status, reply.retry_after_s)

    def error(
        self,
        kind: type[ModelCallError],
        detail: str,
        secrets: Sequence[str] = (),
        status: int | None = None,
        wait_s: float | None = None,
    ) -> ModelCallError:
        """A failure, without the secrets."""
        return kind(redact(detail, secrets), target=self.target, status=status, retry_after_s=wait_s)

    async def _ask(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str], secrets: Sequence[str]
    ) -> Reply:
        load_httpx()
        import httpx

        every = {"Accept": "application/json", "User-Agent": "nanobot", **headers}
        try:
            async with asyncio.timeout(WHOLE_S), self._pools.lend(url) as client:
                timeout = httpx.Timeout(None, connect=CONNECT_S)
                request = client.build_request(method, url, content=content, headers=every, timeout=timeout)
                response = await client.send(request, stream=True)
                try:
                    body = b""
                    async for chunk in response.aiter_bytes():
                        body += chunk
                        if len(body) > _LARGEST:
                            raise self.error(AuthorityAnswerError, "more than 1 MB", secrets)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise self.error(AuthorityUnreachableError, f"no answer within {WHOLE_S} s", secrets) from None
        except (httpx.HTTPError, httpx.InvalidURL, TypeError, ValueError) as error:
            raise self.error(AuthorityUnreachableError, reason_of(error), secrets) from None
        return Reply(response.status_code, _object(body), retry_after_s(response.headers))


def _object(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def address_problem(address: str) -> str:
    """Why tokens may not be fetched from this address; empty where they may."""
    try:
        parts = urlsplit(address)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.query or parts.fragment:
        return "it is no address of a server"
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)):
        return ""
    return "it must begin with https://"
