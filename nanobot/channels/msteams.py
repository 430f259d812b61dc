"""The Microsoft Teams channel: the user's own bot, registered at Azure.

Teams sends each message to a webhook, and again if the answer is not 200; its token says that it comes from Teams and
is meant for this bot. Answers go to the connector's REST API, at an address that came with the conversation's last
message.

Source: learn.microsoft.com/azure/bot-service/rest-api (authentication, connector API reference, Activity), and
learn.microsoft.com/microsoftteams/platform/bots/how-to (conversations, files).
"""

import asyncio
import base64
import html
import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

import jwt
from lxml import etree
from lxml.html import HtmlElement, fragment_fromstring
from starlette.applications import Starlette

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import ChannelSetupError, ErrorCodes, SendError, UndeliverableError, require_settings
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import RestClient, download
from nanobot.channels.webhooks import Webhooks
from nanobot.config.channels import TeamsConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import TEAMS
from nanobot.net.http import is_loopback
from nanobot.net.http_server import HttpServer
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)

_SCOPE = "https://api.botframework.com/.default"
_ANY_TENANT = "botframework.com"
_TRY_AGAIN = (408, 412)
"""Besides 429 and 5xx (learn.microsoft.com/microsoftteams/platform/bots/how-to/rate-limit)."""
_LONGEST_TEXT = 300
_ISSUER = "https://api.botframework.com"
_LEEWAY_S = 300
_KEYS_LAST_S, _KEYS_PAUSE_S = 24 * 3600.0, 60.0
"""How long the keys are kept, and the shortest time between two requests for them: anybody may send a token that names
an unknown one.
"""
PATH = "/hooks/msteams"
"""The webhook at the gateway's HTTP server."""
_LARGEST_INLINE = 20_000
"""Of a picture within a message, which may have 28 kB, in Base64."""
_IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
_MOST_BUTTONS = 6
_MOST_FILES = 20
"""Files that wait for their person to agree."""
_LONGEST_NAME = 100
_CARD = "application/vnd.microsoft"
_WEB_CHAT = "webchat.botframework.com"
_GROUP = "19:"
"""How ids of group chats and channels begin."""
_THREAD = ";messageid="
"""In the id of a thread: behind that of its channel."""
_FILE = "application/vnd.microsoft.teams.file.download.info"
_REPLY = "schema.skype.com/Reply"
_MENTION = re.compile(r"<at[^>]*>(.*?)</at>", re.DOTALL)


