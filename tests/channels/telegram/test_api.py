"""What is asked of Telegram, where what answers is not Telegram."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.channels.telegram.api import CutOffError, PooledRequest
from nanobot.net.http import HttpPools


async def test_an_answer_without_end_is_cut_off_before_it_fills_the_memory():
    async def never_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"100000\r\n" + b" " * 0x100000 + b"\r\n")
                await writer.drain()
        except OSError:
            writer.close()

    pools = HttpPools()
    async with await asyncio.start_server(never_end, "127.0.0.1", 0) as server:
        base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        request = PooledRequest(pools, base, None)

        with pytest.raises(CutOffError, match="too long"):
            await request.do_request(f"{base}/bot1:x/getUpdates", "POST")
        await pools.close()


def test_importing_the_sdk_leaves_the_process_as_it_is():
    program = Path(__file__).with_name("import_the_sdk.py")

    assert subprocess.run([sys.executable, str(program)], check=False).returncode == 0
