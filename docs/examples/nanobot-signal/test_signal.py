"""The plugin keeps what nanobot promises of channels: `python -m pytest test_signal.py`, with aiohttp installed.

`FakeSignal` does what signal-cli-jsonrpc(5) says of `signal-cli daemon --http --receive-mode on-connection`.
"""

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import entry_points
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web

from nanobot.bus.events import OutboundKind
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.testing import Check
from nanobot.testing.channels import channel_checks
from nanobot.testing.live_channel import delta, live, turn_of, until
from nanobot.testing.platform import Platform, Shown

ME = "+4915100000000"
ANNA, ZOE = "0a0a0a0a-0000-4000-8000-00000000000a", "0b0b0b0b-0000-4000-8000-00000000000b"
NUMBERS = {ANNA: "+4915111111111", ZOE: None}
PLACEHOLDER = "\ufffc"
MOST_EDITS = 10


class FakeSignal(Platform):
    """signal-cli with one account, which is in one group."""

    name = "signal"
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = base64.b64encode(b"g" * 32).decode()
    limit = 2000
    edits = files = quotes = queues_messages = reacts = types = loses_answers = True
    resumes_edits = acknowledges = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._account = ME
        self._clock = count(int(time.time() * 1000))
        self._events: list[dict[str, Any]] = []
        self._waiting: list[dict[str, Any]] = []
        """What Signal's own server keeps while nobody is connected."""
        self._streams: list[web.StreamResponse] = []
        self._deaf: list[web.StreamResponse] = []
        self._news = asyncio.Event()
        self._stored: dict[str, bytes] = {}
        self._refusals: deque[tuple[int, float | None]] = deque()
        self._losses = 0
        self._reactions: dict[str, list[str]] = {}
        self._typing: list[str] = []
        self._port = 0
        self.sent: list[dict[str, Any]] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FakeSignal"]:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes([web.get("/api/v1/events", self._serve_events), web.post("/api/v1/rpc", self._serve_rpc)])
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    def channel(self, bus: MessageBus, **settings: Any) -> BaseChannel:
        (found,) = entry_points(group="nanobot.channels", name=self.name)
        section = {"phoneNumber": ME, "daemonPort": self._port, "allowFrom": [self.person], "streaming": True}
        channel: BaseChannel = found.load()(section | settings, bus)
        return channel

    # what people do and see

    async def says(
        self,
        text: str,
        *,
        sender: str | None = None,
        chat: str | None = None,
        thread: str | None = None,
        mention: bool = False,
        file: Path | None = None,
        reply_to: str | None = None,
        **message: Any,
    ) -> str:
        sender, timestamp = sender or self.person, next(self._clock)
        if mention:
            text, message["mentions"] = f"{PLACEHOLDER} {text}", [{"number": ME, "start": 0, "length": 1, "name": ME}]
        if file is not None:
            message["attachments"] = [self._store(file)]
        if chat == self.group:
            message["groupInfo"] = {"groupId": chat, "type": "DELIVER"}
        envelope = {
            "sourceUuid": sender, "sourceNumber": NUMBERS[sender], "sourceName": "Anna", "timestamp": timestamp,
            "dataMessage": {"timestamp": timestamp, "message": text, **message},
        }  # fmt: skip
        self._receive({"envelope": envelope, "account": ME})
        return f"{timestamp}:{sender}"

    def _store(self, file: Path) -> dict[str, Any]:
        self._stored["stored.png"] = file.read_bytes()
        return {"id": "stored.png", "contentType": "image/png", "filename": file.name, "size": file.stat().st_size}

    async def repeat_last(self) -> None:
        self._receive(self._events[-1])

    def _receive(self, event: dict[str, Any]) -> None:
        (self._events if self._streams else self._waiting).append(event)
        self._news.set()

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(str(one["id"]), one["text"], one["files"], one["reply_to"], edits=one["edits"])
            for one in self.sent
            if one["chat"] == (chat or self.private)
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        return self._reactions.get(message_id, [])

    def typed(self, chat: str | None = None) -> int:
        return self._typing.count(chat or self.private)

    # what goes wrong

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self._refusals.extend([(status, retry_after_s)] * times)

    def lose_answers(self, times: int) -> None:
        self._losses = times

    async def drop(self) -> None:
        assert self._runner.server is not None
        self._streams.clear()
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    async def gone(self, *, gone: bool) -> None:
        if not gone:
            await self._listen()
            return
        for site in [*self._runner.sites]:
            await site.stop()
        await self.drop()

    async def half_open(self) -> None:
        self._deaf = [*self._streams]

    async def revoke(self) -> None:
        self._account = "+1"
        await self.drop()

    async def _listen(self) -> None:
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        self._port = self._port or self._runner.addresses[0][1]

    # the server

    async def _serve_events(self, request: web.Request) -> web.StreamResponse:
        if request.query["account"] != self._account:
            return web.Response(status=400)
        position = int(request.headers.get("Last-Event-ID", len(self._events)))
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await stream.prepare(request)
        self._streams.append(stream)
        self._events += self._waiting
        self._waiting.clear()
        try:
            while True:
                self._news.clear()
                while stream not in self._deaf and position < len(self._events):
                    data = json.dumps(self._events[position], ensure_ascii=False)
                    position += 1
                    await stream.write(f"id:{position}\nevent:receive\ndata:{data}\n\n".encode())
                try:
                    async with asyncio.timeout(0.1):
                        await self._news.wait()
                except TimeoutError:
                    if stream not in self._deaf:
                        await stream.write(b":\n")
        except OSError:
            return stream
        finally:
            if stream in self._streams:
                self._streams.remove(stream)

    async def _serve_rpc(self, request: web.Request) -> web.Response:
        call = await request.json()
        params = call["params"]
        if params.pop("account") != self._account:
            return self._error(call, -32602, "Specified account does not exist")
        chat = params.get("groupId") or params.get("recipient", [""])[0]
        match call["method"]:
            case "send":
                if self._refusals:
                    return self._refuse(call, *self._refusals.popleft())
                result = {"timestamp": self._send(chat, params), "results": [{"type": "SUCCESS"}]}
                if self._losses and request.transport is not None:
                    self._losses -= 1
                    request.transport.abort()
            case "sendReaction":
                target = f"{params['targetTimestamp']}:{params['targetAuthor']}"
                self._reactions.setdefault(target, []).append(params["emoji"])
                result = {}
            case "sendTyping":
                self._typing.append(chat)
                result = {}
            case "getAttachment":
                result = {"data": base64.b64encode(self._stored[params["id"]]).decode()}
            case other:
                raise AssertionError(other)
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "result": result})

    def _send(self, chat: str, params: dict[str, Any]) -> int:
        text, timestamp = params.get("message", ""), next(self._clock)
        assert chat in (ANNA, ZOE, self.group)
        assert len(text.encode()) <= self.limit
        assert text or params["attachment"]
        if edited := params.get("editTimestamp"):
            (message,) = [one for one in self.sent if one["latest"] == edited]
            assert message["edits"] < MOST_EDITS
            message |= {"text": text, "latest": timestamp, "edits": message["edits"] + 1}
            return timestamp
        heads = [uri.partition(";base64,")[0] for uri in params.get("attachment", ())]
        quoted = f"{params['quoteTimestamp']}:{params['quoteAuthor']}" if "quoteTimestamp" in params else None
        self.sent.append(
            {
                "id": timestamp, "latest": timestamp, "edits": 0, "chat": chat, "text": text, "reply_to": quoted,
                "files": [unquote(head.partition("filename=")[2]) for head in heads],
                "styles": params.get("textStyle", []),
            }
        )  # fmt: skip
        return timestamp

    def _refuse(self, call: dict[str, Any], status: int, retry_after_s: float | None) -> web.Response:
        if status == 429:
            results = [{"type": "RATE_LIMIT_FAILURE", "retryAfterSeconds": retry_after_s}]
            return self._error(call, -5, "Rate limited", {"response": {"results": results}})
        return self._error(call, *((-1, "Not a member") if status == 403 else (-3, "Network failure")))

    def _error(self, call: dict[str, Any], code: int, message: str, data: Any = None) -> web.Response:
        error = {"code": code, "message": message, "data": data}
        return web.json_response({"jsonrpc": "2.0", "id": call["id"], "error": error})


