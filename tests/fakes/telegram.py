"""A Telegram Bot API server on loopback, as strict as the real one, that breaks on demand.

It follows core.telegram.org/bots/api: "Making requests", "Getting updates" (an offset confirms all before it; a second
poll ends the first with 409), the limits and refusals of the methods below, and "Formatting options" for entities.
"""

import asyncio
import json
import re
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

Json = dict[str, Any]

TOKEN = "4242:the-token"
BOT: Json = {"id": 4242, "is_bot": True, "first_name": "Nano", "username": "nano_test_bot"}
LONGEST = 4096
LONGEST_CAPTION = 1024
LARGEST_DOWNLOAD = 20 * 1024 * 1024
REACTIONS = {"👀", "👍", "❤", "🔥", "🎉", "🤔", "✍"}
_KINDS = ("photo", "voice", "audio", "video", "animation", "document")
_BOUNDS = {"pre", "code", "bold", "italic", "underline", "strikethrough", "spoiler", "blockquote", "text_link"}


class RefusedError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, description: str, parameters: Json | None = None) -> None:
        super().__init__(description)
        self.status = status
        self.parameters = parameters


def bad(description: str) -> RefusedError:
    return RefusedError(400, f"Bad Request: {description}")


def too_fast(retry_after_s: float) -> RefusedError:
    return RefusedError(429, f"Too Many Requests: retry after {retry_after_s}", {"retry_after": retry_after_s})


