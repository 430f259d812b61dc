"""DingTalk: private and group chats of a robot in stream mode (open.dingtalk.com/document/orgapp).

The stream is read here and not by DingTalk's SDK, which swallows cancellations, and blocks the event loop while it
connects. A streamed answer is an AI card; other messages are Markdown and cannot be edited.
"""

import asyncio
import io
import json
import logging
import secrets
import uuid
import zipfile
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar
from urllib.parse import quote, urljoin, urlsplit

from websockets.asyncio.client import ClientConnection

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCode,
    ErrorCodes,
    RateLimitedError,
    RefusedError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import Answer, RestClient, open_download
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import DingTalkConfig
from nanobot.errors import StorageError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DINGTALK
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_API, _UPLOADS = "https://api.dingtalk.com", "https://oapi.dingtalk.com"
_CONSOLE = "open-dev.dingtalk.com"
_MESSAGES = "/v1.0/im/bot/messages/get"
"""The topic of messages to the robot."""
_GROUP = "group:"
"""Before the conversation's id in the id of a group chat."""
_RECONNECT_S = 0.2
_TEMPLATE = "382e4302-551d-4880-bf29-a30acfab2e71.schema"
"""The AI card that DingTalk's SDKs use: Markdown that can grow."""
_STREAMING, _FINISHED = "2", "3"
"""Values of `flowStatus` of a card."""
_LONGEST_TITLE = 40
_IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
_FILES = (".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".pdf", ".zip", ".rar")
"""Suffixes that can be uploaded (upload-media-files); others are sent in a zip."""
_KINDS = {"picture": MediaKind.IMAGE, "audio": MediaKind.VOICE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_UNREADABLE = "[a message of a kind that bots cannot read]"
_MOST_REDIRECTS = 3
_NO_PERMISSION = "Forbidden.AccessDenied.AccessTokenPermissionDenied"
_NO_SUCH_MEMBER = "the app's organisation has no such member, and a robot can write to members only"
_CODES = ErrorCodes(
    "DingTalk",
    {
        "staffId.notExisted": _NO_SUCH_MEMBER,
        "resource.not.found": f"there is no such robot. Set channels.dingtalk.robotCode; see Robot at {_CONSOLE}",
    },
    limited=(90002, 90018),
    pause_s=1,  # open.dingtalk.com/document/orgapp/invocation-frequency-limit
)


class DingTalkApi(RestClient):
    codes = _CODES
    code_keys = ("errcode", "code")
    token_header = ("x-acs-dingtalk-access-token", "")
    token_ended = (40001, 40014, 42001)

    def __init__(self, section: DingTalkConfig) -> None:
        super().__init__(section.api_base or _API)
        self._section = section

    async def fetch_token(self) -> tuple[str, float]:
        client_id, secret = self._credentials()
        body = {"appKey": client_id, "appSecret": secret}
        answer = await self.exchange("POST", "/v1.0/oauth2/accessToken", json=body)
        if answer.code:
            raise ChannelSetupError(
                "DingTalk does not take channels.dingtalk.clientId and clientSecret. Copy both again "
                f"from {_CONSOLE}, your app, Credentials. It says: {answer.text} ({answer.code})"
            )
        return answer.body.text("accessToken"), answer.body.number("expireIn")

    async def open_stream(self) -> str:
        """The URL of a new connection, valid once. Raises ChannelSetupError if DingTalk opens none for this app."""
        client_id, secret = self._credentials()
        topics = [{"type": "CALLBACK", "topic": _MESSAGES}]
        body = {"clientId": client_id, "clientSecret": secret, "subscriptions": topics, "ua": "nanobot"}
        answer = await self.exchange("POST", "/v1.0/gateway/connections/open", json=body)
        if answer.code:
            raise ChannelSetupError(
                f"DingTalk opens no stream for channels.dingtalk.clientId. At {_CONSOLE}, your app: add the capability "
                f"Robot with Stream mode, and publish a version. It says: {answer.text} ({answer.code})"
            )
        return f"{answer.body.text('endpoint')}?ticket={quote(answer.body.text('ticket'), safe='')}"

    def _credentials(self) -> tuple[str, ...]:
        section = self._section
        return require_settings("dingtalk", clientId=section.client_id, clientSecret=section.client_secret)

    def is_limited(self, code: ErrorCode) -> bool:
        return super().is_limited(code) or "QpsLimit" in str(code)

    def error_of(self, answer: Answer) -> Exception:
        if answer.code == _NO_PERMISSION:
            scopes = answer.body.part("accessdenieddetail").get("requiredScopes")
            names = ", ".join(map(str, scopes)) if isinstance(scopes, list) else "that its message names"
            text = f"DingTalk: the app lacks the permission {names}. Add it at {_CONSOLE}, your app, Permissions"
            return RefusedError(text, _NO_PERMISSION)
        if answer.code not in self.codes.final and answer.status in (403, 404):
            return UndeliverableError(f"DingTalk refused it: {answer}")
        return super().error_of(answer)


class DingTalkChannel(ChatChannel):
    name = "dingtalk"
    dialect = DINGTALK
    can_edit = True
    can_react = True
    stall_s = 30.0
    ping_s: float = 10.0
    """How often the stream is pinged."""
    delta_interval_s: ClassVar[float] = 2.0
    """Each update is a request, and an organisation has a quota of them."""
    config: DingTalkConfig

    def __init__(self, config: DingTalkConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._api = DingTalkApi(config)
        self._robot = {"robotCode": config.robot_code.strip() or config.client_id.strip()}
        self._conversations: dict[str, str] = {}
        """The conversation's id by chat: a private chat has another id with us."""
        self._cards: dict[str, bool] = {}
        """Cards that are not finished, and whether their stream is open. The stream of a crashed process may not be."""
        self._without_cards = ""
        """Why answers are not streamed, once DingTalk has refused a card."""

    async def start(self) -> None:
        async with self._api:
            await self._api.token()
            while True:
                await self._serve()
                await asyncio.sleep(_RECONNECT_S)

    async def check_login(self) -> str:
        async with self._api:
            await self._api.token()
            await self._api.open_stream()
        return (
            f"The credentials work. Your bot is the robot {self._robot['robotCode']}.\n"
            "Search for it in DingTalk by the name that you gave it, or add it to a group and mention it."
        )

    async def _serve(self) -> None:
        """Receive messages until DingTalk announces the end of the connection, as it does after some hours."""
        async with open_socket("DingTalk", await self._api.open_stream(), ping_interval=None) as socket:
            self.mark_up()
            self.status.last_error = self._without_cards
            async for text in read_messages(socket, self.status.touch, self.ping_s):
                frame = Payload.parse(text)
                if (frame.get("type"), frame.text("headers", "topic")) == ("SYSTEM", "disconnect"):
                    return
                await self._process(socket, frame)

    async def _process(self, socket: ClientConnection, frame: Payload) -> None:
        """Process a frame, and acknowledge it unless it could not be journaled: then DingTalk sends it again."""
        data = frame.get("data")
        if frame.text("headers", "topic") == _MESSAGES:
            message = Payload.parse(str(data))
            incoming = read_message(message, isolate_users=self.config.group_user_isolation)
            if incoming is not None and not (incoming.is_private and self.config.disable_private_chat):
                put_bounded(self._conversations, incoming.chat_id, message.text("conversationId"))
                try:
                    await self.receive(incoming)
                except StorageError as error:
                    log.warning("dingtalk: a message could not be journaled, and is not acknowledged: %s", error)
                    return
            data = '{"response": {}}'
        if message_id := frame.text("headers", "messageId"):
            headers = {"contentType": "application/json", "messageId": message_id}
            await socket.send(json.dumps({"code": 200, "message": "OK", "headers": headers, "data": data}))

    async def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file. Redirects to another host are followed only if the config lists it."""
        body = {**self._robot, "downloadCode": attachment.source}
        url = (await self._api.call("POST", "/v1.0/robot/messageFiles/download", json=body)).text("downloadUrl")
        for _ in range(_MOST_REDIRECTS + 1):
            async with open_download("DingTalk", url) as response:
                if response.is_success:
                    async for chunk in response.aiter_bytes():
                        yield chunk
                    return
                if not response.has_redirect_location:
                    raise MediaError(f"DingTalk answered {response.status_code}")
                target = urljoin(url, response.headers["location"])
            host, config = urlsplit(target).hostname, self.config
            allowed = config.remote_media_redirect_allowed_hosts if config.allow_remote_media_redirects else ()
            if host != urlsplit(url).hostname and host not in allowed:
                raise MediaError(
                    f"DingTalk redirects to {host}. To allow: set channels.dingtalk.allowRemoteMediaRedirects to true, "
                    "and list the host in remoteMediaRedirectAllowedHosts"
                )
            url = target
        raise MediaError("DingTalk redirects too often")

    @property
    def supports_streaming(self) -> bool:
        """Whether the config does not disable streaming, and DingTalk has refused no card."""
        return super().supports_streaming and not self._without_cards

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a message; a card, if its text will grow."""
        if options.growing:
            return await self._post_card(to, chunk, options.nonce or secrets.token_hex(8))
        lines = (line.strip("#>*`- ") for line in chunk.content.text.splitlines())
        title = next((line for line in lines if line), "nanobot")[:_LONGEST_TITLE]  # shown in notifications
        return await self._send(to, "sampleMarkdown", {"title": title, "text": chunk.text})

    async def _post_card(self, to: Address, chunk: Chunk, card_id: str) -> str:
        """Send a card that shows a growing text. The id is ours."""
        if self._without_cards:
            raise UndeliverableError(self._without_cards)
        space = f"IM_ROBOT.{to.chat_id}"
        where = {"imRobotOpenDeliverModel": {"spaceType": "IM_ROBOT", **self._robot}}
        if to.chat_id.startswith(_GROUP):
            space = f"IM_GROUP.{to.chat_id.removeprefix(_GROUP)}"
            where = {"imGroupOpenDeliverModel": self._robot}
        body = {
            "cardTemplateId": _TEMPLATE,
            "outTrackId": card_id,
            "cardData": _card_data(_STREAMING, chunk.text),
            "callbackType": "STREAM",
            "userIdType": 1,
            "openSpaceId": f"dtv1.card//{space}",
            "imGroupOpenSpaceModel": {"supportForward": True},
            "imRobotOpenSpaceModel": {"supportForward": True},
            **where,
        }
        try:
            answer = await self._api.call("POST", "/v1.0/card/instances/createAndDeliver", json=body)
        except RefusedError as error:
            if error.code == _NO_PERMISSION:
                self._without_cards = self.status.last_error = f"answers are not streamed. {error}"
                log.warning("dingtalk: %s", self._without_cards)
            raise
        for delivery in answer.parts("result", "deliverResults"):
            if delivery.get("success") is False:
                raise UndeliverableError(f"DingTalk did not deliver the card: {delivery.line('errorMsg')}")
        put_bounded(self._cards, card_id, True)
        return card_id

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        if self._cards.get(platform_id):
            await self._stream_card(platform_id, chunk)
        else:
            await self._finish_card(platform_id, chunk)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        if platform_id in self._cards:
            if self._cards[platform_id]:
                await self._stream_card(platform_id, chunk, is_last=True)
                self._cards[platform_id] = False
            await self._finish_card(platform_id, chunk)
            del self._cards[platform_id]

    async def _stream_card(self, card_id: str, chunk: Chunk, *, is_last: bool = False) -> None:
        about = {"outTrackId": card_id, "guid": uuid.uuid4().hex, "key": "msgContent", "content": chunk.text}
        body = {**about, "isFull": True, "isFinalize": is_last, "isError": False}
        await self._api.call("PUT", "/v1.0/card/streaming", json=body)

    async def _finish_card(self, card_id: str, chunk: Chunk) -> None:
        body = {"outTrackId": card_id, "cardData": _card_data(_FINISHED, chunk.text)}
        await self._api.call("PUT", "/v1.0/card/instances", json=body)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        name, suffix, data = file.name, file.suffix, await read_outgoing(file)
        if suffix not in (*_IMAGES, *_FILES):
            name, suffix, data = f"{name}.zip", ".zip", await asyncio.to_thread(_zip, name, data)
        kind = "image" if suffix in _IMAGES else "file"
        answer = await self._api.call(
            "POST",
            f"{(self.config.oapi_base or _UPLOADS).rstrip('/')}/media/upload",
            params={"type": kind, "access_token": await self._api.token()},
            files={"media": (name, data)},
        )
        media = answer.text("media_id")
        if kind == "image":
            return await self._send(to, "sampleImageMsg", {"photoURL": media})
        return await self._send(to, "sampleFile", {"mediaId": media, "fileName": name, "fileType": suffix[1:]})

    async def post_url(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a URL. DingTalk shows a picture itself."""
        if file.kind is MediaKind.IMAGE:
            return await self._send(to, "sampleImageMsg", {"photoURL": file.url or ""})
        return await self._send(to, "sampleMarkdown", {"title": file.name, "text": file.url or ""})

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Show a short text below a message."""
        is_group, chat = to.chat_id.startswith(_GROUP), to.chat_id
        conversation = chat.removeprefix(_GROUP) if is_group else self._conversations.get(chat)
        if conversation is None:
            raise UndeliverableError(f"the conversation with {chat} is not known yet")
        emotion = {"emotionId": "2659900", "emotionName": emoji, "text": emoji, "backgroundId": "im_bg_1"}
        where = {**self._robot, "openConversationId": conversation, "openMsgId": message_id}
        body = {**where, "emotionType": 2, "emotionName": emoji, "textEmotion": emotion}
        await self._api.call("POST", "/v1.0/robot/emotion/reply", json=body)

    async def _send(self, to: Address, key: str, parameters: Mapping[str, str]) -> str:
        """Send a message of a kind that DingTalk has for robots. Return its id."""
        path, chat = "oToMessages/batchSend", dict[str, Any](userIds=[to.chat_id])
        if to.chat_id.startswith(_GROUP):
            path, chat = "groupMessages/send", {"openConversationId": to.chat_id.removeprefix(_GROUP)}
        body = {**self._robot, **chat, "msgKey": key, "msgParam": json.dumps(parameters, ensure_ascii=False)}
        answer = await self._api.call("POST", f"/v1.0/robot/{path}", json=body)
        if answer.get("flowControlledStaffIdList"):
            raise RateLimitedError("DingTalk: too many messages to this person", _CODES.pause_s)
        if answer.get("invalidStaffIdList"):
            raise UndeliverableError(f"DingTalk: {_NO_SUCH_MEMBER} (invalidStaffIdList)")
        return answer.text("processQueryKey")


def _card_data(status: str, text: str) -> dict[str, Any]:
    order = json.dumps({"order": ["msgContent"]})
    variables = {"flowStatus": status, "msgContent": text, "staticMsgContent": "", "sys_full_json_obj": order}
    return {"cardParamMap": variables}


def _zip(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return packed.getvalue()


def read_message(data: Mapping[str, Any], *, isolate_users: bool) -> Incoming | None:
    """Read a message (receive-message). None if it does not say who wrote it where.

    `isolate_users`: whether each member of a group has a session of their own.
    """
    message = Payload.of(data)
    staff, encrypted = message.text("senderStaffId"), message.text("senderId")
    sender, conversation = staff or encrypted, message.text("conversationId")
    is_private = message.get("conversationType") == "1"
    if not sender or not conversation:
        return None
    chat = sender if is_private else f"{_GROUP}{conversation}"
    text, files = _read_content(message)
    quote, quotes_others = _read_quote(message)
    return Incoming(
        sender,
        chat,
        f"{quote}\n{text.strip()}".strip(),
        message.text("msgId") or None,
        is_private=is_private,
        is_mentioned=is_private or message.get("isInAtList") is not False,
        alternate_ids=(encrypted,) if staff and encrypted else (),
        sender_name=message.line("senderNick"),
        attachments=files,
        quotes_others=quotes_others,
        sent_at=message.time("createAt"),
        session_key=f"dingtalk:{chat}:{sender}" if isolate_users and not is_private else None,
    )


def _read_content(message: Payload) -> tuple[str, tuple[Attachment, ...]]:
    form = message.text("msgtype")
    if form == "text":
        return message.text("text", "content"), ()
    if form == "audio" and (words := message.text("content", "recognition")):
        return words, ()  # what DingTalk heard; the recording says no more
    content = message.part("content")
    parts = content.parts("richText") if form == "richText" else [Payload({**content, "type": form})]
    files = [
        Attachment(kind, name=part.text("fileName") or None, source=code)
        for part in parts
        if (kind := _KINDS.get(part.text("type"))) and (code := part.text("downloadCode"))
    ]
    text = "\n".join(words for part in parts if (words := part.text("text").strip()))
    return text or ("" if files else _UNREADABLE), tuple(files)


def _read_quote(message: Payload) -> tuple[str, bool]:
    """Lines about the message it replies to, and whether they have words of somebody else."""
    replied = (message.part("text") or message.part("content")).part("repliedMsg")
    parts = replied.parts("content", "richText")
    words = replied.text("content", "text") or "\n".join(part.text("text") for part in parts)
    if not words.strip():
        return "", False
    author = replied.text("senderId")
    is_ours, is_own = (bool(author) and author == message.text(key) for key in ("chatbotUserId", "senderId"))
    return quoted_lines(words, "you" if is_ours else "a message"), not (is_ours or is_own)
