"""Connect to three MCP servers that leave daemons. Arguments: the folder, and the word they carry."""

import asyncio
import sys
from pathlib import Path

from nanobot.agent.tools.mcp.server import McpServer
from nanobot.utils.clock import SystemClock
from tests.support.mcp import child


async def main(folder: Path, mark: str) -> None:
    servers = [
        McpServer(*child(f"s{number}", "daemon", "stays", mark), state_dir=folder, clock=SystemClock())
        for number in range(3)
    ]
    await asyncio.gather(*(server.connect() for server in servers))
    print("up", flush=True)
    await asyncio.sleep(60)


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
