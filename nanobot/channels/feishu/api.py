"""Requests to Feishu's REST API, and the creation of an app, whose owner opens a link in Feishu or Lark and confirms.

Sources: open.feishu.cn/document, server-docs/im-v1 and .../getting-started/server-error-codes. An app is created by a
device flow (RFC 8628) at the accounts server; its permissions and events come set.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from nanobot.channels.base import AskPerson, LoginStep, ShowStep, SignedIn
from nanobot.channels.errors import ChannelSetupError, ErrorCodes, RefusedError, SendError, require_settings
from nanobot.channels.incoming import Payload
from nanobot.channels.rest import Answer, RestClient, as_send_errors, download
from nanobot.config.channels import FeishuConfig
from nanobot.errors import NanobotError
from nanobot.net.http import new_client, proxy_for, ssl_context

_DOMAINS = {"feishu": "https://open.feishu.cn", "lark": "https://open.larksuite.com"}
_PING_S = 120.0
_ENABLED = 2
"""`activate_status` of a bot whose app has a released version (server-docs/bot-v3/obtain-bot-info)."""

_BUSY = (1, 1000040343)
"""Of the endpoint of the long connection."""
_MOST_CONNECTIONS = 1000040350
CARD_REFUSED = (230099, 11310, 230001, 230025)
"""Refusals that may be about a card, and not about the text in it."""
GONE = (230011, 230110, 231003)
"""The message that is replied to was withdrawn or deleted."""
_FINAL = {
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
    231001: "Feishu knows no such reaction. Choose another name for channels.feishu.reactEmoji or doneEmoji",
    232009: "the group was dissolved",
    99991672: "the app lacks a permission: {text}",
    99991679: "the app lacks a permission: {text}",
    **dict.fromkeys((230099, 11310), "it refuses the card: {text}"),
    **dict.fromkeys(GONE, "the message is gone"),
}
_ACCOUNTS = {"feishu": "https://accounts.feishu.cn", "lark": "https://accounts.larksuite.com"}
_PAUSE_S, _SLOWER_S, _LASTS_S = 5.0, 5.0, 600.0
_TIMEOUT_S = 30.0


class FeishuApi(RestClient):
    codes = ErrorCodes("Feishu", _FINAL, limited=(99991400, 230020, 11232, 11233, 11247), temporary=_BUSY)
    token_ended = (99991661, 99991663, 99991664, 99991665, 99991668)

    def __init__(self, section: FeishuConfig) -> None:
        super().__init__(_DOMAINS.get(section.domain, section.domain))
        self.app_id = section.app_id.strip()
        self.bot, self.bot_name = "", "nanobot"
        """The open_id and the name of the app's bot, once logged in."""
        self._section = section

    @property
    def console(self) -> str:
        return f"{self.base}/app/{self.app_id}"

    async def log_in(self) -> None:
        """Find out which bot the app has. Raises ChannelSetupError for an app that cannot be used."""
        answer = await self.request("GET", "/open-apis/bot/v3/info")
        bot = answer.body.part("bot")
        if answer.code or not bot.text("open_id"):
            raise ChannelSetupError(
                f"The app has no bot ({answer}). Add the capability Bot at {self.console}, then release a version of "
                "the app (Version Management)."
            )
        if bot.get("activate_status", _ENABLED) != _ENABLED:
            raise ChannelSetupError(
                f"The app is not released. Create a version at {self.console} (Version Management & Release) and have "
                "it approved; after each change of permissions or events, again."
            )
        self.bot, self.bot_name = bot.text("open_id"), bot.text("app_name") or "nanobot"

    async def fetch_endpoint(self) -> tuple[str, int, float]:
        """A URL to connect to, valid once; the number of the service; and how often to ping it, in seconds.

        Raises ChannelSetupError if the app may not connect.
        """
        app_id, secret = self._credentials()
        answer = await self.exchange("POST", "/callback/ws/endpoint", json={"AppID": app_id, "AppSecret": secret})
        if answer.code == _MOST_CONNECTIONS:
            raise ChannelSetupError("The app has as many connections as Feishu allows. Stop its other programs.")
        if answer.code:
            raise ChannelSetupError(
                f"Feishu refuses the long connection ({answer}). channels.feishu.appId and appSecret must be those of "
                f"a custom app of your company: {self.console}, Credentials & Basic Info."
            )
        data = answer.body.part("data")
        service = parse_qs(urlsplit(data.text("URL")).query).get("service_id", ["0"])[0]
        ping_s = data.number("ClientConfig", "PingInterval") or _PING_S
        return data.text("URL"), int(service) if service.isdecimal() else 0, ping_s

    async def fetch_token(self) -> tuple[str, float]:
        app_id, secret = self._credentials()
        path = "/open-apis/auth/v3/tenant_access_token/internal"
        answer = await self.exchange("POST", path, json={"app_id": app_id, "app_secret": secret})
        if not (token := answer.body.text("tenant_access_token")):
            raise ChannelSetupError(
                f"Feishu does not take channels.feishu.appId and channels.feishu.appSecret ({answer}). Copy both from "
                f"{self.console}, Credentials & Basic Info. For an app of Lark, run `nanobot config set "
                "channels.feishu.domain lark`."
            )
        return token, answer.body.number("expire")

    async def call(self, method: str, path: str, **request: Any) -> Payload:
        """Send a request below /open-apis. Return its data."""
        return (await super().call(method, f"/open-apis{path}", **request)).part("data")

    def error_of(self, answer: Answer) -> Exception:
        if isinstance(answer.code, int) and answer.code // 1000 in (200, 300):  # about cards
            return RefusedError(f"Feishu: {answer.text} ({answer.code})", answer.code)
        return super().error_of(answer)

    async def download(self, path: str) -> AsyncIterator[bytes]:
        """Yield a file of a message in chunks. Raises MediaError, SendError."""
        headers = self.authorize(await self.token())
        async for chunk in download("Feishu", f"{self.base}/open-apis{path}", headers):
            yield chunk

    def _credentials(self) -> tuple[str, ...]:
        return require_settings("feishu", appId=self._section.app_id, appSecret=self._section.app_secret)


