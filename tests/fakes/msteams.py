"""Microsoft Teams on loopback: the login, the keys of the Bot Connector, its REST API, and OneDrive.

Imitated from learn.microsoft.com/azure/bot-service/rest-api: bot-framework-rest-connector-authentication,
bot-framework-rest-connector-api-reference; and learn.microsoft.com/microsoftteams/platform/bots/how-to:
bots-filesv4, conversations/channel-and-group-conversations, rate-limit. Never compared with the live service.

A person's message is a signed request to the bot's webhook. Whoever writes waits until the bot listens.
"""

import asyncio
import json
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from nanobot.bus.queue import MessageBus
from nanobot.channels.msteams import TeamsChannel
from nanobot.config.channels import TeamsConfig
from nanobot.testing.platform import Shown
from tests.fakes.served import Json, RefusedError, Said, ServedPlatform
from tests.support.eventually import LIMIT_S
from tests.support.toy_gateway import free_port

APP_ID, PASSWORD, TENANT = "11111111-2222-3333-4444-555555555555", "p~ssword-of-the-bot", "contoso.example"
BOT = f"28:{APP_ID}"
ANNA, ZOE = "aad-anna-01", "aad-zoe-02"
HALL = "19:hall@thread.tacv2"
ISSUER = "https://api.botframework.com"
_LARGEST = 28_000
_CARD = "application/vnd.microsoft"


