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
from collections import deque
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from typing import Any

import httpx
import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.eventually import LIMIT_S

Json = dict[str, Any]

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


@dataclass
class FakeTeams:
    """The people, what they wrote, and what the bot did."""

    url: str = ""
    webhook: str = ""
    password: str = PASSWORD
    posts: list[Post] = field(default_factory=list)
    typing: list[str] = field(default_factory=list)
    sent: dict[str, Json] = field(default_factory=dict)
    """Messages of people, by id."""
    answers: dict[str, list[int]] = field(default_factory=dict)
    """How the bot answered each delivery of a message."""
    calls: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=lambda: ["key-1"])
    endorsements: list[str] = field(default_factory=lambda: ["msteams"])
    files: dict[str, bytes] = field(default_factory=dict)
    refusals: deque[tuple[int, str]] = field(default_factory=deque)
    loses_answers: int = 0
    onedrive_status: int = 201
    _tokens: set[str] = field(default_factory=set)
    _ids: "count[int]" = field(default_factory=lambda: count(1))

    def routes(self) -> list[web.RouteDef]:
        """All that it serves."""
        return [
            web.post("/{tenant}/oauth2/v2.0/token", self._log_in),
            web.get("/openid", self._describe),
            web.get("/keys", self._give_keys),
            web.post("/teams/v3/conversations", self._open_chat),
            web.post("/teams/v3/conversations/{chat}/activities", self._take),
            web.put("/teams/v3/conversations/{chat}/activities/{id}", self._edit),
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

    async def says(self, text: str, **more: Any) -> str:
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
        await self.says(button["text"], chat=post.chat, value=button["value"], replyToId=post.id)

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

    # what goes wrong

    def refuse(self, times: int, status: int, retry_after_s: float | None = None) -> None:
        after = "" if retry_after_s is None else str(retry_after_s)
        self.refusals.extend(({500: 502}.get(status, status), after) for _ in range(times))

    def expire_tokens(self) -> None:
        self._tokens.clear()

    # requests of the bot

    async def _log_in(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.calls.append(f"token {request.match_info['tenant']}")
        if (form.get("client_id"), form.get("client_secret")) != (APP_ID, self.password):
            told = {"error": "invalid_client", "error_description": "AADSTS7000215: Invalid client secret provided."}
            return web.json_response(told, status=401)
        assert form.get("scope") == f"{ISSUER}/.default"
        self._tokens.add(token := f"token{next(self._ids)}")
        return web.json_response({"token_type": "Bearer", "expires_in": 3599, "access_token": token})

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response({"issuer": ISSUER, "jwks_uri": f"{self.url}/keys"})

    async def _give_keys(self, request: web.Request) -> web.Response:
        self.calls.append("keys")
        return web.json_response(
            {"keys": [{**public_key(name), "endorsements": self.endorsements} for name in self.keys]}
        )

    def _refusal(self, request: web.Request) -> web.Response | None:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self._tokens:
            return web.json_response({"message": "Authorization has been denied for this request."}, status=401)
        if self.refusals:
            status, after = self.refusals.popleft()
            told = {"error": {"code": "Refused", "message": "not now"}}
            return web.json_response(told, status=status, headers={"Retry-After": after} if after else {})
        return None

    async def _open_chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if (refusal := self._refusal(request)) is not None:
            return refusal
        return web.json_response({"id": chat_of(body["members"][0]["id"])}, status=201)

    async def _take(self, request: web.Request) -> web.Response:
        body, chat = await request.json(), request.match_info["chat"]
        if body["type"] == "typing":
            self.typing.append(chat)
            return web.json_response({"id": "typing"}, status=201)
        if (refusal := self._refusal(request)) is not None:
            return refusal
        if len(json.dumps(body, ensure_ascii=False).encode()) > _LARGEST:
            return web.json_response({"error": {"code": "MessageSizeTooBig", "message": "too big"}}, status=413)
        self.posts.append(post := Post(f"p{next(self._ids)}", chat, body))
        return self._answer(request, {"id": post.id}, 201)

    async def _edit(self, request: web.Request) -> web.Response:
        body, chat = await request.json(), request.match_info["chat"]
        if (refusal := self._refusal(request)) is not None:
            return refusal
        found = [post for post in self.posts if (post.chat, post.id) == (chat, request.match_info["id"])]
        if not found:
            return web.json_response({"error": {"code": "ActivityNotFound", "message": "gone"}}, status=404)
        found[0].activity, found[0].edits = body, found[0].edits + 1
        return self._answer(request, {"id": found[0].id}, 200)

    def _answer(self, request: web.Request, body: Json, status: int) -> web.Response:
        if self.loses_answers and request.transport is not None:
            self.loses_answers -= 1
            request.transport.abort()
        return web.json_response(body, status=status)

    async def _give_file(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self._tokens:
            raise web.HTTPUnauthorized
        return web.Response(body=self.files[request.match_info["name"]])

    async def _share_file(self, request: web.Request) -> web.Response:
        self.calls.append(f"file: {'a' if 'Authorization' in request.headers else 'no'} token")
        return web.Response(body=self.files[request.match_info["name"]])

    async def _store_file(self, request: web.Request) -> web.Response:
        assert "Authorization" not in request.headers
        data = await request.read()
        assert request.headers["Content-Range"] == f"bytes 0-{len(data) - 1}/{len(data)}"
        if self.onedrive_status == 201:
            self.files[request.match_info["name"]] = data
        return web.json_response({}, status=self.onedrive_status)
