"""`storm HOME MESSAGES CHATS`: so many messages at once over so many chats, one of them stuck; what came of it as JSON.

All come over the bus, as a channel would bring them. While they are worked on, somebody asks for /status again and
again. The model answers at once but for the stuck chat, where it never does.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, TextDelta
from nanobot.runtime.build import Runtime, build_runtime
from tests.bench.alone import turns_alone
from tests.bench.stalls import Stalls

STUCK = "stuck"


class Quick(LLMProvider):
    """Answers at once; whoever says STUCK waits for ever."""

    def get_default_model(self) -> str:
        return "quick"

    async def chat_stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        if STUCK in str(messages[-1]["content"]):
            await asyncio.Event().wait()
        yield TextDelta("fine")
        yield Finished(LLMResponse("fine"))


async def replies(runtime: Runtime, wanted: int) -> Counter[str]:
    """How many replies each chat got, once there are as many as wanted."""
    seen: Counter[str] = Counter()
    while seen.total() < wanted and (out := await runtime.bus.consume_outbound()) is not None:
        seen[out.chat_id] += out.kind is OutboundKind.REPLY
    return seen


async def status_times(runtime: Runtime) -> list[float]:
    taken: list[float] = []
    while True:
        started = time.perf_counter()
        try:
            await runtime.loop.run_turn(InboundMessage("phone", "owner", "1", "/status"))
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            return taken
        taken.append(time.perf_counter() - started - 0.05)


async def main() -> None:
    home, messages, chats = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    async with (
        build_runtime(turns_alone(), data_dir=home, workspace=home / "w", provider=Quick(), environ={}) as runtime,
        Stalls() as stalls,
    ):
        serving = asyncio.create_task(runtime.loop.run())
        asking = asyncio.create_task(status_times(runtime))
        each = messages // chats
        started = time.perf_counter()
        for number in range(messages):
            chat = number % chats
            text = STUCK if chat == 0 else f"message {number // chats}"
            await runtime.bus.publish_inbound(InboundMessage("phone", "ann", str(chat), text, message_id=str(number)))
        seen = await replies(runtime, each * (chats - 1))
        seconds = time.perf_counter() - started
        asking.cancel()
        taken = await asking
        stalled = stalls.longest
        await runtime.loop.stop()
        await serving
    wrong = [chat for chat in range(1, chats) if seen[str(chat)] != each]
    print(
        json.dumps(
            {
                "turns_s": seen.total() / seconds,
                "seconds": seconds,
                "stall_s": stalled,
                "status_s": max(taken, default=0.0),
                "statuses": len(taken),
                "wrong": wrong,
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
