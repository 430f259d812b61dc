"""Requests to Mochat, which has no specification: its agent skill (github.com/HKUDS/MoChat, skills) shows them.

Each is a POST with JSON; an answer is `{"code": 200, "data": {...}}`, or has another code and a message.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, require_settings
from nanobot.channels.payload import Payload
from nanobot.channels.rest import Answer, RestClient
from nanobot.config.channels import MochatConfig

_ANSWER_S = 30.0
_UNAUTHORIZED = 401


class MochatApi(RestClient):
    """The requests of one agent."""

    codes = ErrorCodes(
        "Mochat", dict.fromkeys((400, 403, 404, 410, 413, 422), "{text}"), limited=(429,), accepted=range(200, 300)
    )

    def __init__(self, section: MochatConfig) -> None:
        super().__init__(f"{section.base_url.strip().rstrip('/')}/api/claw")
        self._section = section

    async def fetch_token(self) -> tuple[str, float]:
        section = self._section
        return require_settings("mochat", clawToken=section.claw_token, agentUserId=section.agent_user_id)[0], inf

    def authorize(self, token: str) -> dict[str, str]:
        return {"X-Claw-Token": token}

    def error_of(self, answer: Answer) -> Exception:
        if answer.code == _UNAUTHORIZED:
            return ChannelSetupError(
                f"Mochat does not take channels.mochat.clawToken ({answer}). Copy the token again that the agent got "
                "when it was registered, or register a new agent."
            )
        return super().error_of(answer)

    async def ask(self, path: str, body: Mapping[str, Any], *, waits_s: float = 0.0) -> Payload:
        """Send a request and return the data of the answer, which Mochat may hold back for `waits_s`."""
        answer = await self.call("POST", f"/{path}", json=body, timeout=_ANSWER_S + waits_s)
        return answer.part("data") if isinstance(answer.get("code"), int) else answer
