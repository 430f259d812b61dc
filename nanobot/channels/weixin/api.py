"""Sends requests to WeChat's bot API, and converts its errors to ours.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md and src/api. Errors come as `ret` or `errcode` in an answer
of 200. Nothing is sent twice here.
"""

import base64
import secrets
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from nanobot import __version__
from nanobot.channels.errors import ChannelSetupError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.payload import Payload
from nanobot.channels.rest import as_send_errors
from nanobot.config.channels import WeixinConfig
from nanobot.net.http import load_httpx
from nanobot.net.pools import HttpPools

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

_VERSION = (2, 4, 6)
"""Of Tencent's plugin, whose requests these are."""
_CONNECT_S, _ANSWER_S = 10.0, 15.0
_Body = Mapping[str, Any] | None
_RESTRICTED, _BAD_ARGUMENT, _LOGGED_OUT = -2, -3, -14


class RestrictedError(SendError):
    """WeChat takes no more messages for now: too many, too fast, or too long after the person's last one."""


class WeixinApi:
    """The requests of one bot; without a token only those of the login. All raise SendError and are safe to cancel."""

    def __init__(self, section: WeixinConfig, token: str = "", base_url: str = "") -> None:
        self._token = token
        self.base_url = base_url or section.base_url
        self.cdn_base = section.cdn_base_url.rstrip("/")
        self.pools = HttpPools()
        self._route_tag = (section.route_tag or "").strip()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pools.close()

    async def call(self, method: str, body: _Body, *, timeout_s: float = _ANSWER_S, waits: bool = False) -> Payload:
        """Send a request and return the answer: empty if it `waits` for something that does not happen in time.

        Raises ChannelSetupError once the bot is logged out.
        """
        major, minor, patch = _VERSION
        headers = {"iLink-App-Id": "bot", "iLink-App-ClientVersion": str(major << 16 | minor << 8 | patch)}
        if self._route_tag:
            headers["SKRouteTag"] = self._route_tag
        if body is not None:
            headers["AuthorizationType"] = "ilink_bot_token"
            headers["X-WECHAT-UIN"] = base64.b64encode(str(secrets.randbits(32)).encode()).decode()
            about = {"channel_version": f"{major}.{minor}.{patch}", "bot_agent": f"nanobot/{__version__} (python)"}
            body = {**body, "base_info": about}
            if self._token:
                headers["Authorization"] = f"Bearer {self._token}"
        url, timeout = f"{self.base_url.rstrip('/')}/ilink/bot/{method}", httpx.Timeout(timeout_s, connect=_CONNECT_S)
        with as_send_errors("WeChat", may_have_arrived=method == "sendmessage"):
            async with self.pools.borrow_client(url) as client:
                try:
                    verb = "GET" if body is None else "POST"
                    return _check(await client.request(verb, url, headers=headers, timeout=timeout, json=body))
                except httpx.ReadTimeout:
                    if not waits:
                        raise
        return Payload()


def is_trusted(url: str, configured: str) -> bool:
    """Whether requests may go to an address of an answer: WeChat's own, with TLS, or the configured server's."""
    try:
        parts, own = urlsplit(url), urlsplit(configured)
    except ValueError:
        return False
    is_wechats = parts.scheme == "https" and (parts.hostname or "").endswith(".weixin.qq.com")
    return is_wechats or (parts.scheme, parts.netloc) == (own.scheme, own.netloc)


def _check(response: httpx.Response) -> Payload:
    """Return the answer. Raises what its code means."""
    if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
        raise RateLimitedError("WeChat: too many requests", -1)
    if response.status_code >= httpx.codes.BAD_REQUEST:
        raise SendError(f"WeChat answered HTTP {response.status_code}")
    if not response.content.lstrip().startswith(b"{"):
        raise SendError("WeChat sent an answer that is not JSON", may_have_arrived=True)
    answer = Payload.parse(response.content)
    code, said = answer.get("errcode") or answer.get("ret"), answer.line("errmsg")[:300] or "no reason given"
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
