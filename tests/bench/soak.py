"""`soak HOME TURNS SESSIONS TOOLS`: so many turns over so many sessions, each turn with so many tool calls.

Prints how much the process has grown, as JSON.
"""

import asyncio
import gc
import json
import sys
from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.runtime.build import build_runtime
from nanobot.testing import ScriptedProvider, calls
from tests.bench.alone import turns_alone


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


async def main() -> None:
    home = Path(sys.argv[1])
    turns, sessions, tools = map(int, sys.argv[2:5])
    provider = ScriptedProvider()
    async with build_runtime(
        turns_alone(), data_dir=home, workspace=home / "w", provider=provider, environ={}
    ) as runtime:
        grown = []
        for turn in range(turns):
            provider.script(*[calls(("list_dir", {"path": "."}))] * tools, f"answer {turn}")
            await runtime.loop.run_turn(InboundMessage("phone", "ann", str(turn % sessions), f"question {turn}"))
            provider.requests.clear()
            provider.tools.clear()
            if turn in (sessions, turns - 1):  # each session was there once, and the end
                gc.collect()
                grown.append(resident_mb())
    print(json.dumps({"before_mb": grown[0], "after_mb": grown[1], "grown_mb": grown[1] - grown[0]}))


if __name__ == "__main__":
    asyncio.run(main())