@pytest.mark.parametrize("check", channel_checks(FakeSignal), ids=str)
def test_the_channel(check: Check, tmp_path: Path) -> None:
    check(tmp_path)


def play(tmp_path: Path, story: Any, **settings: Any) -> None:
    """Run a story with the fake and a running channel, whose agent does not answer."""

    async def run() -> None:
        (tmp_path / "platform").mkdir()
        fake = FakeSignal(tmp_path / "platform")
        async with fake.open(), live(fake, tmp_path, silent=True, **settings) as life:
            await life.is_up()
            await story(fake, life)

    asyncio.run(run())


def test_a_phone_number_in_allow_from_lets_its_owner_in(tmp_path: Path) -> None:
    async def story(fake: FakeSignal, life: Any) -> None:
        await fake.says("hello\u2028there")
        assert (await life.hears("hello")).content == "hello\u2028there"

    play(tmp_path, story, allow_from=[NUMBERS[ANNA]])


def test_the_model_reads_names_for_mentions_the_quoted_words_and_what_the_group_said_before(tmp_path: Path) -> None:
    async def story(fake: FakeSignal, life: Any) -> None:
        await fake.says("forgotten", chat=fake.group)
        await fake.says("Friday?", chat=fake.group)
        await fake.says(
            f"🎉{PLACEHOLDER} ask {PLACEHOLDER}",
            chat=fake.group,
            mentions=[
                {"number": ME, "name": ME, "start": 2, "length": 1},
                {"uuid": ZOE, "name": "Zoe", "start": 8, "length": 1},
            ],
            quote={"id": 1, "authorUuid": ZOE, "text": "or Monday"},
        )
        heard = await life.hears("ask")
        assert heard.content.splitlines() == [
            "[earlier in this group]",
            "Anna: Friday?",
            "[in reply to a message]",
            "> or Monday",
            "🎉 ask @Zoe",
        ]

    play(tmp_path, story, group_message_buffer_size=1)


