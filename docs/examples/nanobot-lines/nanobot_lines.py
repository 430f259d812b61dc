"""A chat over TCP, one line of JSON per message. A client's first line has its `name`, later ones `id` and `text`."""

import asyncio
import json
from pathlib import Path
from typing import Any

from nanobot.bus.events import OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import BaseChannel
from nanobot.channels.errors import NotConnectedError
from nanobot.channels.incoming import Incoming
from nanobot.errors import StorageError


class LinesChannel(BaseChannel):
    name = "lines"  # the name in the entry point and in the config
    stall_s = 0.0  # a server without clients is silent: never reconnect

    def __init__(self, config: dict[str, Any], bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._clients: dict[str, asyncio.StreamWriter] = {}
        self._connected = asyncio.Event()

    async def start(self) -> None:
        server = await asyncio.start_server(self._talk, "127.0.0.1", self.config.get("port", 7777))
        self.mark_up()
        try:
            await asyncio.Event().wait()  # serve until it is cancelled
        finally:
            server.close()
            for client in self._clients.values():
                client.close()

    async def stop(self) -> None:
        self._clients.clear()

    async def reachable(self, chat_id: str) -> None:
        while chat_id not in self._clients:  # sending waits until this client is connected
            self._connected.clear()
            await self._connected.wait()

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        client = self._clients.get(message.chat_id)
        if client is None:
            raise NotConnectedError(f"{message.chat_id} has just left")
        unseen = "".join(f"\n({Path(file).name} cannot be read here)" for file in message.media)
        await self._say(client, text=message.content + unseen)
        return (f"{message.chat_id}-{message.journal_id}",)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        who = ""
        try:
            who = json.loads(await reader.readline())["name"]
            self._clients[who] = writer
            self._connected.set()
            while line := await reader.readline():
                data = json.loads(line)
                await self.receive(Incoming(who, who, data["text"], data["id"]))
                await self._say(writer, took=data["id"])  # it is on disk: the client may delete it
        except (OSError, ValueError, KeyError, StorageError):
            pass  # lost connection, invalid line or full disk: the client connects again
        finally:
            writer.close()
            if self._clients.get(who) is writer:
                del self._clients[who]

    async def _say(self, client: asyncio.StreamWriter, **words: str) -> None:
        client.write(json.dumps(words).encode() + b"\n")
        await client.drain()
