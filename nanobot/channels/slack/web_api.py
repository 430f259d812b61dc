"""Slack's Web API over slack-sdk: its requests, and our errors for its failures.

Nothing is retried here: the manager does that for messages, the supervisor for connections. Sources:
https://docs.slack.dev/apis/web-api and .../apis/web-api/rate-limits.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.channels.slack.incoming import BotIdentity, describe_file
from nanobot.config.channels import SlackConfig
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)
SDK_LOG = logging.getLogger(f"{__name__}.sdk")
SDK_LOG.setLevel(logging.CRITICAL)  # the SDK logs whole messages, and the URL of the socket, which is a secret

Method = Callable[..., Awaitable[AsyncSlackResponse]]
_CHUNK = 64 * 1024
_MOST_MISSED = 200
_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.05
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


class _Token(NamedTuple):
    """One of the two tokens: where it is set, and where it comes from."""

    name: str
    prefix: str
    title: str
    page: str
    add_scope: str

    @property
    def key(self) -> str:
        return f"channels.slack.{self.name}"


APPS = "https://api.slack.com/apps"
_BOT = _Token(
    "botToken",
    "xoxb-",
    "Bot User OAuth Token",
    "OAuth & Permissions",
    f"Add it at {APPS}, OAuth & Permissions, then reinstall the app.",
)
_APP = _Token(
    "appToken",
    "xapp-",
    "App-Level Token",
    "Basic Information",
    f"Create an App-Level Token with it at {APPS}, Basic Information.",
)

_LATER = ("", "internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org")
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


@asynccontextmanager
async def open_api(section: SlackConfig, clock: Clock) -> AsyncIterator["SlackApi"]:
    """The Web API with the tokens of this section. Raises ChannelSetupError for a token that cannot be used."""
    bot = _check_token(section.bot_token, _BOT, _APP)
    app = _check_token(section.app_token, _APP, _BOT)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)  # the senders have timeouts of their own
    async with aiohttp.ClientSession(timeout=timeout) as session:
        yield SlackApi(section, bot, app, session, clock)


class SlackApi:
    """The requests of the bot. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, section: SlackConfig, bot: str, app: str, session: aiohttp.ClientSession, clock: Clock) -> None:
        base = section.api_base or AsyncWebClient.BASE_URL
        self.sdk = AsyncWebClient(bot, base_url=base, session=session, retry_handlers=[], logger=SDK_LOG)
        self.app_token = app
        self.me = BotIdentity("")
        self.refusal: ChannelSetupError | None = None
        """Set once Slack no longer accepts the bot's token."""
        self._section = section
        self._bot_token = bot
        self._own = urlsplit(base)[:2]
        self._session = session
        self._clock = clock
        self._not_before: dict[str, float] = {}
        self._private_chats: dict[str, str] = {}

    async def log_in(self) -> BotIdentity:
        """Return the bot of the token. Raises ChannelSetupError for a token that cannot be used."""
        response = await self._request_setup(self.sdk.auth_test, _BOT)
        if self._bot_token.removeprefix("xoxe.").startswith("xoxp-") and self._section.user_token_read_only:
            raise ChannelSetupError(
                f"{_BOT.key} is the token of a person, and with userTokenReadOnly nanobot never writes as one. Put the "
                f"Bot User OAuth Token there (xoxb-, from {APPS}), or set channels.slack.userTokenReadOnly to false."
            )
        listed = str(response.headers.get("x-oauth-scopes", ""))
        if scopes := {scope.strip() for scope in listed.split(",") if scope.strip()}:
            _check_scopes(scopes)
        self.me = BotIdentity(str(response.get("user_id", "")), str(response.get("user") or "nanobot"))
        return self.me

    async def socket_url(self) -> str:
        """The URL for a connection, valid once. Raises ChannelSetupError for a token that cannot be used."""
        response = await self._request_setup(self.sdk.apps_connections_open, _APP, app_token=self.app_token)
        return str(response["url"])

    async def post(self, chat: str, thread: str | None, text: str, **more: Any) -> str:
        """Post a message. Return its timestamp, which is its id."""
        chat_id = await self.chat_id_of(chat)
        defaults: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
        response = await self._request(
            self.sdk.chat_postMessage, channel=chat_id, text=text, thread_ts=thread, **(defaults | more)
        )
        return str(response["ts"])

    async def edit(self, chat: str, ts: str, text: str) -> None:
        """Replace the text of our message."""
        await self._request(self.sdk.chat_update, channel=await self.chat_id_of(chat), ts=ts, text=text)

    async def react(self, chat: str, ts: str, name: str) -> None:
        """Add a reaction to a message; no error if it has it already."""
        try:
            await self._request(self.sdk.reactions_add, channel=chat, timestamp=ts, name=name)
        except UndeliverableError as error:
            if "already_reacted" not in str(error):
                raise

    async def take_back(self, chat: str, ts: str, name: str) -> None:
        """Remove a reaction of the bot."""
        await self._request(self.sdk.reactions_remove, channel=chat, timestamp=ts, name=name)

    async def upload(self, chat: str, thread: str | None, path: Path, file: Outgoing) -> str:
        """Upload a file in three steps, without holding it in memory as the SDK does. Return its id.

        https://docs.slack.dev/messaging/working-with-files#upload
        """
        chat_id = await self.chat_id_of(chat)
        upload = await self._request(self.sdk.files_getUploadURLExternal, filename=file.name, length=file.size)
        try:
            file_handle = await asyncio.to_thread(open_outgoing, path)
        except OSError as error:
            raise UndeliverableError(f"{path} can no longer be read ({error.strerror})") from error
        with file_handle, _as_send_errors():
            sending = self._session.post(str(upload["upload_url"]), data=file_handle, proxy=self.sdk.proxy)
            async with sending as response:
                if response.status != 200:
                    raise SendError(f"Slack refused the file ({response.status})")
        file_id = str(upload["file_id"])
        files = [{"id": file_id, "title": file.name}]
        await self._request(self.sdk.files_completeUploadExternal, files=files, channel_id=chat_id, thread_ts=thread)
        return file_id

    async def download(self, file: Attachment) -> AsyncIterator[bytes]:
        """Download a file in chunks. Follows no redirect, since only Slack may get the token."""
        if not file.source and file.id is not None:  # shared by another workspace: events omit its URL
            file = describe_file(_dict((await self._request(self.sdk.files_info, file=file.id)).get("file")))
        if not self._is_slack_url(file.source):
            raise MediaError("it is not stored at Slack")
        headers = {"Authorization": f"Bearer {self._bot_token}"}
        request = self._session.get(file.source, headers=headers, allow_redirects=False, proxy=self.sdk.proxy)
        async with request as response:
            is_page = response.content_type == "text/html" != file.content_type
            if response.status in (301, 302, 303, 307, 308, 401, 403) or (response.status == 200 and is_page):
                raise MediaError(f"Slack did not send it; the app may lack the scope files:read ({APPS})")
            if response.status != 200:
                raise MediaError(f"Slack answered {response.status}")
            async for chunk in response.content.iter_chunked(_CHUNK):
                yield chunk

    async def messages_after(self, chat: str, thread: str | None, ts: str) -> list[Mapping[str, Any]]:
        """The messages of a chat or thread after this one, oldest first: at most the last two hundred."""
        method = self.sdk.conversations_history if thread is None else self.sdk.conversations_replies
        of_thread = {} if thread is None else {"ts": thread}
        response = await self._request(method, channel=chat, oldest=ts, limit=_MOST_MISSED, **of_thread)
        listed = response.get("messages")
        messages = [message for message in listed if isinstance(message, Mapping)] if isinstance(listed, list) else []
        later = (message for message in messages if str(message.get("ts")) != ts)
        return sorted(later, key=lambda message: str(message.get("ts")))

    async def name_of(self, user: str) -> str:
        """The display name of a user, in one line; empty for an unknown user or without the scope users:read."""
        try:
            data = _dict((await self._request(self.sdk.users_info, user=user)).get("user"))
        except UndeliverableError:
            return ""
        name = str(_dict(data.get("profile")).get("display_name") or data.get("real_name") or data.get("name") or "")
        return " ".join("".join(char if char.isprintable() else " " for char in name).split())[:_LONGEST_NAME]

    async def chat_id_of(self, chat: str) -> str:
        """The chat id; for a user id, that of the private chat with them."""
        if not chat.startswith(("U", "W")):
            return chat
        if chat not in self._private_chats:
            response = await self._request(self.sdk.conversations_open, users=chat)
            self._private_chats[chat] = str(_dict(response.get("channel")).get("id") or chat)
        return self._private_chats[chat]

    def _is_slack_url(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if not re.fullmatch(r"[\w.:-]+", parts.netloc):  # parsers may disagree about other characters
            return False
        return parts[:2] == self._own or (parts.scheme == "https" and f".{host}".endswith(_OF_SLACK))

    async def _request_setup(self, method: Method, token: _Token, **parameters: Any) -> AsyncSlackResponse:
        """Send a request of the login. Most refusals need the owner: they are ChannelSetupErrors."""
        try:
            with _as_send_errors():
                return await method(**parameters)
        except SlackApiError as error:
            if _code(error) in (*_LATER, *_LIMITED):
                raise self._send_error(error) from error
            raise ChannelSetupError(_setup_text(error, token)) from error

    async def _request(self, method: Method, **parameters: Any) -> AsyncSlackResponse:
        """Send a request, but not before the end of a pause that Slack asked for."""
        name, now = method.__name__, self._clock.monotonic()
        if (left_s := self._not_before.get(name, now) - now) > 0:
            raise RateLimitedError(f"Slack: too many calls of {name}", left_s)
        try:
            with _as_send_errors():
                return await method(**parameters)
        except SlackApiError as error:
            refusal = self._send_error(error)
            if isinstance(refusal, RateLimitedError):
                self._not_before[name] = now + refusal.retry_after_s
            raise refusal from error

    def _send_error(self, error: SlackApiError) -> SendError:
        """The SendError for a refusal."""
        code = _code(error)
        status = getattr(error.response, "status_code", 0) or getattr(error.response, "status", 0)
        if status == 429 or code in _LIMITED:
            return RateLimitedError("Slack: too many requests", _pause_s(error))
        if status >= 500 or code in _LATER:
            return SendError(f"Slack answered {code or status}")
        if code in _NO_TOKEN:  # `start` ends, too, which tells the owner; the message waits
            self.refusal = ChannelSetupError(_setup_text(error, _BOT))
            return NotConnectedError(f"Slack no longer accepts the token ({code})")
        if code == "missing_scope":
            return UndeliverableError(f"Slack: {_setup_text(error, _BOT)}")
        advice = _ADVICE.get("restricted_action" if code.startswith("restricted_action") else code, "it was refused")
        return UndeliverableError(f"Slack: {advice.format(bot=self.me.name)} ({code})")


def _check_token(token: str, expected: _Token, other: _Token) -> str:
    """Check a token: set, usable in a header, and not the other kind of token."""
    token = token.strip()
    if not token:
        raise MissingSettingsError("slack", expected.name)
    if token.startswith(other.prefix) or not (token.isascii() and token.isprintable()):
        raise ChannelSetupError(
            f"{expected.key} is not an {expected.prefix} token. Use the {expected.title} at {APPS}, {expected.page}."
        )
    return token


def _check_scopes(scopes: set[str]) -> None:
    if "chat:write" not in scopes:
        raise ChannelSetupError(
            _SETUP["missing_scope"].format(key=_BOT.key, scope="chat:write", add_scope=_BOT.add_scope)
        )
    without = [f"{scope} ({loss})" for scope, loss in _USEFUL_SCOPES.items() if scope not in scopes]
    if without:
        log.warning("slack: the app lacks %s. Add scopes at %s, then reinstall it.", ", ".join(without), APPS)


def _setup_text(error: SlackApiError, token: _Token) -> str:
    """What the owner has to do about a refusal."""
    code = _code(error)
    scope = _dict(error.response.data).get("needed") or "connections:write"
    return _SETUP.get(code, _REJECTED).format(key=token.key, code=code, scope=scope, **token._asdict())


@contextmanager
def _as_send_errors() -> Iterator[None]:
    """Convert network errors to SendErrors. Slack's own errors pass through."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotConnectedError(f"Slack cannot be reached: {error}") from error
    except TimeoutError as error:
        raise SendError("Slack did not answer in time", may_have_arrived=True) from error
    except (aiohttp.ClientError, OSError) as error:
        text = f"connection to Slack lost: {type(error).__name__}"
        raise SendError(text, may_have_arrived=True) from error


def _code(error: SlackApiError) -> str:
    """Slack's error code; empty if a server before Slack answered."""
    return str(_dict(getattr(error.response, "data", None)).get("error") or "")


def _pause_s(error: SlackApiError) -> float:
    try:
        return max(float(error.response.headers["Retry-After"]), _SHORTEST_PAUSE_S)
    except (AttributeError, KeyError, ValueError, TypeError):
        return _PAUSE_S


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
