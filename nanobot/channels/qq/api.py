"""Sends requests to QQ's bot platform (bot.q.qq.com/wiki/develop/api-v2), and converts its errors to ours.

Nothing is sent twice here, except with a new token for one that is no longer valid.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.media_kinds import MediaError
from nanobot.config.channels import QQConfig
from nanobot.net.clients import connection_error_reason, load_httpx
from nanobot.net.http import HttpPools
from nanobot.utils.clock import Clock

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

API = "https://api.bot.qq.com"
CONSOLE = "q.qq.com"
_TIMEOUT = httpx.Timeout(100, connect=10)  # an upload may take long
_TOKEN_MARGIN_S = 50.0
"""A new token is given in the last minute of the old one (dev-prepare/interface-framework/api-use)."""
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""

REPEATED = 40054005
"""The message of this `msg_id` and `msg_seq` was sent already."""
TOO_LATE = (304026, 304027, 304028, 304103, 40034005, 40034024, 40034025, 40034026, 40034027, 40034128)
"""The message that it replies to is too old, or has as many replies as QQ allows."""
NO_MARKDOWN = (50056, 304036, 40034011, 40034127)
NO_LINKS = (304003, 40054010)
_LIMITED = (22009, 100001, 40034100, 50002)
_NOT_LISTED = (11298, 40023002)
_IN_REVIEW = (304023, 304024)
"""The message was accepted, and is looked at before it appears."""
_ADVICE = {
    304025: "it does not allow the text",
    40034006: "it does not allow the text",
    40034101: "the bot is not in that group",
    40034105: "the bot may only reply there, and has no message left to reply to. It can answer once they write again",
    40054002: "the bot is muted there",
    40054003: "the bot is not in that group",
    40054004: "that person has not added the bot",
    40054007: "the message is too long",
    40054013: "that person does not want messages from the bot. It can answer once they write again",
    40054016: f"the bot is offline. Publish it at {CONSOLE}",
    40054018: "the message is too long",
    **dict.fromkeys((REPEATED, *TOO_LATE, *NO_MARKDOWN, *NO_LINKS), "{text}"),
}
"""Why something is refused for good, by error code."""

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log URLs of files, which open them


class RefusedError(UndeliverableError):
    """A refusal with a code that is known to be final."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class QQApi:
    """The requests of one bot. Methods raise SendError, ChannelSetupError where they say so; all are safe to cancel."""

    def __init__(self, section: QQConfig, clock: Clock) -> None:
        """Raises MissingSettingsError."""
        empty = [name for name, value in (("appId", section.app_id), ("secret", section.secret)) if not value.strip()]
        if empty:
            raise MissingSettingsError("qq", *empty)
        self.app_id = section.app_id.strip()
        self._secret = section.secret.strip()
        self._base = (section.api_base or API).rstrip("/")
        self._clock = clock
        self._pools = HttpPools()
        self._token, self._token_until = "", 0.0

    async def close(self) -> None:
        await self._pools.close()

    async def log_in(self) -> str:
        """The access token. Raises ChannelSetupError if the id or the secret is wrong."""
        if not self._token or self._clock.monotonic() > self._token_until:
            body = {"appId": self.app_id, "clientSecret": self._secret}
            status, code, answer = await self._exchange("POST", "/app/getAppAccessToken", "", body)
            self._token = str(answer.get("access_token") or "")
            if not self._token:
                raise ChannelSetupError(
                    f"QQ does not take channels.qq.appId and channels.qq.secret ({_words(answer)}, {code or status}). "
                    f"Copy both again from {CONSOLE}, your bot, Development Settings (开发设置)."
                )
            lasts_s = str(answer.get("expires_in"))
            self._token_until = self._clock.monotonic() - _TOKEN_MARGIN_S
            self._token_until += float(lasts_s) if lasts_s.isdecimal() else 0.0
        return self._token

    async def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a request. Return the answer. Raises ChannelSetupError, too."""
        for is_first in (True, False):
            token = await self.log_in()
            status, code, answer = await self._exchange(method, path, token, body)
            if code in _NOT_LISTED:
                raise ChannelSetupError(
                    f"QQ refuses requests from this machine's address ({code}). Add the address to the IP allow list "
                    f"at {CONSOLE}, your bot, Development Settings (开发设置, IP白名单)."
                )
            if status != httpx.codes.UNAUTHORIZED:
                break
            self._token = ""
            if not is_first:
                raise SendError(f"QQ does not accept its own token ({_words(answer)}, {code})")
        if code in _ADVICE:
            raise RefusedError(f"QQ: {_ADVICE[code].format(text=_words(answer))} ({code})", code)
        if status >= httpx.codes.BAD_REQUEST or (code and code not in _IN_REVIEW):
            raise SendError(f"QQ answered: {_words(answer)} ({code or f'HTTP {status}'})")
        return answer

    async def download(self, url: str) -> AsyncIterator[bytes]:
        """Yield a file of a message in chunks. QQ may leave out the scheme of its URL. Raises MediaError, SendError."""
        if url.startswith("//"):
            url = f"{urlsplit(self._base).scheme}:{url}"
        with _as_send_errors():
            async with (
                self._pools.borrow_client(url) as client,
                client.stream("GET", url, timeout=_TIMEOUT) as response,
            ):
                if response.status_code != httpx.codes.OK:
                    raise MediaError(f"QQ answered {response.status_code}")
                async for chunk in response.aiter_bytes():
                    yield chunk

    async def _exchange(
        self, method: str, path: str, token: str, body: Mapping[str, Any] | None
    ) -> tuple[int, int, Mapping[str, Any]]:
        """The status, error code (0 without one) and body of the answer. Even an answer of 200 may have a code."""
        url = self._base + path
        headers = {"Authorization": f"QQBot {token}"} if token else {}
        with _as_send_errors():
            async with self._pools.borrow_client(url) as client:
                response = await client.request(method, url, headers=headers, json=body, timeout=_TIMEOUT)
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        answer = answer if isinstance(answer, Mapping) else {}
        code = answer.get("err_code") or answer.get("code")
        code = code if isinstance(code, int) else 0
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS or code in _LIMITED:
            pause_s = response.headers.get("retry-after", "")
            raise RateLimitedError(
                f"QQ: too many messages ({code or response.status_code})",
                float(pause_s) if pause_s.replace(".", "", 1).isdecimal() else -1,
            )
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise SendError(f"QQ answered: {_words(answer)} ({code or f'HTTP {response.status_code}'})")
        return response.status_code, code, answer


@contextmanager
def _as_send_errors() -> Iterator[None]:
    try:
        yield
    except _NOT_SENT as error:
        raise NotConnectedError(f"QQ cannot be reached: {connection_error_reason(error)}") from None
    except httpx.HTTPError as error:
        raise SendError(f"connection to QQ lost: {type(error).__name__}", may_have_arrived=True) from None


def _words(answer: Mapping[str, Any]) -> str:
    return " ".join(str(answer.get("message") or "no reason given").split())[:300]