@cache
def private_key(name: str) -> rsa.RSAPrivateKey:
    """A key for the whole session, for it takes long to make one."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def public_key(name: str) -> Json:
    key: Json = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private_key(name).public_key()))
    return {**key, "kid": name, "use": "sig"}


def chat_of(person: str) -> str:
    """The private chat of a person with the bot."""
    return f"a:1{person}"


@dataclass
class Post:
    """A message of the bot."""

    id: str
    chat: str
    activity: Json
    edits: int = 0

    @property
    def text(self) -> str:
        """What people see of its Markdown: no hard line breaks and no escapes."""
        text = str(self.activity.get("text") or "").replace("  \n", "\n")
        return re.sub(r"\\([\\*`<\]_#>+\-.~])", r"\1", text)

    @property
    def attachments(self) -> list[Json]:
        return self.activity.get("attachments") or []

    @property
    def buttons(self) -> list[Json]:
        cards = [one["content"] for one in self.attachments if one["contentType"] == f"{_CARD}.card.hero"]
        return [button for card in cards for button in card["buttons"]]


class TeamsPlatform(ServedPlatform):
    """The people, what they wrote, and what the bot did."""

    name = "msteams"
    secret = PASSWORD
    person, private = ANNA, chat_of(ANNA)
    stranger, stranger_chat = ZOE, chat_of(ZOE)
    group = HALL
    hears_groups = False
    thread = "1700000000000"
    limit = 20_000
    edits = threads = files = buttons = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bot_port = free_port()
        self.webhook = f"http://127.0.0.1:{self._bot_port}/api/messages"
        self.sent: dict[str, Json] = {}
        """Messages of people, by id."""
        self.answers: dict[str, list[int]] = {}
        """How the bot answered each delivery of a message."""
        self.keys = ["key-1"]
        self.endorsements = ["msteams"]
        self.onedrive_status = 201

    def channel(self, bus: MessageBus, **settings: Any) -> TeamsChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "app_password": PASSWORD, "tenant_id": TENANT,
            "allow_from": [self.person], "host": "127.0.0.1", "port": self._bot_port,
            "api_base": self.url, "openid_url": f"{self.url}/openid",
            "service_url": self.service_url, "trusted_service_url_hosts": ["127.0.0.1"],
        }  # fmt: skip
        channel = TeamsChannel(TeamsConfig.model_validate(usual | settings), bus)
        channel.login_s = 0.2
        return channel

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/{tenant}/oauth2/v2.0/token", self._log_in),
            web.get("/openid", self._describe),
            web.get("/keys", self._give_keys),
            web.post("/teams/v3/conversations", self.answered(self._open_chat)),
            web.post("/teams/v3/conversations/{chat}/activities", self.answered(self._take)),
            web.put("/teams/v3/conversations/{chat}/activities/{post_id}", self.answered(self._edit)),
            web.get("/files/{name}", self._give_file),
            web.get("/shared/{name}", self._share_file),
            web.put("/onedrive/{name}", self._store_file),
        ]

    @property
    def service_url(self) -> str:
        return f"{self.url}/teams"

    # what people do

    def message(self, text: str = "", *, sender: str = ANNA, chat: str | None = None, **more: Any) -> Json:
        """A message of a person, as Teams tells the bot."""
        chat = chat or chat_of(sender)
        is_group = chat.startswith("19:")
        return {
            "type": "message", "id": f"{1_700_000_000_000 + next(self._ids)}", "channelId": "msteams",
            "serviceUrl": self.service_url, "timestamp": "2026-11-27T07:00:00.1234567Z", "textFormat": "plain",
            "from": {"id": f"29:{sender}", "aadObjectId": sender, "name": f"{sender} Doe"},
            "recipient": {"id": BOT, "name": "Nano"},
            "conversation": {
                "id": chat, "conversationType": "channel" if is_group else "personal",
                **({"isGroup": True} if is_group else {}),
            },
            "text": text, **more,
        }  # fmt: skip

    async def send_said(self, said: Said) -> str:
        text, chat, more = said.text, said.chat, {}
        if said.mention:
            entity = {"type": "mention", "text": "<at>Nano</at>", "mentioned": {"id": BOT, "name": "Nano"}}
            text, more = f"<at>Nano</at> {text}", {"entities": [entity]}
        if said.file is not None:
            self.stored[said.file.name] = said.file.read_bytes()
            url = f"{self.url}/files/{said.file.name}"
            more["attachments"] = [{"contentType": "image/*", "contentUrl": url, "name": said.file.name}]
        if said.thread is not None:
            chat = f"{chat};messageid={said.thread}"
        return await self.writes(text, sender=said.sender, chat=chat, **more)

    async def writes(self, text: str, **more: Any) -> str:
        """Write to the bot. Return the message's id."""
        activity = self.message(text, **more)
        await self.deliver(activity)
        return str(activity["id"])

    async def deliver(self, activity: Json, **forged: Any) -> int:
        """Tell the bot of something. Return its answer."""
        identity = str(activity.get("id"))
        self.sent[identity] = activity
        async with asyncio.timeout(LIMIT_S):
            while (status := await self.request(activity, **forged)) in (0, 404):
                await asyncio.sleep(0.01)
        self.answers.setdefault(identity, []).append(status)
        return status

    async def request(
        self, activity: Json, *, key: str = "key-1", kid: str | None = None, token: str | None = None, **claims: Any
    ) -> int:
        """One request to the webhook, signed like those of the Bot Connector. 0 if nobody answers."""
        now = int(time.time())
        usual = {"iss": ISSUER, "aud": APP_ID, "nbf": now, "exp": now + 3600, "serviceurl": activity.get("serviceUrl")}
        signed = token or jwt.encode(usual | claims, private_key(key), "RS256", headers={"kid": kid or key})
        headers = {"Authorization": f"Bearer {signed}", "Host": "bot.example.com"}
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            try:
                return (await client.post(self.webhook, json=activity, headers=headers)).status_code
            except httpx.TransportError:
                return 0

    async def presses(self, post: Post, label: str) -> None:
        """Press a button: its text is written, its value told beside it."""
        button = next(one for one in post.buttons if one["title"] == label)
        assert button["type"] == "messageBack"
        await self.writes(button["text"], chat=post.chat, value=button["value"], replyToId=post.id)

    async def answers_consent(self, post: Post, action: str) -> int:
        """Accept or decline a file."""
        (card,) = post.attachments
        name = f"stored-{card['name']}"
        info = {
            "contentUrl": f"https://contoso.example/{name}", "name": card["name"], "uniqueId": "u-1", "fileType": "txt",
            "uploadUrl": f"{self.url}/onedrive/{name}",
        }  # fmt: skip
        value = {"type": "fileUpload", "action": action, "context": card["content"][f"{action}Context"]}
        activity = self.message(chat=post.chat, value={**value, **({"uploadInfo": info} if action == "accept" else {})})
        return await self.deliver({**activity, "type": "invoke", "name": "fileConsent/invoke"})

    def in_chat(self, chat: str) -> list[Post]:
        """The bot's messages of a conversation and its threads."""
        return [post for post in self.posts if post.chat == chat or post.chat.startswith(f"{chat};")]

    # requests of the bot

    async def _log_in(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.calls.append(f"token {request.match_info['tenant']}")
        if (form.get("client_id"), form.get("client_secret")) != (APP_ID, self.secret):
            told = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
            return web.json_response(told, status=401)
        assert form.get("scope") == f"{ISSUER}/.default"
        return web.json_response({"token_type": "Bearer", "expires_in": 3599, "access_token": self.new_token()})

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response({"issuer": ISSUER, "jwks_uri": f"{self.url}/keys"})

    async def _give_keys(self, request: web.Request) -> web.Response:
        self.calls.append("keys")
        return web.json_response(
            {"keys": [{**public_key(name), "endorsements": self.endorsements} for name in self.keys]}
        )

    def check(self, request: web.Request) -> None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise RefusedError("", "Authorization has been denied for this request.", 401)

    def is_send(self, request: web.Request) -> bool:
        return request.path.startswith("/teams")

    def is_refusable(self, request: web.Request) -> bool:
        return False  # never a typing indicator: see `_take`

    def body_of(self, error: RefusedError) -> Json:
        return {"error": {"code": error.code, "message": error.message}} if error.code else {"message": error.message}

    def refusal(self, status: int, retry_after_s: float | None) -> RefusedError:
        status = {500: 502}.get(status, status)
        return RefusedError("Refused", "not now", status).after("Retry-After", retry_after_s)

    def _open_chat(self, body: Json) -> Json:
        self.refuse_one()
        return {"id": chat_of(body["members"][0]["id"]), "again": True}

    def _take(self, body: Json, chat: str) -> Json:
        if body["type"] == "typing":
            self.typed_in.append(chat)
            return {"id": "typing", "again": True}
        self.refuse_one()
        if len(json.dumps(body, ensure_ascii=False).encode()) > _LARGEST:
            raise RefusedError("MessageSizeTooBig", "too big", 413)
        self.posts.append(post := Post(f"p{next(self._ids)}", chat, body))
        return {"id": post.id}

    def _edit(self, body: Json, chat: str, post_id: str) -> Json:
        self.refuse_one()
        post = next((post for post in self.posts if (post.chat, post.id) == (chat, post_id)), None)
        if post is None:
            raise RefusedError("ActivityNotFound", "gone", 404)
        post.activity, post.edits = body, post.edits + 1
        return {"id": post.id}

    async def _give_file(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise web.HTTPUnauthorized
        return web.Response(body=self.stored[request.match_info["name"]])

    async def _share_file(self, request: web.Request) -> web.Response:
        self.calls.append(f"file: {'a' if 'Authorization' in request.headers else 'no'} token")
        return web.Response(body=self.stored[request.match_info["name"]])

    async def _store_file(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers
        data = await request.read()
        assert request.headers["Content-Range"] == f"bytes 0-{len(data) - 1}/{len(data)}"
        if self.onedrive_status == 201:
            self.stored[request.match_info["name"]] = data
        return web.json_response({}, status=self.onedrive_status)

    # what people see

    def as_seen(self, post: Post) -> Shown:
        files = [one["name"] for one in post.attachments if "name" in one]
        thread = post.chat.partition(";messageid=")[2] or None
        buttons = [button["title"] for button in post.buttons]
        return Shown(post.id, post.text, files, thread_id=thread, edits=post.edits, buttons=buttons)

    async def press_button(self, message_id: str, label: str) -> None:
        await self.presses(next(post for post in self.posts if post.id == message_id), label)

    async def repeat_last(self) -> None:
        await self.deliver(self.sent[self._last])

    def acknowledged(self, message_id: str) -> bool:
        return 200 in self.answers.get(message_id, [])

    async def half_open(self) -> None:
        await self.drop()  # no connection lasts longer than a request