class TeamsApi(RestClient):
    codes = ErrorCodes("Microsoft Teams", temporary=_TRY_AGAIN)

    def __init__(self, settings: TeamsConfig) -> None:
        super().__init__(settings.api_base)
        self._settings = settings

    def is_trusted(self, url: str) -> bool:
        """Whether the bot's token may be sent there."""
        if not is_secure(url):
            return False
        host = (urlsplit(url).hostname or "").lower()
        return any(
            host.endswith(trusted[1:]) if trusted.startswith("*.") else host == trusted
            for trusted in map(str.lower, self._settings.trusted_service_url_hosts)
        )

    async def fetch_token(self) -> tuple[str, float]:
        """Log in. Raises ChannelSetupError for a wrong id, password, tenant or address; SendError."""
        settings = self._settings
        bot, password = require_settings("msteams", appId=settings.app_id, appPassword=settings.app_password)
        urls = {"apiBase": settings.api_base, "openidUrl": settings.openid_url, "serviceUrl": settings.service_url}
        if insecure := [name for name, url in urls.items() if not is_secure(url)]:
            raise ChannelSetupError(f"channels.msteams.{insecure[0]} must be an https address: a token depends on it.")
        form = {"grant_type": "client_credentials", "client_id": bot, "client_secret": password, "scope": _SCOPE}
        tenant = settings.tenant_id.strip() or _ANY_TENANT
        answer = await self.exchange("POST", f"/{tenant}/oauth2/v2.0/token", data=form)
        token = answer.body.text("access_token")
        if answer.code or not token:
            said = answer.body.line("error_description") or answer.text
            raise ChannelSetupError(
                "Microsoft does not take channels.msteams.appId, channels.msteams.appPassword and "
                f"channels.msteams.tenantId ({said[:_LONGEST_TEXT]}). Copy them again from the Azure portal: your bot, "
                "Configuration; a new password under Manage Password, New client secret (its value, not its ID)."
            )
        return token, answer.body.number("expires_in")

    async def call(self, method: str, path: str, **request: Any) -> Payload:
        """Send a request to this URL of the connector. Return the body of the answer, which may be empty."""
        if not self.is_trusted(path):
            raise UndeliverableError(f"the host of {path} is not in channels.msteams.trustedServiceUrlHosts")
        answer = await self.request(method, path, **request)
        if answer.status < 400:
            return answer.body
        error = answer.body.part("error")
        said = f"{error.line('message')[:_LONGEST_TEXT] or answer.text} ({error.get('code') or answer.status})"
        if answer.status == 401:
            raise SendError(f"Teams: {said}")
        raise UndeliverableError(f"Teams refuses it: {said}")

    async def fetch_json(self, url: str) -> Payload:
        if not is_secure(url):
            raise SendError(f"{urlsplit(url).hostname} offers no https")
        return (await self.exchange("GET", url)).body

    async def upload(self, url: str, data: bytes) -> None:
        """Store a file at the address that Teams gave for it, which contains its own authorisation."""
        if not is_secure(url):
            raise UndeliverableError("Teams named no https address for the file")
        headers = {"Content-Range": f"bytes 0-{len(data) - 1}/{len(data)}"}
        answer = await self.exchange("PUT", url, headers=headers, content=data)
        if answer.status >= 400:
            raise UndeliverableError(f"OneDrive refuses the file ({answer.status})")

    async def download(self, url: str) -> AsyncIterator[bytes]:
        if not is_secure(url):
            raise MediaError("Teams named no https address")
        headers = self.authorize(await self.token()) if self.is_trusted(url) else None
        async for chunk in download("Microsoft Teams", url, headers):
            yield chunk


