"""Sends requests to WeChat's bot API, and converts its errors to ours.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md and src/api. Errors come as `ret` or `errcode` in an answer
of 200. Nothing is sent twice here.
"""

import base64
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from nanobot import __version__
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.config.channels import WeixinConfig
from nanobot.net.clients import connection_error_reason, load_httpx
from nanobot.net.http import HttpPools

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

_VERSION = (2, 4, 6)
"""Of Tencent's plugin, whose requests these are."""
_CONNECT_S, _ANSWER_S, _POLL_SLACK_S, _LOGIN_S = 10.0, 15.0, 5.0, 35.0
_RESTRICTED, _BAD_ARGUMENT, _LOGGED_OUT = -2, -3, -14
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log URLs of files, which open them


class RestrictedError(SendError):
    """WeChat takes no more messages for now: too many, too fast, or too long after the person's last one."""


class NoAnswerError(SendError):
    """No answer came in time; where WeChat answers once something happens, nothing has."""


class WeixinApi:
    """The requests of one bot; without a token only those of the login. All raise SendError and are safe to cancel."""

    def __init__(self, section: WeixinConfig, token: str = "", base_url: str = "") -> None:
        self._token = token
        self.base_url = base_url or section.base_url
        self.cdn_base = section.cdn_base_url.rstrip("/")
        self.pools = HttpPools()
        self._route_tag = (section.route_tag or "").strip()

    async def close(self) -> None:
        await self.pools.close()

    async def call(self, method: str, body: Mapping[str, Any], *, timeout_s: float = _ANSWER_S) -> Mapping[str, Any]:
        """Send a request and return the answer. Raises ChannelSetupError once the bot is logged out."""
        headers = {"AuthorizationType": "ilink_bot_token"}
        headers["X-WECHAT-UIN"] = base64.b64encode(str(secrets.randbits(32)).encode()).decode()
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        about = {"channel_version": ".".join(map(str, _VERSION)), "bot_agent": f"nanobot/{__version__} (python)"}
        with as_send_errors(may_have_arrived=method == "sendmessage"):
            return await self._exchange("POST", method, timeout_s, headers, json={**body, "base_info": about})

    async def get_updates(self, cursor: str, wait_s: float) -> Mapping[str, Any]:
        """Wait for messages behind the cursor. Empty without an answer in that time. Raises as `call` does."""
        with suppress(NoAnswerError):
            return await self.call("getupdates", {"get_updates_buf": cursor}, timeout_s=wait_s + _POLL_SLACK_S)
        return {}

    async def login_status(self, query: Mapping[str, str]) -> Mapping[str, Any]:
        """Wait until the state of a login changes. Empty without an answer in some time."""
        with suppress(NoAnswerError), as_send_errors():
            return await self._exchange("GET", "get_qrcode_status", _LOGIN_S, {}, params=query)
        return {}

    async def _exchange(
        self,
        verb: str,
        method: str,
        timeout_s: float,
        headers: Mapping[str, str],
        *,
        params: Mapping[str, str] | None = None,
        json: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        url = f"{self.base_url.rstrip('/')}/ilink/bot/{method}"
        major, minor, patch = _VERSION
        headers = {"iLink-App-Id": "bot", "iLink-App-ClientVersion": str(major << 16 | minor << 8 | patch), **headers}
        if self._route_tag:
            headers["SKRouteTag"] = self._route_tag
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        async with self.pools.borrow_client(url) as client:
            return _check(await client.request(verb, url, params=params, json=json, headers=headers, timeout=timeout))


def is_trusted(url: str, configured: str) -> bool:
    """Whether requests may go to an address of an answer: WeChat's own, with TLS, or the configured server's."""
    try:
        parts, own = urlsplit(url), urlsplit(configured)
    except ValueError:
        return False
    is_wechats = parts.scheme == "https" and (parts.hostname or "").endswith(".weixin.qq.com")
    return is_wechats or (parts.scheme, parts.netloc) == (own.scheme, own.netloc)


@contextmanager
def as_send_errors(*, may_have_arrived: bool = False) -> Iterator[None]:
    """Convert httpx's errors. `may_have_arrived`: whether the request is a message."""
    try:
        yield
    except _NOT_SENT as error:
        raise NotConnectedError(f"WeChat cannot be reached: {connection_error_reason(error)}") from None
    except httpx.ReadTimeout:
        raise NoAnswerError("WeChat did not answer", may_have_arrived=may_have_arrived) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        lost = f"connection to WeChat lost: {type(error).__name__}"
        raise SendError(lost, may_have_arrived=may_have_arrived) from None


def _check(response: httpx.Response) -> Mapping[str, Any]:
    """Return the answer. Raises what its code means."""
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise RateLimitedError("WeChat: too many requests", -1)
    if response.status_code >= httpx.codes.BAD_REQUEST:
        raise SendError(f"WeChat answered HTTP {response.status_code}")
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, Mapping):
        raise SendError("WeChat sent an answer that is not JSON", may_have_arrived=True)
    code = answer.get("errcode") or answer.get("ret") or 0
    said = " ".join(str(answer.get("errmsg") or "no reason given").split())[:300]
    if code == _LOGGED_OUT:
        raise ChannelSetupError(
            f"WeChat has logged the bot of channels.weixin.token out ({code}). "
            "Log in again: nanobot channels login weixin --force"
        )
    if code == _RESTRICTED:
        raise RestrictedError(f"WeChat takes no message for now ({said}, {code})")
    if code == _BAD_ARGUMENT:
        raise UndeliverableError(f"WeChat does not take the message ({said}, {code})")
    if code:
        raise SendError(f"WeChat answered: {said} ({code})")
    return answer
