"""`many_turns HOME URL CHATS TURNS`: the turns of many chats in one process; prints what they cost as JSON."""

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx

from nanobot.bus.events import InboundMessage
from nanobot.runtime.build import build_runtime
from nanobot.utils.garbage import delay_collection
from tests.bench.alone import turns_alone


async def main() -> None:
    home, url, chats, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = turns_alone(home, url)
    delay_collection()  # as in the gateway
    async with build_runtime(config, data_dir=home, environ={}) as runtime:

        async def chat(number: int) -> None:
            for turn in range(turns):
                message = InboundMessage("phone", "ann", str(number), f"hello {turn}")
                result = await runtime.loop.run_turn(message)
                assert result.text == "hello", result

        await runtime.loop.run_turn(InboundMessage("phone", "ann", "warm", "up"))
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*[chat(number) for number in range(chats)])
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    async with httpx.AsyncClient(verify=False) as client:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        await client.post(f"{url}/chat/completions", json=body)
        floor = time.process_time()
        for _ in range(100):
            await client.post(f"{url}/chat/completions", json=body)
        floor = time.process_time() - floor
    done = chats * turns
    print(json.dumps({"cpu_ms": cpu / done * 1000, "turns_s": done / wall, "post_cpu_ms": floor * 10}))


asyncio.run(main())
