"""A model service beside chat, such as transcription or images: its address, and one request to it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.config.provider_table import ProviderSpec
from nanobot.net.http import HttpError, is_loopback, parse_server_address
from nanobot.net.pools import HttpPools
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    ProviderTimeoutError,
)
from nanobot.security.secrets import redact, request_secrets

if TYPE_CHECKING:
    from nanobot.config.schema import ProviderConfig


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """Address and settings of a service."""

    provider: str
    api_base: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    config_key: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    connect_s: float = 10
    total_s: float = 180

    @classmethod
    def create(
        cls,
        spec: ProviderSpec,
        section: "ProviderConfig | None",
        environ: Mapping[str, str],
        model: str,
        *,
        total_s: float = 180,
    ) -> "ServiceEndpoint | None":
        """The endpoint of a provider with its section of the config; None without an address, or without a key that it
        needs.
        """
        base = (section.api_base if section else None) or spec.default_api_base
        key = (section.api_key if section else None) or spec.env_key(environ)
        if not base or (spec.needs_key and not key and not is_loopback(urlsplit(base).hostname or "")):
            return None
        endpoint = cls(spec.name, base, model, key or None, f"providers.{spec.config_key}.apiKey", total_s=total_s)
        if section is None:
            return endpoint
        return cls(
            spec.name,
            base,
            model,
            key or None,
            endpoint.config_key,
            dict(section.extra_headers or {}),
            section.proxy or None,
            section.connect_timeout_s or endpoint.connect_s,
            section.total_timeout_s or total_s,
        )

    @property
    def bearer(self) -> dict[str, str]:
        """The key as most services want it."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    async def post(self, url: str, headers: Mapping[str, str], content: bytes, *, max_bytes: int) -> bytes:
        """Send a request over a connection of its own, and return the body of the response with status 200.

        Raises a ModelCallError for anything else, with secrets redacted. Cancelling closes the connection.
        """
        body = bytearray()
        all_headers = {"Accept": "application/json", "User-Agent": "nanobot", **headers, **self.extra_headers}
        timeout = asyncio.timeout(self.total_s)
        try:
            async with timeout:
                connection = await HttpPools(proxy=self.proxy).connect(parse_server_address(url), self.connect_s)
                try:
                    await connection.request("POST", all_headers, content)
                    while chunk := await connection.read():
                        body += chunk
                        if len(body) > max_bytes:
                            raise self.error(MalformedResponseError, f"more than {max_bytes >> 20} MB of answer")
                finally:
                    await connection.aclose()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self.error(ProviderTimeoutError, f"waited {self.total_s:g} s for the answer") from None
        except (HttpError, ValueError) as error:
            raise self.error(ConnectionFailedError, str(error)) from None
        status = connection.status
        if 300 <= status < 400:
            location = connection.headers.get("location", "elsewhere")
            raise self.error(MalformedResponseError, f"a redirect to {location}, not followed with a key", status)
        if status != 200:
            from nanobot.providers.error_patterns import error_of, parse_error_response  # compiles its table

            raise error_of(parse_error_response(status, bytes(body), connection.headers), self.target, self._secrets)
        return bytes(body)

    @property
    def target(self) -> CallTarget:
        return CallTarget(self.provider, self.model, redact(self.api_base, [self.api_key or ""]), self.config_key)

    @property
    def _secrets(self) -> list[str]:
        return request_secrets(self.api_key, self.extra_headers)

    def error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        """A typed error of this service, with secrets redacted."""
        return kind(redact(detail, self._secrets), target=self.target, status=status)
