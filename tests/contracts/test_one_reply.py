"""Row 3: whatever happens on the way of an answer, its person sees it once, and nothing else that passes for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from nanobot.agent.tools.message import MessageTool
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import ChannelServices
from nanobot.channels.errors import SendError
from nanobot.channels.manager import ChannelManager
from nanobot.channels.media import MediaStore
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.pairing.store import PairingStore
from nanobot.runtime.build import build_runtime
from nanobot.runtime.sandbox import path_policy
from nanobot.testing import Line, Pause, ScriptedProvider, calls
from tests.fakes.platform_board import BoardPlatform
from tests.support.eventually import eventually

SHORT = "Here is all there is to say."
LONG = " ".join(f"Sentence number {number} of a long answer." for number in range(30))
ASIDE = "This goes ahead."


class StubbornBoard(BoardPlatform):
    """One that does not let notes be written over, some times."""

    stubborn = 0

    def rewrite(self, shown_id: str, text: str) -> None:
        if self.stubborn:
            self.stubborn -= 1
            raise SendError("not now")
        super().rewrite(shown_id, text)


@dataclass
class BoardBot:
    """A whole bot on the board."""

    board: StubbornBoard
    bus: MessageBus

    async def rests(self, answered: int) -> None:
        """Wait until so many messages have ended, and nothing is on its way."""
        journal = self.bus.journal
        assert journal is not None
        async with asyncio.timeout(10):
            while True:
                counts = await journal.counts()
                if (counts.answered, counts.queued, counts.waiting_out) == (answered, 0, 0):
                    return
                await asyncio.sleep(0.005)

    def times(self, text: str) -> int:
        """How often it can be read, in however many notes."""
        return _close_up(" ".join(one.text for one in self.board.shown())).count(_close_up(text))


def _close_up(text: str) -> str:
    return "".join(text.split())


@asynccontextmanager
async def on_the_board(folder: Path, *script: Line, streaming: bool) -> AsyncIterator[BoardBot]:
    config = Config.model_validate({"agents": {"defaults": {"workspace": str(folder / "w")}}})
    board = StubbornBoard(folder)
    async with open_journal(folder / "journal.db") as journal, MessageBus(journal).open() as bus:
        channel = board.channel(bus, streaming=streaming)
        people = PairingStore(DataPaths(folder))
        access = AccessControl(AccessPolicy.of(channel.name, channel.config), people)
        channel.attach(ChannelServices(access, MediaStore(folder / "media")))
        manager = ChannelManager([channel], bus, retry_delays_s=(0, 0, 0), first_wait_s=0.02)
        provider = ScriptedProvider(*script)
        async with build_runtime(
            config, data_dir=folder, provider=provider, environ={}, bus=bus, streams=manager.streams
        ) as bot:
            bot.tools.register(MessageTool(bus, manager, path_policy(config, folder, bot.workspace)))
            living = [asyncio.create_task(one) for one in (manager.run(), bot.loop.run())]
            try:
                await eventually(lambda: channel.is_running)
                yield BoardBot(board, bus)
            finally:
                await bot.loop.stop()
                for one in living:
                    one.cancel()
                await asyncio.wait(living)


SWITCHES = ("streams", "speaks ahead", "is long", "edits fail", "comes twice")


def _named(on: tuple[bool, ...]) -> str:
    return ", ".join(name for name, is_on in zip(SWITCHES, on, strict=True) if is_on) or "nothing"


@pytest.mark.parametrize(
    "on",
    [
        pytest.param(on, marks=[pytest.mark.slow] if sum(on) % 2 else [], id=_named(on))
        for on in product((False, True), repeat=len(SWITCHES))
    ],  # by default half of them, in which any four switches are on and off in every way
)
async def test_an_answer_is_seen_once(tmp_path: Path, on: tuple[bool, ...]):
    streaming, ahead, is_long, fails, twice = on
    answer = LONG if is_long else SHORT
    first = [calls(("message", {"content": ASIDE}))] if ahead else []
    async with on_the_board(tmp_path, *first, answer, streaming=streaming) as home:
        home.board.stubborn = 2 if fails else 0

        await home.board.says("hello")
        if twice:
            await home.board.repeat_last()
        await home.rests(1)
        if twice:
            await home.board.repeat_last()
        await home.rests(1)

    assert home.times(answer) == 1
    assert home.times(ASIDE) == ahead
    assert len(home.board.shown()) == ahead + (3 if is_long else 1)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("twice", [False, True])
async def test_an_answer_that_was_stopped_is_not_seen_behind_the_next_one(tmp_path: Path, streaming: bool, twice: bool):
    pause = Pause("Half of it ")
    async with on_the_board(tmp_path, pause, SHORT, streaming=streaming) as home:
        await home.board.says("hello")
        await asyncio.wait_for(pause.reached.wait(), 10)
        await home.board.says("/stop")
        if twice:
            await home.board.repeat_last()
        await home.rests(2)
        await home.board.says("and now?")
        await home.rests(3)

    assert home.times(SHORT) == 1
    assert home.times("Half of it") == 1
    assert home.times("Stopped.") == 1
    assert home.board.shown()[-1].text == SHORT
