"""The Microsoft Teams channel: the user's own bot, registered at Azure.

Teams sends each message to a webhook, and again if the answer is not 200. Answers go to the connector's REST API, at an
address that came with the conversation's last message.
"""

import asyncio
import base64
import json
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from starlette.applications import Starlette

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import keep_saved
from nanobot.channels.errors import ChannelSetupError, SendError
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.media import Attachment
from nanobot.channels.msteams.api import TeamsApi, conversation_url
from nanobot.channels.msteams.auth import RejectedError, TokenChecker
from nanobot.channels.msteams.incoming import (
    Upload,
    conversation_of,
    is_group_id,
    read_message,
    read_upload,
    without_thread,
)
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.webhooks import Webhooks
from nanobot.config.channels import TeamsConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import TEAMS
from nanobot.net.http import is_loopback
from nanobot.net.http_server import HttpServer
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)

PATH = "/hooks/msteams"
"""The webhook at the gateway's HTTP server."""
_LARGEST_INLINE = 20_000
"""Of a picture within a message, which may have 28 kB, in Base64."""
_IMAGES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".gif": "image/gif"}
_MOST_BUTTONS = 6
_MOST_CONVERSATIONS, _MOST_FILES = 1000, 20
_CARD = "application/vnd.microsoft"
_WEB_CHAT = "webchat.botframework.com"


@dataclass(slots=True)
class Conversation:
    """Where answers to a conversation go."""

    service_url: str
    person: str = ""
    """Who writes there, if it is a private chat."""
    seen: float = 0.0
    """When somebody last wrote there; a UNIX time."""


@dataclass(slots=True)
class WaitingFile:
    """A file of which the person has not said yet whether to store it in their OneDrive."""

    name: str
    chat_id: str


@dataclass(slots=True)
class TeamsState:
    """What is saved of one bot."""

    bot: str = ""
    conversations: dict[str, Conversation] = field(default_factory=dict)
    files: dict[str, WaitingFile] = field(default_factory=dict)


