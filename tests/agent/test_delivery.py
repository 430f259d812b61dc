"""Turn events become messages to the turn's own address: the reply once, the rest as the policy lets through."""

from collections.abc import Sequence

import pytest

from nanobot.agent import events
from nanobot.agent.delivery import Delivery, DeliveryPolicy, tool_hint
from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.bus.queue import MessageBus

TURN: list[events.TurnEvent] = [
    events.ReasoningEnded(text="hm"),
    events.TextDelta(text="Let me "),
    events.TextEnded(text="Let me look.", final=False),
    events.ToolStarted(call_id="1", name="list_dir", arguments={"path": "."}),
    events.Notice(text="tried again"),
    events.TextEnded(text="Two files.", final=True),
    events.TurnEnded(outcome=events.TurnOutcome.ANSWERED, text="Two files."),
]


async def delivered(policy: DeliveryPolicy, turn: Sequence[events.TurnEvent] = tuple(TURN)) -> list[OutboundMessage]:
    bus = MessageBus()
    deliver = Delivery(bus, InboundMessage("telegram", "ann", "42", "hi", message_id="m1", thread_id="3"), policy)
    for event in turn:
        deliver(event)
    bus.close()
    return [message async for message in _drained(bus)]


async def _drained(bus: MessageBus):
    while (message := await bus.consume_outbound()) is not None:
        yield message


@pytest.mark.parametrize(
    ("policy", "kinds"),
    [
        (DeliveryPolicy(), ["progress", "notice", "reply"]),
        (DeliveryPolicy(progress=False), ["notice", "reply"]),
        (DeliveryPolicy(progress=False, tool_hints=True), ["tool_hint", "notice", "reply"]),
        (DeliveryPolicy(progress=False, reasoning=True), ["reasoning", "notice", "reply"]),
        (DeliveryPolicy(streaming=True), ["stream_delta", "stream_end", "notice", "stream_end", "reply"]),
    ],
)
async def test_the_policy_says_what_goes_out_beside_the_reply(policy, kinds):
    assert [message.kind for message in await delivered(policy)] == kinds


@pytest.mark.parametrize(
    ("reply", "told"), [("One, two", ["One, two"]), ("The model broke.", ["One, two", "The model broke."])]
)
async def test_an_answer_that_was_broken_off_is_read_once(reply, told):
    turn = [
        events.TextEnded(text="One, two", final=False),
        events.StepEnded(step=1, finish_reason="interrupted", usage={}),
        events.TurnEnded(outcome=events.TurnOutcome.STOPPED, text=reply),
    ]

    assert [message.content for message in await delivered(DeliveryPolicy(), turn)] == told


async def test_all_of_it_goes_to_the_address_of_the_turn_and_only_the_reply_quotes_the_message():
    messages = await delivered(DeliveryPolicy())

    assert {(message.channel, message.chat_id, message.thread_id) for message in messages} == {("telegram", "42", "3")}
    assert [message.reply_to for message in messages] == [None, None, "m1"]
    assert messages[-1].content == "Two files."


def test_a_call_in_a_few_words():
    assert tool_hint("exec", {"command": "ls\n  -la"}) == "exec ls -la"
    assert tool_hint("list_tools", {}) == "list_tools"
    assert len(tool_hint("exec", {"command": "x" * 500})) < 70
