"""The REST side: what a bot may ask and do. Refuses what Discord refuses, with Discord's codes.

https://discord.com/developers/docs/resources/message, /resources/channel, /interactions/receiving-and-responding,
/interactions/application-commands and /topics/opcodes-and-status-codes#json
"""

import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.discord.world import APPLICATION, BOT, TOKEN, Chat, Json, Message, World, user

LONGEST_TEXT, LONGEST_NONCE, LONGEST_ID, LONGEST_LABEL, LARGEST_FILE = 2000, 25, 100, 80, 10 * 1024 * 1024
MANAGED_FLAGS = 1 << 18 | 1 << 19


class RefusalError(Exception):
    """An answer that is an error, as Discord writes it."""

    def __init__(self, status: int, code: int, message: str, **more: Any) -> None:
        self.status = status
        self.body = {"message": message, "code": code, **more}


@dataclass(frozen=True, slots=True)
class Refused:
    """How the next sendings are refused."""

    status: int
    retry_after_s: float | None = None


@dataclass
class Rest:
    """The REST server. What it was asked is kept for tests to look at."""

    world: World
    token: str = TOKEN
    refusals: list[Refused] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Method and path."""
    bodies: list[Json] = field(default_factory=list)
    """Of messages that were posted or edited, as they came."""
    pinged: list[str] = field(default_factory=list)
    """Texts that made somebody's phone ring."""
    files: dict[str, bytes] = field(default_factory=dict)
    commands: list[Json] = field(default_factory=list)
    answers: dict[str, Json] = field(default_factory=dict)
    """What was answered to an interaction, by its id."""
    loses_answers: int = 0
    """How many messages it takes without the bot hearing of it."""
    hides_history: int = 0
    """How often it is not told yet."""
    flags: int = MANAGED_FLAGS
    """Of the application: what is switched on in the portal."""

    def routes(self) -> list[web.RouteDef]:
        """What there is."""
        message = "/channels/{chat}/messages/{message}"
        return [
            web.get("/users/@me", self._asked(self._me)),
            web.post("/users/@me/channels", self._asked(self._open_private)),
            web.get("/oauth2/applications/@me", self._asked(self._application)),
            web.put("/applications/{application}/commands", self._asked(self._set_commands)),
            web.get("/channels/{chat}", self._asked(self._channel)),
            web.get("/channels/{chat}/messages", self._asked(self._history)),
            web.post("/channels/{chat}/messages", self._asked(self._post)),
            web.patch(message, self._asked(self._edit)),
            web.put(message + "/reactions/{emoji}/@me", self._asked(self._react)),
            web.delete(message + "/reactions/{emoji}/@me", self._asked(self._take_back)),
            web.post("/channels/{chat}/typing", self._asked(self._type)),
            web.post("/interactions/{id}/{token}/callback", self._answer),
        ]

    def _asked(self, serve: Any) -> Any:
        """Behind the door: who has no token gets no further, and errors are written as Discord does."""

        async def served(request: web.Request) -> web.Response:
            self.asked.append((request.method, request.path.removeprefix("/api/v10")))
            try:
                if request.headers.get("Authorization") != f"Bot {self.token}":
                    raise RefusalError(401, 0, "401: Unauthorized")
                found = await serve(request)
            except RefusalError as refusal:
                headers = {"Via": "1.1 google"} if refusal.status == 429 else {}
                return _json(refusal.body, refusal.status, headers)
            return web.Response(status=204) if found is None else _json(found)

        return served

    async def _me(self, _: web.Request) -> Json:
        return user(BOT)

    async def _application(self, _: web.Request) -> Json:
        return {
            "id": APPLICATION, "name": "nanobot", "description": "", "icon": None, "bot_public": False,
            "bot_require_code_grant": False, "owner": user(BOT), "verify_key": "", "flags": self.flags,
        }  # fmt: skip

    async def _open_private(self, request: web.Request) -> Json:
        """The private chat with somebody: https://discord.com/developers/docs/resources/user#create-dm."""
        wanted = str((await request.json()).get("recipient_id"))
        chat = next((one for one in self.world.chats.values() if one.person == wanted), None)
        if chat is None:
            raise RefusalError(400, 50033, "Invalid Recipient(s)")
        return chat.payload()

    async def _set_commands(self, request: web.Request) -> list[Json]:
        told = await request.json()
        for command in told:
            if not 0 < len(command["description"]) <= 100 or len(command["name"]) > 32:
                raise RefusalError(400, 50035, "Invalid Form Body")
        self.commands = told
        usual = {"application_id": APPLICATION, "version": "1", "default_member_permissions": None}
        return [usual | {"id": self.world.ids.next()} | command for command in told]

    async def _channel(self, request: web.Request) -> Json:
        return self._chat(request).payload()

    async def _history(self, request: web.Request) -> list[Json]:
        if self.hides_history:
            self.hides_history -= 1
            raise RefusalError(429, 0, "You are being rate limited.", retry_after=0.05, **{"global": False})
        after, before = (int(request.query.get(name, usual)) for name, usual in (("after", 0), ("before", 1 << 63)))
        found = [one for one in self._chat(request).messages.values() if after < int(one.id) < before]
        found.sort(key=lambda one: int(one.id), reverse=True)
        limit = min(int(request.query.get("limit", 50)), 100)
        wanted = found[-limit:] if "after" in request.query else found[:limit]
        return [self.world.payload(one) for one in wanted]

    async def _post(self, request: web.Request) -> Json:
        chat = self._chat(request)
        asked, attachments = await self._read(request)
        self._refuse()
        nonce = asked.get("nonce")
        if nonce is not None and len(str(nonce)) > LONGEST_NONCE:
            raise RefusalError(400, 50035, "Invalid Form Body", errors={"nonce": "BASE_TYPE_BAD_LENGTH"})
        if nonce is not None and asked.get("enforce_nonce"):
            for one in (one for here in self.world.chats.values() for one in here.messages.values()):
                if one.author == BOT and one.nonce == str(nonce):
                    return self.world.payload(one)
        self._check(asked, attachments)
        quoted: Json = asked.get("message_reference") or {}
        reply_to = str(quoted["message_id"]) if quoted else None
        if reply_to is not None and reply_to not in chat.messages:
            if quoted.get("fail_if_not_exists", True):
                raise RefusalError(400, 50035, "Invalid Form Body", errors={"message_reference": "UNKNOWN_MESSAGE"})
            reply_to = None
        message = Message(
            self.world.ids.next(), chat.id, BOT, asked.get("content") or "",
            reply_to=reply_to,
            attachments=attachments, components=asked.get("components") or [], flags=asked.get("flags") or 0,
            nonce=None if nonce is None else str(nonce),
        )  # fmt: skip
        chat.messages[message.id] = message
        if self.loses_answers and request.transport is not None:
            self.loses_answers -= 1
            request.transport.abort()
        return self.world.payload(message)

    async def _edit(self, request: web.Request) -> Json:
        message = self._message(request)
        asked = await request.json()
        self.bodies.append(asked)
        self._refuse()
        if message.author != BOT:
            raise RefusalError(403, 50005, "Cannot edit a message authored by another user")
        self._check(asked, message.attachments)
        message.content, message.edits = asked["content"], message.edits + 1
        return self.world.payload(message)

    async def _react(self, request: web.Request) -> None:
        self._message(request).reactions.append(request.match_info["emoji"])

    async def _take_back(self, request: web.Request) -> None:
        self._message(request).reactions.remove(request.match_info["emoji"])

    async def _type(self, request: web.Request) -> None:
        self._chat(request).typed += 1

    async def _answer(self, request: web.Request) -> web.Response:
        """Goes by the token in its path alone."""
        if request.match_info["id"] in self.answers:
            return _json({"message": "Interaction has already been acknowledged.", "code": 40060}, 400)
        self.answers[request.match_info["id"]] = await request.json()
        if request.query.get("with_response") not in ("true", "1"):
            return web.Response(status=204)
        told = {"id": request.match_info["id"], "type": 2, "response_message_loading": False}
        return _json({"interaction": told, "resource": {"type": 6}})

    def _refuse(self) -> None:
        if not self.refusals:
            return
        refused = self.refusals.pop(0)
        if refused.status == 429:
            raise RefusalError(
                429, 0, "You are being rate limited.", retry_after=refused.retry_after_s or 0, **{"global": False}
            )
        if refused.status == 403:
            raise RefusalError(403, 50007, "Cannot send messages to this user")
        raise RefusalError(refused.status, 0, "upstream connect error")

    async def _read(self, request: web.Request) -> tuple[Json, list[Json]]:
        """The message, and the files that came with it."""
        if not request.content_type.startswith("multipart/"):
            asked = await request.json()
            self.bodies.append(asked)
            return asked, []
        asked, attachments = {}, []
        async for part in await request.multipart():
            data = await part.read()  # type: ignore[union-attr]
            if part.name == "payload_json":  # type: ignore[union-attr]
                asked = json.loads(data)
            else:
                attachments.append(self.kept(str(part.filename), bytes(data)))  # type: ignore[union-attr]
        self.bodies.append(asked)
        return asked, attachments

    def kept(self, name: str, data: bytes, content_type: str | None = None) -> Json:
        """A file that Discord keeps, as it tells it."""
        file_id = self.world.ids.next()
        self.files[file_id] = data
        url = f"http://cdn.invalid/{file_id}/{name}"
        return {
            "id": file_id,
            "filename": name,
            "size": len(data),
            "url": url,
            "proxy_url": url,
            "content_type": content_type,
        }

    def _check(self, asked: Json, attachments: list[Json]) -> None:
        text = asked.get("content") or ""
        if len(text) > LONGEST_TEXT:
            raise RefusalError(400, 50035, "Invalid Form Body", errors={"content": "BASE_TYPE_MAX_LENGTH"})
        if not text.strip() and not attachments and not asked.get("components"):
            raise RefusalError(400, 50006, "Cannot send an empty message")
        most = {0: LARGEST_FILE, 1: LARGEST_FILE, 2: 50 << 20, 3: 100 << 20}[self.world.premium_tier]
        if any(one["size"] > most for one in attachments):
            raise RefusalError(413, 40005, "Request entity too large")
        ids = []
        for row in asked.get("components") or []:
            if not 0 < len(row["components"]) <= 5:
                raise RefusalError(400, 50035, "Invalid Form Body")
            for one in row["components"]:
                if not 0 < len(one["custom_id"]) <= LONGEST_ID or len(one["label"]) > LONGEST_LABEL:
                    raise RefusalError(400, 50035, "Invalid Form Body")
                ids.append(one["custom_id"])
        if len(ids) != len(set(ids)) or len(asked.get("components") or []) > 5:
            raise RefusalError(400, 50035, "Component custom id cannot be duplicated")
        allowed = asked.get("allowed_mentions")
        if ("@everyone" in text or "<@" in text) and (allowed is None or allowed.get("parse") or allowed.get("users")):
            self.pinged.append(text)

    def _chat(self, request: web.Request) -> Chat:
        chat = self.world.chats.get(request.match_info["chat"])
        if chat is None:
            raise RefusalError(404, 10003, "Unknown Channel")
        return chat

    def _message(self, request: web.Request) -> Message:
        message = self._chat(request).messages.get(request.match_info["message"])
        if message is None:
            raise RefusalError(404, 10008, "Unknown Message")
        return message


def _json(told: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Discord's type has no charset, and the SDK goes by that."""
    body = json.dumps(told).encode()
    return web.Response(body=body, status=status, headers={"Content-Type": "application/json"} | (headers or {}))
