"""`over_a_channel HOME URL CHATS TURNS`: each chat speaks and waits for the reply, so often; the price, as JSON.

All of the road is real: the channel's door, the journal on the disk, the bus, a turn over HTTP, the manager. Only the
platform is none: what is posted is there at once.
"""

import asyncio
import gc
import json
import sys
import time
from pathlib import Path

from nanobot.bus.events import Address
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import ChannelServices
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.incoming import Incoming
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore
from nanobot.config.channels import ChannelConfig
from nanobot.config.paths import DataPaths
from nanobot.markdown import Chunk
from nanobot.pairing.store import PairingStore
from nanobot.runtime.build import build_runtime
from tests.bench.alone import turns_alone
from tests.bench.soak import resident_mb
from tests.bench.stalls import Stalls


class Desk(ChatChannel):
    """The channel of a platform that is no distance away."""

    name = "desk"
    stall_s = 0

    def __init__(self, bus: MessageBus) -> None:
        super().__init__(ChannelConfig.model_validate({"enabled": True, "allow_from": ["ann"]}), bus)
        self.posted: dict[str, asyncio.Queue[str]] = {}

    async def start(self) -> None:
        """Be there."""
        self.mark_up()
        await asyncio.Event().wait()

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        """Lay it on the desk."""
        self.posted[to.chat_id].put_nowait(piece.text)
        return "1"

    async def ask(self, chat: str, number: int) -> str:
        """Say something there; the reply."""
        queue = self.posted.setdefault(chat, asyncio.Queue())
        assert await self.receive(Incoming("ann", chat, f"hello {number}", f"{chat}-{number}"))
        return await queue.get()


async def main() -> None:
    """Measure, and print."""
    home, url, chats, turns = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    config = turns_alone(home, url)
    async with (
        open_journal(home / "state" / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        build_runtime(config, data_dir=home, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "0"}, bus=bus) as runtime,
    ):
        desk = Desk(bus)
        access = AccessControl(AccessPolicy.of(desk.name, desk.config), PairingStore(DataPaths(home)))
        desk.attach(ChannelServices(access, MediaStore(home / "media")))
        living = [asyncio.create_task(one) for one in (runtime.loop.run(), ChannelManager([desk], bus).run())]

        async def chat(number: int) -> None:
            for turn in range(turns):
                assert await desk.ask(str(number), turn) == "hello"

        await desk.ask("warm", 0)
        gc.collect()
        before_mb = resident_mb() if sys.platform == "linux" else 0.0
        cpu, wall = time.process_time(), time.perf_counter()
        async with Stalls() as stalls:
            await asyncio.gather(*[chat(number) for number in range(chats)])
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        gc.collect()
        grown_mb = resident_mb() - before_mb if sys.platform == "linux" else 0.0
        counts = await journal.counts()
        await runtime.loop.stop()
        for task in living:
            task.cancel()
    done = chats * turns
    told = {"cpu_ms": cpu / done * 1000, "turns_s": done / wall, "seconds": wall, "stall_s": stalls.longest}
    print(json.dumps(told | {"grown_mb": grown_mb, "received": counts.received, "queued": counts.queued}))


if __name__ == "__main__":
    asyncio.run(main())
