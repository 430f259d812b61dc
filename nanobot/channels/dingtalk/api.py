"""Requests to DingTalk's open platform (open.dingtalk.com/document/orgapp)."""

import asyncio
import io
import json
import uuid
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from nanobot.channels.dingtalk.incoming import GROUP
from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCode,
    ErrorCodes,
    RateLimitedError,
    RefusedError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import read_outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.rest import Answer, RestClient, open_download
from nanobot.config.channels import DingTalkConfig

API, UPLOADS = "https://api.dingtalk.com", "https://oapi.dingtalk.com"
CONSOLE = "open-dev.dingtalk.com"
MESSAGES = "/v1.0/im/bot/messages/get"
"""The topic of messages to the robot."""
LARGEST_FILE = 20 * 1024 * 1024
_TEMPLATE = "382e4302-551d-4880-bf29-a30acfab2e71.schema"
"""The AI card that DingTalk's SDKs use: Markdown that can grow."""
_STREAMING, _FINISHED = "2", "3"
"""Values of `flowStatus` of a card."""
_IMAGES = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
_FILES = (".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".pdf", ".zip", ".rar")
"""Suffixes that can be uploaded (open.dingtalk.com/document/orgapp/upload-media-files); others are sent in a zip."""
_MOST_REDIRECTS = 3
NO_PERMISSION = "Forbidden.AccessDenied.AccessTokenPermissionDenied"
_NO_SUCH_MEMBER = "the app's organisation has no such member, and a robot can write to members only"
_CODES = ErrorCodes(
    "DingTalk",
    {
        "staffId.notExisted": _NO_SUCH_MEMBER,
        "resource.not.found": f"there is no such robot. Set channels.dingtalk.robotCode; see Robot at {CONSOLE}",
    },
    limited=(90002, 90018),
    pause_s=1,  # open.dingtalk.com/document/orgapp/invocation-frequency-limit
)


class DingTalkApi(RestClient):
    """The requests of one robot."""

    codes = _CODES
    code_keys = ("errcode", "code")
    token_ended = (40001, 40014, 42001)

    def __init__(self, section: DingTalkConfig) -> None:
        super().__init__(section.api_base or API)
        self.robot_code = section.robot_code.strip() or section.client_id.strip()
        self._section = section
        self._uploads = (section.oapi_base or UPLOADS).rstrip("/")

    async def fetch_token(self) -> tuple[str, float]:
        client_id, secret = self._credentials()
        answer = await self.exchange(
            "POST", "/v1.0/oauth2/accessToken", json={"appKey": client_id, "appSecret": secret}
        )
        if answer.code:
            raise ChannelSetupError(
                "DingTalk does not take channels.dingtalk.clientId and clientSecret. Copy both again "
                f"from {CONSOLE}, your app, Credentials. It says: {answer.text} ({answer.code})"
            )
        return answer.body.text("accessToken"), answer.body.number("expireIn")

    async def open_stream(self) -> str:
        """The URL of a new connection, valid once. Raises ChannelSetupError if DingTalk opens none for this app."""
        client_id, secret = self._credentials()
        body = {
            "clientId": client_id,
            "clientSecret": secret,
            "subscriptions": [{"type": "CALLBACK", "topic": MESSAGES}],
            "ua": "nanobot",
        }
        answer = await self.exchange("POST", "/v1.0/gateway/connections/open", json=body)
        if answer.code:
            raise ChannelSetupError(
                f"DingTalk opens no stream for channels.dingtalk.clientId. At {CONSOLE}, your app: add the capability "
                f"Robot with Stream mode, and publish a version. It says: {answer.text} ({answer.code})"
            )
        return f"{answer.body.text('endpoint')}?ticket={quote(answer.body.text('ticket'), safe='')}"

    def _credentials(self) -> tuple[str, ...]:
        section = self._section
        return require_settings("dingtalk", clientId=section.client_id, clientSecret=section.client_secret)

    def authorize(self, token: str) -> dict[str, str]:
        return {"x-acs-dingtalk-access-token": token}

    def is_limited(self, code: ErrorCode) -> bool:
        return super().is_limited(code) or "QpsLimit" in str(code)

    def error_of(self, answer: Answer) -> Exception:
        if answer.code == NO_PERMISSION:
            scopes = answer.body.part("accessdenieddetail").get("requiredScopes")
            names = ", ".join(map(str, scopes)) if isinstance(scopes, list) else "that its message names"
            text = f"DingTalk: the app lacks the permission {names}. Add it at {CONSOLE}, your app, Permissions"
            return RefusedError(text, NO_PERMISSION)
        if answer.code not in self.codes.final and answer.status in (403, 404):
            return UndeliverableError(f"DingTalk refused it: {answer}")
        return super().error_of(answer)

    async def send(self, chat_id: str, key: str, parameters: Mapping[str, str]) -> str:
        """Send a message of a kind that DingTalk has for robots. Return its id."""
        body = {"robotCode": self.robot_code, "msgKey": key, "msgParam": json.dumps(parameters, ensure_ascii=False)}
        if chat_id.startswith(GROUP):
            conversation = chat_id.removeprefix(GROUP)
            answer = await self._post("/v1.0/robot/groupMessages/send", {**body, "openConversationId": conversation})
        else:
            answer = await self._post("/v1.0/robot/oToMessages/batchSend", {**body, "userIds": [chat_id]})
        if answer.get("flowControlledStaffIdList"):
            raise RateLimitedError("DingTalk: too many messages to this person", _CODES.pause_s)
        if answer.get("invalidStaffIdList"):
            raise UndeliverableError(f"DingTalk: {_NO_SUCH_MEMBER} (invalidStaffIdList)")
        return answer.text("processQueryKey")

    async def create_card(self, chat_id: str, card_id: str, text: str) -> None:
        """Send a card that shows a growing text. The id is ours."""
        if chat_id.startswith(GROUP):
            space = f"IM_GROUP.{chat_id.removeprefix(GROUP)}"
            where: dict[str, Any] = {"imGroupOpenDeliverModel": {"robotCode": self.robot_code}}
        else:
            space = f"IM_ROBOT.{chat_id}"
            where = {"imRobotOpenDeliverModel": {"spaceType": "IM_ROBOT", "robotCode": self.robot_code}}
        answer = await self._post(
            "/v1.0/card/instances/createAndDeliver",
            {
                "cardTemplateId": _TEMPLATE,
                "outTrackId": card_id,
                "cardData": _card_data(_STREAMING, text),
                "callbackType": "STREAM",
                "userIdType": 1,
                "openSpaceId": f"dtv1.card//{space}",
                "imGroupOpenSpaceModel": {"supportForward": True},
                "imRobotOpenSpaceModel": {"supportForward": True},
                **where,
            },
        )
        for delivery in answer.parts("result", "deliverResults"):
            if delivery.get("success") is False:
                raise UndeliverableError(f"DingTalk did not deliver the card: {delivery.line('errorMsg')}")

    async def stream_card(self, card_id: str, text: str, *, is_last: bool = False) -> None:
        """Replace the text of a card that grows."""
        body = {
            "outTrackId": card_id,
            "guid": uuid.uuid4().hex,
            "key": "msgContent",
            "content": text,
            "isFull": True,
            "isFinalize": is_last,
            "isError": False,
        }
        await self.call("PUT", "/v1.0/card/streaming", json=body)

    async def finish_card(self, card_id: str, text: str) -> None:
        body = {"outTrackId": card_id, "cardData": _card_data(_FINISHED, text)}
        await self.call("PUT", "/v1.0/card/instances", json=body)

    async def react(self, conversation_id: str, message_id: str, emoji: str) -> None:
        """Show a short text below a message."""
        emotion = {"emotionId": "2659900", "emotionName": emoji, "text": emoji, "backgroundId": "im_bg_1"}
        await self._post(
            "/v1.0/robot/emotion/reply",
            {
                "robotCode": self.robot_code,
                "openConversationId": conversation_id,
                "openMsgId": message_id,
                "emotionType": 2,
                "emotionName": emoji,
                "textEmotion": emotion,
            },
        )

    async def send_file(self, chat_id: str, path: Path) -> str:
        """Upload a file and send it. Return the message's id."""
        name, data = path.name, await read_outgoing(path, largest=LARGEST_FILE)
        suffix = path.suffix.lower()
        if suffix not in (*_IMAGES, *_FILES):
            name, suffix, data = f"{name}.zip", ".zip", await asyncio.to_thread(_zip, name, data)
        kind = "image" if suffix in _IMAGES else "file"
        answer = await self.call(
            "POST",
            f"{self._uploads}/media/upload",
            params={"type": kind, "access_token": await self.token()},
            files={"media": (name, data)},
        )
        media = answer.text("media_id")
        if kind == "image":
            return await self.send(chat_id, "sampleImageMsg", {"photoURL": media})
        return await self.send(chat_id, "sampleFile", {"mediaId": media, "fileName": name, "fileType": suffix[1:]})

    async def download(self, code: str) -> AsyncIterator[bytes]:
        """Download a file in chunks. Redirects to another host are followed only if the config lists it."""
        body = {"robotCode": self.robot_code, "downloadCode": code}
        url = (await self._post("/v1.0/robot/messageFiles/download", body)).text("downloadUrl")
        for _ in range(_MOST_REDIRECTS + 1):
            async with open_download("DingTalk", url) as response:
                if response.is_success:
                    async for chunk in response.aiter_bytes():
                        yield chunk
                    return
                if not response.has_redirect_location:
                    raise MediaError(f"DingTalk answered {response.status_code}")
                target = urljoin(url, response.headers["location"])
            host, section = urlsplit(target).hostname, self._section
            allowed = section.remote_media_redirect_allowed_hosts if section.allow_remote_media_redirects else ()
            if host != urlsplit(url).hostname and host not in allowed:
                raise MediaError(
                    f"DingTalk redirects to {host}. To allow: set channels.dingtalk.allowRemoteMediaRedirects to true, "
                    "and list the host in remoteMediaRedirectAllowedHosts"
                )
            url = target
        raise MediaError("DingTalk redirects too often")

    async def _post(self, path: str, body: Mapping[str, Any]) -> Payload:
        return await self.call("POST", path, json=body)


def _card_data(status: str, text: str) -> dict[str, Any]:
    """The variables of the card's template."""
    return {
        "cardParamMap": {
            "flowStatus": status,
            "msgContent": text,
            "staticMsgContent": "",
            "sys_full_json_obj": json.dumps({"order": ["msgContent"]}),
        }
    }


def _zip(name: str, data: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, data)
    return packed.getvalue()