def is_secure(url: str) -> bool:
    """Whether nobody in between can read or answer requests to this address: https, or on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    host = parts.hostname or ""
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def conversation_url(service_url: str, *parts: str) -> str:
    """The URL of a conversation, or of something in it; without parts, that of all conversations."""
    return "/".join((f"{service_url.rstrip('/')}/v3/conversations", *(quote(part, safe="") for part in parts)))


class RejectedError(Exception):
    """The request does not come from Teams. The text says what is wrong."""


class TokenChecker:
    """Checks the tokens of requests with Microsoft's public keys, which it fetches once a day."""

    def __init__(self, openid_url: str, app_id: str, api: TeamsApi, clock: Clock) -> None:
        self._openid_url = openid_url
        self._app_id = app_id
        self._api = api
        self._clock = clock
        self._keys: dict[str, Mapping[str, Any]] = {}
        self._fetched = float("-inf")
        self._lock = asyncio.Lock()

    async def check(self, authorization: str, activity: Mapping[str, Any]) -> None:
        """Raises RejectedError; SendError if the keys cannot be fetched."""
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise RejectedError("it has no token")
        try:
            key_id = str(jwt.get_unverified_header(token).get("kid"))
            key = await self._find_key(key_id)
            if key is None:
                raise RejectedError("its token is signed with an unknown key")
            claims = jwt.decode(
                token,
                jwt.PyJWK(dict(key), "RS256").key,
                algorithms=["RS256"],
                audience=self._app_id,
                issuer=_ISSUER,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except jwt.InvalidAudienceError:
            raise RejectedError("it is for another bot; is channels.msteams.appId the ID of this bot?") from None
        except jwt.PyJWTError as error:
            raise RejectedError(f"its token is not valid ({type(error).__name__})") from None
        endorsed = key.get("endorsements")
        if isinstance(endorsed, list) and activity.get("channelId") not in endorsed:
            raise RejectedError("its key is not for this kind of channel")
        if claims.get("serviceurl") != activity.get("serviceUrl"):
            raise RejectedError("its serviceUrl is not that of its token")

    async def _find_key(self, key_id: str) -> Mapping[str, Any] | None:
        async with self._lock:
            now = self._clock.monotonic()
            if now > self._fetched + (_KEYS_LAST_S if key_id in self._keys else _KEYS_PAUSE_S):
                self._fetched = now
                try:
                    document = await self._api.fetch_json(self._openid_url)
                    keys = (await self._api.fetch_json(document.text("jwks_uri"))).parts("keys")
                    self._keys = {str(key.get("kid")): key for key in keys if key.get("kty") == "RSA"} or self._keys
                except SendError as error:
                    log.warning("msteams: the keys of Microsoft cannot be fetched: %s", error)
            if not self._keys:
                raise SendError("the keys of Microsoft are not known yet")
            return self._keys.get(key_id)


@dataclass(slots=True)
class Conversation:
    service_url: str
    person: str = ""
    """Who writes there, if it is a private chat."""
    seen: float = 0.0
    """When somebody last wrote there; a UNIX time."""


@dataclass(slots=True)
class TeamsState:
    bot: str = ""
    conversations: dict[str, Conversation] = field(default_factory=dict)


class TeamsChannel(ChatChannel):
    name = "msteams"
    dialect = TEAMS
    can_edit = True
    stall_s = 0.0
    delta_interval_s: ClassVar[float] = 1.5
    """Teams takes about one message or edit a second."""
    login_s: float = 1800.0
    """How often the password is tried, besides whenever a token expires."""

    config: TeamsConfig

    def __init__(self, config: TeamsConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._api = TeamsApi(config)
        self._checker: TokenChecker | None = None
        self._state = TeamsState()
        self._order = asyncio.Lock()
        self._uploads: set[asyncio.Task[None]] = set()
        self._rejected: set[str] = set()

    async def start(self) -> None:
        """Serve the webhook, until Microsoft no longer accepts the password."""
        settings, api = self.config, self._api
        if not settings.validate_inbound_auth and not is_loopback(settings.host):
            raise ChannelSetupError(
                "channels.msteams.validateInboundAuth is false: then anybody who reaches the webhook could write as "
                'you. Set it to true, or channels.msteams.host to "127.0.0.1" for a test on this machine.'
            )
        async with api:
            await api.token()
            bot = settings.app_id.strip()
            self._state = await self.load_state(TeamsState(bot))
            conversations = self._state.conversations  # drop what is too old or not to be kept over a restart
            oldest = (self.services.clock.now() - timedelta(days=settings.ref_ttl_days)).timestamp()
            for chat_id, kept in [*conversations.items()]:
                is_web_chat = settings.prune_web_chat_refs and urlsplit(kept.service_url).hostname == _WEB_CHAT
                if kept.seen < oldest or is_web_chat or (settings.prune_non_personal_refs and not kept.person):
                    del conversations[chat_id]
            self._checker = TokenChecker(settings.openid_url, bot, api, self.services.clock)
            try:
                async with self.state_file.keep_saved(self._state), self._serve():
                    self.mark_up()
                    while True:
                        await asyncio.sleep(self.login_s)
                        try:
                            await api.fetch_token()
                        except SendError as error:
                            log.debug("msteams: not logged in again: %s", error)
            finally:
                for upload in self._uploads:
                    upload.cancel()

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """Receive requests: at the gateway's HTTP server, or at one of our own."""
        host, port, path = self.config.host.strip(), self.config.port, self.config.path
        if not host:
            with self.services.webhooks.serve(PATH, self._answer):
                yield
            return
        webhooks = Webhooks()
        server = HttpServer(
            host, port, lambda: Starlette(routes=[webhooks.route(path)]), "Choose another channels.msteams.port."
        )
        if not await server.bind():
            raise ChannelSetupError(server.problem or "")
        serving = asyncio.create_task(server.run(), name="msteams webhook")
        try:
            with webhooks.serve(path, self._answer):
                yield
        finally:
            serving.cancel()
            await asyncio.wait([serving])

    async def check_login(self) -> str:
        async with self._api:
            await self._api.token()
        host, path = self.config.host.strip(), self.config.path
        where = f"port {self.config.port}" if host else "gateway.port (18790)"
        return (
            "The credentials work. Two steps are left, which the guide of Microsoft Teams describes:\n"
            f"1. Let a tunnel or a reverse proxy with https lead to {where} of this machine.\n"
            "   In the Azure portal, your bot, Configuration, enter as messaging endpoint:\n"
            f"   https://YOUR-ADDRESS{path if host else PATH}\n"
            "2. At https://dev.teams.microsoft.com create an app with the bot, and preview it in Teams."
        )

    # receiving

    async def _answer(self, headers: Mapping[str, str], body: bytes) -> int:
        """Answer a request; 200 once its message is journaled."""
        try:
            activity = Payload.of(json.loads(body))
        except (ValueError, RecursionError):
            return 400
        service_url, checker = activity.text("serviceUrl"), self._checker
        if checker is None:
            return 503
        try:
            if self.config.validate_inbound_auth:
                await checker.check(headers.get("authorization", ""), activity)
            if not self._api.is_trusted(service_url):
                raise RejectedError("its serviceUrl is not in channels.msteams.trustedServiceUrlHosts")
            async with self._order:
                self.status.touch()
                self._remember(activity, service_url)
                await self._process(activity)
        except RejectedError as error:
            if str(error) not in self._rejected:  # each reason once: anybody can send requests
                self._rejected.add(str(error))
                log.warning("msteams: a request is rejected: %s", error)
            return 403
        except (StorageError, SendError) as error:
            log.warning("msteams: a message waits until Teams sends it again: %s", error)
            return 500
        return 200

    async def _process(self, activity: Payload) -> None:
        if activity.get("type") == "invoke" and activity.get("name") == "fileConsent/invoke":
            task = asyncio.create_task(self._send_waiting(activity), name="msteams upload")
            self._uploads.add(task)
            task.add_done_callback(self._uploads.discard)
        if activity.get("type") != "message" or (incoming := read_message(activity)) is None:
            return
        response, is_empty = self.config.mention_only_response, not (incoming.text or incoming.attachments)
        if response and is_empty and not incoming.is_private and self.is_allowed(incoming.sender_id):
            notice = OutboundMessage(self.name, incoming.chat_id, response, kind=OutboundKind.NOTICE)
            await self.bus.publish_outbound(notice)
        else:
            await self.receive(incoming)

    def _remember(self, activity: Payload, service_url: str) -> None:
        chat_id = activity.text("conversation", "id")
        incoming, now = read_message({**activity, "id": "any"}), self.services.clock.now().timestamp()
        person = incoming.sender_id if incoming is not None and incoming.is_private and incoming.is_verified else ""
        known = self._state.conversations.get(chat_id)
        is_old = known is not None and now - known.seen >= self.config.ref_touch_interval_s
        if chat_id and (known is None or is_old or known.service_url != service_url):
            kept = Conversation(service_url, person, now)
            put_bounded(self._state.conversations, chat_id, kept)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment.source)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        activity = _message(chunk)
        if options.buttons:
            buttons = [  # which write their value into the chat
                {
                    "type": "messageBack",
                    "title": button.label,
                    "displayText": button.label,
                    "text": button.value or button.label,
                    "value": {"pressed": True},
                }
                for button in options.buttons[:_MOST_BUTTONS]
            ]
            activity["attachments"] = [{"contentType": f"{_CARD}.card.hero", "content": {"buttons": buttons}}]
        return await self._post(to.chat_id, activity)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        await self._call("PUT", to.chat_id, ("activities", platform_id), _message(chunk))

    async def show_typing(self, to: Address) -> None:
        await self._post(to.chat_id, {"type": "typing"})

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a small picture within a message; ask a person whether to store any other file in their OneDrive."""
        kind, folder = _IMAGES.get(file.suffix), self._files
        is_small_picture = kind is not None and file.size <= _LARGEST_INLINE
        if not is_small_picture and (to.chat_id.startswith(_GROUP) or folder is None):
            text = f"({file.name} cannot be sent here: Teams takes files from bots in private chats only.)"
            return await self.post(to, split_message(text, self.dialect)[0], options)
        content, file_id = await read_outgoing(file), secrets.token_hex(16)
        if is_small_picture:
            data_url = f"data:{kind};base64,{base64.b64encode(content).decode()}"
            shown = {"contentType": kind, "contentUrl": data_url, "name": file.name}
            return await self._post(to.chat_id, {"type": "message", "attachments": [shown]})
        assert folder is not None  # noqa: S101 see above
        await asyncio.to_thread(make_private_folder, folder)
        waiting = folder / f"{file_id} {file.name[:_LONGEST_NAME]}"
        await asyncio.to_thread(_keep, waiting, content)
        context = {"file": file_id}
        asked = {"sizeInBytes": file.size, "acceptContext": context, "declineContext": context}
        card = {"contentType": f"{_CARD}.teams.card.file.consent", "name": file.name, "content": asked}
        try:
            return await self._post(to.chat_id, {"type": "message", "attachments": [card]})
        except (SendError, ChannelSetupError) as error:
            if not getattr(error, "may_have_arrived", False):
                waiting.unlink(missing_ok=True)
            raise

    async def chat_with(self, sender_id: str) -> str | None:
        """The private chat with a person, which is opened if there is none."""
        for chat_id, kept in self._state.conversations.items():
            if kept.person == sender_id:
                return chat_id
        members = {"isGroup": False, "members": [{"id": sender_id}], "tenantId": self.config.tenant_id.strip()}
        opened = await self._api.call("POST", conversation_url(self.config.service_url), json=members)
        return opened.text("id") or None

    async def _post(self, chat_id: str, activity: object) -> str:
        return (await self._call("POST", chat_id, ("activities",), activity)).text("id")

    async def _call(self, method: str, chat_id: str, path: tuple[str, ...], activity: object) -> Payload:
        kept = self._state.conversations.get(chat_id)
        service_url = self.config.service_url if kept is None else kept.service_url
        if not self.config.reply_in_thread:
            chat_id = chat_id.partition(_THREAD)[0]
        return await self._api.call(method, conversation_url(service_url, chat_id, *path), json=activity)

    # files that wait for their person

    @property
    def _files(self) -> Path | None:
        return self.services.state / "files" if self.services.state is not None else None

    async def _send_waiting(self, activity: Payload) -> None:
        """Store a file in the person's OneDrive and show it, if they agree; forget one that they do not want."""
        value, file_id = activity.part("value"), activity.text("value", "context", "file")
        is_id = re.fullmatch(r"[0-9a-f]{32}", file_id) is not None
        waiting = next(self._files.glob(f"{file_id} *"), None) if is_id and self._files is not None else None
        if waiting is None:
            return
        name, chat_id, info = (
            waiting.name.partition(" ")[2],
            activity.text("conversation", "id"),
            value.part("uploadInfo"),
        )
        if value.get("action") == "accept":
            shown = {
                "contentType": f"{_CARD}.teams.card.file.info",
                "contentUrl": info.get("contentUrl"),
                "name": info.get("name") or name,
                "content": {"uniqueId": info.get("uniqueId"), "fileType": info.get("fileType")},
            }
            try:
                await self._api.upload(info.text("uploadUrl"), await asyncio.to_thread(waiting.read_bytes))
                await self._post(chat_id, {"type": "message", "attachments": [shown]})
            except (OSError, SendError, ChannelSetupError) as error:
                log.warning("msteams: %s is not sent, and waits: %s", name, error)
                text = f"{name} could not be stored in your OneDrive. Ask me to send it again."
                await self.bus.publish_outbound(OutboundMessage(self.name, chat_id, text, kind=OutboundKind.NOTICE))
                return
        waiting.unlink(missing_ok=True)


def _keep(path: Path, content: bytes) -> None:
    """Write a file that waits, and delete the oldest where too many wait."""
    path.write_bytes(content)
    for old in sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)[:-_MOST_FILES]:
        old.unlink()


