"""The login with a QR code: the owner scans it in WeChat, and may have to type a number that the phone shows.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md. Whoever asks for the steps shows
them, and reads the number.
"""

import asyncio
import time
from dataclasses import dataclass
from urllib.parse import urlencode, urlsplit

from nanobot.channels.errors import NotConnectedError, SendError
from nanobot.channels.weixin.api import WeixinApi, is_trusted
from nanobot.config.channels import WeixinConfig
from nanobot.errors import NanobotError

PAUSE_S = 1.0
"""Between two questions for the state."""
_MOST_CODES = 3
_STATE_S, _LONGEST_S = 35.0, 480.0


@dataclass(frozen=True, slots=True)
class CodeShown:
    """Show this as a QR code; an earlier one is no longer valid."""

    url: str


@dataclass(frozen=True, slots=True)
class Scanned:
    """The code was scanned; the phone asks for confirmation."""


@dataclass(frozen=True, slots=True)
class NumberNeeded:
    """Read the number that the phone shows and pass it to the next step."""

    is_wrong: bool
    """Whether the last number was wrong."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The login is complete."""

    token: str
    base_url: str
    owner: str
    """Who scanned the code; empty if the bot was logged in already."""


Step = CodeShown | Scanned | NumberNeeded | LoggedIn


class QrLogin:
    """One login. Call `step` until it returns LoggedIn."""

    def __init__(self, section: WeixinConfig) -> None:
        self._section = section
        default = str(WeixinConfig.model_fields["base_url"].default)
        is_wechats = is_trusted(section.base_url, default)  # an earlier login may have set the server of a region
        self._base_url = self._host = default if is_wechats else section.base_url
        self._code = self._number = ""
        self._codes = 0
        self._was_scanned = False
        self._until = time.monotonic() + _LONGEST_S

    async def step(self, number: str = "") -> Step:
        """Wait for what comes next. Raises NanobotError if the login failed, SendError; safe to cancel."""
        self._number = number
        async with WeixinApi(self._section, base_url=self._host) as api:
            if not self._code:
                return await self._show_code(api)
            while time.monotonic() < self._until:
                if (step := await self._poll(api)) is not None:
                    return step
                await asyncio.sleep(PAUSE_S)
            raise NanobotError(f"Nobody confirmed the login within {_LONGEST_S / 60:.0f} minutes.")

    async def _show_code(self, api: WeixinApi) -> CodeShown:
        if self._codes == _MOST_CODES:
            raise NanobotError(f"{_MOST_CODES} QR codes have expired. Try again later.")
        api.base_url = self._host = self._base_url
        known = [token] if (token := self._section.token.strip()) else []
        answer = await api.call("get_bot_qrcode?bot_type=3", {"local_token_list": known})
        self._code, url = answer.text("qrcode"), answer.text("qrcode_img_content")
        if not (self._code and url):
            raise SendError("WeChat sent no QR code")
        self._codes += 1
        self._was_scanned = False
        return CodeShown(url)

    async def _poll(self, api: WeixinApi) -> Step | None:
        """Ask for the state of the login. None if nothing has to be shown."""
        query = {"qrcode": self._code} | ({"verify_code": self._number} if self._number else {})
        try:
            answer = await api.call(f"get_qrcode_status?{urlencode(query)}", None, timeout_s=_STATE_S, waits=True)
        except NotConnectedError:
            raise
        except SendError:  # a gateway on the way gave up waiting
            return None
        match answer.get("status"):
            case "scaned":
                self._number = ""
                if not self._was_scanned:
                    self._was_scanned = True
                    return Scanned()
            case "need_verifycode":
                return NumberNeeded(is_wrong=bool(self._number))
            case "expired" | "verify_code_blocked":
                return await self._show_code(api)
            case "scaned_but_redirect":
                host = f"{urlsplit(self._base_url).scheme}://{answer.text('redirect_host')}"
                if is_trusted(host, self._base_url):
                    api.base_url = self._host = host
            case "binded_redirect":
                return LoggedIn(self._section.token, self._section.base_url, "")
            case "confirmed":
                token, base_url = answer.text("bot_token"), answer.text("baseurl")
                if not token:
                    raise NanobotError("WeChat confirmed the login without a token. Try again.")
                base_url = base_url if is_trusted(base_url, self._base_url) else self._host
                return LoggedIn(token, base_url, answer.text("ilink_user_id"))
        return None
