"""What is put on the bus is taken once, in order; a closed bus is drained first, and every taker hears of its end."""

import asyncio
from pathlib import Path

import pytest

from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus


def inbound(text: str) -> InboundMessage:
    return InboundMessage("cli", "owner", "direct", text)


def outbound(text: str) -> OutboundMessage:
    return OutboundMessage("cli", "direct", text)


async def test_messages_come_out_once_and_in_order_also_after_a_taker_was_cancelled():
    bus = MessageBus()
    taker = asyncio.create_task(bus.consume_inbound())
    await asyncio.sleep(0)
    taker.cancel()
    for text in ("a", "b", "c"):
        await bus.publish_inbound(inbound(text))

    assert bus.inbound_size == 3
    taken = [await bus.consume_inbound() for _ in range(3)]

    assert [message.content for message in taken if message] == ["a", "b", "c"]
    assert (bus.inbound_size, bus.outbound_size) == (0, 0)


async def test_odd_message_of_a_plugin_stops_no_other(tmp_path: Path):
    odd = outbound("odd")
    odd.kind = "reply"  # type: ignore[assignment]
    async with open_journal(tmp_path / "journal.db") as journal, MessageBus(journal).open() as bus:
        for message in (outbound("before"), odd, outbound("behind")):
            bus.post_outbound(message)
        out = [await bus.consume_outbound() for _ in range(3)]
        kept = await journal.load_unsent()

    assert [message and message.content for message in out] == ["before", "odd", "behind"]
    assert [message.content for message in kept] == ["before", "odd", "behind"]


async def test_a_closed_bus_is_drained_and_then_tells_every_taker():
    bus = MessageBus()
    await bus.publish_outbound(outbound("last words"))
    bus.close()

    message = await bus.consume_outbound()
    ends = await asyncio.gather(*(bus.consume_outbound() for _ in range(3)), bus.consume_inbound())

    assert message is not None
    assert message.content == "last words"
    assert ends == [None] * 4
    assert (bus.inbound_size, bus.outbound_size) == (0, 0)
    with pytest.raises(RuntimeError, match="closed"):
        await bus.publish_inbound(inbound("too late"))


async def test_the_receipt_tells_under_which_ids_a_message_arrived():
    bus = MessageBus()
    receipt = await bus.publish_outbound(outbound("hello"))
    message = await bus.consume_outbound()
    assert message is not None
    assert message.receipt is receipt
    assert not receipt.settled

    receipt.settle(("7", "8"))
    receipt.fail(OSError("later words do not count"))

    assert await receipt.wait() == ("7", "8")


async def test_the_receipt_of_a_message_that_will_not_arrive_raises_why():
    receipt = MessageBus().post_outbound(outbound("hello"))

    receipt.fail(ConnectionResetError("the platform hung up"))

    with pytest.raises(ConnectionResetError, match="hung up"):
        await receipt.wait()


def test_a_message_knows_its_session_and_where_the_answer_goes():
    message = InboundMessage("telegram", "7", "42", "hi", thread_id="3")
    override = InboundMessage("telegram", "7", "42", "hi", session_key_override="work")

    assert (message.session_key, override.session_key) == ("telegram:42", "work")
    assert (message.address.channel, message.address.chat_id, message.address.thread_id) == ("telegram", "42", "3")
