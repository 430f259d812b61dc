"""Requests to Microsoft, and the check that a request to us comes from Teams and is meant for this bot.

Source: learn.microsoft.com/azure/bot-service/rest-api (authentication, connector API reference).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import jwt

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, SendError, UndeliverableError, require_settings
from nanobot.channels.incoming import Payload
from nanobot.channels.media import MediaError
from nanobot.channels.rest import RestClient, download
from nanobot.config.channels import TeamsConfig
from nanobot.net.http import is_loopback
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

_SCOPE = "https://api.botframework.com/.default"
_ANY_TENANT = "botframework.com"
_TRY_AGAIN = (408, 412)
"""Besides 429 and 5xx (learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit)."""
_LONGEST_TEXT = 300
_ISSUER = "https://api.botframework.com"
_LEEWAY_S = 300
_KEYS_LAST_S, _KEYS_PAUSE_S = 24 * 3600.0, 60.0
"""How long the keys are kept, and the shortest time between two requests for them: anybody may send a token that names
an unknown one.
"""


class TeamsApi(RestClient):
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


class RejectedError(Exception):
    """The request does not come from Teams. The text says what is wrong."""


class TokenChecker:
    """Checks the tokens of requests with Microsoft's public keys, which it fetches once a day."""

    def __init__(self, openid_url: str, app_id: str, api: TeamsApi, clock: Clock) -> None:
        self._openid_url = openid_url
        self._app_id = app_id
        self._api = api
        self._clock = clock
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._fetched = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self, authorization: str, activity: Mapping[str, Any]) -> None:
        """Raises RejectedError; SendError if the keys cannot be fetched."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise RejectedError("it has no token")
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid"))
            key = await self._find_key(key_id)
            if key is None:
                raise RejectedError("its token is signed with an unknown key")
            claims = jwt.decode(
                token,
                jwt.PyJWK(dict(key), "RS256").key,
                algorithms=["RS256"],
                audience=self._app_id,
                issuer=_ISSUER,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidAudienceError:
            raise RejectedError("it is for another bot; is channels.msteams.appId the ID of this bot?") from None
        except jwt.PyJWTError as error:
            raise RejectedError(f"its token is not valid ({type(error).__name__})") from None
        endorsed = key.get("endorsements")
        if isinstance(endorsed, list) and activity.get("channelId") not in endorsed:
            raise RejectedError("its key is not for this kind of channel")
        if claims.get("serviceurl") != activity.get("serviceUrl"):
            raise RejectedError("its serviceUrl is not that of its token")

    async def _find_key(self, key_id: str) -> Mapping[str, Any] | None:
        async with self._lock:
            now = self._clock.monotonic()
            if now > self._fetched + (_KEYS_LAST_S if key_id in self._keys else _KEYS_PAUSE_S):
                self._fetched = now
                try:
                    document = await self._api.fetch_json(self._openid_url)
                    keys = (await self._api.fetch_json(document.text("jwks_uri"))).parts("keys")
                    self._keys = {str(key.get("kid")): key for key in keys if key.get("kty") == "RSA"} or self._keys
                except SendError as error:
                    log.warning("msteams: the keys of Microsoft cannot be fetched: %s", error)
            if not self._keys:
                raise SendError("the keys of Microsoft are not known yet")
            return self._keys.get(key_id)
