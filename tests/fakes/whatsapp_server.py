"""The small WhatsApp of whatsapp_server.mjs as a process, and the real bridge of nanobot connected to it."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from tests.support.eventually import eventually

FAKES = Path(__file__).parent
ANNA = "4915112345678"
TOKEN = "t0ken"
Json = dict[str, Any]


class World:
    """WhatsApp, with Anna's phone and the one of the linked account. `events` is what it saw."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self.folder = folder
        """The installed bridge."""
        self.url = ""
        self.events: list[Json] = []

    def do(self, command: str, **arguments: Any) -> None:
        """See whatsapp_server.mjs."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}).encode() + b"\n")

    def all(self, event: str) -> list[Json]:
        return [one for one in self.events if one.get("event") == event]

    async def sees(self, event: str, **fields: Any) -> Json:
        """Wait for an event with these fields."""

        def find() -> Json | None:
            return next((one for one in self.all(event) if fields.items() <= one.items()), None)

        return await eventually(find, 40)

    async def listen(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            event = json.loads(line)
            assert "error" not in event, event["error"]
            self.events.append(event)

    @property
    def environ(self) -> dict[str, str]:
        """What makes a bridge connect to this WhatsApp."""
        return {"TEST_BRIDGE": str(self.folder), "WA_WEBSOCKET_URL": self.url}

    @asynccontextmanager
    async def bridge(self, state: Path, port: int = 0) -> AsyncIterator["Bridge"]:
        """Run the bridge, with its keys in `state`/auth, until the block ends."""
        variables = {"BRIDGE_TOKEN": TOKEN, "BRIDGE_PORT": str(port), "BRIDGE_OWNED": "1"}
        folders = {"BRIDGE_STATE": str(state), "AUTH_DIR": str(state / "auth")}
        process = await asyncio.create_subprocess_exec(
            *("node", "--import", str(FAKES / "whatsapp_root.mjs"), str(self.folder / "bridge.mjs")),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], **self.environ, **variables, **folders},
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            yield Bridge(process, int((await process.stdout.readline()).rpartition(b" ")[2] or 0))
        finally:
            process.stdin.close()  # it ends with its input
            await asyncio.wait_for(process.communicate(), 10)


class Bridge:
    """A running bridge of ours."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"ws://127.0.0.1:{port}"

    async def kill(self) -> None:
        """As `kill -9` does."""
        self.process.kill()
        await self.process.wait()


class Client:
    """A connection to the bridge. `frames` is what it said so far."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self.frames: list[Json] = []

    async def send(self, kind: str, **fields: Any) -> None:
        await self._socket.send(json.dumps({"type": kind, **fields}))

    async def hears(self, kind: str, **fields: Any) -> Json:
        """Wait for a frame with these fields."""
        async with asyncio.timeout(40):
            while True:
                frame: Json = json.loads(await self._socket.recv())
                self.frames.append(frame)
                if {"type": kind, **fields}.items() <= frame.items():
                    return frame

    async def is_connected(self) -> Json:
        return await self.hears("status", status="connected")


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    """Connect to a bridge."""
    async with connect(url) as socket:
        await socket.send(json.dumps({"type": "auth", "token": TOKEN}))
        yield Client(socket)


@asynccontextmanager
async def run_world(folder: Path, keys: Path) -> AsyncIterator[World]:
    """Run WhatsApp until the block ends, with the bridge in `folder`. It keeps a device's keys in `keys`."""
    process = await asyncio.create_subprocess_exec(
        *("node", str(FAKES / "whatsapp_server.mjs"), str(folder), str(keys)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    world = World(process, folder)
    listening = asyncio.create_task(world.listen())
    try:
        port = (await world.sees("listening"))["port"]
        world.url = f"ws://127.0.0.1:{port}/ws"
        yield world
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), 10)
        await listening


async def link(world: World, state: Path) -> None:
    """Link a bridge by its QR code."""
    async with world.bridge(state) as bridge, client_of(bridge.url) as client:
        world.do("scan", qr=(await client.hears("qr"))["qr"])
        await client.is_connected()
