"""The login with a QR code: the owner scans it in WeChat, and may have to type a number that the phone shows.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md.
"""

import asyncio
import time
from urllib.parse import urlencode, urlsplit

from nanobot.channels.errors import NotConnectedError, SendError
from nanobot.channels.login import AskPerson, LoginStep, ShowStep, SignedIn
from nanobot.channels.weixin.api import WeixinApi, is_trusted
from nanobot.config.channels import WeixinConfig
from nanobot.errors import NanobotError

PAUSE_S = 1.0
"""Between two questions for the state."""
_MOST_CODES = 3
_STATE_S, _LONGEST_S = 35.0, 480.0


async def scan_code(section: WeixinConfig, show: ShowStep, ask: AskPerson) -> SignedIn:
    """Log in. Raises NanobotError; safe to cancel."""
    async with WeixinApi(section) as api:
        return await _Login(section, api, show, ask).run()


class _Login:
    def __init__(self, section: WeixinConfig, api: WeixinApi, show: ShowStep, ask: AskPerson) -> None:
        default = str(WeixinConfig.model_fields["base_url"].default)
        is_wechats = is_trusted(section.base_url, default)  # an earlier login may have set the server of a region
        self._base_url = default if is_wechats else section.base_url
        self._section = section
        self._api = api
        self._show = show
        self._ask = ask
        self._code = self._number = ""
        self._codes = 0
        self._was_scanned = False

    async def run(self) -> SignedIn:
        await self._show_code()
        until = time.monotonic() + _LONGEST_S
        while time.monotonic() < until:
            if (signed_in := await self._poll()) is not None:
                return signed_in
            await asyncio.sleep(PAUSE_S)
        raise NanobotError(f"Nobody confirmed the login within {_LONGEST_S / 60:.0f} minutes.")

    async def _show_code(self) -> None:
        if self._codes == _MOST_CODES:
            raise NanobotError(f"{_MOST_CODES} QR codes have expired. Try again later.")
        self._api.base_url = self._base_url
        known = [token] if (token := self._section.token.strip()) else []
        answer = await self._api.call("get_bot_qrcode?bot_type=3", {"local_token_list": known})
        self._code, url = answer.text("qrcode"), answer.text("qrcode_img_content")
        if not (self._code and url):
            raise SendError("WeChat sent no QR code")
        self._codes += 1
        self._number, self._was_scanned = "", False
        text = "Scan this in WeChat (微信, 扫一扫). If it is hard to scan, open its link in WeChat:"
        self._show(LoginStep(text, qr=url, link=url))

    async def _poll(self) -> SignedIn | None:
        """Ask for the state of the login. None if it is not complete yet."""
        query = {"qrcode": self._code} | ({"verify_code": self._number} if self._number else {})
        try:
            answer = await self._api.call(f"get_qrcode_status?{urlencode(query)}", None, timeout_s=_STATE_S, waits=True)
        except NotConnectedError:
            raise
        except SendError:  # a gateway on the way gave up waiting
            return None
        match answer.get("status"):
            case "scaned":
                self._number = ""
                if not self._was_scanned:
                    self._was_scanned = True
                    self._show(LoginStep("Scanned. Confirm it on your phone."))
            case "need_verifycode":
                is_wrong = bool(self._number)
                question = "That is another number. The one on your phone" if is_wrong else "The number on your phone"
                self._number = await self._ask(question)
            case "expired" | "verify_code_blocked":
                await self._show_code()
            case "scaned_but_redirect":
                host = f"{urlsplit(self._base_url).scheme}://{answer.text('redirect_host')}"
                if is_trusted(host, self._base_url):
                    self._api.base_url = host
            case "binded_redirect":
                return SignedIn({"token": self._section.token, "base_url": self._section.base_url})
            case "confirmed":
                token, base_url = answer.text("bot_token"), answer.text("baseurl")
                if not token:
                    raise NanobotError("WeChat confirmed the login without a token. Try again.")
                base_url = base_url if is_trusted(base_url, self._base_url) else self._api.base_url
                return SignedIn({"token": token, "base_url": base_url}, answer.text("ilink_user_id"))
        return None
