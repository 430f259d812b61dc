"""Feishu for the contract suite: a company on loopback, to which the channel is pointed by `domain`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.feishu import FeishuChannel
from nanobot.config.channels import FeishuConfig
from nanobot.testing.platform import Platform, Shown
from tests.fakes.feishu import (
    ANNA,
    APP_ID,
    BOT,
    BOT_NAME,
    HALL,
    HALL_ROOT,
    SECRET,
    ZOE,
    Event,
    Feishu,
    Post,
    as_seen,
    buttons_of,
)


class FeishuPlatform(Platform):
    """The platform; `feishu` is for tests of what only Feishu has."""

    name = "feishu"
    stall_s = 2.5
    person, private = ANNA, ANNA
    stranger, stranger_chat = ZOE, ZOE
    group, thread = HALL, HALL_ROOT
    limit = 7000
    edits = threads = files = quotes = dedupes = queues_messages = buttons = reacts = takes_back = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.feishu = Feishu()
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._last: Event | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator["FeishuPlatform"]:
        app = web.Application(client_max_size=200 << 20)
        app.add_routes(self.feishu.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    def channel(self, bus: MessageBus, **settings: Any) -> FeishuChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "app_secret": SECRET, "allow_from": [self.person],
            "domain": self.feishu.url, "reply_to_message": True,
        }  # fmt: skip
        return FeishuChannel(FeishuConfig.model_validate(usual | settings), bus)

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
        kind: str = "text",
        content: dict[str, Any] | None = None,
        mentions: list[dict[str, Any]] | None = None,
    ) -> str:
        room = self.feishu.room_of(chat or self.private)
        words = {"text": f"@_user_1 {text}" if mention else text}
        if file is not None:  # a text with a picture is a "post" at Feishu
            key = self.feishu.put_file(file.name, file.read_bytes(), "img")
            kind, content = (
                "post",
                {"title": "", "content": [[{"tag": "text", "text": text}], [{"tag": "img", "image_key": key}]]},
            )
        post = self.feishu.add(room, sender or self.person, kind, content or words)
        post.mentions = mentions or []
        if mention:
            post.mentions = [{"key": "@_user_1", "id": {"open_id": BOT}, "name": BOT_NAME, "tenant_key": "t"}]
        if (target := self.feishu.post_of(thread or reply_to or "")) is not None:
            post.root, post.parent, post.topic = target.root or target.id, target.id, target.topic
        self._last = await self.feishu.tell_of(post)
        return post.id

    async def press_button(self, message_id: str, label: str, sender: str | None = None) -> None:
        post = self._post(message_id)
        value = buttons_of(post)[label]["behaviors"][0]["value"]
        event = {
            "operator": {"tenant_key": "t", "open_id": sender or self.person, "union_id": "on_x"}, "token": "c-1",
            "action": {"value": value, "tag": "button"}, "host": "im_message",
            "context": {"open_message_id": post.id, "open_chat_id": post.chat},
        }  # fmt: skip
        await self.feishu.tell("card.action.trigger", event)

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [
            Shown(
                post.id,
                as_seen(post),
                [
                    self.feishu.files[key][0]
                    for key in post.content.values()
                    if isinstance(key, str) and key in self.feishu.files
                ],
                post.parent or None,
                (post.root or None) if post.topic else None,
                post.card.edits if post.card is not None else 0,
                [*buttons_of(post)],
            )
            for post in self.feishu.room_of(chat or self.private).posts.values()
            if post.sender == APP_ID
        ]

    def reactions_on(self, message_id: str) -> list[str]:
        return self._post(message_id).signs

    def _post(self, message_id: str) -> Post:
        post = self.feishu.post_of(message_id)
        assert post is not None
        return post

    # what goes wrong

    async def repeat_last(self) -> None:
        assert self._last is not None
        await self.feishu.deliver(self._last)

    def acknowledged(self, message_id: str) -> bool:
        about = [event for event in self.feishu.events if event.about == message_id]
        return bool(about) and all(event.acknowledged for event in about)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.feishu.refuse(times, status, retry_after_s)

    def lose_answers(self, times: int) -> None:
        self.feishu.loses_answers = times

    async def drop(self) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    async def gone(self, *, gone: bool) -> None:
        assert self._runner is not None
        if not gone:
            await self._listen()
            return
        for site in [*self._runner.sites]:
            await site.stop()
        await self.drop()

    async def half_open(self) -> None:
        for line in self.feishu.lines:
            line.is_deaf = True

    async def revoke(self) -> None:
        self.feishu.secret = "another"
        self.feishu.tokens.clear()
        await self.drop()

    async def _listen(self) -> None:
        assert self._runner is not None
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        if not self._port:
            self._port = self._runner.addresses[0][1]
            self.feishu.url = f"http://127.0.0.1:{self._port}"
