"""The login with a QR code: the owner scans it in WeChat, and may have to type a number that the phone shows.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md.
"""

import asyncio
import time
from urllib.parse import urlencode, urlsplit

from nanobot.channels.base import AskPerson, LoginStep, ShowStep, SignedIn
from nanobot.channels.errors import NotConnectedError, SendError
from nanobot.channels.incoming import Payload
from nanobot.channels.weixin.api import WeixinApi, is_trusted
from nanobot.config.channels import WeixinConfig
from nanobot.errors import NanobotError

PAUSE_S = 1.0
"""Between two questions for the state."""
_MOST_CODES = 3
_STATE_S, _LONGEST_S = 35.0, 480.0


async def scan_code(section: WeixinConfig, show: ShowStep, ask: AskPerson) -> SignedIn:
    """Log in. Raises NanobotError; safe to cancel."""
    default = str(WeixinConfig.model_fields["base_url"].default)
    is_wechats = is_trusted(section.base_url, default)  # an earlier login may have set the server of a region
    base_url = default if is_wechats else section.base_url
    until = time.monotonic() + _LONGEST_S
    for _ in range(_MOST_CODES):
        async with WeixinApi(section, base_url=base_url) as api:
            if (signed_in := await _scan_one(section, api, show, ask, until)) is not None:
                return signed_in
    raise NanobotError(f"{_MOST_CODES} QR codes have expired. Try again later.")


async def _scan_one(
    section: WeixinConfig, api: WeixinApi, show: ShowStep, ask: AskPerson, until: float
) -> SignedIn | None:
    """Show a QR code, and wait until the login is complete. None if the code has expired."""
    base_url, known = api.base, [token] if (token := section.token.strip()) else []
    code = await api.ask("get_bot_qrcode?bot_type=3", {"local_token_list": known})
    url = code.text("qrcode_img_content")
    if not (code.text("qrcode") and url):
        raise SendError("WeChat sent no QR code")
    show(
        LoginStep(
            "Scan this in WeChat (微信, 扫一扫). If it is hard to scan, open its link in WeChat:", qr=url, link=url
        )
    )
    number, was_scanned = "", False
    while time.monotonic() < until:
        query = {"qrcode": code.text("qrcode")} | ({"verify_code": number} if number else {})
        try:
            answer = await api.ask(f"get_qrcode_status?{urlencode(query)}", None, timeout_s=_STATE_S, waits=True)
        except NotConnectedError:
            raise
        except SendError:  # a gateway on the way gave up waiting
            answer = Payload()
        match answer.get("status"):
            case "scaned":
                number = ""
                if not was_scanned:
                    was_scanned = True
                    show(LoginStep("Scanned. Confirm it on your phone."))
            case "need_verifycode":
                number = await ask(
                    "That is another number. The one on your phone" if number else "The number on your phone"
                )
            case "expired" | "verify_code_blocked":
                return None
            case "scaned_but_redirect":
                host = f"{urlsplit(base_url).scheme}://{answer.text('redirect_host')}"
                api.base = host if is_trusted(host, base_url) else api.base
            case "binded_redirect":
                return SignedIn({"token": section.token, "base_url": section.base_url})
            case "confirmed":
                if not (token := answer.text("bot_token")):
                    raise NanobotError("WeChat confirmed the login without a token. Try again.")
                confirmed = answer.text("baseurl")
                confirmed = confirmed if is_trusted(confirmed, base_url) else api.base
                return SignedIn({"token": token, "base_url": confirmed}, answer.text("ilink_user_id"))
        await asyncio.sleep(PAUSE_S)
    raise NanobotError(f"Nobody confirmed the login within {_LONGEST_S / 60:.0f} minutes.")
