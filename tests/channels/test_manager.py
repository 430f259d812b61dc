"""What goes out arrives in its order, is tried again where that helps, and keeps nobody else waiting."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from nanobot.bus.events import DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import UNCONFIRMED_NOTE, BaseChannel
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.manager import ChannelManager
from nanobot.channels.status import ChannelState
from nanobot.channels.supervisor import ChannelSupervisor
from tests.support.eventually import eventually


class Wall(BaseChannel):
    """Everything that is sent is written on it. `fails` are raised first, one a try."""

    name = "wall"
    delta_interval_s = 0.05

    def __init__(self, bus: MessageBus, *fails: Exception, slow_chat: str = "") -> None:
        super().__init__({}, bus)
        self.fails = [*fails]
        self.slow_chat = slow_chat
        self.released = asyncio.Event()
        self.written: list[tuple[str, str]] = []
        self.shown: list[str] = []
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
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


def out(text: str, chat: str = "1", kind: OutboundKind = OutboundKind.REPLY) -> OutboundMessage:
    return OutboundMessage("wall", chat, text, kind=kind, turn_id="t")


@asynccontextmanager
async def running(wall: BaseChannel, bus: MessageBus, **settings: Any) -> AsyncIterator[ChannelManager]:
    manager = ChannelManager(
        [wall], bus, retry_delays_s=settings.pop("retry_delays_s", (0, 0, 0)), first_wait_s=0.01, **settings
    )
    task = asyncio.create_task(manager.run())
    try:
        yield manager
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_chat_gets_its_messages_in_order_and_the_receipt_tells_the_platforms_id():
    bus = MessageBus()
    wall = Wall(bus)
    async with running(wall, bus):
        receipts = [bus.post_outbound(out(str(number))) for number in range(5)]
        ids = [await asyncio.wait_for(receipt.wait(), 5) for receipt in receipts]

    assert wall.written == [("1", str(number)) for number in range(5)]
    assert ids == [("1",), ("2",), ("3",), ("4",), ("5",)]


async def test_a_chat_that_is_slow_keeps_nobody_else_waiting():
    bus = MessageBus()
    wall = Wall(bus, slow_chat="slow")
    async with running(wall, bus):
        slow = bus.post_outbound(out("a", "slow"))
        await asyncio.wait_for(bus.post_outbound(out("b", "quick")).wait(), 5)
        waited = not slow.settled
        wall.released.set()
        await asyncio.wait_for(slow.wait(), 5)

    assert waited
    assert wall.written == [("quick", "b"), ("slow", "a")]


@pytest.mark.parametrize(
    ("said", "is_kept"),
    [(0.0, 0.0), (2.5, 2.5), (-1.0, 5.0), (float("nan"), 5.0), (float("inf"), 3600.0), (31_536_000.0, 3600.0)],
)
def test_a_pause_is_a_time_one_can_wait(said, is_kept):
    assert RateLimitedError("slow down", said).retry_after_s == is_kept


@pytest.mark.parametrize(
    "error", [SendError("busy"), RateLimitedError("slow down", 0), NotConnectedError("gone"), OSError("reset")]
)
async def test_what_may_pass_is_tried_again(error, caplog):
    bus = MessageBus()
    wall = Wall(bus, error, error)
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("at last")).wait(), 5)

    assert wall.written == [("1", "at last")]


@pytest.mark.parametrize("error", [SendError, NotConnectedError])
async def test_message_that_may_have_arrived_is_tried_four_times_at_most(error: type[SendError]):
    wall = Wall(bus := MessageBus(), *[error("no answer", may_have_arrived=True) for _ in range(9)])
    async with running(wall, bus):
        receipt = bus.post_outbound(message := out("lost"))
        with pytest.raises(DeliveryFailedError, match="no answer"):
            await asyncio.wait_for(receipt.wait(), 5)

    assert len(wall.fails) == 5
    assert message.unconfirmed


async def test_message_that_was_not_confirmed_says_so_and_not_that_nanobot_was_interrupted():
    wall = Wall(bus := MessageBus(), SendError("no answer", may_have_arrived=True))
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("here")).wait(), 5)

    assert wall.written == [("1", "here" + UNCONFIRMED_NOTE)]


async def test_a_platform_that_says_later_often_but_not_for_long_gets_it_in_the_end():
    bus = MessageBus()
    wall = Wall(bus, *[RateLimitedError("slow down", 0)] * 15)
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("at last")).wait(), 5)

    assert wall.written == [("1", "at last")]


async def test_a_platform_that_says_later_for_too_long_has_said_no_and_the_next_message_goes_out():
    bus = MessageBus()
    wall = Wall(bus, *[RateLimitedError("slow down", 0)] * 11)
    dead: list[str] = []

    async def dead_letter(message: OutboundMessage, error: DeliveryFailedError) -> None:
        dead.append(f"{message.content}: {error}")

    async with running(wall, bus, dead_letter=dead_letter, max_throttled_s=0):
        lost = bus.post_outbound(out("lost"))
        await asyncio.wait_for(bus.post_outbound(out("next")).wait(), 5)
        with pytest.raises(DeliveryFailedError, match="slow down"):
            await lost.wait()

    assert dead == ["lost: The message to wall:1 was not delivered: slow down"]
    assert wall.written == [("1", "next")]


@pytest.mark.parametrize(
    ("errors", "tries"), [([SendError("busy")] * 9, 4), ([UndeliverableError("the bot was blocked")] * 9, 1)]
)
async def test_what_will_not_arrive_is_told_to_who_waits_and_to_the_owner(errors, tries):
    bus = MessageBus()
    wall = Wall(bus, *errors)
    dead: list[str] = []

    async def dead_letter(message: OutboundMessage, error: DeliveryFailedError) -> None:
        dead.append(f"{message.content}: {error}")

    async with running(wall, bus, dead_letter=dead_letter):
        with pytest.raises(DeliveryFailedError, match="not delivered"):
            await asyncio.wait_for(bus.post_outbound(out("lost")).wait(), 5)

    assert len(wall.fails) == 9 - tries
    assert wall.status.failed == 1
    assert len(dead) == 1
    assert str(errors[0]) in dead[0]


async def test_a_channel_that_ends_as_if_somebody_had_cancelled_it_is_started_again():
    bus = MessageBus()
    wall = Wall(bus)

    async def give_up() -> None:
        wall.starts += 1
        if wall.starts == 1:
            raise asyncio.CancelledError
        wall.mark_up()
        await asyncio.Event().wait()

    wall.start = give_up  # type: ignore[method-assign]
    async with running(wall, bus):
        await asyncio.wait_for(wall.status.connected.wait(), 5)

    assert wall.starts == 2


@pytest.mark.parametrize("odd", [SystemExit(3), BaseException("odd")])
async def test_a_channel_that_calls_for_the_end_of_the_process_is_started_again_and_ends_no_other(
    odd: BaseException,
):
    bus = MessageBus()

    class Script(Wall):
        name = "script"

        async def start(self) -> None:
            self.starts += 1
            if self.starts < 3:
                raise odd
            await super().start()

        async def send(self, message: OutboundMessage) -> tuple[str, ...]:
            raise odd

        async def stop(self) -> None:
            raise odd

    wall, script = Wall(bus), Script(bus)
    async with running(wall, bus) as manager:
        await manager.change("script", script)
        await asyncio.wait_for(script.status.connected.wait(), 5)
        lost = bus.post_outbound(OutboundMessage("script", "1", "x", turn_id="t"))
        with pytest.raises(DeliveryFailedError, match="it raised"):
            await asyncio.wait_for(lost.wait(), 5)
        await manager.change("script", None)
        await asyncio.wait_for(bus.post_outbound(out("still here")).wait(), 5)

    assert wall.written == [("1", "still here")]


async def test_a_message_to_a_channel_that_is_not_there_fails_at_once():
    bus = MessageBus()
    async with running(Wall(bus), bus):
        receipt = bus.post_outbound(OutboundMessage("fax", "1", "hello"))
        with pytest.raises(DeliveryFailedError, match="no channel 'fax'"):
            await asyncio.wait_for(receipt.wait(), 5)


async def test_pieces_of_an_answer_that_wait_are_shown_together_and_its_end_does_not_wait():
    bus = MessageBus()
    wall = Wall(bus)
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


async def test_a_message_waits_for_a_channel_that_is_out_of_reach_however_long():
    class Flaky(Wall):
        async def start(self) -> None:
            self.starts += 1
            if self.starts < 4:
                raise OSError("no route to host")
            await super().start()

    bus = MessageBus()
    wall = Flaky(bus)
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("patience")).wait(), 5)

    assert wall.written == [("1", "patience")]


async def test_a_platform_that_gives_no_sign_of_life_is_connected_to_anew():
    class Silent(Wall):
        stall_s = 0.05

    bus = MessageBus()
    wall = Silent(bus)
    async with running(wall, bus):
        await eventually(lambda: wall.starts >= 2)


async def test_a_channel_whose_stop_breaks_leaves_the_others_alone(caplog):
    class Sulking(Wall):
        name = "sulking"

        async def stop(self) -> None:
            raise ValueError("not like this")

    bus = MessageBus()
    wall = Wall(bus)
    async with running(wall, bus) as manager:
        await manager.change("sulking", Sulking(bus))
        await asyncio.wait_for(manager.statuses()["sulking"].connected.wait(), 5)
        await manager.change("sulking", None)
        await asyncio.wait_for(bus.post_outbound(out("still here")).wait(), 5)

    assert wall.written == [("1", "still here")]
    assert "sulking: stop failed" in caplog.text


async def test_a_channel_that_breaks_when_asked_whether_a_chat_can_be_reached_is_handed_the_message(caplog):
    class Lost(Wall):
        async def reachable(self, chat_id: str) -> None:
            raise KeyError(chat_id)

    bus = MessageBus()
    wall = Lost(bus)
    async with running(wall, bus):
        await asyncio.wait_for(bus.post_outbound(out("here all the same")).wait(), 5)

    assert wall.written == [("1", "here all the same")]
    assert "wall: checking whether a chat is reachable failed" in caplog.text


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


async def test_a_channel_its_owner_has_to_mend_is_red_and_said_once(caplog):
    class Locked(Wall):
        async def start(self) -> None:
            raise ChannelSetupError("The token is not good any more. Ask for a new one.")

    bus = MessageBus()
    wall = Locked(bus)
    async with running(wall, bus):
        await eventually(lambda: wall.status.state is ChannelState.FAILED)

    assert "not good any more" in wall.status.last_error
    assert len([record for record in caplog.records if "not good any more" in record.message]) == 1


async def test_what_nobody_understands_is_named_as_what_it_is():
    wall = Wall(bus := MessageBus(), *[KeyError("date") for _ in range(4)])
    async with running(wall, bus):
        receipt = await bus.publish_outbound(out("hello"))

        with pytest.raises(DeliveryFailedError, match="not delivered: KeyError: 'date'"):
            await receipt.wait()
