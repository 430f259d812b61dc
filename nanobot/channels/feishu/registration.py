"""Creates an app with a bot: its owner opens a link in Feishu, or Lark, and confirms. Permissions and events come set.

A device flow (RFC 8628) at open.feishu.cn's accounts server.
"""

import asyncio
import time

from nanobot.channels.base import AskPerson, LoginStep, ShowStep, SignedIn
from nanobot.channels.errors import SendError
from nanobot.channels.incoming import Payload
from nanobot.channels.rest import as_send_errors
from nanobot.config.channels import FeishuConfig
from nanobot.errors import NanobotError
from nanobot.net.http import new_client, proxy_for, ssl_context

_ACCOUNTS = {"feishu": "https://accounts.feishu.cn", "lark": "https://accounts.larksuite.com"}
_PAUSE_S, _SLOWER_S, _LASTS_S = 5.0, 5.0, 600.0
_TIMEOUT_S = 30.0


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
