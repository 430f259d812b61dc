"""Mochat for the contract suite: on loopback, to which the channel is pointed by `baseUrl`."""

from pathlib import Path
from typing import Any

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.mochat import MochatChannel
from nanobot.config.channels import MochatConfig
from nanobot.testing.platform import Shown
from tests.fakes.mochat import AGENT, ANNA, DM, GENERAL, LONGEST, TOKEN, ZOE, ZOES, FakeMochat
from tests.fakes.served import ServedPlatform


class MochatPlatform(ServedPlatform):
    """The platform; `server` is for tests of what only Mochat has."""

    server: FakeMochat
    name = "mochat"
    person, private = ANNA, DM
    stranger, stranger_chat = ZOE, ZOES
    group = GENERAL
    limit = LONGEST
    quotes = queues_messages = loses_answers = True

    def __init__(self, folder: Path, *, msgpack: bool = True) -> None:
        super().__init__(folder, FakeMochat(msgpack=msgpack))

    def app(self) -> web.Application:
        app = web.Application()
        self.server.attach(app)

        async def shut_down(_: web.Application) -> None:
            await self.server.io.shutdown()

        app.on_shutdown.append(shut_down)
        return app

    def channel(self, bus: MessageBus, **settings: Any) -> MochatChannel:
        is_open = settings.get("group_policy") == "open"
        usual = {
            "enabled": True, "claw_token": TOKEN, "agent_user_id": AGENT, "allow_from": [self.person],
            "base_url": self.url, "sessions": ["*"], "panels": ["*"], "refresh_interval_ms": 100,
            "socket_reconnect_delay_ms": 20, "socket_max_reconnect_delay_ms": 100, "watch_timeout_ms": 200,
            "socket_connect_timeout_ms": 1000,
            "reply_delay_mode": "off", "mention": {"require_in_groups": not is_open},
        }  # fmt: skip
        return MochatChannel(MochatConfig.model_validate(usual | settings), bus)

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
        content = f"<@{AGENT}> {text}" if mention else text
        self._last = await self.server.says(content, sender=sender or self.person, chat=chat or self.private)
        return self._last

    def shown(self, chat: str | None = None) -> list[Shown]:
        return [Shown(post.id, post.text, reply_to=post.reply_to) for post in self.server.in_chat(chat or self.private)]

    # what goes wrong

    def acknowledged(self, message_id: str) -> bool:
        """Whether a subscription or a poll named a cursor that is not before it."""
        session = self.server.sessions[DM]
        number = next(one["seq"] for one in session.events if one["payload"]["messageId"] == message_id)
        return session.cursor >= int(number)

    async def half_open(self) -> None:
        self.server.make_deaf()

    async def revoke(self) -> None:
        self.server.token = "another"
        await self.drop()
