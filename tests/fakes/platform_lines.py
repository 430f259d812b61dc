"""Clients of the channel of docs/examples/nanobot-lines: what a channel of one's own brings to the suite.

Like careful clients they connect again when the line breaks, and send what was not acknowledged until it is.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.testing.platform import Platform, Shown
from tests.channels.own import module
from tests.support.toy_gateway import free_port

AGAIN_S = 0.02


class LinesPlatform(Platform):
    """Two clients, one of them a stranger."""

    name = "lines"
    person = private = "anna"
    stranger = stranger_chat = "zoe"
    limit = 0
    refuses = rate_limits = has_token = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._ids = count(1)
        self._written: list[tuple[str, str, str]] = []
        self._taken: set[str] = set()
        self._shown: dict[str, list[Shown]] = {self.person: [], self.stranger: []}
        self._lines: dict[str, asyncio.StreamWriter] = {}
        self._gone = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator["LinesPlatform"]:
        clients = [asyncio.create_task(self._client(who)) for who in self._shown]
        yield self
        for client in clients:
            client.cancel()
        await asyncio.wait(clients)

    def channel(self, bus: MessageBus, **settings: Any) -> BaseChannel:
        section = {"enabled": True, "port": self._port, "allow_from": [self.person]} | settings
        made: BaseChannel = module().LinesChannel({to_camel(key): value for key, value in section.items()}, bus)
        return made

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
        who, number = sender or self.person, f"n{next(self._ids)}"
        self._written.append((who, number, text))
        self._send(who, number, text)
        return number

    def shown(self, chat: str | None = None) -> list[Shown]:
        return self._shown[chat or self.private]

    async def repeat_last(self) -> None:
        who, number, text = self._written[-1]
        while who not in self._lines:
            await asyncio.sleep(AGAIN_S)
        self._send(who, number, text)

    def acknowledged(self, message_id: str) -> bool:
        return message_id in self._taken

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        raise AssertionError("nothing is refused there")

    async def drop(self) -> None:
        for line in self._lines.values():
            line.close()

    async def gone(self, *, gone: bool) -> None:
        self._gone = gone
        if gone:
            await self.drop()

    async def half_open(self) -> None:
        await self.drop()  # a client that says nothing is what a server is used to; it is the client who comes anew

    async def revoke(self) -> None:
        raise AssertionError("there is no token that could be taken away")

    async def _client(self, who: str) -> None:
        while True:
            with suppress(OSError):
                if not self._gone:
                    await self._one_line(who)
            await asyncio.sleep(AGAIN_S)

    async def _one_line(self, who: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(json.dumps({"name": who}).encode() + b"\n")
            self._lines[who] = writer
            for sender, number, text in self._written:
                if sender == who and number not in self._taken:
                    self._send(who, number, text)
            while line := await reader.readline():
                told = json.loads(line)
                if "took" in told:
                    self._taken.add(told["took"])
                else:
                    self._shown[who].append(Shown(f"b{next(self._ids)}", told["text"]))
        finally:
            self._lines.pop(who, None)
            writer.close()

    def _send(self, who: str, number: str, text: str) -> None:
        if who in self._lines:
            self._lines[who].write(json.dumps({"id": number, "text": text}).encode() + b"\n")
