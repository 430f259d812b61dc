"""Sends requests to DingTalk's open platform (open.dingtalk.com/document/orgapp), and converts its errors to ours."""

import asyncio
import io
import json
import logging
import uuid
import zipfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from nanobot.channels.dingtalk.incoming import GROUP
from nanobot.channels.errors import (
    ChannelSetupError,
    MissingSettingsError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import open_outgoing
from nanobot.config.channels import DingTalkConfig
from nanobot.net.clients import connection_error_reason, load_httpx
from nanobot.net.http import HttpPools
from nanobot.utils.clock import Clock

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

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
_CONNECT_S, _ANSWER_S, _UPLOAD_S = 10.0, 30.0, 100.0
_TOKEN_SLACK_S = 300.0
_PAUSE_S = 1.0
"""How long to wait where too much was sent (open.dingtalk.com/document/orgapp/invocation-frequency-limit)."""
_MOST_REDIRECTS = 3
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""
_TOKEN_CODES = ("40001", "40014", "42001")
_LIMIT_CODES = ("90002", "90018")
_NO_PERMISSION = "Forbidden.AccessDenied.AccessTokenPermissionDenied"
_ADVICE = {
    "staffId.notExisted": "the app's organisation has no such member, and a robot can write to members only",
    "resource.not.found": f"there is no such robot. Set channels.dingtalk.robotCode; see Robot at {CONSOLE}",
}
"""Why a message is undeliverable, by error code."""

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log URLs, which may contain a token


class PermissionDeniedError(UndeliverableError):
    """The app lacks a permission. The text names it."""


class DingTalkApi:
    """The requests of one robot. Methods that send raise SendError; all are safe to cancel."""

    def __init__(self, section: DingTalkConfig, clock: Clock) -> None:
        missing = [key for key, value in (("clientId", section.client_id), ("clientSecret", section.client_secret))
                   if not value.strip()]  # fmt: skip
        if missing:
            raise MissingSettingsError("dingtalk", *missing)
        self._id, self._secret = section.client_id.strip(), section.client_secret.strip()
        self.robot_code = section.robot_code.strip() or self._id
        self.refusal: ChannelSetupError | None = None
        """Set once DingTalk no longer accepts the secret."""
        self._base = (section.api_base or API).rstrip("/")
        self._uploads = (section.oapi_base or UPLOADS).rstrip("/")
        self._redirect_hosts = (
            section.remote_media_redirect_allowed_hosts if section.allow_remote_media_redirects else []
        )
        self._clock = clock
        self._pools = HttpPools()
        self._token, self._token_until = "", 0.0

    async def close(self) -> None:
        await self._pools.close()

    async def log_in(self) -> str:
        """The access token. Raises ChannelSetupError if the id or the secret is wrong."""
        if not self._token or self._clock.monotonic() >= self._token_until:
            answer = await self._set_up(
                "/v1.0/oauth2/accessToken",
                {"appKey": self._id, "appSecret": self._secret},
                f"does not take channels.dingtalk.clientId and clientSecret. Copy both again from {CONSOLE}, your app, "
                "Credentials",
            )
            self._token = str(answer.get("accessToken"))
            lasts_s = answer.get("expireIn")
            self._token_until = self._clock.monotonic() - _TOKEN_SLACK_S
            self._token_until += lasts_s if isinstance(lasts_s, int | float) else 0.0
        return self._token

    async def open_stream(self) -> str:
        """The URL of a new connection, valid once. Raises ChannelSetupError if DingTalk opens none for this app."""
        answer = await self._set_up(
            "/v1.0/gateway/connections/open",
            {
                "clientId": self._id,
                "clientSecret": self._secret,
                "subscriptions": [{"type": "CALLBACK", "topic": MESSAGES}],
                "ua": "nanobot",
            },
            f"opens no stream for channels.dingtalk.clientId. At {CONSOLE}, your app: add the capability Robot with "
            "Stream mode, and publish a version",
        )
        return f"{answer.get('endpoint')}?{httpx.QueryParams(ticket=str(answer.get('ticket')))}"

    async def send(self, chat_id: str, key: str, parameters: Mapping[str, str]) -> str:
        """Send a message of a kind that DingTalk has for robots. Return its id."""
        body = {"robotCode": self.robot_code, "msgKey": key, "msgParam": json.dumps(parameters, ensure_ascii=False)}
        if chat_id.startswith(GROUP):
            conversation = chat_id.removeprefix(GROUP)
            answer = await self.request(
                "POST", "/v1.0/robot/groupMessages/send", {**body, "openConversationId": conversation}
            )
        else:
            answer = await self.request("POST", "/v1.0/robot/oToMessages/batchSend", {**body, "userIds": [chat_id]})
        if answer.get("flowControlledStaffIdList"):
            raise RateLimitedError("DingTalk: too many messages to this person", _PAUSE_S)
        if answer.get("invalidStaffIdList"):
            raise UndeliverableError(f"DingTalk: {_ADVICE['staffId.notExisted']} (invalidStaffIdList)")
        return str(answer.get("processQueryKey") or "")

    async def create_card(self, chat_id: str, card_id: str, text: str) -> None:
        """Send a card that shows a growing text. The id is ours."""
        if chat_id.startswith(GROUP):
            space = f"IM_GROUP.{chat_id.removeprefix(GROUP)}"
            where: dict[str, Any] = {"imGroupOpenDeliverModel": {"robotCode": self.robot_code}}
        else:
            space = f"IM_ROBOT.{chat_id}"
            where = {"imRobotOpenDeliverModel": {"spaceType": "IM_ROBOT", "robotCode": self.robot_code}}
        answer = await self.request(
            "POST",
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
        result = answer.get("result")
        delivered = result.get("deliverResults") if isinstance(result, Mapping) else None
        for delivery in delivered if isinstance(delivered, list) else ():
            if isinstance(delivery, Mapping) and delivery.get("success") is False:
                raise UndeliverableError(f"DingTalk did not deliver the card: {delivery.get('errorMsg')}")

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
        await self.request("PUT", "/v1.0/card/streaming", body)

    async def finish_card(self, card_id: str, text: str) -> None:
        """Show the card as finished, with this text."""
        await self.request(
            "PUT", "/v1.0/card/instances", {"outTrackId": card_id, "cardData": _card_data(_FINISHED, text)}
        )

    async def react(self, conversation_id: str, message_id: str, emoji: str) -> None:
        """Show a short text below a message."""
        emotion = {"emotionId": "2659900", "emotionName": emoji, "text": emoji, "backgroundId": "im_bg_1"}
        await self.request(
            "POST",
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
        name, data = await asyncio.to_thread(_read_file, path)
        suffix = Path(name).suffix.lower()
        is_image = suffix in _IMAGES
        answer = await self._authorized(
            "POST",
            f"{self._uploads}/media/upload",
            _UPLOAD_S,
            params={"type": "image" if is_image else "file"},
            files={"media": (name, data)},
        )
        media = str(answer.get("media_id"))
        if is_image:
            return await self.send(chat_id, "sampleImageMsg", {"photoURL": media})
        return await self.send(
            chat_id, "sampleFile", {"mediaId": media, "fileName": name, "fileType": suffix.removeprefix(".")}
        )

    async def download(self, code: str) -> AsyncIterator[bytes]:
        """Download a file in chunks. Redirects to another host are followed only if the config lists it."""
        answer = await self.request(
            "POST", "/v1.0/robot/messageFiles/download", {"robotCode": self.robot_code, "downloadCode": code}
        )
        url = str(answer.get("downloadUrl"))
        for _ in range(_MOST_REDIRECTS + 1):
            async with (
                self._pools.borrow_client(url) as client,
                client.stream("GET", url, timeout=_ANSWER_S) as response,
            ):
                if response.status_code == httpx.codes.OK:
                    async for chunk in response.aiter_bytes():
                        yield chunk
                    return
                if not response.has_redirect_location:
                    raise MediaError(f"DingTalk answered {response.status_code}")
                target = urljoin(url, response.headers["location"])
            host = urlsplit(target).hostname
            if host != urlsplit(url).hostname and host not in self._redirect_hosts:
                raise MediaError(
                    f"DingTalk redirects to {host}. To allow: set channels.dingtalk.allowRemoteMediaRedirects to true, "
                    "and list the host in remoteMediaRedirectAllowedHosts"
                )
            url = target
        raise MediaError("DingTalk redirects too often")

    async def request(self, method: str, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request with the access token."""
        return await self._authorized(method, self._base + path, _ANSWER_S, json=body)

    async def _authorized(self, method: str, url: str, timeout_s: float, **request: Any) -> Mapping[str, Any]:
        """Send a request with the access token, once more with a new one if DingTalk no longer accepts it."""
        for is_first in (True, False):
            try:
                token = await self.log_in()
            except ChannelSetupError as error:  # `start` ends, too, which tells the owner; the message waits
                self.refusal = error
                raise NotConnectedError(str(error)) from error
            headers = {"x-acs-dingtalk-access-token": token}
            if url.startswith(self._uploads + "/media"):
                request["params"] = {**request["params"], "access_token": token}
            status, answer = await self._exchange(method, url, timeout_s, headers=headers, **request)
            if status != httpx.codes.UNAUTHORIZED or not is_first:
                break
            self._token = ""
        if status < httpx.codes.BAD_REQUEST:
            return answer
        raise _send_error(status, answer)

    async def _set_up(self, path: str, body: Mapping[str, Any], advice: str) -> Mapping[str, Any]:
        """Send a request of the login. Most refusals need the owner: they are ChannelSetupErrors."""
        status, answer = await self._exchange("POST", self._base + path, _ANSWER_S, json=body)
        if status < httpx.codes.BAD_REQUEST:
            return answer
        error = _send_error(status, answer)
        if isinstance(error, RateLimitedError) or status >= httpx.codes.INTERNAL_SERVER_ERROR:
            raise error
        raise ChannelSetupError(f"DingTalk {advice}. It says: {_words(status, answer)}")

    async def _exchange(self, method: str, url: str, timeout_s: float, **request: Any) -> tuple[int, Mapping[str, Any]]:
        """The status and the JSON of the answer. An error code in an answer of uploads becomes a status."""
        timeout = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        try:
            async with self._pools.borrow_client(url) as client:
                response = await client.request(method, url, timeout=timeout, **request)
        except _NOT_SENT as error:
            raise NotConnectedError(f"DingTalk cannot be reached: {connection_error_reason(error)}") from None
        except httpx.HTTPError as error:
            text = f"connection to DingTalk lost: {type(error).__name__}"
            raise SendError(text, may_have_arrived=True) from None
        try:
            answer = response.json()
        except ValueError:
            answer = {}
        answer = answer if isinstance(answer, Mapping) else {}
        status = response.status_code
        if code := answer.get("errcode"):
            status = httpx.codes.UNAUTHORIZED if str(code) in _TOKEN_CODES else httpx.codes.BAD_REQUEST
        return status, answer


def _send_error(status: int, answer: Mapping[str, Any]) -> SendError:
    """The SendError for a refusal. An unknown code may be temporary."""
    code, words = str(answer.get("code") or answer.get("errcode") or ""), _words(status, answer)
    if status == httpx.codes.TOO_MANY_REQUESTS or "QpsLimit" in code or code in _LIMIT_CODES:
        return RateLimitedError(f"DingTalk: too many requests ({code or status})", _PAUSE_S)
    if code == _NO_PERMISSION:
        detail = answer.get("accessdenieddetail")
        scopes = detail.get("requiredScopes") if isinstance(detail, Mapping) else None
        names = ", ".join(map(str, scopes)) if isinstance(scopes, list) else "that its message names"
        return PermissionDeniedError(
            f"DingTalk: the app lacks the permission {names}. Add it at {CONSOLE}, your app, Permissions"
        )
    if code in _ADVICE:
        return UndeliverableError(f"DingTalk: {_ADVICE[code]} ({code})")
    if status in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
        return UndeliverableError(f"DingTalk refused it: {words}")
    return SendError(f"DingTalk answered: {words}")


def _words(status: int, answer: Mapping[str, Any]) -> str:
    """What an answer says of itself, with its code."""
    message = str(answer.get("message") or answer.get("errmsg") or "")
    code = answer.get("code") or answer.get("errcode") or f"HTTP {status}"
    return f"{message} ({code})" if message else str(code)


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


def _read_file(path: Path) -> tuple[str, bytes]:
    """The name and the bytes to upload: in a zip, if DingTalk does not take such files. Blocking."""
    try:
        with open_outgoing(path) as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise UndeliverableError(f"{path} can no longer be read ({error.strerror})") from error
    if path.suffix.lower() in (*_IMAGES, *_FILES):
        return path.name, data
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(path.name, data)
    return f"{path.name}.zip", packed.getvalue()
