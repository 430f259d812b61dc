"""Logging in on another device: a short code is typed there, and we ask until somebody did (RFC 8628).

GitHub's page on it (docs.github.com, "Authorizing OAuth apps", device flow) has the addresses and the error codes.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from nanobot.providers.errors import ModelOverloadedError, RateLimitedError
from nanobot.providers.oauth.authority import Asker
from nanobot.providers.oauth.errors import AuthorityUnreachableError, LoginFailedError

GRANT_TYPE = "urn:ietf:params:oauth:grant-type:device_code"
USUAL_INTERVAL_S = 5.0
SLOWER_S = 5.0
"""How much longer each pause gets when the authority says slow_down (RFC 8628, 3.5)."""
USUAL_LIFE_S = 900.0
_REFUSALS = {
    "access_denied": "The login was refused on the page.",
    "expired_token": "The code has expired before somebody typed it.",
    "token_expired": "The code has expired before somebody typed it.",
    "incorrect_device_code": "The authority does not know its own code.",
    "device_flow_disabled": "This authority does not let apps log in by a code.",
}
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """A question that is open: what to type where, and how often to ask whether it was done."""

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    interval_s: float
    lasts_s: float


async def begin(asker: Asker, url: str, form: Mapping[str, str]) -> DeviceCode:
    """Open a question. Raises a ModelCallError."""
    reply = await asker.post(url, form)
    if reply.status != 200 or not (reply.word("device_code") and reply.word("user_code")):
        raise LoginFailedError(f"No login could be begun at {url}: {reply.reason}.")
    interval_s = reply.number("interval")
    return DeviceCode(
        reply.word("device_code"),
        reply.word("user_code"),
        reply.word("verification_uri"),
        USUAL_INTERVAL_S if interval_s is None else interval_s,
        reply.number("expires_in") or USUAL_LIFE_S,
    )


async def token_for(asker: Asker, url: str, client_id: str, code: DeviceCode, sleep: Sleep = asyncio.sleep) -> str:
    """Ask until somebody typed the code. Raises LoginFailedError when it was refused, or when it has expired."""
    form = {"client_id": client_id, "device_code": code.device_code, "grant_type": GRANT_TYPE}
    pause_s = code.interval_s
    ends = time.monotonic() + code.lasts_s
    while time.monotonic() < ends:
        await sleep(pause_s)
        try:
            reply = await asker.post(url, form, [code.device_code])
        except AuthorityUnreachableError:  # a moment without a network; RFC 8628 wants us to come back more slowly
            pause_s *= 2
            continue
        if token := reply.word("access_token"):
            return token
        if reply.error == "slow_down":
            pause_s = reply.number("interval") or pause_s + SLOWER_S
        elif reply.error in _REFUSALS:
            raise LoginFailedError(f"{_REFUSALS[reply.error]} Run it again.")
        elif reply.error != "authorization_pending":
            trouble = asker.trouble(reply, [code.device_code])
            if not isinstance(trouble, ModelOverloadedError | RateLimitedError):
                raise LoginFailedError(f"The login was not completed: {trouble.detail}. Run it again.")
            pause_s += SLOWER_S
    raise LoginFailedError(f"{_REFUSALS['expired_token']} Run it again.")
