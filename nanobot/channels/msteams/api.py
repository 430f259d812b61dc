"""Requests to Microsoft: the bot's token, and the Bot Connector's REST API.

Source: learn.microsoft.com/azure/bot-service/rest-api (authentication, connector API reference).
"""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, urlsplit

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, SendError, UndeliverableError, require_settings
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.payload import Payload
from nanobot.channels.rest import RestClient, download
from nanobot.config.channels import TeamsConfig
from nanobot.net.http import is_loopback

_SCOPE = "https://api.botframework.com/.default"
_ANY_TENANT = "botframework.com"
_TRY_AGAIN = (408, 412)
"""Besides 429 and 5xx (learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit)."""
_LONGEST_TEXT = 300


class TeamsApi(RestClient):
    """The requests of one bot."""

    codes = ErrorCodes("Microsoft Teams", temporary=_TRY_AGAIN)

    def __init__(self, settings: TeamsConfig) -> None:
        super().__init__(settings.api_base)
        self._settings = settings

    def is_trusted(self, url: str) -> bool:
        """Whether the bot's token may be sent there."""
        if not is_secure(url):
            return False
        host = (urlsplit(url).hostname or "").lower()
        return any(
            host.endswith(trusted[1:]) if trusted.startswith("*.") else host == trusted
            for trusted in map(str.lower, self._settings.trusted_service_url_hosts)
        )

    async def fetch_token(self) -> tuple[str, float]:
        """Log in. Raises ChannelSetupError for a wrong id, password, tenant or address; SendError."""
        settings = self._settings
        bot, password = require_settings("msteams", appId=settings.app_id, appPassword=settings.app_password)
        urls = {"apiBase": settings.api_base, "openidUrl": settings.openid_url, "serviceUrl": settings.service_url}
        if insecure := [name for name, url in urls.items() if not is_secure(url)]:
            raise ChannelSetupError(f"channels.msteams.{insecure[0]} must be an https address: a token depends on it.")
        form = {"grant_type": "client_credentials", "client_id": bot, "client_secret": password, "scope": _SCOPE}
        tenant = settings.tenant_id.strip() or _ANY_TENANT
        answer = await self.exchange("POST", f"/{tenant}/oauth2/v2.0/token", data=form)
        token = answer.body.text("access_token")
        if answer.code or not token:
            said = answer.body.line("error_description") or answer.text
            raise ChannelSetupError(
                "Microsoft does not take channels.msteams.appId, channels.msteams.appPassword and "
                f"channels.msteams.tenantId ({said[:_LONGEST_TEXT]}). Copy them again from the Azure portal: your bot, "
                "Configuration; a new password under Manage Password, New client secret (its value, not its ID)."
            )
        return token, answer.body.number("expires_in")

    async def call(self, method: str, path: str, **request: Any) -> Payload:
        """Send a request to this URL of the connector. Return the body of the answer, which may be empty."""
        if not self.is_trusted(path):
            raise UndeliverableError(f"the host of {path} is not in channels.msteams.trustedServiceUrlHosts")
        answer = await self.request(method, path, **request)
        if answer.status < 400:
            return answer.body
        error = answer.body.part("error")
        said = f"{error.line('message')[:_LONGEST_TEXT] or answer.text} ({error.get('code') or answer.status})"
        if answer.status == 401:
            raise SendError(f"Teams: {said}")
        raise UndeliverableError(f"Teams refuses it: {said}")

    async def fetch_json(self, url: str) -> Payload:
        """Fetch a public document."""
        if not is_secure(url):
            raise SendError(f"{urlsplit(url).hostname} offers no https")
        return (await self.exchange("GET", url)).body

    async def upload(self, url: str, data: bytes) -> None:
        """Store a file at the address that Teams gave for it, which contains its own authorisation."""
        if not is_secure(url):
            raise UndeliverableError("Teams named no https address for the file")
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        answer = await self.exchange("PUT", url, headers=headers, content=data)
        if answer.status >= 400:
            raise UndeliverableError(f"OneDrive refuses the file ({answer.status})")

    async def download(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file in chunks. Raises MediaError, SendError."""
        if not is_secure(url):
            raise MediaError("Teams named no https address")
        headers = self.authorize(await self.token()) if self.is_trusted(url) else None
        async for chunk in download("Microsoft Teams", url, headers):
            yield chunk


def is_secure(url: str) -> bool:
    """Whether nobody in between can read or answer requests to this address: https, or on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def conversation_url(service_url: str, *parts: str) -> str:
    """The URL of a conversation, or of something in it; without parts, that of all conversations."""
    return "/".join((f"{service_url.rstrip('/')}/v3/conversations", *(quote(part, safe="") for part in parts)))
