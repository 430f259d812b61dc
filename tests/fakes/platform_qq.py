"""QQ for the contract suite: on loopback, to which the channel is pointed by `apiBase`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.qq import QQChannel
from nanobot.config.channels import QQConfig
from nanobot.testing.platform import Platform, Shown
from tests.fakes.qq import ANNA, APP_ID, HALL, SECRET, ZOE, FakeQQ, Post, abort


class QQPlatform(Platform):
    """The platform; `server` is for tests of what only QQ has."""

    name = "qq"
    stall_s = 0.8
    person = private = ANNA
    stranger = stranger_chat = ZOE
    group = HALL
    hears_groups = False
    limit = 4000
    files = dedupes = queues_messages = types = loses_answers = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.server = FakeQQ()
        self.server.beat_s = 0.2
        self._runner: web.AppRunner | None = None
        self._port = 0
        self._last = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator["QQPlatform"]:
        app = web.Application(client_max_size=64 << 20)
        app.add_routes(self.server.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    def channel(self, bus: MessageBus, **settings: Any) -> QQChannel:
        usual = {
            "enabled": True, "app_id": APP_ID, "secret": SECRET, "allow_from": [self.person],
            "api_base": self.server.url,
        }  # fmt: skip
        return QQChannel(QQConfig.model_validate(usual | settings), bus)

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
    ) -> str:
        group = chat if chat == HALL else None
        if group is not None and not mention:
            return "not for the bot"  # QQ tells it nothing of such a message
        more: dict[str, Any] = {}
        if file is not None:
            url = self.server.put_file(file.name, file.read_bytes())
            more = {"attachments": [{"content_type": "image/png", "filename": file.name, "url": url}]}
        self._last = await self.server.says(text, sender=sender or self.person, group=group, **more)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [Shown(post.id, post.text, self._files_of(post)) for post in self.server.in_chat(chat or self.private)]

    def _files_of(self, post: Post) -> list[str]:
        media = post.body.get("media")
        return [self.server.files[media["file_info"]][0]] if media else []

    def typed(self, chat: str | None = None) -> int:
        return self.server.typing.count(chat or self.private)

    # what goes wrong

    async def repeat_last(self) -> None:
        await self.server.again(self._last)

    def acknowledged(self, message_id: str) -> bool:
        """Whether a heartbeat or a resume said so: what it names as the last event does not come again."""
        number = next(one["s"] for one in self.server.events if one["d"] == self.server.sent[message_id])
        return self.server.acknowledged >= int(number)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.server.refuse(times, status, retry_after_s)

    def lose_answers(self, times: int) -> None:
        self.server.loses_answers = times

    async def drop(self) -> None:
        assert self._runner is not None
        await abort(self._runner)

    async def gone(self, *, gone: bool) -> None:
        assert self._runner is not None
        if not gone:
            await self._listen()
            return
        for site in [*self._runner.sites]:
            await site.stop()
        await abort(self._runner)

    async def half_open(self) -> None:
        for line in self.server.lines:
            line.is_deaf = True

    async def revoke(self) -> None:
        self.server.secret = "another"
        self.server.expire_tokens()
        await self.drop()

    async def _listen(self) -> None:
        assert self._runner is not None
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        if not self._port:
            self._port = self._runner.addresses[0][1]
            self.server.url = f"http://127.0.0.1:{self._port}"
