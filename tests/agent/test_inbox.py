"""A message that waits is on the disk: a kill loses none, doubles none, and the order of each chat stays."""

import asyncio
import subprocess
import sys
from pathlib import Path

from nanobot.agent.inbox import Inbox
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.testing import Bot, open_bot

DIES = """
import asyncio, os, sys
from pathlib import Path
from nanobot.bus.events import InboundMessage
from nanobot.testing import Pause, calls, open_bot

async def main():
    pause = Pause()
    async with open_bot(Path(sys.argv[1]), calls(("list_dir", {"path": "."})), pause) as bot:
        asyncio.ensure_future(bot.runtime.loop.run())
        await bot.runtime.bus.publish_inbound(InboundMessage("phone", "ann", "7", "first"))
        if "joins" in sys.argv:
            await bot.runtime.bus.publish_inbound(InboundMessage("phone", "ann", "7", "joins"))
        await pause.reached.wait()
        for number in range(25):
            await bot.runtime.bus.publish_inbound(InboundMessage("phone", "ann", "7", f"waits {number}"))
        while bot.runtime.bus.inbound_size:
            await asyncio.sleep(0.01)
        os._exit(9)

asyncio.run(main())
"""


async def life(bot: Bot, replies: int) -> list[str]:
    """Serve until so many replies were given."""
    serving = asyncio.create_task(bot.runtime.loop.run())
    given: list[str] = []
    async with asyncio.timeout(10):
        while len(given) < replies:
            out = await bot.runtime.bus.consume_outbound()
            assert out is not None
            given += [out.content] if out.kind is OutboundKind.REPLY else []
    await bot.runtime.loop.stop()
    await serving
    return given


def asked(bot: Bot) -> list[str]:
    rows = bot.runtime.sessions.get_or_create("phone:7").messages
    return [str(row["content"]) for row in rows if row["role"] == "user" and row.get("origin") != "system"]


async def test_what_waited_when_nanobot_was_killed_is_answered_once_and_in_order(tmp_path: Path):
    killed = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], timeout=30, check=False)
    answers = [f"answer {number}" for number in range(26)]
    async with open_bot(tmp_path, *answers) as bot:
        replies = await life(bot, 26)
        messages = asked(bot)

    assert killed.returncode == 9
    assert replies == answers
    assert messages == ["first", *(f"waits {number}" for number in range(25))]
    assert not list((tmp_path / "state" / "inbox").iterdir())


async def test_what_had_joined_a_turn_when_nanobot_was_killed_is_not_asked_again(tmp_path: Path):
    subprocess.run([sys.executable, "-c", DIES, str(tmp_path), "joins"], timeout=30, check=False)
    async with open_bot(tmp_path, *["fine"] * 26) as bot:
        await life(bot, 26)

        assert asked(bot) == ["first", "joins", *(f"waits {number}" for number in range(25))]


async def test_a_kill_between_the_row_and_the_word_that_it_is_kept_asks_nobody_twice(tmp_path: Path):
    message = InboundMessage("phone", "ann", "7", "hello")
    async with open_bot(tmp_path, "hi", "hi again") as bot:
        await bot.runtime.loop.tell(message)
        left = Inbox(tmp_path / "state" / "inbox")
        left.keep(message)
        left.keep(InboundMessage("phone", "ann", "7", "hello"))
        [file] = (tmp_path / "state" / "inbox").glob("*.jsonl")
        kept = file.read_bytes()
        left.done(message)
    (tmp_path / "state" / "inbox" / "dead.jsonl").write_bytes(kept)
    file.unlink()
    async with open_bot(tmp_path, "hi again") as bot:
        await life(bot, 1)

        assert asked(bot) == ["hello", "hello"]


def test_a_message_that_no_json_can_hold_waits_all_the_same(tmp_path: Path):
    inbox, circle = Inbox(tmp_path), {}  # type: ignore[var-annotated]
    circle["in"] = circle
    message = InboundMessage("phone", "ann", "7", "hello", metadata=circle)

    inbox.keep(message)
    inbox.done(message)

    assert Inbox(tmp_path).left(lambda one: False) == []
