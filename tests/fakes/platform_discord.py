"""Discord on loopback: REST and gateway v10, with the people who write there.

The SDK is pointed here by `discord.http.Route.BASE` and by the config's gatewayUrl.
"""

import mimetypes
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from nanobot.bus.queue import MessageBus
from nanobot.channels.discord import DiscordChannel
from nanobot.config.channels import DiscordConfig
from nanobot.testing.platform import Shown
from tests.fakes.discord import world as there
from tests.fakes.discord.gateway import DIRECT_MESSAGES, GUILD_MESSAGES, Gateway
from tests.fakes.discord.rest import Refused, Rest
from tests.fakes.discord.world import Json, Message, World
from tests.fakes.served import Said, ServedPlatform

_ESCAPED = re.compile(r"\\([^\w\s])")


class DiscordPlatform(ServedPlatform):
    """The platform for the contract suite; `world`, `rest` and `gateway` for tests of what only Discord has."""

    _last_message: Message

    name = "discord"
    person, private = there.PERSON, there.PRIVATE
    stranger, stranger_chat = there.STRANGER, there.STRANGE
    group, thread = there.GROUP, there.THREAD
    limit = 2000
    edits = threads = files = quotes = dedupes = queues_messages = buttons = reacts = takes_back = types = (
        loses_answers
    ) = True
    acknowledges = False

    def __init__(self, folder: Path) -> None:
        self.world = World()
        self.rest = Rest(self.world)
        self.gateway = Gateway(self.world)
        super().__init__(folder)

    def routes(self) -> list[web.RouteDef]:
        return self.rest.routes()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=200 << 20)
        app.add_subapp("/api/v10", super().app())
        app.add_routes([web.get("/gateway/", self.gateway.serve), web.get("/cdn/{file}/{name}", self._download)])
        return app

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        from discord.http import Route

        before = Route.BASE
        async with super().open():
            Route.BASE = f"{self.url}/api/v10"
            self.gateway.url = f"{self.url.replace('http', 'ws')}/gateway/"
            try:
                yield self
            finally:
                Route.BASE = before

    def channel(self, bus: MessageBus, **settings: Any) -> DiscordChannel:
        usual = {
            "enabled": True, "token": there.TOKEN, "allow_from": [self.person], "gateway_url": self.gateway.url,
        }  # fmt: skip
        channel = DiscordChannel(DiscordConfig.model_validate(usual | settings), bus)
        channel.guilds_s = 0.03
        return channel

    # what people do and see

    async def send_said(self, said: Said) -> str:
        await self.gateway.identified.wait()  # nobody writes to a bot that never was there
        message = Message(
            self.world.ids.next(), said.thread or said.chat, said.sender,
            f"<@{there.BOT}> {said.text}" if said.mention else said.text, reply_to=said.reply_to, more=said.more,
            type=there.DEFAULT if said.reply_to is None else there.REPLY,
        )  # fmt: skip
        if said.file is not None:
            kind, _ = mimetypes.guess_type(said.file.name)
            file = self.rest.kept(said.file.name, said.file.read_bytes(), kind)
            message.attachments = [file | {"url": file["url"].replace("http://cdn.invalid", f"{self.url}/cdn")}]
        self.world.chats[message.chat].messages[message.id] = self._last_message = message
        await self.repeat_last()
        return message.id

    async def press_button(self, message_id: str, label: str) -> None:
        chat = next(chat for chat in self.world.chats.values() if message_id in chat.messages)
        message = chat.messages[message_id]
        custom_id = next(one["custom_id"] for one in message.buttons if one["label"] == label)
        pressed = {"custom_id": custom_id, "component_type": 2}
        await self.interacts(3, pressed, chat.id, message=self.world.payload(message))

    async def interacts(self, kind: int, data: Json, chat: str, *, sender: str | None = None, **more: Any) -> str:
        """A person chooses a command (2) or presses a button (3); its id, by which `rest.answers` knows the answer."""
        where = self.world.chats[chat]
        who = there.user(sender or self.person)
        told: Json = {
            "id": self.world.ids.next(), "application_id": there.APPLICATION, "type": kind, "data": data,
            "token": "interaction-token", "version": 1, "channel_id": chat, "channel": where.payload(),
            "attachment_size_limit": 10 << 20, "entitlements": [], "app_permissions": "0", "locale": "en-US",
        }  # fmt: skip
        if where.guild is None:
            told["user"] = who
        else:
            member = {
                "user": who,
                "roles": [],
                "joined_at": "2026-01-01T00:00:00+00:00",
                "permissions": "0",
                "flags": 0,
            }
            told |= {"guild_id": where.guild, "member": member}
        await self.gateway.tell("INTERACTION_CREATE", told | more)
        return str(told["id"])

    def shown(self, chat: str | None = None) -> list[Shown]:
        chat = chat or self.private
        chats = [one for one in self.world.chats.values() if chat in (one.id, one.parent)]
        said = [message for one in chats for message in one.messages.values() if message.author == there.BOT]
        return [self._shown(one) for one in sorted(said, key=lambda one: int(one.id))]

    def reactions_on(self, message_id: str) -> list[str]:
        return next(
            one.messages[message_id] for one in self.world.chats.values() if message_id in one.messages
        ).reactions

    def typed(self, chat: str | None = None) -> int:
        return self.world.chats[chat or self.private].typed

    # what goes wrong

    async def repeat_last(self) -> None:
        chat = self.world.chats[self._last_message.chat]
        needs = DIRECT_MESSAGES if chat.guild is None else GUILD_MESSAGES
        await self.gateway.tell("MESSAGE_CREATE", self.world.payload(self._last_message), needs=needs)

    def acknowledged(self, message_id: str) -> bool:
        return False

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.rest.refusals += [Refused(status, retry_after_s)] * times

    def lose_answers(self, times: int) -> None:
        self.rest.loses_answers = times

    async def half_open(self) -> None:
        for socket in self.gateway.sockets:
            socket.deaf = True
        self.gateway.sessions.clear()  # on the platform's side it is all over

    async def revoke(self) -> None:
        self.rest.token = self.gateway.token = "another"
        await self.gateway.close(4004)

    async def _download(self, request: web.Request) -> web.Response:
        return web.Response(body=self.rest.files[request.match_info["file"]])

    def _shown(self, message: Message) -> Shown:
        chat = self.world.chats[message.chat]
        return Shown(
            message.id,
            _ESCAPED.sub(r"\1", message.content),
            [one["filename"] for one in message.attachments],
            message.reply_to,
            chat.id if chat.type == there.PUBLIC_THREAD else None,
            message.edits,
            [one["label"] for one in message.buttons],
        )
