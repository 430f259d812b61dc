"""Requests to QQ's bot platform (bot.q.qq.com/wiki/develop/api-v2)."""

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from nanobot.channels.errors import ChannelSetupError, ErrorCodes, require_settings
from nanobot.channels.rest import Answer, RestClient, download
from nanobot.config.channels import QQConfig

API = "https://api.bot.qq.com"
CONSOLE = "q.qq.com"

REPEATED = 40054005
"""The message of this `msg_id` and `msg_seq` was sent already."""
TOO_LATE = (304026, 304027, 304028, 304103, 40034005, 40034024, 40034025, 40034026, 40034027, 40034128)
"""The message that it replies to is too old, or has as many replies as QQ allows."""
NO_MARKDOWN = (50056, 304036, 40034011, 40034127)
NO_LINKS = (304003, 40054010)
_NOT_LISTED = (11298, 40023002)
_IN_REVIEW = (304023, 304024)
"""The message was accepted, and is looked at before it appears."""
_FINAL = {
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


class QQApi(RestClient):
    """The requests of one bot."""

    codes = ErrorCodes("QQ", _FINAL, limited=(22009, 100001, 40034100, 50002), accepted=_IN_REVIEW)
    code_keys = ("err_code", "code")
    token_margin_s = 50.0  # a new token is given in the last minute of the old one

    def __init__(self, section: QQConfig) -> None:
        super().__init__(section.api_base or API)
        self._section = section

    async def fetch_token(self) -> tuple[str, float]:
        app_id, secret = require_settings("qq", appId=self._section.app_id, secret=self._section.secret)
        answer = await self.exchange("POST", "/app/getAppAccessToken", json={"appId": app_id, "clientSecret": secret})
        if not (token := answer.body.text("access_token")):
            raise ChannelSetupError(
                f"QQ does not take channels.qq.appId and channels.qq.secret ({answer}). Copy both again from "
                f"{CONSOLE}, your bot, Development Settings (开发设置)."
            )
        return token, answer.body.number("expires_in")

    def authorize(self, token: str) -> dict[str, str]:
        return {"Authorization": f"QQBot {token}"}

    def error_of(self, answer: Answer) -> Exception:
        if answer.code in _NOT_LISTED:
            return ChannelSetupError(
                f"QQ refuses requests from this machine's address ({answer.code}). Add the address to the IP allow "
                f"list at {CONSOLE}, your bot, Development Settings (开发设置, IP白名单)."
            )
        return super().error_of(answer)

    def download(self, url: str) -> AsyncIterator[bytes]:
        """Download a file of a message. QQ may leave out the scheme of its URL."""
        return download("QQ", f"{urlsplit(self.base).scheme}:{url}" if url.startswith("//") else url)
