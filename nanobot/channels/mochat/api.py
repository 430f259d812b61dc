"""Sends requests to Mochat, and converts its errors to ours. Nothing is sent twice here.

Mochat has no specification; its agent skill (github.com/HKUDS/MoChat, skills) and the clients there show the requests.
Each is a POST with JSON; an answer is `{"code": 200, "data": {...}}`, or has another code and a message.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.config.channels import MochatConfig
from nanobot.net.clients import connection_error_reason, load_httpx
from nanobot.net.http import HttpPools

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

_ANSWER_S = 30.0
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""
_FINAL = (400, 403, 404, 410, 413, 422)


class MochatApi:
    """The requests of one agent. Methods raise SendError and ChannelSetupError; all are safe to cancel."""

    def __init__(self, section: MochatConfig, touch: Callable[[], None] = lambda: None) -> None:
        """`touch` is called with each answer. Raises MissingSettingsError."""
        given = {"clawToken": section.claw_token, "agentUserId": section.agent_user_id}
        if empty := [name for name, value in given.items() if not value.strip()]:
            raise MissingSettingsError("mochat", *empty)
        self._base = section.base_url.strip().rstrip("/")
        self._token = section.claw_token.strip()
        self._touch = touch
        self._pools = HttpPools()

    async def close(self) -> None:
        await self._pools.close()

    async def call(self, path: str, body: Mapping[str, Any], *, waits_s: float = 0.0) -> Mapping[str, Any]:
        """Send a request and return the data of the answer, which Mochat may hold back for `waits_s`."""
        url = f"{self._base}/api/claw/{path}"
        timeout = httpx.Timeout(_ANSWER_S + waits_s, connect=10)
        try:
            async with self._pools.borrow_client(url) as client:
                response = await client.post(url, headers={"X-Claw-Token": self._token}, json=body, timeout=timeout)
        except _NOT_SENT as error:
            raise NotConnectedError(f"Mochat cannot be reached: {connection_error_reason(error)}") from None
        except httpx.HTTPError as error:
            raise SendError(f"connection to Mochat lost: {type(error).__name__}", may_have_arrived=True) from None
        try:
            parsed = response.json()
        except ValueError:
            parsed = None
        answer: Mapping[str, Any] = parsed if isinstance(parsed, Mapping) else {}
        is_wrapped = isinstance(answer.get("code"), int)
        code = answer["code"] if is_wrapped and response.is_success else response.status_code
        if 200 <= code < 300:
            self._touch()
            data = answer.get("data") if is_wrapped else answer
            return data if isinstance(data, Mapping) else {}
        words = " ".join(str(answer.get("message") or answer.get("name") or "no reason given").split())[:300]
        if code == httpx.codes.UNAUTHORIZED:
            raise ChannelSetupError(
                f"Mochat does not take channels.mochat.clawToken ({words}). Copy the token again that the agent got "
                "when it was registered, or register a new agent."
            )
        if code == httpx.codes.TOO_MANY_REQUESTS:
            pause_s = response.headers.get("retry-after", "")
            is_number = pause_s.replace(".", "", 1).isdecimal()
            raise RateLimitedError("Mochat: too many requests", float(pause_s) if is_number else -1)
        error_type = UndeliverableError if code in _FINAL else SendError
        raise error_type(f"Mochat answered: {words} ({code})")
