"""Slack's Web API over slack-sdk: its requests, and our errors for its failures.

Nothing is retried here: the manager does that for messages, the supervisor for connections. Sources:
https://docs.slack.dev/apis/web-api and .../apis/web-api/rate-limits.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
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
_quiet = logging.getLogger("slack_sdk.web")
_quiet.setLevel(logging.INFO)  # at DEBUG the SDK logs whole messages and the socket URL

Method = Callable[..., Awaitable[AsyncSlackResponse]]
APPS = "https://api.slack.com/apps"
_CHUNK = 64 * 1024
_MOST_MISSED = 200
_PAUSE_S = 5.0
_SHORTEST_PAUSE_S = 0.05
_OF_SLACK = (".slack.com", ".slack-gov.com")
"""Hosts that may see the bot's token."""

_LATER = frozenset({"internal_error", "fatal_error", "service_unavailable", "request_timeout", "team_added_to_org"})
_LIMITED = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_NO_TOKEN = frozenset({"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive"})
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
}  # fmt: skip
_USEFUL_SCOPES = {
    "app_mentions:read": "mentions in channels are not received",
    "im:history": "private messages are not received",
    "files:read": "files that people send cannot be fetched",
    "files:write": "files cannot be sent",
    "reactions:write": "a waiting message gets no reaction",
    "users:read": "people who are named in a message are ids to the agent",
}
"""What the bot cannot do if its token lacks an optional scope."""


@asynccontextmanager
async def open_api(section: SlackConfig, clock: Clock) -> AsyncIterator["SlackApi"]:
    """The Web API with the tokens of this section. Raises ChannelSetupError for a token that cannot be used."""
    bot = _check_token(section.bot_token, "botToken", "xoxb-", "Bot User OAuth Token, under OAuth & Permissions")
    app = _check_token(section.app_token, "appToken", "xapp-", "App-Level Token, under Basic Information")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)  # the senders have timeouts of their own
    async with aiohttp.ClientSession(timeout=timeout) as session:
        api = SlackApi(section, bot, app, session, clock)
        try:
            yield api
        finally:
            if not api.refused.cancel():
                api.refused.exception()  # mark it as retrieved