CONFLICT = RefusedError(
    409, "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
)
WEBHOOK = RefusedError(
    409, "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)
BLOCKED = RefusedError(403, "Forbidden: bot was blocked by the user")
BAD_GATEWAY = RefusedError(502, "Bad Gateway")
CUT = RefusedError(0, "the connection is closed without an answer")


@dataclass
class Posted:
    """A message of the bot, as it stands now."""

    json: Json
    method: str
    edits: int = 0
    filename: str = ""
    silent: bool = False


@dataclass
class FakeTelegram:
    """The server. To be used inside `open`; `url` is what `apiBase` is set to."""

    port: int = 0
    token: str = TOKEN
    asked: list[tuple[str, Json]] = field(default_factory=list)
    """Each request: its method and its parameters."""
    posted: dict[int, Posted] = field(default_factory=dict)
    chats: dict[int, Json] = field(default_factory=dict)
    people: dict[int, Json] = field(default_factory=dict)
    topics: set[int] = field(default_factory=set)
    blocked: set[int] = field(default_factory=set)
    moved: dict[int, int] = field(default_factory=dict)
    reactions: dict[int, list[str]] = field(default_factory=dict)
    typing: list[int] = field(default_factory=list)
    commands: list[Json] = field(default_factory=list)
    answered: list[Json] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    confirmed: int = 0
    """All updates before this one are confirmed, and forgotten."""
    webhook: str = ""
    faults: deque[RefusedError] = field(default_factory=deque)
    """For what the bot sends, one a request."""
    poll_faults: deque[RefusedError] = field(default_factory=deque)
    """For getUpdates, one a request."""
    hasty: bool = False
    """Whether it holds no poll open, as a proxy that knows of none."""
    loses_answers: int = 0
    """How many messages it takes without the bot being answered."""
    storm: RefusedError | None = None
    """What everybody who asks for anything gets; a conflict, only who polls."""
    silent: bool = False
    """Whether connections are taken and nothing is said on them."""
    slow_files: asyncio.Event = field(default_factory=asyncio.Event)
    """Downloads wait for it."""
    polls: int = 0
    largest_download: int = LARGEST_DOWNLOAD
    local_path: Path | None = None
    """Where every file lies, as a server that was started with --local tells it."""

    def __post_init__(self) -> None:
        self.slow_files.set()
        self._updates: list[Json] = []
        self._numbers, self._update_numbers = count(100), count(1000)
        self._came = asyncio.Condition()
        self._poll = 0
        self._queries: set[str] = set()
        self._deaf: set[asyncio.BaseTransport] = set()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self._site: web.TCPSite | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeTelegram"]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/bot{token}/{method}", self._serve)
        app.router.add_get("/file/bot{token}/{path:.+}", self._download)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await self.listen()
        try:
            yield self
        finally:
            self._closing.set()
            await self.cut()
            await self._runner.cleanup()

    async def listen(self) -> None:
        """Accept connections."""
        assert self._runner is not None
        self._site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await self._site.start()
        self.port = self._runner.addresses[0][1]

    async def hang_up(self) -> None:
        """Accept none, and cut those there are."""
        assert self._site is not None
        await self._site.stop()
        await self.cut()

    async def cut(self) -> None:
        """Cut every open connection."""
        for transport in self._transports():
            transport.abort()
        await asyncio.sleep(0)

    def deafen(self) -> None:
        """Say nothing more on the connections there are."""
        self._deaf |= set(self._transports())

    def _transports(self) -> list[asyncio.Transport]:
        server = self._runner.server if self._runner is not None else None
        found = [getattr(one, "transport", None) for one in (server.connections if server is not None else [])]
        return [one for one in found if isinstance(one, asyncio.Transport)]

    # what people do

    async def update(self, **what: Any) -> int:
        """Something happens; the number of its update."""
        number = next(self._update_numbers)
        self._updates.append({"update_id": number, **what})
        async with self._came:
            self._came.notify_all()
        return number

    async def again(self, number: int | None = None) -> None:
        """Give out an update (the last one) once more, under a number of its own, as after a lost acknowledgement."""
        known = [one for one in self._updates if number in (None, one["update_id"])]
        await self.update(**{key: value for key, value in known[-1].items() if key != "update_id"})

    async def message(self, chat: int, sender: int | None, text: str | None = None, **more: Any) -> int:
        """Somebody writes; the number of the message."""
        number = next(self._numbers)
        told: Json = {"message_id": number, "date": int(time.time()), "chat": self.chats[chat]}
        if sender is not None:
            told["from"] = self.people[sender]
        if text is not None:
            told["text"] = text
            told["entities"] = [*_commands_in(text), *_mentions_in(text)]
        await self.update(message=told | more)
        return number

    async def press(self, message_id: int, label: str, sender: int) -> None:
        """Somebody presses a button."""
        shown = self.posted[message_id].json
        rows = shown.get("reply_markup", {}).get("inline_keyboard", [])
        (data,) = [one["callback_data"] for row in rows for one in row if one["text"] == label]
        number = str(next(self._numbers))
        self._queries.add(number)
        query = {"id": number, "from": self.people[sender], "message": shown, "chat_instance": "1", "data": data}
        await self.update(callback_query=query)

    def file(self, data: bytes, name: str = "file_1.bin", size: int | None = None) -> Json:
        """A file that lies here, as a message tells of it."""
        number = next(self._numbers)
        self.files[f"documents/{number}_{name}"] = data
        self.files[f"F{number}"] = data
        told: Json = {"file_id": f"F{number}", "file_unique_id": f"U{number}", "file_size": size or len(data)}
        return told | {"file_name": name}

    def waiting(self) -> list[int]:
        """The updates that are not confirmed."""
        return [one["update_id"] for one in self._updates if one["update_id"] >= self.confirmed]

    def update_of(self, message_id: int) -> int:
        """The first update that brought this message."""
        found = [one["update_id"] for one in self._updates if one.get("message", {}).get("message_id") == message_id]
        return int(found[0])

    def shown(self, chat: int) -> list[Posted]:
        """The bot's messages in a chat."""
        return [one for one in self.posted.values() if one.json["chat"]["id"] == chat]

    # the wire

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        method = "getUpdates" if method.lower() == "getupdates" else method  # names are case-insensitive there
        try:
            params, files = await _parameters(request)
        except ConnectionError:  # it was cut
            return web.Response()
        self.asked.append((method, params))
        try:
            if request.match_info["token"] != self.token:
                raise RefusedError(401, "Unauthorized")
            if self.storm is not None and (self.storm is not CONFLICT or method == "getUpdates"):
                raise self.storm
            if method == "getUpdates":
                result: Any = await self._get_updates(params, request)
            else:
                result = self._answer(method, params, files)
                if self.loses_answers and method.startswith("send") and method != "sendChatAction":
                    self.loses_answers -= 1
                    raise CUT
        except RefusedError as refused:
            if refused is CUT:
                assert request.transport is not None
                request.transport.abort()
            result = None
            told: Json = {"ok": False, "error_code": refused.status, "description": str(refused)}
            if refused.parameters:
                told["parameters"] = refused.parameters
            status = refused.status or 500
        else:
            told, status = {"ok": True, "result": result}, 200
        await self._if_not_deaf(request)
        return web.json_response(told, status=status)

    async def _if_not_deaf(self, request: web.Request) -> None:
        if self.silent or request.transport in self._deaf:
            await self._closing.wait()

    async def _download(self, request: web.Request) -> web.StreamResponse:
        data = self.files.get(request.match_info["path"])
        if request.match_info["token"] != self.token or data is None:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        await self.slow_files.wait()
        await self._if_not_deaf(request)
        return web.Response(body=data)

    async def _get_updates(self, params: Json, request: web.Request) -> list[Json]:
        self.polls += 1
        self._poll += 1
        mine = self._poll
        async with self._came:
            self._came.notify_all()  # a poll that is open ends with 409
            if self.poll_faults:
                raise self.poll_faults.popleft()
            if self.webhook:
                raise WEBHOOK
            offset = int(params.get("offset", 0))
            self.confirmed = max(self.confirmed, offset)
            with suppress(TimeoutError):
                async with asyncio.timeout(0 if self.hasty else float(params.get("timeout", 0))):
                    await self._came.wait_for(lambda: mine != self._poll or self._found() or self.token == "")
        if self.token == "":
            raise RefusedError(401, "Unauthorized")
        if mine != self._poll:
            raise CONFLICT
        allowed = params.get("allowed_updates") or ["message", "edited_message", "channel_post", "callback_query"]
        return [one for one in self._found() if any(kind in one for kind in allowed)][: int(params.get("limit", 100))]

    def _found(self) -> list[Json]:
        return [one for one in self._updates if one["update_id"] >= self.confirmed]

    async def revoke(self) -> None:
        """The token is no longer good; an open poll hears it."""
        self.token = ""
        async with self._came:
            self._came.notify_all()

    def _answer(self, method: str, params: Json, files: dict[str, web.FileField]) -> Any:
        if method.startswith(("send", "edit")) and method != "sendChatAction" and self.faults:
            raise self.faults.popleft()
        if (kind := method.removeprefix("send").lower()) in _KINDS:
            return self._send_file(kind, params, files)
        return getattr(self, "_on_" + re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), method))(params)

    def _on_get_me(self, _: Json) -> Json:
        return BOT | {"can_join_groups": True, "can_read_all_group_messages": False, "supports_inline_queries": False}

    def _on_delete_webhook(self, _: Json) -> bool:
        self.webhook = ""
        return True

    def _on_set_my_commands(self, params: Json) -> bool:
        for one in params["commands"]:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", one["command"]) or not 1 <= len(one["description"]) <= 256:
                raise bad("BOT_COMMAND_INVALID")
        self.commands = params["commands"]
        return True

    def _on_get_file(self, params: Json) -> Json:
        data = self.files.get(params["file_id"])
        if data is None:
            raise bad("invalid file_id")
        if len(data) > self.largest_download:
            raise bad("file is too big")
        told = next(name for name in self.files if name.startswith(f"documents/{params['file_id'][1:]}_"))
        path = str(self.local_path or told)
        return {"file_id": params["file_id"], "file_unique_id": "U", "file_size": len(data), "file_path": path}

    def _on_send_chat_action(self, params: Json) -> bool:
        self.typing.append(self._chat(params)["id"])
        return True

    def _on_send_message(self, params: Json) -> Json:
        text = str(params.get("text", ""))
        _check_text(text, params.get("entities", []), LONGEST)
        return self._post("sendMessage", params, {"text": text, "entities": params.get("entities", [])})

    def _on_edit_message_text(self, params: Json) -> Json:
        posted = self._posted(params)
        text = str(params["text"])
        _check_text(text, params.get("entities", []), LONGEST)
        if (posted.json.get("text"), posted.json.get("entities")) == (text, params.get("entities", [])):
            raise bad(
                "message is not modified: specified new message content and reply markup are exactly the same as a "
                "current content and reply markup of the message"
            )
        posted.json |= {"text": text, "entities": params.get("entities", [])}
        posted.edits += 1
        return posted.json

    def _on_edit_message_reply_markup(self, params: Json) -> Json:
        posted = self._posted(params)
        posted.json.pop("reply_markup", None)
        return posted.json

    def _on_set_message_reaction(self, params: Json) -> bool:
        self._chat(params)
        emoji = [one["emoji"] for one in params.get("reaction", [])]
        if not set(emoji) <= REACTIONS:
            raise bad("REACTION_INVALID")
        self.reactions[int(params["message_id"])] = emoji
        return True

    def _on_answer_callback_query(self, params: Json) -> bool:
        if params["callback_query_id"] not in self._queries:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        self._queries.discard(params["callback_query_id"])
        self.answered.append(params)
        return True

    def _send_file(self, kind: str, params: Json, files: dict[str, web.FileField]) -> Json:
        _check_text(str(params.get("caption", "x")), params.get("caption_entities", []), LONGEST_CAPTION)
        sent = files.get(kind)
        if sent is None and not str(params.get(kind, "")).startswith("http"):
            raise bad(f"there is no {kind} in the request")
        data = sent.file.read() if sent is not None else b"from afar"
        if not data:
            raise bad("file must be non-empty")
        if kind == "photo" and not data.startswith((b"\x89PNG", b"\xff\xd8", b"from afar")):
            raise bad("IMAGE_PROCESS_FAILED")
        name = sent.filename if sent is not None else str(params[kind])
        told = {"file_id": "F", "file_unique_id": "U", "file_size": len(data)}
        sizes = {"width": 1, "height": 1}
        shapes: Json = {
            "photo": [told | sizes],
            "voice": told | {"duration": 1},
            "audio": told | {"duration": 1},
            "video": told | sizes | {"duration": 1},
            "animation": told | sizes | {"duration": 1},
        }
        message = self._post(f"send{kind.title()}", params, {kind: shapes.get(kind, told)})
        self.posted[message["message_id"]].filename = name
        return message

    def _post(self, method: str, params: Json, content: Json) -> Json:
        chat = self._chat(params)
        thread = params.get("message_thread_id")
        if thread is not None and int(thread) not in self.topics:
            raise bad("message thread not found")
        number = next(self._numbers)
        told: Json = {"message_id": number, "date": int(time.time()), "chat": chat, "from": BOT} | content
        if thread is not None:
            told |= {"message_thread_id": int(thread), "is_topic_message": True}
        if (answered := params.get("reply_parameters")) is not None:
            told["reply_to_message"] = {
                "message_id": answered["message_id"], "date": 1, "chat": chat, "text": "what was said",
            }  # fmt: skip
        if (markup := params.get("reply_markup")) is not None:
            for one in [one for row in markup["inline_keyboard"] for one in row]:
                if not 1 <= len(one["callback_data"].encode()) <= 64:
                    raise bad("BUTTON_DATA_INVALID")
            told["reply_markup"] = markup
        self.posted[number] = Posted(told, method, silent=bool(params.get("disable_notification")))
        return told

    def _chat(self, params: Json) -> Json:
        number = int(params["chat_id"])
        if number in self.moved:
            raise RefusedError(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                {"migrate_to_chat_id": self.moved[number]},
            )
        if number in self.blocked:
            raise BLOCKED
        if number not in self.chats:
            raise bad("chat not found")
        return self.chats[number]

    def _posted(self, params: Json) -> Posted:
        self._chat(params)
        posted = self.posted.get(int(params["message_id"]))
        if posted is None:
            raise bad("message to edit not found")
        return posted


