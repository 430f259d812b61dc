"""A file of 40 MB on a slow line, both ways on each channel: it arrives, or whoever waits for it is told why not."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nanobot.channels.registry import CHANNELS
from nanobot.testing.live_channel import live, until
from nanobot.testing.platform import Platform
from tests.fakes.platforms import platform_class

SIZE, RATE = 40_000_000, 1_000_000
WAIT_S = 60 + 3 * SIZE / RATE
HERE, FAR = "127.0.0.1", "127.0.0.2"
PIECE = 64 * 1024


class SlowLine:
    """What connects to a port of `HERE` gets the same port of `FAR`, which passes on `RATE` bytes a second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports: dict[int, Future[None]] = {}
        self._connect = socket.socket.connect

    def connect(self, sock: socket.socket, address: Any) -> None:
        """In place of `socket.connect`."""
        if isinstance(address, tuple) and address[0] == HERE:
            port = address[1]
            if port not in self._ports:
                server = socket.create_server((FAR, port))
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # else megabytes are under way at once
                self._ports[port] = asyncio.run_coroutine_threadsafe(self._serve(server, port), self._loop)
            address = (FAR, port)
        self._connect(sock, address)

    async def _serve(self, server: socket.socket, port: int) -> None:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there = socket.socket()
            try:
                self._connect(there, (HERE, port))
                far_reader, far_writer = await asyncio.open_connection(sock=there)
            except OSError:
                there.close()
                writer.close()
                return
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

        async with await asyncio.start_server(pass_on, sock=server):
            await asyncio.Event().wait()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(PIECE):
                writer.write(data)
                await writer.drain()
                await asyncio.sleep(len(data) / RATE)
        writer.close()

    def close(self) -> None:
        for serving in self._ports.values():
            serving.cancel()


@contextmanager
def slow_line() -> Iterator[None]:
    """All new connections are slow."""
    line = SlowLine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda sock, address: line.connect(sock, address))
        try:
            yield
        finally:
            line.close()


async def both_ways(platform: Platform, folder: Path, file: Path) -> str:
    """What became of the file that a person sends, and of the same from the bot."""
    async with platform.open(), live(platform, folder, silent=True) as life:
        life.adjust(stall_s=90.0)
        await platform.says("hello")
        await until(lambda: life.heard, within_s=WAIT_S)
        (message,) = life.heard
        sending = asyncio.create_task(platform.says("look", file=file))
        posting = life.post(message, "here it is", media=[str(file)])
        await until(lambda: posting.settled, within_s=WAIT_S)
        shown = [one for one in platform.shown() if one.text or one.files]
        sent = "arrived" if any(one.files for one in shown) else " ".join(one.text for one in shown)
        came = "not sent there"
        if platform.files:
            await until(lambda: any("look" in one.content for one in life.heard), within_s=WAIT_S)
            heard = life.heard[-1]
            is_there = any(Path(path).stat().st_size == SIZE for path in heard.media)
            came = "arrived" if is_there else heard.content.replace("\n", " ")
        await sending
        return f"from the bot: {sent}; from a person: {came}{f'; {life.dead}' if life.dead else ''}"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one address on loopback")
@pytest.mark.timeout(900)
async def test_a_large_file_arrives_on_a_slow_line_or_its_refusal_is_said(tmp_path: Path):
    file = tmp_path / "large.bin"
    file.write_bytes(Random(1).randbytes(SIZE))
    platforms = {spec.name: platform_class(spec.name)(tmp_path / spec.name) for spec in CHANNELS}
    for platform in platforms.values():
        platform.folder.mkdir()

    with slow_line():
        ends = await asyncio.gather(
            *[both_ways(platform, platform.folder, file) for platform in platforms.values()], return_exceptions=True
        )

    for name, end in zip(platforms, ends, strict=True):
        print(name, "-", end if isinstance(end, str) else repr(end))
    raise AssertionError