class SlackApi:
    """The requests of the bot. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, section: SlackConfig, bot: str, app: str, session: aiohttp.ClientSession, clock: Clock) -> None:
        base = section.api_base or AsyncWebClient.BASE_URL
        self._sdk = AsyncWebClient(bot, base_url=base, session=session, retry_handlers=[], logger=_quiet)
        self._section = section
        self._bot_token, self._app_token = bot, app
        self._own = urlsplit(base)[:2]
        self._session = session
        self._clock = clock
        self._not_before: dict[str, float] = {}
        self._private_chats: dict[str, str] = {}
        self.me = BotIdentity("")
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises ChannelSetupError once Slack rejects the token."""

    async def log_in(self) -> BotIdentity:
        """Return the bot of the token. Raises ChannelSetupError for a token that cannot be used."""
        with_key = "channels.slack.botToken"
        response = await self._request_setup(self._sdk.auth_test, with_key)
        data, headers = _dict(response.data), response.headers
        is_person = self._bot_token.removeprefix("xoxe.").startswith("xoxp-")
        if is_person and self._section.user_token_read_only:
            raise ChannelSetupError(
                f"{with_key} is the token of a person, and with userTokenReadOnly nanobot never writes as one. Put the "
                f"Bot User OAuth Token there (xoxb-, from {APPS}), or set channels.slack.userTokenReadOnly to false."
            )
        scopes = {scope.strip() for scope in str(headers.get("x-oauth-scopes", "")).split(",") if scope.strip()}
        if scopes:
            _check_scopes(scopes, with_key)
        self.me = BotIdentity(str(data.get("user_id", "")), str(data.get("user") or "nanobot"))
        return self.me

    async def socket_address(self) -> str:
        """The URL for the next connection, valid once. Raises ChannelSetupError for a token that cannot be used."""
        open_connection = partial(self._sdk.apps_connections_open, app_token=self._app_token)
        response = await self._request_setup(open_connection, "channels.slack.appToken")
        return str(response["url"])

    async def connect(self, address: str) -> aiohttp.ClientWebSocketResponse:
        """Open a Socket Mode connection. The URL is a secret, so no error contains it."""
        try:
            return await self._session.ws_connect(
                address,
                autoping=False,  # the reader answers pings, and counts them as signs of life
                proxy=self._sdk.proxy,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                max_msg_size=16 * 1024 * 1024,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise NotConnectedError(f"Slack refused the connection ({error.status})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NotConnectedError(f"Slack cannot be reached: {type(error).__name__}") from None

    async def post(self, chat: str, thread: str | None, text: str, **more: Any) -> str:
        """Post a message. Return its timestamp, which is its id."""
        chat_id = await self.chat_id_of(chat)
        defaults: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
        response = await self._request(
            self._sdk.chat_postMessage, channel=chat_id, text=text, thread_ts=thread, **(defaults | more)
        )
        return str(response["ts"])

    async def edit(self, chat: str, ts: str, text: str) -> None:
        """Replace the text of our message."""
        await self._request(self._sdk.chat_update, channel=await self.chat_id_of(chat), ts=ts, text=text)

    async def react(self, chat: str, ts: str, name: str) -> None:
        """Add a reaction to a message; no error if it has it already."""
        try:
            await self._request(self._sdk.reactions_add, channel=chat, timestamp=ts, name=name)
        except UndeliverableError as error:
            if "already_reacted" not in str(error):
                raise

    async def upload(self, chat: str, thread: str | None, path: Path, file: Outgoing) -> str:
        """Upload a file in three steps, without holding it in memory. Return its id.

        https://docs.slack.dev/messaging/working-with-files#upload
        """
        chat_id = await self.chat_id_of(chat)
        upload = await self._request(self._sdk.files_getUploadURLExternal, filename=file.name, length=file.size)
        try:
            file_handle = await asyncio.to_thread(open_outgoing, path)
        except OSError as error:
            raise UndeliverableError(f"{path} can no longer be read ({error.strerror})") from error
        with file_handle, _as_send_errors():
            sending = self._session.post(str(upload["upload_url"]), data=file_handle, proxy=self._sdk.proxy)
            async with sending as response:
                if response.status != 200:
                    raise SendError(f"Slack refused the file ({response.status})")
        file_id = str(upload["file_id"])
        files = [{"id": file_id, "title": file.name}]
        await self._request(self._sdk.files_completeUploadExternal, files=files, channel_id=chat_id, thread_ts=thread)
        return file_id

    async def with_url(self, file: Attachment) -> Attachment:
        """The attachment with its URL, which events omit for files shared by another workspace."""
        if file.source or file.id is None:
            return file
        return describe_file(_dict((await self._request(self._sdk.files_info, file=file.id)).get("file")))

    async def download(self, file: Attachment) -> AsyncIterator[bytes]:
        """Download a file in chunks. Follows no redirect, since only Slack may get the token."""
        attachment = await self.with_url(file)
        if not self._is_slack_url(attachment.source):
            raise MediaError("it is not stored at Slack")
        headers = {"Authorization": f"Bearer {self._bot_token}"}
        request = self._session.get(attachment.source, headers=headers, allow_redirects=False, proxy=self._sdk.proxy)
        async with request as response:
            is_page = response.content_type == "text/html" != attachment.content_type
            if response.status in (301, 302, 303, 307, 308, 401, 403) or (response.status == 200 and is_page):
                raise MediaError(f"Slack did not send it; the app may lack the scope files:read ({APPS})")
            if response.status != 200:
                raise MediaError(f"Slack answered {response.status}")
            async for chunk in response.content.iter_chunked(_CHUNK):
                yield chunk

    async def messages_after(self, chat: str, thread: str | None, ts: str) -> list[Mapping[str, Any]]:
        """The messages of a chat or thread after this one, oldest first: at most the last two hundred."""
        if thread is None:
            response = await self._request(self._sdk.conversations_history, channel=chat, oldest=ts, limit=_MOST_MISSED)
        else:
            response = await self._request(
                self._sdk.conversations_replies, channel=chat, ts=thread, oldest=ts, limit=_MOST_MISSED
            )
        listed = response.get("messages")
        messages = [message for message in listed if isinstance(message, Mapping)] if isinstance(listed, list) else []
        later = (message for message in messages if str(message.get("ts")) != ts)
        return sorted(later, key=lambda message: str(message.get("ts")))

    async def name_of(self, user: str) -> str:
        """The display name of a user. Needs the scope users:read."""
        data = _dict((await self._request(self._sdk.users_info, user=user)).get("user"))
        profile = _dict(data.get("profile"))
        return str(profile.get("display_name") or data.get("real_name") or data.get("name") or "")

    async def chat_id_of(self, chat: str) -> str:
        """The chat id; for a user id, that of the private chat with them."""
        if not chat.startswith(("U", "W")):
            return chat
        if chat not in self._private_chats:
            response = await self._request(self._sdk.conversations_open, users=chat)
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

    async def _request_setup(self, method: Method, key: str) -> AsyncSlackResponse:
        """Send a request of the login. Most refusals need the owner: they are ChannelSetupErrors."""
        try:
            with _as_send_errors():
                return await method()
        except SlackApiError as error:
            raise _setup_error(error, key) or _send_error(error, self.me.name) from error

    async def _request(self, method: Method, **parameters: Any) -> AsyncSlackResponse:
        """Send a request, but not before the end of a pause that Slack asked for."""
        name, now = method.__name__, self._clock.monotonic()
        if (left_s := self._not_before.get(name, now) - now) > 0:
            raise RateLimitedError(f"Slack: too many calls of {name}", left_s)
        try:
            with _as_send_errors():
                return await method(**parameters)
        except SlackApiError as error:
            if (code := _code(error)) in _NO_TOKEN and not self.refused.done():
                self.refused.set_exception(ChannelSetupError(_bad_token("channels.slack.botToken", code)))
            refusal = _send_error(error, self.me.name)
            if isinstance(refusal, RateLimitedError):
                self._not_before[name] = now + refusal.retry_after_s
            raise refusal from error


def _check_token(token: str, key: str, prefix: str, description: str) -> str:
    """Check a token: set, usable in a header, and not the other kind of token."""
    token = token.strip()
    if not token:
        raise MissingSettingsError("slack", key)
    other = "xapp-" if prefix == "xoxb-" else "xoxb-"
    if token.startswith(other) or not (token.isascii() and token.isprintable()):
        raise ChannelSetupError(f"channels.slack.{key} is not an {prefix} token. Use the {description} at {APPS}.")
    return token


def _check_scopes(scopes: set[str], key: str) -> None:
    if "chat:write" not in scopes:
        raise ChannelSetupError(_lacks(key, "chat:write"))
    without = [f"{scope} ({loss})" for scope, loss in _USEFUL_SCOPES.items() if scope not in scopes]
    if without:
        log.warning("slack: the app lacks %s. Add scopes at %s, then reinstall it.", ", ".join(without), APPS)


def _setup_error(error: SlackApiError, key: str) -> ChannelSetupError | None:
    """The setup error for a refusal; None for a temporary one."""
    code = _code(error)
    if not code or code in _LATER or code in _LIMITED:
        return None
    if code in _NO_TOKEN:
        return ChannelSetupError(_bad_token(key, code))
    if code == "not_allowed_token_type":
        kind = "xapp-, an App-Level Token" if key.endswith("appToken") else "xoxb-, a Bot User OAuth Token"
        return ChannelSetupError(f"{key} is the wrong kind of token. It must be {kind}; see {APPS}.")
    if code == "missing_scope":
        return ChannelSetupError(_lacks(key, _needed_scope(error)))
    return ChannelSetupError(
        f"Slack rejects {key} ({code}). Check the app at {APPS}: that Socket Mode is on, and that it is installed."
    )


def _bad_token(key: str, code: str) -> str:
    return f"Slack does not take {key} ({code}). Create a new token at {APPS}, set it, then start the gateway again."


def _lacks(key: str, scope: str) -> str:
    if key.endswith("appToken"):
        needed = scope or "connections:write"
        return f"{key} lacks the scope {needed}. Create an App-Level Token with it at {APPS}, Basic Information."
    return f"{key} lacks the scope {scope}. Add it at {APPS}, OAuth & Permissions, then reinstall the app."


def _send_error(error: SlackApiError, bot: str) -> SendError:
    """The SendError for a refusal."""
    code, status = _code(error), _status(error)
    if status == 429 or code in _LIMITED:
        return RateLimitedError("Slack: too many requests", _pause_s(error))
    if status >= 500 or code in _LATER or not code:
        return SendError(f"Slack answered {code or status}")
    if code in _NO_TOKEN:  # the connection ends, too, which tells the owner; the message waits
        return NotConnectedError(f"Slack no longer accepts the token ({code})")
    if code == "missing_scope":
        return UndeliverableError(f"Slack: {_lacks('channels.slack.botToken', _needed_scope(error))}")
    advice = _ADVICE.get("restricted_action" if code.startswith("restricted_action") else code, "")
    return UndeliverableError(f"Slack: {advice.format(bot=bot)} ({code})" if advice else f"Slack refused it: {code}")


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


def _needed_scope(error: SlackApiError) -> str:
    return str(_dict(getattr(error.response, "data", None)).get("needed") or "")


def _status(error: SlackApiError) -> int:
    status = getattr(error.response, "status_code", None) or getattr(error.response, "status", None)
    return status if isinstance(status, int) else 0


def _pause_s(error: SlackApiError) -> float:
    try:
        return max(float(error.response.headers["Retry-After"]), _SHORTEST_PAUSE_S)
    except (AttributeError, KeyError, ValueError, TypeError):
        return _PAUSE_S


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
