"""Feishu's REST API over httpx: its requests, and our errors for its refusals.

Nothing is sent twice here, except with a new token for one that is no longer valid: the manager retries messages, the
supervisor connections. Sources: open.feishu.cn/document, server-docs/im-v1 and .../getting-started/server-error-codes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx

from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.media_kinds import MediaError
from nanobot.config.channels import FeishuConfig
from nanobot.net.clients import connection_error_reason
from nanobot.net.http import HttpPools
from nanobot.utils.clock import Clock

_DOMAINS = {"feishu": "https://open.feishu.cn", "lark": "https://open.larksuite.com"}
_TIMEOUT = httpx.Timeout(30, connect=10)
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""
_TOKEN_MARGIN_S = 300.0
_PING_S = 120.0
_LONGEST_TEXT = 300
_ENABLED = 2
"""`activate_status` of a bot whose app has a released version (server-docs/bot-v3/obtain-bot-info)."""

_TOKEN_ENDED = (99991661, 99991663, 99991664, 99991665, 99991668)
_LIMITED = (99991400, 230020, 11232, 11233, 11247)
_BUSY = (1, 1000040343)
"""Of the endpoint of the long connection."""
_MOST_CONNECTIONS = 1000040350
CARD_REFUSED = (230099, 11310, 230001, 230025)
"""Refusals that may be about a card, and not about the text in it."""
GONE = (230011, 230110, 231003)
"""The message that is replied to was withdrawn or deleted."""
_ADVICE = {
    230001: "it does not understand the message: {text}",
    230002: "the bot is not in that chat. Add it to the group: Settings, Bots, Add Bot",
    230006: "the app has no bot. Add the capability Bot in the console, and release a version",
    230013: "that person is outside the app's availability. Extend it in the console, and release a version",
    230018: "the group is muted for the bot",
    230022: "the text contains words that the company does not allow",
    230025: "the message is too long for Feishu",
    230027: "the app lacks a permission: {text}",
    230028: "the company's data protection refuses it",
    230034: "Feishu knows no such chat or person",
    230035: "the bot may not write in that chat",
    230053: "that person does not want messages from the bot",
    231001: "Feishu knows no such reaction. Choose another name for channels.feishu.reactEmoji",
    232009: "the group was dissolved",
    99991672: "the app lacks a permission: {text}",
    99991679: "the app lacks a permission: {text}",
    **dict.fromkeys((230099, 11310), "it refuses the card: {text}"),
    **dict.fromkeys(GONE, "the message is gone"),
}
"""Why something is refused for good, by error code."""


class RefusedError(UndeliverableError):
    """A refusal with a code that is known to be final."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class BotIdentity(NamedTuple):
    """The bot of the app, from `bot/v3/info`."""

    open_id: str = ""
    name: str = "nanobot"


class Endpoint(NamedTuple):
    """Where the long connection is opened; valid once."""

    url: str
    service: int
    ping_s: float


class _Answer(NamedTuple):
    code: int
    text: str
    body: Mapping[str, Any]