def _check_text(text: str, entities: list[Json], longest: int) -> None:
    units = len(text.encode("utf-16-le")) // 2
    if not text.strip():
        raise bad("message text is empty")
    if units > longest:
        raise bad("message is too long")
    for one in entities:
        if (
            one["type"] not in _BOUNDS
            or one["offset"] < 0
            or one["length"] < 1
            or one["offset"] + one["length"] > units
        ):
            raise bad("ENTITY_BOUNDS_INVALID")
    if len(entities) > 100:
        raise bad("ENTITIES_TOO_LONG")


def _commands_in(text: str) -> list[Json]:
    found = re.match(r"/\w+(?:@\w+)?", text)
    return [{"type": "bot_command", "offset": 0, "length": found.end()}] if found else []


def _mentions_in(text: str) -> list[Json]:
    return [
        {
            "type": "mention",
            "offset": len(text[: found.start()].encode("utf-16-le")) // 2,
            "length": len(found.group()),
        }
        for found in re.finditer(r"(?<!\w)@\w+", text)
    ]


async def _parameters(request: web.Request) -> tuple[Json, dict[str, web.FileField]]:
    """The parameters of a request, whichever of the ways of "Making requests" it came by."""
    told: Json = {}
    files: dict[str, web.FileField] = {}
    for name, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            files[name] = value
        else:
            told[name] = _value(str(value)) if name not in ("text", "caption") else str(value)
    return told, files


def _value(text: str) -> Any:
    if text[:1] in "[{" or text in ("true", "false"):
        with suppress(ValueError):
            return json.loads(text)
    return text