async def create_app(section: FeishuConfig, show: ShowStep, _: AskPerson) -> SignedIn:
    """Show a link, and wait until it has created an app. Raises NanobotError; safe to cancel."""
    domain: str = section.domain
    await _ask(domain, action="init")
    begun = await _ask(
        domain, action="begin", archetype="PersonalAgent", auth_method="client_secret", request_user_info="open_id"
    )
    url, code = begun.text("verification_uri_complete"), begun.text("device_code")
    if not (url and code):
        raise NanobotError("Feishu creates no app this way now. Try again later, or create one in the console.")
    url = url.replace("/page/launcher", "/page/cli")
    show(LoginStep("Scan this in Feishu or Lark, or open its link:", qr=url, link=url))
    pause_s = begun.number("interval") or _PAUSE_S
    until = time.monotonic() + (begun.number("expires_in") or _LASTS_S)
    while time.monotonic() < until:
        await asyncio.sleep(pause_s)
        try:
            answer = await _ask(domain, action="poll", device_code=code, tp="ob_app")
        except SendError:  # the next one may arrive
            continue
        user = answer.part("user_info")
        if domain in _ACCOUNTS and user.text("tenant_brand") == "lark":
            domain = "lark"  # whose server has the secret
        if (app_id := answer.text("client_id")) and (secret := answer.text("client_secret")):
            moved = {"domain": domain} if domain != section.domain else {}
            return SignedIn({"app_id": app_id, "app_secret": secret, **moved}, user.text("open_id"))
        match answer.text("error"):
            case "slow_down":
                pause_s += _SLOWER_S
            case "access_denied":
                raise NanobotError("The app was not created: it was declined.")
            case "expired_token" | "invalid_grant":
                break
    raise NanobotError("The app was not created: nobody confirmed it in time. Try again for a new link.")


async def _ask(domain: str, **form: str) -> Payload:
    url = f"{_ACCOUNTS.get(domain, domain).rstrip('/')}/oauth/v1/app/registration"
    with as_send_errors("Feishu"):
        async with new_client(await ssl_context(url), proxy_for(url)) as client:
            response = await client.post(url, data=form, timeout=_TIMEOUT_S)
    return Payload.parse(response.content)
