"""What goes out arrives in its order and in all of its parts, is tried again where that helps, and keeps nobody else
waiting, whatever a channel does.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import Address, DeliveryFailedError, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.journal import InboundState
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import UNCONFIRMED_NOTE, BaseChannel
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.manager import ChannelManager
from nanobot.channels.outgoing import Outgoing
from nanobot.channels.status import ChannelState
from nanobot.channels.supervisor import ChannelSupervisor
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import PLAIN
from nanobot.messages.types import Origin
from tests.support.clock import WarpLoop
from tests.support.eventually import eventually

BUSY, LATER = SendError("busy"), RateLimitedError("slow down", 0)
UNSURE, GONE = SendError("no answer", may_have_arrived=True), UndeliverableError("the bot was blocked")
AWAY = NotConnectedError("no answer", may_have_arrived=True)


class Wall(BaseChannel):
    """Everything that is sent is written on it. `fails` are raised first, one a try."""

    name = "wall"
    delta_interval_s = 0.05

    def __init__(self, bus: MessageBus, *fails: BaseException, slow_chat: str = "") -> None:
        super().__init__({}, bus)
        self.fails = [*fails]
        self.slow_chat = slow_chat
        self.released = asyncio.Event()
        self.written: list[tuple[str, str]] = []
        self.shown: list[str] = []

    async def start(self) -> None:
        self.mark_up()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        pass

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        if message.chat_id == self.slow_chat:
            await self.released.wait()
        if self.fails:
            raise self.fails.pop(0)
        self.written.append((message.chat_id, message.content))
        return (str(len(self.written)),)

    async def send_delta(self, chat_id: str, delta: str, metadata: Any = None) -> None:
        self.shown.append("|" if metadata.get("_stream_end") else delta)


def out(text: str, chat: str = "1", kind: OutboundKind = OutboundKind.REPLY, channel: str = "wall") -> OutboundMessage:
    return OutboundMessage(channel, chat, text, kind=kind, turn_id="t")


@asynccontextmanager
async def running(channel: BaseChannel, bus: MessageBus, **settings: Any) -> AsyncIterator[ChannelManager]:
    manager = ChannelManager([channel], bus, **{"retry_delays_s": (0, 0, 0), "first_wait_s": 0.01, **settings})
    task = asyncio.create_task(manager.run())
    try:
        yield manager
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_slow_chat_keeps_nobody_else_waiting_and_each_has_its_order():
    wall = Wall(bus := MessageBus(), slow_chat="slow")
    async with running(wall, bus):
        slow = [bus.post_outbound(out(text, "slow")) for text in "ab"]
        ids = await asyncio.wait_for(bus.post_outbound(out("c", "quick")).wait(), 5)
        waited = not slow[0].settled
        wall.released.set()
        ids += await asyncio.wait_for(slow[1].wait(), 5)

    assert waited
    assert wall.written == [("quick", "c"), ("slow", "a"), ("slow", "b")]
    assert ids == ("1", "3")


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [(0.0, 0.0), (2.5, 2.5), (-1.0, 5.0), (float("nan"), 5.0), (float("inf"), 3600.0), (31_536_000.0, 3600.0)],
)
def test_a_pause_is_a_time_one_can_wait(said, is_kept):
    assert RateLimitedError("slow down", said).retry_after_s == is_kept


@pytest.mark.parametrize(
    ("errors", "written"),
    [
        ([BUSY, LATER, NotConnectedError("gone"), OSError("reset")], "here"),
        ([LATER] * 15, "here"),
        ([NotConnectedError("gone")] * 9, "here"),
        ([UNSURE], "here" + UNCONFIRMED_NOTE),
    ],
    ids=["what may pass", "later, but not for long", "out of reach, however long", "not confirmed"],
)
async def test_what_may_pass_is_tried_again(errors: list[Exception], written: str):
    wall = Wall(bus := MessageBus(), *errors)
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("here")).wait(), 5)

    assert wall.written == [("1", written)]


@pytest.mark.parametrize(
    ("error", "tries", "told"),
    [
        (BUSY, 4, "busy"),
        (GONE, 1, "the bot was blocked"),
        (UNSURE, 4, "no answer"),
        (AWAY, 4, "no answer"),
        (KeyError("date"), 4, "KeyError: 'date'"),
        (SystemExit(3), 4, "RuntimeError: it raised SystemExit"),
        (asyncio.CancelledError(), 4, "RuntimeError: it raised CancelledError"),
        (LATER, 11, "slow down"),
    ],
)
async def test_what_will_not_arrive_is_told_to_who_waits_and_to_the_owner_and_the_next_goes_out(
    error: BaseException, tries: int, told: str
):
    wall = Wall(bus := MessageBus(), *[error] * tries)
    dead: list[str] = []

    async def dead_letter(message: OutboundMessage, error: DeliveryFailedError) -> None:
        dead.append(f"{message.content}: {error}")

    async with running(wall, bus, dead_letter=dead_letter, max_throttled_s=0):
        lost = bus.post_outbound(out("lost"))
        await asyncio.wait_for(bus.post_outbound(out("next")).wait(), 5)
        with pytest.raises(DeliveryFailedError, match="not delivered"):
            await lost.wait()

    assert wall.written == [("1", "next")]
    assert len(dead) == wall.status.failed == 1
    assert dead[0].startswith(f"lost: The message to wall:1 was not delivered: {told}")


@pytest.mark.parametrize("odd", [asyncio.CancelledError(), SystemExit(3), BaseException("odd"), ValueError("no")])
async def test_a_channel_that_breaks_in_any_way_is_started_again_and_ends_no_other(odd: BaseException):
    starts: list[int] = []

    class Script(Wall):
        name = "script"

        async def start(self) -> None:
            starts.append(1)
            if len(starts) < 3:
                raise odd
            await super().start()

        async def reachable(self, chat_id: str) -> None:
            raise KeyError(chat_id)

        async def stop(self) -> None:
            raise odd

    wall, script = Wall(bus := MessageBus()), Script(bus)
    async with running(wall, bus) as manager:
        await manager.change("script", script)
        await asyncio.wait_for(script.status.connected.wait(), 5)
        await asyncio.wait_for(bus.post_outbound(out("x", channel="script")).wait(), 5)
        await manager.change("script", None)
        with pytest.raises(DeliveryFailedError, match="no channel 'script'"):
            await asyncio.wait_for(bus.post_outbound(out("gone", channel="script")).wait(), 5)
        await asyncio.wait_for(bus.post_outbound(out("still here")).wait(), 5)

    assert wall.written == [("1", "still here")]


async def test_what_waits_for_a_channel_goes_out_through_the_one_that_replaces_it():
    class Away(Wall):
        async def start(self) -> None:
            await asyncio.Event().wait()

    bus = MessageBus()
    wall = Wall(bus)
    async with running(Away(bus), bus) as manager:
        receipts = [bus.post_outbound(out(text)) for text in "abc"]
        await eventually(lambda: not bus.outbound_size)
        await manager.change("wall", wall)
        await asyncio.wait_for(receipts[-1].wait(), 5)

    assert wall.written == [("1", text) for text in "abc"]


async def test_a_channel_that_does_not_end_its_stop_is_left(caplog):
    class Lingering(Wall):
        async def stop(self) -> None:
            await asyncio.Event().wait()

    wall = Lingering(MessageBus())
    life = asyncio.create_task(ChannelSupervisor(wall, stop_timeout_s=0.01).run())
    await asyncio.wait_for(wall.status.connected.wait(), 5)

    life.cancel()
    done, _ = await asyncio.wait([life], timeout=5)

    assert done
    assert wall.status.state is ChannelState.OFF
    assert "wall: stop took longer than 0.01 s" in caplog.text


async def test_pieces_of_an_answer_that_wait_are_shown_together_and_its_end_does_not_wait():
    wall = Wall(bus := MessageBus())
    async with running(wall, bus):
        await asyncio.wait_for(wall.status.connected.wait(), 5)
        for text in "abcdef":
            bus.post_outbound(out(text, kind=OutboundKind.STREAM_DELTA))
            await asyncio.sleep(0)
        bus.post_outbound(out("abcdef", kind=OutboundKind.STREAM_END))
        await asyncio.wait_for(bus.post_outbound(out("abcdef")).wait(), 5)

    assert "".join(wall.shown) == "abcdef|"
    assert len(wall.shown) <= 3
    assert wall.written == [("1", "abcdef")]


# messages of several parts


class Pinboard(ChatChannel):
    """Everything that is posted is pinned to it. `before` is called before each part, and may raise."""

    name = "pinboard"
    dialect = replace(PLAIN, limit=100)

    def __init__(self, bus: MessageBus, before: Callable[[int], None] = lambda part: None) -> None:
        super().__init__({}, bus)
        self.before = before
        self.pinned: list[str] = []
        self.tries = 0
        self.typed = 0
        self.upload_s = 0.0

    async def start(self) -> None:
        self.mark_up()
        await asyncio.Event().wait()

    async def post(self, to: Address, piece: Chunk, how: SendOptions) -> str:
        return self._pin(piece.text)

    async def post_file(self, to: Address, file: Outgoing, how: SendOptions) -> str:
        await asyncio.sleep(self.upload_s)
        return self._pin(file.name)

    async def show_typing(self, to: Address) -> None:
        self.typed += 1
        self.before(0)

    def _pin(self, text: str) -> str:
        self.tries += 1
        self.before(self.tries)
        self.pinned.append(text)
        return str(len(self.pinned))


LONG = " ".join(f"w{number}" for number in range(48))
NOTE = UNCONFIRMED_NOTE.split()


@pytest.mark.parametrize(
    ("text", "fails_at", "loses", "repeats", "pinned"),
    [
        ("look", 3, "one.txt", False, ["look", "one.txt", "two.txt"]),
        ("look", 2, "one.txt", False, ["look", "(", "two.txt"]),
        (LONG, 2, None, True, [*LONG.split(), *NOTE, "one.txt", "two.txt"]),
        ("look", 2, None, True, ["look", *NOTE, "one.txt", "two.txt"]),
    ],
    ids=["gone after it was sent", "gone before", "note below the rest of the text", "note before the next file"],
)
async def test_a_second_try_goes_on_where_the_first_ended(
    tmp_path: Path, text: str, fails_at: int, loses: str | None, repeats: bool, pinned: list[str]
):
    def fail(part: int) -> None:
        if part == fails_at:
            if loses:
                (tmp_path / loses).unlink()
            raise SendError("busy")

    board = Pinboard(MessageBus(), fail)
    files = [tmp_path / name for name in ("one.txt", "two.txt")]
    for path in files:
        path.write_text("x")
    sending = OutboundMessage("pinboard", "1", text, media=[str(one) for one in files])
    with pytest.raises(SendError):
        await board.send(sending)
    sending.may_repeat = sending.unconfirmed = repeats
    ids = await board.send(sending)

    told = " ".join("(" if one.startswith(f"({files[0]}"[:30]) else one for one in board.pinned)
    assert told.split() == pinned
    assert len(ids) == len(board.pinned)


def test_upload_may_take_as_long_as_its_size_needs(tmp_path: Path):
    with (large := tmp_path / "large.bin").open("wb") as file:
        file.truncate(20 << 20)

    async def sent(upload_s: float) -> list[str]:
        board = Pinboard(bus := MessageBus())
        board.upload_s = upload_s
        async with running(board, bus, retry_delays_s=()):
            with suppress(DeliveryFailedError):
                await bus.post_outbound(OutboundMessage("pinboard", "1", "", media=[str(large)])).wait()
        return board.pinned

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        assert runner.run(sent(200.0)) == ["large.bin"]
        assert runner.run(sent(2000.0)) == []


# typing


def asked(number: int, **more: Any) -> InboundMessage:
    return InboundMessage("pinboard", "anna", "1", "hello", journal_key=str(number), **more)


def typed(story: Callable[[MessageBus], Awaitable[None]], *fails: Exception) -> list[int]:
    """How often typing was shown in the minute after the story, and in another one, by a clock that jumps."""
    failing = [*fails]

    def fail(_: int) -> None:
        if failing:
            raise failing.pop(0)

    async def run() -> list[int]:
        board = Pinboard(bus := MessageBus(), fail)
        async with running(board, bus):
            await board.status.connected.wait()
            await story(bus)
            await asyncio.sleep(60)
            shown = [board.typed]
            bus.settle(asked(2), InboundState.FAILED)
            await asyncio.sleep(60)
            return [*shown, board.typed - shown[0]]

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        return runner.run(run())


def test_typing_is_shown_for_the_turn_that_was_queued_and_ends_with_it():
    async def story(bus: MessageBus) -> None:
        bus.begin(first := asked(1), "t1")
        bus.begin(asked(2), "t2")
        bus.settle(first, InboundState.ANSWERED)

    during, after = typed(story)

    assert during > 10
    assert after == 0


@pytest.mark.parametrize("error", [BUSY, AWAY, RateLimitedError("slow", 9)])
def test_typing_goes_on_after_a_call_that_failed(error: SendError):
    async def story(bus: MessageBus) -> None:
        bus.begin(asked(2), "t1")

    assert typed(story, error)[0] > 10


@pytest.mark.parametrize("more", [{"origin": Origin.CRON}, {"quiet": True}])
def test_typing_is_not_shown_for_what_nobody_has_asked(more: dict[str, Any]):
    async def story(bus: MessageBus) -> None:
        bus.begin(asked(2, **more), "t1")

    assert typed(story) == [0, 0]