def _message(chunk: Chunk) -> dict[str, Any]:
    return {"type": "message", "text": chunk.text, "textFormat": "markdown"}


def read_message(data: Mapping[str, object]) -> Incoming | None:
    """Read a message, or a pressed button. None for one that does not say who wrote it where."""
    activity = Payload.of(data)
    conversation, bot = activity.part("conversation"), activity.text("recipient", "id")
    chat_id, message_id = conversation.text("id"), activity.text("id")
    user_id, directory_id = activity.text("from", "id"), activity.text("from", "aadObjectId")
    if not (user_id and chat_id and message_id) or user_id == bot:
        return None
    is_group = chat_id.startswith(_GROUP) or bool(conversation.get("isGroup"))
    is_private = not is_group and conversation.get("conversationType") in (None, "personal")
    names = {
        html.unescape(_MENTION.sub(r"\1", mention.text("text"))).strip()
        for mention in activity.parts("entities")
        if mention.get("type") == "mention" and mention.part("mentioned").get("id") == bot
    }  # by which the bot is mentioned
    quote, text, is_of_other = _read_quote(activity, bot, names)
    files = []
    for one in activity.parts("attachments"):
        kind, name = one.text("contentType"), one.text("name") or None
        url = one.text("content", "downloadUrl") if kind == _FILE else one.text("contentUrl")
        if url and (kind == _FILE or kind.startswith(("image/", "audio/", "video/"))):
            files.append(Attachment(MediaKind.of_type(kind), name=name, source=url))
    return Incoming(
        directory_id or user_id,
        chat_id,
        f"{quoted_lines(quote)}\n{text}" if quote else text,
        message_id,
        is_private=is_private,
        is_mentioned=is_private or bool(names) or bool(activity.get("value")),  # the latter is a button
        parent_ids=(chat_id.partition(_THREAD)[0],) if _THREAD in chat_id else (),
        alternate_ids=(user_id,) if directory_id else (),
        is_verified=activity.get("channelId") == "msteams",  # elsewhere people choose their ids themselves
        sender_name=activity.text("from", "name"),
        attachments=tuple(files),
        quotes_others=is_of_other,
        sent_at=activity.iso_time("timestamp"),
    )


