"""Slack's Web API: its requests, and our errors for its failures (docs.slack.dev/apis/web-api)."""

import json
import logging
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCodes,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Payload
from nanobot.channels.media import Attachment, MediaError, MediaKind, describe_reason
from nanobot.channels.outgoing import Outgoing, stream_outgoing
from nanobot.channels.rest import Answer, RestClient, open_download
from nanobot.config.channels import SlackConfig

log = logging.getLogger(__name__)

API = "https://slack.com/api"
_LONGEST_NAME = 80
_OF_SLACK = (".slack.com", ".slack-gov.com")
"""Hosts that may see the bot's token."""
_USEFUL_SCOPES = {
    "app_mentions:read": "mentions in channels are not received",
    "im:history": "private messages are not received",
    "files:read": "files that people send cannot be fetched",
    "files:write": "files cannot be sent",
    "reactions:write": "a waiting message gets no reaction",
    "users:read": "people who are named in a message are ids to the agent",
}
"""What the bot cannot do if its token lacks an optional scope."""


APPS = "https://api.slack.com/apps"


class _Token(NamedTuple):
    """One of the two tokens: where it is set, and where it comes from."""

    key: str
    prefix: str
    title: str
    page: str
    add_scope: str


_BOT = _Token(
    "channels.slack.botToken", "xoxb-", "Bot User OAuth Token", "OAuth & Permissions",
    f"Add it at {APPS}, OAuth & Permissions, then reinstall the app.",
)  # fmt: skip
_APP = _Token(
    "channels.slack.appToken", "xapp-", "App-Level Token", "Basic Information",
    f"Create an App-Level Token with it at {APPS}, Basic Information.",
)  # fmt: skip

_LATER = ("internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org")
_LIMITED = ("ratelimited", "rate_limited", "message_limit_exceeded")
_NO_TOKEN = ("invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive")
_SETUP = {
    **dict.fromkeys(
        _NO_TOKEN,
        f"Slack does not take {{key}} ({{code}}). Create a new token at {APPS}, set it, then start the gateway again.",
    ),
    "not_allowed_token_type": f"{{key}} is the wrong kind of token. It must be {{prefix}}, the {{title}}; see {APPS}.",
    "missing_scope": "{key} lacks the scope {scope}. {add_scope}",
}
"""What the owner has to do, by error code."""
_REJECTED = (
    f"Slack rejects {{key}} ({{code}}). Check the app at {APPS}: that Socket Mode is on, and that it is installed."
)
_ADVICE = {
    "channel_not_found": "Slack shows the bot no such chat. Check the id; in a private channel, write `/invite @{bot}`",
    "not_in_channel": "the bot is not in the channel. Write `/invite @{bot}` there",
    "is_archived": "the channel is archived. Unarchive it, or choose another",
    "restricted_action": "the workspace lets only some people write there. Ask its admins, or choose another channel",
    "user_not_found": "Slack knows no such person. Take the member ID of their profile",
    "cannot_dm_bot": "bots cannot write to bots",
    "messages_tab_disabled": "switch on App Home, Messages Tab, at " + APPS,
    "msg_too_long": "the message is too long for Slack",
    "message_not_found": "the message is gone",
    "thread_not_found": "the thread is gone",
    "cant_update_message": "the message is not the bot's",
    "edit_window_closed": "the workspace does not allow edits that late",
    "storage_limit_reached": "the workspace has no room for files. Delete some, or ask its admins",
}
"""Why a message is undeliverable, by error code."""


@dataclass(frozen=True, slots=True)
class BotIdentity:
    """The bot's user, from `auth.test`."""

    user: str
    name: str = "nanobot"


