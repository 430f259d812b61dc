"""One model server: its address, credentials and connections, requests that are answered whole, and typed errors.

Chat, image and transcription models, lists of models and sign-in servers are all reached through this.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from nanobot.config.provider_table import ProviderSpec
from nanobot.net.http import HttpError, is_loopback
from nanobot.net.pools import HttpPools
from nanobot.net.urls import parse_server_url
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    ProviderTimeoutError,
)
from nanobot.providers.limits import Timeouts
from nanobot.security.secrets import redact, redact_known, request_secrets

if TYPE_CHECKING:
    from nanobot.config.schema import ProviderConfig
    from nanobot.providers.error_patterns import ErrorResponse


class HttpResponse(NamedTuple):
    """A response that was read whole. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address, credentials, and what all calls to it share."""

    name: str
    api_base: str
    api_key: str | None = field(default=None, repr=False)
    config_key: str = ""
    """The config key that error texts name."""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    pools: HttpPools = field(default_factory=HttpPools)

    @classmethod
    def configured(
        cls,
        spec: ProviderSpec,
        section: "ProviderConfig | None",
        environ: Mapping[str, str],
        *,
        total_s: float,
    ) -> "Endpoint | None":
        """The endpoint of a provider with its section of the config; None without an address, or without a key that it
        needs.
        """
        base = (section.api_base if section else None) or spec.default_api_base
        key = (section.api_key if section else None) or spec.env_key(environ)
        if not base or (spec.needs_key and not key and not is_loopback_url(base)):
            return None
        return cls(
            spec.name,
            base.rstrip("/"),
            key or None,
            f"providers.{spec.config_key}.apiKey",
            dict(section.extra_headers or {}) if section else {},
            Timeouts(
                connect_s=(section and section.connect_timeout_s) or 10,
                total_s=(section and section.total_timeout_s) or total_s,
            ),
            HttpPools(proxy=(section.proxy if section else None) or None),
        )

    def target(self, model: str = "") -> CallTarget:
        return CallTarget(self.name, model, redact(self.api_base, [self.api_key or ""]), self.config_key)

    @property
    def bearer(self) -> dict[str, str]:
        """The key as most servers want it."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    @property
    def _secrets(self) -> Sequence[str]:
        return request_secrets(self.api_key, self.extra_headers)

    def error(
        self, kind: type[ModelCallError], detail: str = "", *, model: str = "", status: int | None = None
    ) -> ModelCallError:
        """A typed error of a call. Secrets are redacted, even where the server echoed one."""
        detail = redact(redact_known(detail), self._secrets)
        return kind(detail, target=self.target(model), status=status)

    def error_of(self, response: "ErrorResponse", model: str = "") -> ModelCallError:
        """The typed error that a response means."""
        from nanobot.providers.error_patterns import kind_of  # with the first failure

        error = self.error(kind_of(response), response.message, model=model, status=response.status or None)
        error.retry_after_s = response.retry_after_s
        return error

    async def fetch(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        content: bytes = b"",
        *,
        max_bytes: int = 4 << 20,
        timeout_s: float | None = None,
        model: str = "",
    ) -> HttpResponse:
        """Send a request and return the whole response, whatever its status. Cancelling closes the connection.

        Raises a ModelCallError if there is none in time (by default `timeouts.total_s`), or if it is too large.
        """
        limit_s = self.timeouts.total_s if timeout_s is None else timeout_s
        all_headers = {"Accept": "application/json", "User-Agent": "nanobot", **headers, **self.extra_headers}
        body = bytearray()
        try:
            async with asyncio.timeout(limit_s) as timeout:
                connect_s = min(self.timeouts.connect_s, limit_s)
                connection = await self.pools.connect(parse_server_url(url), connect_s)
                try:
                    await connection.request(method, all_headers, content)
                    while chunk := await connection.read():
                        body += chunk
                        if len(body) > max_bytes:
                            detail = f"more than {max_bytes >> 20} MB of answer"
                            raise self.error(MalformedResponseError, detail, model=model)
                finally:
                    await self.pools.release(connection)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error(ProviderTimeoutError, f"waited {limit_s:g} s for the answer", model=model) from None
        except (HttpError, ValueError) as error:
            raise self.error(ConnectionFailedError, str(error), model=model) from None
        return HttpResponse(connection.status, connection.headers, bytes(body))

    async def post(
        self, url: str, headers: Mapping[str, str], content: bytes, *, max_bytes: int, model: str = ""
    ) -> bytes:
        """Send a request, for services that are rarely asked: all connections are closed then. Return the body of a
        response with status 200; raises a ModelCallError for anything else.
        """
        try:
            status, head, body = await self.fetch("POST", url, headers, content, max_bytes=max_bytes, model=model)
        finally:
            await self.pools.close()
        if status != 200:
            from nanobot.providers.error_patterns import parse_error_response

            raise self.error_of(parse_error_response(status, body, head), model)
        return body


def is_loopback_url(url: str | None) -> bool:
    return bool(url) and is_loopback(urlsplit(url or "").hostname or "")