def test_formatting_is_text_styles_in_utf_16_and_a_link_keeps_its_url(tmp_path: Path) -> None:
    async def story(fake: FakeSignal, life: Any) -> None:
        await fake.says("hello")
        await life.posted(await life.hears("hello"), "🎉 **bold** and `code` of [us](https://example.org)")
        (sent,) = fake.sent
        assert sent["styles"] == ["3:4:BOLD", "12:4:MONOSPACE"]
        assert sent["text"] == "🎉 bold and code of us (https://example.org)"

    play(tmp_path, story)


def test_a_long_stream_ends_as_the_reply_within_the_edits_that_apps_accept(tmp_path: Path) -> None:
    async def story(fake: FakeSignal, life: Any) -> None:
        life.adjust(delta_interval_s=0.0)
        await fake.says("hello")
        message = await life.hears("hello")
        for number in range(2 * MOST_EDITS):
            delta(life, message, f"w{number} ")
            if number < MOST_EDITS - 1:  # two edits are left for the end
                await life.shows(f"w{number}")
            await until(lambda: not life.bus.outbound_size)
        whole = " ".join(f"w{number}" for number in range(2 * MOST_EDITS))
        life.post(message, whole, kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, f"{whole}.")
        await life.shows(f"{whole}.")
        (sent,) = fake.sent
        assert sent["edits"] == MOST_EDITS

    play(tmp_path, story)
