"""`crowd HOME URL CHATS TURNS`: many chats in one process, each asking turn after turn; what people wait, as JSON.

The server behind URL decides how long an answer takes. Beside the chats a watch looks how long the event loop stalls.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.runtime.build import build_runtime
from tests.bench.alone import turns_alone
from tests.bench.stalls import Stalls


async def main() -> None:
    home, url, chats, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = turns_alone(home, url)
    async with build_runtime(config, data_dir=home, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "0"}) as runtime:
        await runtime.loop.run_turn(InboundMessage("phone", "ann", "warm", "up"))

        async def chat(number: int) -> None:
            for turn in range(turns):
                result = await runtime.loop.run_turn(InboundMessage("phone", "ann", str(number), f"hello {turn}"))
                assert result.text == "hello", result

        async with Stalls() as stalls:
            started = time.perf_counter()
            await asyncio.gather(*[chat(number) for number in range(chats)])
            seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "stall_s": stalls.longest}))


if __name__ == "__main__":
    asyncio.run(main())