class SlackApi(RestClient):
    """The requests of the bot, as forms, which all methods take."""

    codes = ErrorCodes("Slack", limited=_LIMITED, temporary=_LATER, pause_s=5.0)
    code_keys = ("error",)

    def __init__(self, section: SlackConfig) -> None:
        super().__init__(section.api_base or API)
        self.app_token = ""
        self.me = BotIdentity("")
        self._section = section
        self._not_before: dict[str, float] = {}
        self._private_chats: dict[str, str] = {}

    async def fetch_token(self) -> tuple[str, float]:
        return self._tokens()[0], inf

    def _tokens(self) -> tuple[str, ...]:
        """Both tokens: set, usable in a header, and not each other's kind. Raises ChannelSetupError."""
        section = self._section
        tokens = require_settings("slack", botToken=section.bot_token, appToken=section.app_token)
        for token, own, other in zip(tokens, (_BOT, _APP), (_APP, _BOT), strict=True):
            if token.startswith(other.prefix) or not (token.isascii() and token.isprintable()):
                raise ChannelSetupError(
                    f"{own.key} is not an {own.prefix} token. Use the {own.title} at {APPS}, {own.page}."
                )
        return tokens

    async def log_in(self) -> BotIdentity:
        """Return the bot of the token. Raises ChannelSetupError for a token that cannot be used."""
        token, self.app_token = self._tokens()
        answer = await self._set_up("/auth.test", _BOT, token)
        if token.removeprefix("xoxe.").startswith("xoxp-") and self._section.user_token_read_only:
            raise ChannelSetupError(
                f"{_BOT.key} is the token of a person, and with userTokenReadOnly nanobot never writes as one. Put the "
                f"Bot User OAuth Token there (xoxb-, from {APPS}), or set channels.slack.userTokenReadOnly to false."
            )
        listed = answer.headers.get("x-oauth-scopes", "")
        if scopes := {scope.strip() for scope in listed.split(",") if scope.strip()}:
            if "chat:write" not in scopes:
                text = _SETUP["missing_scope"].format(key=_BOT.key, scope="chat:write", add_scope=_BOT.add_scope)
                raise ChannelSetupError(text)
            if without := [f"{scope} ({loss})" for scope, loss in _USEFUL_SCOPES.items() if scope not in scopes]:
                log.warning("slack: the app lacks %s. Add scopes at %s, then reinstall it.", ", ".join(without), APPS)
        self.me = BotIdentity(answer.body.text("user_id"), answer.body.text("user") or "nanobot")
        return self.me

    async def socket_url(self) -> str:
        """The URL for a connection, valid once. Raises ChannelSetupError for a token that cannot be used."""
        return (await self._set_up("/apps.connections.open", _APP, self.app_token)).body.text("url")

    async def post(self, chat: str, thread: str | None, text: str, **more: object) -> str:
        """Post a message. Return its timestamp, which is its id."""
        chat_id = await self.chat_id_of(chat)
        form = {"unfurl_links": 0, "unfurl_media": 0, **more}  # a form has no booleans
        return (await self.ask("chat.postMessage", channel=chat_id, text=text, thread_ts=thread, **form)).text("ts")

    async def upload(self, chat: str, thread: str | None, path: Path, file: Outgoing) -> str:
        """Upload a file in three steps (docs.slack.dev/messaging/working-with-files#upload). Return its id."""
        chat_id = await self.chat_id_of(chat)
        upload = await self.ask("files.getUploadURLExternal", filename=file.name, length=file.size)
        size = {"Content-Length": str(file.size)}
        try:
            answer = await self.exchange("POST", upload.text("upload_url"), headers=size, content=stream_outgoing(path))
        except (OSError, MediaError) as error:
            raise UndeliverableError(f"{path} can no longer be read ({describe_reason(error)})") from error
        if answer.status != 200:
            raise SendError(f"Slack refused the file ({answer.status})")
        file_id = upload.text("file_id")
        files = [{"id": file_id, "title": file.name}]
        await self.ask("files.completeUploadExternal", files=files, channel_id=chat_id, thread_ts=thread)
        return file_id

    async def download(self, file: Attachment) -> AsyncIterator[bytes]:
        """Download a file in chunks. Follows no redirect, since only Slack may get the token."""
        if not file.source and file.id is not None:  # shared by another workspace: events omit its URL
            file = describe_file((await self.ask("files.info", file=file.id)).part("file"))
        if not self._is_slack_url(file.source):
            raise MediaError("it is not stored at Slack")
        async with open_download("Slack", file.source, self.authorize(await self.token())) as response:
            is_page = (
                response.headers.get("content-type", "").startswith("text/html") and file.content_type != "text/html"
            )
            if response.is_redirect or response.status_code in (401, 403) or (response.is_success and is_page):
                raise MediaError(f"Slack did not send it; the app may lack the scope files:read ({APPS})")
            if response.status_code != 200:
                raise MediaError(f"Slack answered {response.status_code}")
            async for chunk in response.aiter_bytes():
                yield chunk

    async def name_of(self, user: str) -> str:
        """The display name of a user, in one line; empty for an unknown user or without the scope users:read."""
        try:
            data = (await self.ask("users.info", user=user)).part("user")
        except UndeliverableError:
            return ""
        name = data.text("profile", "display_name") or data.text("real_name") or data.text("name")
        return " ".join("".join(char if char.isprintable() else " " for char in name).split())[:_LONGEST_NAME]

    async def chat_id_of(self, chat: str) -> str:
        """The chat id; for a user id, that of the private chat with them."""
        if not chat.startswith(("U", "W")):
            return chat
        if chat not in self._private_chats:
            opened = await self.ask("conversations.open", users=chat)
            self._private_chats[chat] = opened.text("channel", "id") or chat
        return self._private_chats[chat]

    def _is_slack_url(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if not re.fullmatch(r"[\w.:-]+", parts.netloc):  # parsers may disagree about other characters
            return False
        return parts[:2] == urlsplit(self.base)[:2] or (parts.scheme == "https" and f".{host}".endswith(_OF_SLACK))

    async def _set_up(self, path: str, token: _Token, value: str) -> Answer:
        """Send a request of the login. Most refusals need the owner: they are ChannelSetupErrors."""
        answer = await self.exchange("POST", path, headers=self.authorize(value))
        if isinstance(answer.code, str):
            raise ChannelSetupError(_setup_text(answer, token))
        if answer.code:  # of a server before Slack
            raise self.error_of(answer)
        return answer

    async def ask(self, method: str, **form: object) -> Payload:
        """Send a request, but not before the end of a pause that Slack asked for. Leaves out what is None."""
        if (left_s := self._not_before.get(method, 0.0) - time.monotonic()) > 0:
            raise RateLimitedError(f"Slack: too many calls of {method}", left_s)
        data = {
            key: json.dumps(value) if isinstance(value, list) else value
            for key, value in form.items()
            if value is not None
        }
        try:
            return await self.call("POST", f"/{method}", data=data)
        except RateLimitedError as error:
            self._not_before[method] = time.monotonic() + error.retry_after_s
            raise

    def error_of(self, answer: Answer) -> Exception:
        code = answer.code
        if isinstance(code, int):  # of a server before Slack
            return super().error_of(answer)
        if code in _NO_TOKEN:
            return ChannelSetupError(_setup_text(answer, _BOT))
        if code == "missing_scope":
            return UndeliverableError(f"Slack: {_setup_text(answer, _BOT)}")
        advice = _ADVICE.get("restricted_action" if code.startswith("restricted_action") else code, "it was refused")
        return UndeliverableError(f"Slack: {advice.format(bot=self.me.name)} ({code})")


def _setup_text(answer: Answer, token: _Token) -> str:
    """What the owner has to do about a refusal."""
    scope = answer.body.text("needed") or "connections:write"
    return _SETUP.get(str(answer.code), _REJECTED).format(code=answer.code, scope=scope, **token._asdict())


def describe_file(file: Payload) -> Attachment:
    """An attachment as Slack describes it. Its source is empty if the event has only the id."""
    content_type = file.text("mimetype")
    kind = MediaKind.VOICE if file.text("subtype") == "slack_audio" else MediaKind.of_type(content_type)
    return Attachment(
        kind,
        file.text("id") or None,
        file.text("name") or None,
        content_type or None,
        int(file.number("size")) or None,
        source=file.text("url_private_download") or file.text("url_private"),
    )
