"""Slack's Web API through slack-sdk: what is asked, and what a refusal means.

Nothing is tried again in here: the manager does that for messages, the supervisor for connections. What Slack says:
https://docs.slack.dev/apis/web-api and, for how often it may be asked, .../apis/web-api/rate-limits.
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
_quiet.setLevel(logging.INFO)  # at DEBUG the SDK writes down whole messages, and the address of the socket

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
    "app_mentions:read": "mentions in channels are not heard",
    "im:history": "private messages are not heard",
    "files:read": "files that people send cannot be fetched",
    "files:write": "files cannot be sent",
    "reactions:write": "there is no sign on a message that waits",
    "users:read": "people who are named in a message are ids to the agent",
}
"""What the bot is without, where its token lacks a scope that is not vital."""


@asynccontextmanager
async def open_api(section: SlackConfig, clock: Clock) -> AsyncIterator["SlackApi"]:
    """The Web API with the tokens of this section. Raises ChannelSetupError where one cannot be right."""
    bot = _checked(section.bot_token, "botToken", "xoxb-", "Bot User OAuth Token, under OAuth & Permissions")
    app = _checked(section.app_token, "appToken", "xapp-", "App-Level Token, under Basic Information")
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)  # whoever sends has a limit of its own
    async with aiohttp.ClientSession(timeout=timeout) as session:
        web = SlackApi(section, bot, app, session, clock)
        try:
            yield web
        finally:
            if not web.refused.cancel():
                web.refused.exception()  # whoever wanted to know has asked


class SlackApi:
    """What the bot asks of Slack. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, section: SlackConfig, bot: str, app: str, session: aiohttp.ClientSession, clock: Clock) -> None:
        base = section.api_base or AsyncWebClient.BASE_URL
        self._sdk = AsyncWebClient(bot, base_url=base, session=session, retry_handlers=[], logger=_quiet)
        self._section = section
        self._bot_token, self._app_token = bot, app
        self._own = urlsplit(base)[:2]
        self._session = session
        self._clock = clock
        self._not_before: dict[str, float] = {}
        self._rooms: dict[str, str] = {}
        self.me = BotIdentity("")
        self.refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Raises ChannelSetupError once Slack does not take the token any more."""

    async def log_in(self) -> BotIdentity:
        """Ask Slack whose token it is. Raises ChannelSetupError where it is of no use."""
        with_key = "channels.slack.botToken"
        answer = await self._ask_set_up(self._sdk.auth_test, with_key)
        told, headers = _dict(answer.data), answer.headers
        is_person = self._bot_token.removeprefix("xoxe.").startswith("xoxp-")
        if is_person and self._section.user_token_read_only:
            raise ChannelSetupError(
                f"{with_key} is the token of a person, and with userTokenReadOnly nanobot never writes as one. Put the "
                f"Bot User OAuth Token there (xoxb-, from {APPS}), or set channels.slack.userTokenReadOnly to false."
            )
        scopes = {one.strip() for one in str(headers.get("x-oauth-scopes", "")).split(",") if one.strip()}
        if scopes:
            _check_scopes(scopes, with_key)
        self.me = BotIdentity(str(told.get("user_id", "")), str(told.get("user") or "nanobot"))
        return self.me

    async def socket_address(self) -> str:
        """Where the next connection is made, once. Raises ChannelSetupError where the token is of no use."""
        open_connection = partial(self._sdk.apps_connections_open, app_token=self._app_token)
        answer = await self._ask_set_up(open_connection, "channels.slack.appToken")
        return str(answer["url"])

    async def connect(self, address: str) -> aiohttp.ClientWebSocketResponse:
        """Open a connection of socket mode. The address is a secret: no error says it."""
        try:
            return await self._session.ws_connect(
                address,
                autoping=False,  # a ping is a sign of life, and whoever reads shall see it
                proxy=self._sdk.proxy,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                max_msg_size=16 * 1024 * 1024,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise NotConnectedError(f"Slack refused the connection ({error.status})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise NotConnectedError(f"Slack cannot be reached: {type(error).__name__}") from None

    async def post(self, chat: str, thread: str | None, text: str, **more: Any) -> str:
        """Post a message; its timestamp, which is its id."""
        room = await self.room_of(chat)
        usual: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
        answer = await self._ask(
            self._sdk.chat_postMessage, channel=room, text=text, thread_ts=thread, **(usual | more)
        )
        return str(answer["ts"])

    async def edit(self, chat: str, ts: str, text: str) -> None:
        """Make a message of ours say this."""
        await self._ask(self._sdk.chat_update, channel=await self.room_of(chat), ts=ts, text=text)

    async def react(self, chat: str, ts: str, name: str) -> None:
        """Put a sign on a message. One that is there already is no mistake."""
        try:
            await self._ask(self._sdk.reactions_add, channel=chat, timestamp=ts, name=name)
        except UndeliverableError as error:
            if "already_reacted" not in str(error):
                raise

    async def upload(self, chat: str, thread: str | None, path: Path, file: Outgoing) -> str:
        """Send a file in three steps, none of which holds it in memory; its id.

        https://docs.slack.dev/messaging/working-with-files#upload
        """
        room = await self.room_of(chat)
        place = await self._ask(self._sdk.files_getUploadURLExternal, filename=file.name, length=file.size)
        try:
            opened = await asyncio.to_thread(open_outgoing, path)
        except OSError as error:
            raise UndeliverableError(f"{path} can no longer be read ({error.strerror})") from error
        with opened, _as_send_errors():
            sending = self._session.post(str(place["upload_url"]), data=opened, proxy=self._sdk.proxy)
            async with sending as answer:
                if answer.status != 200:
                    raise SendError(f"Slack refused the file ({answer.status})")
        file_id = str(place["file_id"])
        told = [{"id": file_id, "title": file.name}]
        await self._ask(self._sdk.files_completeUploadExternal, files=told, channel_id=room, thread_ts=thread)
        return file_id

    async def found(self, file: Attachment) -> Attachment:
        """The file with its address, which Slack does not tell at once of what another workspace shares."""
        if file.source or file.id is None:
            return file
        return describe_file(_dict((await self._ask(self._sdk.files_info, file=file.id)).get("file")))

    async def download(self, file: Attachment) -> AsyncIterator[bytes]:
        """A file somebody sent, chunk by chunk. The token goes to Slack alone: no redirect is followed."""
        found = await self.found(file)
        if not self._is_of_slack(found.source):
            raise MediaError("it is not stored at Slack")
        headers = {"Authorization": f"Bearer {self._bot_token}"}
        asked = self._session.get(found.source, headers=headers, allow_redirects=False, proxy=self._sdk.proxy)
        async with asked as response:
            is_page = response.content_type == "text/html" != found.content_type
            if response.status in (301, 302, 303, 307, 308, 401, 403) or (response.status == 200 and is_page):
                raise MediaError(f"Slack did not send it; the app may lack the scope files:read ({APPS})")
            if response.status != 200:
                raise MediaError(f"Slack answered {response.status}")
            async for chunk in response.content.iter_chunked(_CHUNK):
                yield chunk

    async def since(self, chat: str, thread: str | None, ts: str) -> list[Mapping[str, Any]]:
        """What was said in a chat, or in a thread, after this message, oldest first: the last two hundred at most."""
        if thread is None:
            answer = await self._ask(self._sdk.conversations_history, channel=chat, oldest=ts, limit=_MOST_MISSED)
        else:
            answer = await self._ask(
                self._sdk.conversations_replies, channel=chat, ts=thread, oldest=ts, limit=_MOST_MISSED
            )
        listed = answer.get("messages")
        found = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
        return sorted((one for one in found if str(one.get("ts")) != ts), key=lambda one: str(one.get("ts")))

    async def name_of(self, user: str) -> str:
        """What a person is called, as others see it. Needs the scope users:read."""
        told = _dict((await self._ask(self._sdk.users_info, user=user)).get("user"))
        profile = _dict(told.get("profile"))
        return str(profile.get("display_name") or told.get("real_name") or told.get("name") or "")

    async def room_of(self, chat: str) -> str:
        """The chat itself; of a person's id, the private chat with them."""
        if not chat.startswith(("U", "W")):
            return chat
        if chat not in self._rooms:
            answer = await self._ask(self._sdk.conversations_open, users=chat)
            self._rooms[chat] = str(_dict(answer.get("channel")).get("id") or chat)
        return self._rooms[chat]

    def _is_of_slack(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            host = parts.hostname or ""
        except ValueError:
            return False
        if not re.fullmatch(r"[\w.:-]+", parts.netloc):  # what two readers might read in two ways
            return False
        return parts[:2] == self._own or (parts.scheme == "https" and f".{host}".endswith(_OF_SLACK))

    async def _ask_set_up(self, method: Callable[..., Awaitable[AsyncSlackResponse]], key: str) -> AsyncSlackResponse:
        """Ask what has to be answered before anything works. What Slack refuses here, only the owner can mend."""
        try:
            with _as_send_errors():
                return await method()
        except SlackApiError as error:
            raise _setup_error(error, key) or _send_error(error, self.me.name) from error

    async def _ask(self, method: Callable[..., Awaitable[AsyncSlackResponse]], **told: Any) -> AsyncSlackResponse:
        """Ask. What Slack wants to be asked later is not asked before."""
        name, now = method.__name__, self._clock.monotonic()
        if (left_s := self._not_before.get(name, now) - now) > 0:
            raise RateLimitedError(f"Slack: too many calls of {name}", left_s)
        try:
            with _as_send_errors():
                return await method(**told)
        except SlackApiError as error:
            if (code := _code(error)) in _NO_TOKEN and not self.refused.done():
                self.refused.set_exception(ChannelSetupError(_bad_token("channels.slack.botToken", code)))
            refusal = _send_error(error, self.me.name)
            if isinstance(refusal, RateLimitedError):
                self._not_before[name] = now + refusal.retry_after_s
            raise refusal from error


def _checked(token: str, key: str, prefix: str, found_as: str) -> str:
    """A token that a header can carry, and that is not evidently the other one."""
    token = token.strip()
    if not token:
        raise MissingSettingsError("slack", key)
    other = "xapp-" if prefix == "xoxb-" else "xoxb-"
    if token.startswith(other) or not (token.isascii() and token.isprintable()):
        raise ChannelSetupError(f"channels.slack.{key} is not an {prefix} token. Set it to the {found_as} at {APPS}.")
    return token


def _check_scopes(scopes: set[str], key: str) -> None:
    if "chat:write" not in scopes:
        raise ChannelSetupError(_lacks(key, "chat:write"))
    without = [f"{scope} ({loss})" for scope, loss in _USEFUL_SCOPES.items() if scope not in scopes]
    if without:
        log.warning("slack: the app lacks %s. Add scopes at %s, then reinstall it.", ", ".join(without), APPS)


def _setup_error(error: SlackApiError, key: str) -> ChannelSetupError | None:
    """What the owner has to do; None where it may pass by itself."""
    code = _code(error)
    if not code or code in _LATER or code in _LIMITED:
        return None
    if code in _NO_TOKEN:
        return ChannelSetupError(_bad_token(key, code))
    if code == "not_allowed_token_type":
        kind = "xapp-, an App-Level Token" if key.endswith("appToken") else "xoxb-, a Bot User OAuth Token"
        return ChannelSetupError(f"{key} is the wrong kind of token. It must be {kind}; see {APPS}.")
    if code == "missing_scope":
        return ChannelSetupError(_lacks(key, _needed(error)))
    return ChannelSetupError(
        f"Slack rejects {key} ({code}). Check the app at {APPS}: that Socket Mode is on, and that it is installed."
    )


def _bad_token(key: str, code: str) -> str:
    return (
        f"Slack does not take {key} ({code}). Make a new token at {APPS}, put it there, then start the gateway again."
    )


def _lacks(key: str, scope: str) -> str:
    if key.endswith("appToken"):
        needed = scope or "connections:write"
        return f"{key} lacks the scope {needed}. Make an App-Level Token with it at {APPS}, Basic Information."
    return f"{key} lacks the scope {scope}. Add it at {APPS}, OAuth & Permissions, then reinstall the app."


def _send_error(error: SlackApiError, bot: str) -> SendError:
    """A refusal as what to do about it."""
    code, status = _code(error), _status(error)
    if status == 429 or code in _LIMITED:
        return RateLimitedError("Slack: too many requests", _pause_s(error))
    if status >= 500 or code in _LATER or not code:
        return SendError(f"Slack answered {code or status}")
    if code in _NO_TOKEN:  # the connection ends with it, and the owner hears of it; the message waits
        return NotConnectedError(f"Slack no longer accepts the token ({code})")
    if code == "missing_scope":
        return UndeliverableError(f"Slack: {_lacks('channels.slack.botToken', _needed(error))}")
    advice = _ADVICE.get("restricted_action" if code.startswith("restricted_action") else code, "")
    return UndeliverableError(f"Slack: {advice.format(bot=bot)} ({code})" if advice else f"Slack refused it: {code}")


@contextmanager
def _as_send_errors() -> Iterator[None]:
    """Raise what a broken line raises as a SendError; what Slack itself says, as it is."""
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotConnectedError(f"Slack cannot be reached: {error}") from error
    except TimeoutError as error:
        raise SendError("Slack did not answer in time", may_have_arrived=True) from error
    except (aiohttp.ClientError, OSError) as error:
        said = f"connection to Slack lost: {type(error).__name__}"
        raise SendError(said, may_have_arrived=True) from error


def _code(error: SlackApiError) -> str:
    """Slack's word for it; empty where something before Slack answered."""
    return str(_dict(getattr(error.response, "data", None)).get("error") or "")


def _needed(error: SlackApiError) -> str:
    return str(_dict(getattr(error.response, "data", None)).get("needed") or "")


def _status(error: SlackApiError) -> int:
    found = getattr(error.response, "status_code", None) or getattr(error.response, "status", None)
    return found if isinstance(found, int) else 0


def _pause_s(error: SlackApiError) -> float:
    try:
        return max(float(error.response.headers["Retry-After"]), _SHORTEST_PAUSE_S)
    except (AttributeError, KeyError, ValueError, TypeError):
        return _PAUSE_S


def _dict(told: object) -> Mapping[str, Any]:
    return told if isinstance(told, Mapping) else {}
