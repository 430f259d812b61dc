"""Journal messages of eight chats (the argument is the journal's path) and print each that is on the disk."""

import asyncio
import sys
from pathlib import Path

from nanobot.bus.events import InboundMessage
from nanobot.bus.journal import open_journal


async def main(path: Path) -> None:
    async with open_journal(path) as journal:

        async def chat(name: str) -> None:
            for number in range(10_000):
                await journal.receive(InboundMessage("telegram", "ann", name, "x" * 200, message_id=str(number)))
                print(name, number, flush=True)

        await asyncio.gather(*[chat(str(number)) for number in range(8)])


asyncio.run(main(Path(sys.argv[1])))