class TeamsChannel(ChatChannel):
    """Private chats, group chats and channels of one bot."""

    name = "msteams"
    dialect = TEAMS
    can_edit = True
    stall_s = 0.0
    delta_interval_s: ClassVar[float] = 1.5
    """Teams takes about one message or edit a second."""
    login_s: float = 1800.0
    """How often the password is tried, besides whenever a token expires."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, TeamsConfig) else TeamsConfig.model_validate(config)
        self._api = TeamsApi(self._settings)
        self._checker: TokenChecker | None = None
        self._state = TeamsState()
        self._order = asyncio.Lock()
        self._uploads: set[asyncio.Task[None]] = set()
        self._rejected: set[str] = set()

    async def start(self) -> None:
        """Serve the webhook, until Microsoft no longer accepts the password."""
        settings, api = self._settings, self._api
        if not settings.validate_inbound_auth and not is_loopback(settings.host):
            raise ChannelSetupError(
                "channels.msteams.validateInboundAuth is false: then anybody who reaches the webhook could write as "
                'you. Set it to true, or channels.msteams.host to "127.0.0.1" for a test on this machine.'
            )
        async with api:
            await api.token()
            bot = settings.app_id.strip()
            self._state = await self.load_state(TeamsState(bot))
            self._prune_conversations()
            self._checker = TokenChecker(settings.openid_url, bot, api, self.services.clock)
            try:
                async with keep_saved(self.state_path, self._state), self._serve():
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

    def _prune_conversations(self) -> None:
        """Drop what is too old or not to be kept over a restart."""
        settings, conversations = self._settings, self._state.conversations
        oldest = (self.services.clock.now() - timedelta(days=settings.ref_ttl_days)).timestamp()
        for chat_id, kept in [*conversations.items()]:
            is_web_chat = settings.prune_web_chat_refs and urlsplit(kept.service_url).hostname == _WEB_CHAT
            if kept.seen < oldest or is_web_chat or (settings.prune_non_personal_refs and not kept.person):
                del conversations[chat_id]

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[None]:
        """Receive requests: at the gateway's HTTP server, or at one of our own."""
        host, port, path = self._settings.host.strip(), self._settings.port, self._settings.path
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

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Test the credentials. Raises ChannelSetupError; SendError if Microsoft is unreachable."""
        async with self._api:
            await self._api.token()
        host, path = self._settings.host.strip(), self._settings.path
        where = f"port {self._settings.port}" if host else "gateway.port (18790)"
        show(
            LoginStep(
                "The credentials work. Two steps are left, which the guide of Microsoft Teams describes:\n"
                f"1. Let a tunnel or a reverse proxy with https lead to {where} of this machine.\n"
                "   In the Azure portal, your bot, Configuration, enter as messaging endpoint:\n"
                f"   https://YOUR-ADDRESS{path if host else PATH}\n"
                "2. At https://dev.teams.microsoft.com create an app with the bot, and preview it in Teams."
            )
        )
        return True

    # receiving

    async def _answer(self, headers: Mapping[str, str], body: bytes) -> int:
        """Answer a request; 200 once its message is journaled."""
        try:
            activity = Payload.of(json.loads(body))
        except (ValueError, RecursionError):
            return 400
        service_url, chat_id, checker = activity.text("serviceUrl"), conversation_of(activity), self._checker
        if checker is None:
            return 503
        try:
            if self._settings.validate_inbound_auth:
                await checker.check(headers.get("authorization", ""), activity)
            if not self._api.is_trusted(service_url):
                raise RejectedError("its serviceUrl is not in channels.msteams.trustedServiceUrlHosts")
            async with self._order:
                self.status.touch()
                self._remember(activity, service_url, chat_id)
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
        if activity.get("type") == "invoke" and (upload := read_upload(activity)) is not None:
            task = asyncio.create_task(self._send_waiting(upload), name="msteams upload")
            self._uploads.add(task)
            task.add_done_callback(self._uploads.discard)
        if activity.get("type") != "message" or (incoming := read_message(activity)) is None:
            return
        response, is_empty = self._settings.mention_only_response, not (incoming.text or incoming.attachments)
        if response and is_empty and not incoming.is_private and self.is_allowed(incoming.sender_id):
            notice = OutboundMessage(self.name, incoming.chat_id, response, kind=OutboundKind.NOTICE)
            await self.bus.publish_outbound(notice)
        else:
            await self.receive(incoming)

    def _remember(self, activity: Payload, service_url: str, chat_id: str) -> None:
        """Keep where this conversation is answered."""
        incoming, now = read_message({**activity, "id": "any"}), self.services.clock.now().timestamp()
        person = incoming.sender_id if incoming is not None and incoming.is_private and incoming.is_verified else ""
        known = self._state.conversations.get(chat_id)
        is_old = known is not None and now - known.seen >= self._settings.ref_touch_interval_s
        if chat_id and (known is None or is_old or known.service_url != service_url):
            kept = Conversation(service_url, person, now)
            put_bounded(self._state.conversations, chat_id, kept, _MOST_CONVERSATIONS)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment.source)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk, with a card for its buttons."""
        activity = _message(chunk)
        if options.buttons:
            activity["attachments"] = [_buttons_card(options)]
        return await self._post(to.chat_id, activity)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        await self._call("PUT", to.chat_id, ("activities", platform_id), _message(chunk))

    async def show_typing(self, to: Address) -> None:
        await self._post(to.chat_id, {"type": "typing"})

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a small picture within a message; ask a person whether to store any other file in their OneDrive."""
        if file.path is None:
            return await self.post(to, split_message(file.url or file.name, self.dialect)[0], options)
        kind, folder = _IMAGES.get(file.path.suffix.lower()), self._files
        is_small_picture = kind is not None and file.size <= _LARGEST_INLINE
        if not is_small_picture and (is_group_id(to.chat_id) or folder is None):
            text = f"({file.name} cannot be sent here: Teams takes files from bots in private chats only.)"
            return await self.post(to, split_message(text, self.dialect)[0], options)
        content, file_id = await read_outgoing(file.path, largest=self.largest_file), secrets.token_hex(16)
        if is_small_picture:
            data_url = f"data:{kind};base64,{base64.b64encode(content).decode()}"
            shown = {"contentType": kind, "contentUrl": data_url, "name": file.name}
            return await self._post(to.chat_id, {"type": "message", "attachments": [shown]})
        assert folder is not None  # noqa: S101 see above
        await asyncio.to_thread(make_private_folder, folder)
        await asyncio.to_thread((folder / file_id).write_bytes, content)
        for forgotten in [*self._state.files][: 1 - _MOST_FILES]:
            await self._forget(forgotten)
        self._state.files[file_id] = WaitingFile(file.name, to.chat_id)
        await self.save_state(self._state)
        context = {"file": file_id}
        asked = {"sizeInBytes": file.size, "acceptContext": context, "declineContext": context}
        card = {"contentType": f"{_CARD}.teams.card.file.consent", "name": file.name, "content": asked}
        try:
            return await self._post(to.chat_id, {"type": "message", "attachments": [card]})
        except (SendError, ChannelSetupError) as error:
            if not getattr(error, "may_have_arrived", False):
                await self._forget(file_id)
            raise

    async def chat_with(self, sender_id: str) -> str | None:
        """The private chat with a person, which is opened if there is none."""
        for chat_id, kept in self._state.conversations.items():
            if kept.person == sender_id:
                return chat_id
        members = {"isGroup": False, "members": [{"id": sender_id}], "tenantId": self._settings.tenant_id.strip()}
        opened = await self._api.call("POST", conversation_url(self._settings.service_url), json=members)
        return opened.text("id") or None

    async def _post(self, chat_id: str, activity: object) -> str:
        return (await self._call("POST", chat_id, ("activities",), activity)).text("id")

    async def _call(self, method: str, chat_id: str, path: tuple[str, ...], activity: object) -> Payload:
        kept = self._state.conversations.get(chat_id)
        service_url = self._settings.service_url if kept is None else kept.service_url
        if not self._settings.reply_in_thread:
            chat_id = without_thread(chat_id)
        return await self._api.call(method, conversation_url(service_url, chat_id, *path), json=activity)

    # files that wait for their person

    @property
    def _files(self) -> Path | None:
        return self.services.state / "files" if self.services.state is not None else None

    async def _send_waiting(self, upload: Upload) -> None:
        """Store a file in the person's OneDrive and show it; forget one that they do not want."""
        waiting, folder = self._state.files.get(upload.file_id), self._files
        if waiting is None or folder is None:
            return
        if upload.is_accepted:
            shown = {
                "contentType": f"{_CARD}.teams.card.file.info",
                "contentUrl": upload.info.get("contentUrl"),
                "name": upload.info.get("name") or waiting.name,
                "content": {"uniqueId": upload.info.get("uniqueId"), "fileType": upload.info.get("fileType")},
            }
            try:
                data = await asyncio.to_thread((folder / upload.file_id).read_bytes)
                await self._api.upload(upload.url, data)
                await self._post(waiting.chat_id, {"type": "message", "attachments": [shown]})
            except (OSError, SendError, ChannelSetupError) as error:
                log.warning("msteams: %s is not sent, and waits: %s", waiting.name, error)
                text = f"{waiting.name} could not be stored in your OneDrive. Ask me to send it again."
                notice = OutboundMessage(self.name, waiting.chat_id, text, kind=OutboundKind.NOTICE)
                await self.bus.publish_outbound(notice)
                return
        await self._forget(upload.file_id)

    async def _forget(self, file_id: str) -> None:
        self._state.files.pop(file_id, None)
        if self._files is not None:
            await asyncio.to_thread((self._files / file_id).unlink, missing_ok=True)


def _message(chunk: Chunk) -> dict[str, Any]:
    return {"type": "message", "text": chunk.text, "textFormat": "markdown"}


def _buttons_card(options: SendOptions) -> dict[str, Any]:
    """A card whose buttons write their value into the chat."""
    buttons = [
        {
            "type": "messageBack",
            "title": button.label,
            "displayText": button.label,
            "text": button.value or button.label,
            "value": {"pressed": True},
        }
        for button in options.buttons[:_MOST_BUTTONS]
    ]
    return {"contentType": f"{_CARD}.card.hero", "content": {"buttons": buttons}}
