"""A process that fetches one page with the tool, and tells what it weighed: idle before, and at its worst."""

import asyncio
import json
import sys
import time
from pathlib import Path

import nanobot.runtime.build  # noqa: F401 - what an idle bot has loaded
from nanobot.agent.tools.web.fetch import WebFetchTool
from nanobot.agent.tools.web.policy import WebPolicy
from nanobot.net.egress import NetworkPolicy
from nanobot.security.files.paths import PathPolicy


def kilobytes(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition(f"{name}:")[2].split()[0])


async def main(url: str) -> None:
    tool = WebFetchTool(WebPolicy(NetworkPolicy(whitelist=("127.0.0.0/8",))), PathPolicy(Path.cwd()))
    idle, began = kilobytes("VmRSS"), time.monotonic()

    result = await tool.execute(url)

    told = {"seconds": time.monotonic() - began, "over_idle_mb": (kilobytes("VmHWM") - idle) / 1024}
    print(json.dumps({**told, "failed": result.error, "content": str(result.content)[:2000]}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
