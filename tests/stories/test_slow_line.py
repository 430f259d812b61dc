"""A file of 40 MB on a slow line, both ways on each channel: it arrives, or whoever waits for it is told why not.

Where a limit is smaller, a file of that size. WhatsApp's bridge is a stand-in, so its line to WhatsApp is fast.
"""

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
from tests.fakes.platforms import platform_class

SIZE, RATE = 40_000_000, 300_000
WAIT_S = 60 + 2 * SIZE / RATE
HERE, FAR = "127.0.0.1", "127.0.0.2"
PIECE = 64 * 1024


class SlowLine:
    """What connects to a port of `HERE` gets the same port of `FAR`, which passes on `RATE` bytes a second."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports: dict[int, Future[None]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
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
            self._writers |= {writer, far_writer}
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
            self._writers -= {writer, far_writer}

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
        for writer in self._writers:
            writer.transport.abort()


@contextmanager
def slow_line() -> Iterator[None]:
    """All new connections are slow."""
    line = SlowLine()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda sock, where: line.connect(sock, where))  # noqa: PLW0108 a method
        try:
            yield
        finally:
            line.close()


MB = 1_000_000
IN = {"telegram": 20 * MB, "matrix": 20 * MB, "email": 25 * MB}
"""The most that people may send, where that is less: getFile of Telegram, maxMediaBytes, maxAttachmentSize."""
OUT = dict.fromkeys(("dingtalk", "wecom", "weixin", "msteams", "email"), 20 * MB) | {
    "discord": 10 * MB,
    "feishu": 30 * MB,
    "qq": 5 * MB,
    "matrix": 10 * MB,
    "mochat": 0,
}
"""The most that the bot may send, where that is less: more is refused with a word. Mochat takes no files."""
SETTINGS: dict[str, dict[str, Any]] = {
    "websocket": {"max_message_bytes": 64_000_000, "ping_interval_s": 20, "ping_timeout_s": 20}
}
"""The usual ping of a client, not that of our fake."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is one address on loopback")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [spec.name for spec in CHANNELS])
async def test_a_large_file_arrives_on_a_slow_line_or_its_refusal_is_said(tmp_path: Path, name: str):
    files = {"large.bin": SIZE, "in.bin": IN.get(name, SIZE), "out.bin": OUT.get(name, SIZE)}
    for file, size in files.items():
        (tmp_path / file).write_bytes(Random(1).randbytes(size))
    (folder := tmp_path / name).mkdir()
    with slow_line():
        async with (
            platform_class(name)(folder).open() as platform,
            live(platform, folder, silent=True, **SETTINGS.get(name, {})) as life,
        ):
            life.adjust(stall_s=type(life.channel).stall_s)
            await platform.says("hello")
            message = await life.hears("hello")
            receiving = platform.says("look", file=tmp_path / "in.bin") if platform.files else platform.says("look")
            sending = asyncio.create_task(receiving)
            receipts = [life.post(message, "here it is", media=[str(tmp_path / "out.bin")])]
            if name in OUT:
                receipts.append(life.post(message, "and this", media=[str(tmp_path / "large.bin")]))
            await until(lambda: all(receipt.settled for receipt in receipts), within_s=WAIT_S)
            await sending
            await until(lambda: "look" in life.heard[-1].content, within_s=WAIT_S)

    sent = [file.removesuffix(".zip") for one in platform.shown() for file in one.files]  # DingTalk takes few types
    said = " ".join(one.text for one in platform.shown())
    came = [Path(path).stat().st_size for path in life.heard[-1].media]
    print(name, sent, said, life.heard[-1].content, came, life.dead)
    assert life.dead == []
    assert sent == (["out.bin"] if OUT.get(name, SIZE) else [])
    assert ("the limit here is" in said) == (name in OUT)
    assert came == ([IN.get(name, SIZE)] if platform.files else [])