class FeishuApi:
    """The requests of one app. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, section: FeishuConfig, pools: HttpPools, clock: Clock) -> None:
        """Raises MissingSettingsError."""
        empty = [
            name for name, value in (("appId", section.app_id), ("appSecret", section.app_secret)) if not value.strip()
        ]
        if empty:
            raise MissingSettingsError("feishu", *empty)
        self.app_id = section.app_id.strip()
        self.base = _DOMAINS.get(section.domain, section.domain).rstrip("/")
        self.me = BotIdentity()
        self.refusal: asyncio.Future[ChannelSetupError] = asyncio.get_running_loop().create_future()
        """Done once Feishu no longer accepts the app's secret."""
        self._secret = section.app_secret.strip()
        self._pools = pools
        self._clock = clock
        self._token, self._token_until = "", 0.0

    @property
    def console(self) -> str:
        return f"{self.base}/app/{self.app_id}"

    async def log_in(self) -> BotIdentity:
        """Return the bot of the app. Raises ChannelSetupError for an app that cannot be used."""
        await self._fetch_token()
        answer = await self._request("GET", "/open-apis/bot/v3/info", self._token)
        bot = answer.body.get("bot")
        if answer.code or not isinstance(bot, Mapping) or not bot.get("open_id"):
            raise ChannelSetupError(
                f"The app has no bot ({answer.text}, {answer.code}). Add the capability Bot at {self.console}, then "
                "release a version of the app (Version Management)."
            )
        if bot.get("activate_status", _ENABLED) != _ENABLED:
            raise ChannelSetupError(
                f"The app is not released. Create a version at {self.console} (Version Management & Release) and have "
                "it approved; after each change of permissions or events, again."
            )
        self.me = BotIdentity(str(bot["open_id"]), str(bot.get("app_name") or "nanobot"))
        return self.me

    async def fetch_endpoint(self) -> Endpoint:
        """Ask where to connect. Raises ChannelSetupError if the app may not."""
        body = {"AppID": self.app_id, "AppSecret": self._secret}
        answer = await self._request("POST", "/callback/ws/endpoint", json=body)
        if answer.code == _MOST_CONNECTIONS:
            raise ChannelSetupError("The app has as many connections as Feishu allows. Stop its other programs.")
        if answer.code:
            raise ChannelSetupError(
                f"Feishu refuses the long connection ({answer.text}, {answer.code}). channels.feishu.appId and "
                f"appSecret must be those of a custom app of your company: {self.console}, Credentials & Basic Info."
            )
        data = _dict(answer.body.get("data"))
        url = str(data.get("URL") or "")
        service = parse_qs(urlsplit(url).query).get("service_id", ["0"])[0]
        ping_s = _dict(data.get("ClientConfig")).get("PingInterval")
        return Endpoint(url, int(service) if service.isdecimal() else 0, _seconds(ping_s, _PING_S))

    async def call(self, method: str, path: str, **request: Any) -> Mapping[str, Any]:
        """Send a request below /open-apis. Return its data. `request`: as httpx takes it."""
        path = f"/open-apis{path}"
        answer = await self._request(method, path, await self._valid_token(), **request)
        if answer.code in _TOKEN_ENDED:
            self._token = ""
            answer = await self._request(method, path, await self._valid_token(), **request)
        if answer.code in _ADVICE or answer.code // 1000 in (200, 300):  # the latter are about cards
            advice = _ADVICE.get(answer.code, "{text}").format(text=answer.text)
            raise RefusedError(f"Feishu: {advice} ({answer.code})", answer.code)
        if answer.code:
            raise SendError(f"Feishu: {answer.text} ({answer.code})")
        return _dict(answer.body.get("data"))

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file of a message in chunks. Raises MediaError, SendError."""
        headers = {"Authorization": f"Bearer {await self._valid_token()}"}
        url = f"{self.base}/open-apis{path}"
        with _as_send_errors():
            async with (
                self._pools.borrow_client(url) as client,
                client.stream("GET", url, headers=headers, timeout=_TIMEOUT) as response,
            ):
                if response.status_code != 200:
                    await response.aread()
                    raise MediaError(f"Feishu did not send it: {_read_answer(response).text}")
                async for chunk in response.aiter_bytes():
                    yield chunk

    async def _valid_token(self) -> str:
        """The token. If the app's secret is no longer valid, `refusal` is set, and the message waits."""
        if not self._token or self._clock.monotonic() > self._token_until:
            try:
                await self._fetch_token()
            except ChannelSetupError as error:
                if not self.refusal.done():
                    self.refusal.set_result(error)
                raise NotConnectedError("Feishu no longer accepts the app's secret") from error
        return self._token

    async def _fetch_token(self) -> None:
        """Raises ChannelSetupError for a wrong id or secret, SendError if Feishu is unreachable."""
        body = {"app_id": self.app_id, "app_secret": self._secret}
        answer = await self._request("POST", "/open-apis/auth/v3/tenant_access_token/internal", json=body)
        self._token = str(answer.body.get("tenant_access_token") or "")
        if not self._token:
            raise ChannelSetupError(
                f"Feishu does not take channels.feishu.appId and channels.feishu.appSecret ({answer.text}, "
                f"{answer.code}). Copy both from {self.console}, Credentials & Basic Info. For an app of Lark, run "
                "`nanobot config set channels.feishu.domain lark`."
            )
        self._token_until = self._clock.monotonic() + _seconds(answer.body.get("expire"), 0.0) - _TOKEN_MARGIN_S

    async def _request(self, method: str, path: str, token: str = "", **request: Any) -> _Answer:
        """Send a request. Raises SendError if it is to be tried later."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"{self.base}{path}"
        with _as_send_errors():
            async with self._pools.borrow_client(url) as client:
                response = await client.request(method, url, headers=headers, timeout=_TIMEOUT, **request)
        answer = _read_answer(response)
        if response.status_code == 429 or answer.code in _LIMITED:
            reset_s = response.headers.get("x-ogw-ratelimit-reset", "")
            pause_s = float(reset_s) if reset_s.replace(".", "", 1).isdecimal() else -1
            raise RateLimitedError(f"Feishu: {answer.text}", pause_s)
        if response.status_code >= 500 or answer.code in _BUSY:
            raise SendError(f"Feishu: {answer.text} ({answer.code})")
        return answer


def _read_answer(response: httpx.Response) -> _Answer:
    try:
        body = _dict(response.json())
    except ValueError:
        body = {}
    code = body.get("code")
    if not isinstance(code, int):  # a server before Feishu answered
        code = response.status_code
    text = " ".join(str(body.get("msg") or f"HTTP {response.status_code}").split())[:_LONGEST_TEXT]
    return _Answer(code, text, body)


@contextmanager
def _as_send_errors() -> Iterator[None]:
    try:
        yield
    except _NOT_SENT as error:
        raise NotConnectedError(f"Feishu cannot be reached: {connection_error_reason(error)}") from error
    except httpx.TransportError as error:
        raise SendError(f"connection to Feishu lost: {type(error).__name__}", may_have_arrived=True) from error


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and value > 0 else default


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
