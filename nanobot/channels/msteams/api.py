"""Requests to Microsoft: the bot's token, and the Bot Connector's REST API.

Source: learn.microsoft.com/azure/bot-service/rest-api (authentication, connector API reference). Nothing is sent twice
here, except with a new token for one that is no longer valid.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.media_kinds import MediaError
from nanobot.config.channels import TeamsConfig
from nanobot.net.clients import connection_error_reason
from nanobot.net.http import HttpPools, is_loopback
from nanobot.utils.clock import Clock

_SCOPE = "https://api.botframework.com/.default"
_ANY_TENANT = "botframework.com"
_TIMEOUT = httpx.Timeout(30, connect=10)
_UPLOAD_S = 120.0
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""
_TRY_AGAIN = (408, 412)
"""Besides 429 and 5xx (learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit)."""
_TOKEN_MARGIN_S = 300.0
_LONGEST_TEXT = 300


class TeamsApi:
    """The requests of one bot. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, settings: TeamsConfig, clock: Clock) -> None:
        """Raises ChannelSetupError."""
        given = {"appId": settings.app_id.strip(), "appPassword": settings.app_password.strip()}
        if empty := [name for name, value in given.items() if not value]:
            raise MissingSettingsError("msteams", *empty)
        for name, url in (
            ("apiBase", settings.api_base),
            ("openidUrl", settings.openid_url),
            ("serviceUrl", settings.service_url),
        ):
            if not is_secure(url):
                raise ChannelSetupError(f"channels.msteams.{name} must be an https address: a token depends on it.")
        self.refusal: asyncio.Future[ChannelSetupError] = asyncio.get_running_loop().create_future()
        """Done once Microsoft no longer accepts the password."""
        self._id, self._password = given.values()
        tenant = settings.tenant_id.strip() or _ANY_TENANT
        self._token_url = f"{settings.api_base.rstrip('/')}/{tenant}/oauth2/v2.0/token"
        self._hosts = settings.trusted_service_url_hosts
        self._clock = clock
        self._pools = HttpPools()
        self._token, self._token_until = "", 0.0

    async def close(self) -> None:
        await self._pools.close()

    def is_trusted(self, url: str) -> bool:
        """Whether the bot's token may be sent there."""
        if not is_secure(url):
            return False
        host = (urlsplit(url).hostname or "").lower()
        return any(
            host.endswith(trusted[1:]) if trusted.startswith("*.") else host == trusted
            for trusted in map(str.lower, self._hosts)
        )

    async def fetch_token(self) -> None:
        """Log in. Raises ChannelSetupError for a wrong id, password or tenant; SendError."""
        form = {
            "grant_type": "client_credentials",
            "client_id": self._id,
            "client_secret": self._password,
            "scope": _SCOPE,
        }
        response = await self._send("POST", self._token_url, data=form)
        answer = _body(response)
        self._token = str(answer.get("access_token") or "") if response.status_code == 200 else ""
        if not self._token:
            said = " ".join(str(answer.get("error_description") or f"HTTP {response.status_code}").split())
            raise ChannelSetupError(
                "Microsoft does not take channels.msteams.appId, channels.msteams.appPassword and "
                f"channels.msteams.tenantId ({said[:_LONGEST_TEXT]}). Copy them again from the Azure portal: your bot, "
                "Configuration; a new password under Manage Password, New client secret (its value, not its ID)."
            )
        lasts_s = str(answer.get("expires_in"))
        left_s = (int(lasts_s) if lasts_s.isdecimal() else 0) - _TOKEN_MARGIN_S
        self._token_until = self._clock.monotonic() + left_s

    async def call(self, method: str, service_url: str, path: str, activity: object = None) -> Mapping[str, Any]:
        """Send a request to the connector. Return its answer."""
        if not self.is_trusted(service_url):
            raise UndeliverableError(f"the host of {service_url} is not in channels.msteams.trustedServiceUrlHosts")
        url = f"{service_url.rstrip('/')}/v3/conversations{path}"
        response = await self._send(method, url, await self._valid_token(), json=activity)
        if response.status_code == 401:
            self._token = ""
            response = await self._send(method, url, await self._valid_token(), json=activity)
        error = _body(response).get("error")
        error = error if isinstance(error, Mapping) else {}
        said = " ".join(str(error.get("message") or "").split())[:_LONGEST_TEXT]
        said = f"{said or 'no reason given'} ({error.get('code') or response.status_code})"
        if response.status_code in _TRY_AGAIN or response.status_code == 401:
            raise SendError(f"Teams: {said}")
        if response.status_code >= 400:
            raise UndeliverableError(f"Teams refuses it: {said}")
        return _body(response)

    async def fetch_json(self, url: str) -> Mapping[str, Any]:
        """Fetch a public document."""
        if not is_secure(url):
            raise SendError(f"{urlsplit(url).hostname} offers no https")
        return _body(await self._send("GET", url))

    async def upload(self, url: str, data: bytes) -> None:
        """Store a file at the address that Teams gave for it, which contains its own authorisation."""
        if not is_secure(url):
            raise UndeliverableError("Teams named no https address for the file")
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        response = await self._send("PUT", url, headers=headers, content=data, timeout=_UPLOAD_S)
        if response.status_code >= 400:
            raise UndeliverableError(f"OneDrive refuses the file ({response.status_code})")

    async def download(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file in chunks. Raises MediaError, SendError."""
        if not is_secure(url):
            raise MediaError("Teams named no https address")
        headers = {"Authorization": f"Bearer {await self._valid_token()}"} if self.is_trusted(url) else {}
        with _as_send_errors():
            async with (
                self._pools.borrow_client(url) as client,
                client.stream("GET", url, headers=headers, timeout=_TIMEOUT) as response,
            ):
                if response.status_code != 200:
                    raise MediaError(f"Teams answered {response.status_code}")
                async for chunk in response.aiter_bytes():
                    yield chunk

    async def _valid_token(self) -> str:
        """The token. If the password is no longer valid, `refusal` is set, and the message waits."""
        if not self._token or self._clock.monotonic() > self._token_until:
            try:
                await self.fetch_token()
            except ChannelSetupError as error:
                if not self.refusal.done():
                    self.refusal.set_result(error)
                raise NotConnectedError("Microsoft no longer accepts the bot's password") from error
        return self._token

    async def _send(self, method: str, url: str, token: str = "", **request: Any) -> httpx.Response:
        """Send a request. Raises SendError if it is to be tried later."""
        headers = {**request.pop("headers", {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        with _as_send_errors():
            async with self._pools.borrow_client(url) as client:
                response = await client.request(method, url, headers=headers, **{"timeout": _TIMEOUT, **request})
        if response.status_code == 429:
            after = response.headers.get("retry-after", "")
            pause_s = float(after) if after.replace(".", "", 1).isdecimal() else -1
            raise RateLimitedError("Teams: too many messages", pause_s)
        if response.status_code >= 500:
            raise SendError(f"{urlsplit(url).hostname} answered {response.status_code}")
        return response


def is_secure(url: str) -> bool:
    """Whether nobody in between can read or answer requests to this address: https, or on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def path_of(*parts: str) -> str:
    """The path of a conversation, or of something in it."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _body(response: httpx.Response) -> Mapping[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, Mapping) else {}


@contextmanager
def _as_send_errors() -> Iterator[None]:
    try:
        yield
    except _NOT_SENT as error:
        raise NotConnectedError(f"Microsoft cannot be reached: {connection_error_reason(error)}") from error
    except httpx.TransportError as error:
        raise SendError(f"connection to Microsoft lost: {type(error).__name__}", may_have_arrived=True) from error
