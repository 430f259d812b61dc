"""OAuth device flow (RFC 8628): the user types a short code on another device, and we poll until that is done.

GitHub's page on it (docs.github.com, "Authorizing OAuth apps", device flow) has the addresses and the error codes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from nanobot.providers.accounts.errors import AuthorityUnreachableError, LoginFailedError
from nanobot.providers.accounts.oauth_server import OAuthHttpClient
from nanobot.providers.errors import ModelOverloadedError, RateLimitedError

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
DEFAULT_INTERVAL_S = 5.0
SLOW_DOWN_S = 5.0
"""Added to the interval when the server says slow_down (RFC 8628, 3.5)."""
DEFAULT_LIFETIME_S = 900.0
_ERRORS = {
    "access_denied": "The login was refused on the page.",
    "expired_token": "The code expired before it was typed.",
    "token_expired": "The code expired before it was typed.",
    "incorrect_device_code": "The server does not know its own code.",
    "device_flow_disabled": "This server does not allow apps to log in with a code.",
}
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A pending login: what the user types where, and how often to poll."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    interval_s: float
    lifetime_s: float


async def request_code(client: OAuthHttpClient, url: str, form: Mapping[str, str]) -> DeviceCode:
    """Request a code. Raises LoginFailedError or a ModelCallError."""
    response = await client.post(url, form)
    if response.status != 200 or not (response.text("device_code") and response.text("user_code")):
        raise LoginFailedError(f"The login at {url} could not be started: {response.reason}.")
    interval_s = response.number("interval")
    return DeviceCode(
        response.text("device_code"),
        response.text("user_code"),
        response.text("verification_uri"),
        DEFAULT_INTERVAL_S if interval_s is None else interval_s,
        response.number("expires_in") or DEFAULT_LIFETIME_S,
    )


async def poll_token(
    client: OAuthHttpClient, url: str, client_id: str, code: DeviceCode, sleep: Sleep = asyncio.sleep
) -> str:
    """Poll until the user has typed the code. Raises LoginFailedError if it was denied or has expired."""
    form = {"client_id": client_id, "device_code": code.device_code, "grant_type": GRANT_TYPE}
    interval_s = code.interval_s
    deadline = time.monotonic() + code.lifetime_s
    while time.monotonic() < deadline:
        await sleep(interval_s)
        try:
            response = await client.post(url, form, [code.device_code])
        except AuthorityUnreachableError:  # no network for a moment; RFC 8628 asks for a longer interval
            interval_s *= 2
            continue
        if token := response.text("access_token"):
            return token
        if response.error == "slow_down":
            interval_s = response.number("interval") or interval_s + SLOW_DOWN_S
        elif response.error in _ERRORS:
            raise LoginFailedError(f"{_ERRORS[response.error]} Run the command again.")
        elif response.error != "authorization_pending":
            error = client.error_for(response, [code.device_code])
            if not isinstance(error, ModelOverloadedError | RateLimitedError):
                raise LoginFailedError(f"The login was not completed: {error.detail}. Run the command again.")
            interval_s += SLOW_DOWN_S
    raise LoginFailedError(f"{_ERRORS['expired_token']} Run the command again.")
