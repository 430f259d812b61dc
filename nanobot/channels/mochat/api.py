"""Sends requests to Mochat, and converts its errors to ours. Nothing is sent twice here.

Mochat has no specification; its agent skill (github.com/HKUDS/MoChat, skills) and the clients there show the requests.
Each is a POST with JSON; an answer is `{"code": 200, "data": {...}}`, or has another code and a message.
"""

from collections.abc import Callable, Mapping
from typing import Any

from nanobot.channels.errors import (
    ChannelSetupError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.payload import Payload
from nanobot.channels.rest import as_send_errors
from nanobot.config.channels import MochatConfig
from nanobot.net.http import HttpPools

_ANSWER_S = 30.0
_UNAUTHORIZED, _TOO_MANY = 401, 429
_FINAL = (400, 403, 404, 410, 413, 422)


class MochatApi:
    """The requests of one agent. Methods raise SendError and ChannelSetupError; all are safe to cancel."""

    def __init__(self, section: MochatConfig, touch: Callable[[], None] = lambda: None) -> None:
        """`touch` is called with each answer. Raises MissingSettingsError."""
        self._token, _ = require_settings("mochat", clawToken=section.claw_token, agentUserId=section.agent_user_id)
        self._base = section.base_url.strip().rstrip("/")
        self._touch = touch
        self._pools = HttpPools()

    async def close(self) -> None:
        await self._pools.close()

    async def call(self, path: str, body: Mapping[str, Any], *, waits_s: float = 0.0) -> Payload:
        """Send a request and return the data of the answer, which Mochat may hold back for `waits_s`."""
        url = f"{self._base}/api/claw/{path}"
        with as_send_errors("Mochat"):
            async with self._pools.borrow_client(url) as client:
                response = await client.post(
                    url, headers={"X-Claw-Token": self._token}, json=body, timeout=_ANSWER_S + waits_s
                )
        answer = Payload.parse(response.content)
        is_wrapped = isinstance(answer.get("code"), int)
        code = answer["code"] if is_wrapped and response.is_success else response.status_code
        if 200 <= code < 300:
            self._touch()
            return answer.part("data") if is_wrapped else answer
        words = (answer.line("message") or answer.line("name") or "no reason given")[:300]
        if code == _UNAUTHORIZED:
            raise ChannelSetupError(
                f"Mochat does not take channels.mochat.clawToken ({words}). Copy the token again that the agent got "
                "when it was registered, or register a new agent."
            )
        if code == _TOO_MANY:
            pause_s = response.headers.get("retry-after", "")
            is_number = pause_s.replace(".", "", 1).isdecimal()
            raise RateLimitedError("Mochat: too many requests", float(pause_s) if is_number else -1)
        error_type = UndeliverableError if code in _FINAL else SendError
        raise error_type(f"Mochat answered: {words} ({code})")
