"""Checks that a request comes from Teams and is meant for this bot.

Source: learn.microsoft.com/azure/bot-service/rest-api/bot-framework-rest-connector-authentication, "Connector to Bot".
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import jwt

from nanobot.channels.errors import SendError
from nanobot.channels.msteams.api import TeamsApi
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

_ISSUER = "https://api.botframework.com"
_LEEWAY_S = 300
_KEPT_S = 24 * 3600.0
_PAUSE_S = 60.0
"""Shortest time between two requests for the keys: anybody may send a token that names an unknown one."""


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
            if now > self._fetched + (_KEPT_S if key_id in self._keys else _PAUSE_S):
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