def _read_quote(activity: Payload, bot: str, names: AbstractSet[str]) -> tuple[str, str, bool]:
    """The text that the message replies to, its own text, and whether the former is somebody else's."""
    bodies = [activity.text("text")]
    bodies += [one.text("content") for one in activity.parts("attachments") if one.get("contentType") == "text/html"]
    for body in bodies:
        if _REPLY not in body:
            continue
        try:
            tree = fragment_fromstring(body, create_parent="div")
        except (etree.LxmlError, ValueError):
            continue
        quote = next((one for one in tree.iter("blockquote") if _REPLY in str(one.get("itemtype"))), None)
        if quote is None:
            continue
        shown, author, bot_id = quote.find("p"), quote.find("strong"), bot.partition(":")[2]
        quoted = _words(quote if shown is None else shown)
        is_of_bot = bool(bot_id) and author is not None and bot_id in str(author.get("itemid"))
        quote.drop_tree()
        for mention in tree.iter("span"):
            if "Mention" in str(mention.get("itemtype")) and _words(mention) in names:
                mention.text = ""
        return quoted, _without_mentions(_words(tree), names), not is_of_bot
    return "", _without_mentions(html.unescape(bodies[0]).replace("\xa0", " "), names), False


def _words(element: HtmlElement) -> str:
    lines = [" ".join(str(text).split()) for text in element.itertext()]
    return "\n".join(filter(None, lines))


def _without_mentions(text: str, names: AbstractSet[str]) -> str:
    """Take out mentions of the bot; others become a name behind an @."""

    def name(match: "re.Match[str]") -> str:
        mentioned = html.unescape(match[1]).strip()
        return "" if mentioned in names else f"@{mentioned}"

    return _MENTION.sub(name, text).strip()
