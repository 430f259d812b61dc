"""Messages that come while their session works: they join at a tool boundary, or are the next turn; none is lost."""

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from nanobot.agent.events import Notice, NoticeKind, TurnEnded, TurnOutcome, TurnResult
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.testing import Bot, Line, Pause, RecordingSink, calls, open_bot
from tests.support.bus_messages import message, take

LOOK = calls(("list_dir", {"path": "."}))


def asked(bot: Bot, request: int = -1) -> list[str]:
    """What the person says in a request, without the contexts beside it."""
    said = "\n".join(str(row["content"]) for row in bot.provider.requests[request] if row["role"] == "user")
    return [line for line in re.sub(r"(?s)\[Runtime Context.*?/Runtime Context\]", "", said).splitlines() if line]


async def test_a_message_joins_at_the_next_tool_boundary_and_both_get_one_reply(bot: Bot):
    pause = Pause()
    bot.provider.script(pause, LOOK, "done, in French")
    async with bot.serving() as bus:
        await bus.publish_inbound(message("list the files"))
        await pause.reached.wait()
        await bus.publish_inbound(message("in French please"))
        receipt = await take(bus, OutboundKind.RECEIPT)
        pause.resume.set()

        reply = await take(bus, OutboundKind.REPLY)

    assert "Noted" in receipt.content
    assert reply.content == "done, in French"
    assert bus.outbound_size == 0
    assert len(bot.provider.requests) == 2
    assert asked(bot) == ["list the files", "in French please"]
    assert [row["role"] for row in bot.provider.requests[-1]] == ["system", "user", "assistant", "tool", "user"]


async def meanwhile(bot: Bot, *others: InboundMessage | str, script: Sequence[Line]) -> list[TurnResult]:
    """The results of a message and of others that came while its model was asked; then the model says the script."""
    pause = Pause()
    bot.provider.script(pause, *script)
    sent = [asyncio.create_task(bot.send(message("one")))]
    await pause.reached.wait()
    for other in others:
        sent.append(asyncio.create_task(bot.send(message(other) if isinstance(other, str) else other)))
        await asyncio.sleep(0)
    pause.resume.set()
    return await asyncio.gather(*sent)


async def test_three_join_a_turn_and_the_rest_are_turns_of_their_own_in_order(bot: Bot):
    script = (LOOK, LOOK, "to one to four", "to five", "to six")
    results = await meanwhile(bot, "two", "three", "four", "five", "six", script=script)

    assert [result.text for result in results] == ["to one to four"] * 4 + ["to five", "to six"]
    assert asked(bot, 1) == ["one", "two", "three", "four"]
    assert asked(bot)[-1] == "six"


@pytest.mark.parametrize(
    ("steering", "script"),
    [("join", ["to one", "to two"]), ("queue", [LOOK, "to one", "to two"])],
    ids=["no tool boundary", "agents.defaults.steering is queue"],
)
async def test_what_cannot_join_is_the_next_turn(tmp_path: Path, steering: str, script: list[Line]):
    config = Config.model_validate({"agents": {"defaults": {"steering": steering}}})
    async with open_bot(tmp_path, config=config) as bot:
        assert [one.text for one in await meanwhile(bot, "two", script=script)] == ["to one", "to two"]


async def test_stopping_the_turn_loses_nothing_that_waits(bot: Bot):
    pause = Pause()
    bot.provider.script(pause)
    first = asyncio.create_task(bot.send(message("one")))
    await pause.reached.wait()
    waiting = [asyncio.create_task(bot.send(message(text))) for text in ("two", "three")]
    await asyncio.sleep(0)
    bot.provider.script("to two", "to three")

    answer = await bot.run_turn(message("/stop"))

    assert answer.text == "Stopped."
    assert (await first).outcome is TurnOutcome.STOPPED
    assert [(await one).text for one in waiting] == ["to two", "to three"]


@pytest.mark.parametrize(
    "other",
    [
        message("/help"),
        message("report", origin=Origin.SUBAGENT),
        message("tick", origin=Origin.CRON),
        InboundMessage("phone", "ann", "8", "elsewhere", session_key_override="phone:7"),
        InboundMessage("radio", "ann", "7", "elsewhere", session_key_override="phone:7"),
        InboundMessage("phone", "ann", "7", "elsewhere", thread_id="3"),
    ],
    ids=["a command", "a subagent's report", "a job", "another chat", "another channel", "another thread"],
)
async def test_what_is_no_word_of_the_same_chat_never_joins(bot: Bot, other: InboundMessage):
    first, second = await meanwhile(bot, other, script=(LOOK, "to one", "to the other"))

    assert first.text == "to one" and "to one" not in second.text
    assert asked(bot, 1) == ["one"]


@pytest.mark.parametrize("origin", [Origin.SUBAGENT, Origin.CRON])
async def test_a_message_behind_a_report_or_a_job_still_joins_the_turn(bot: Bot, origin: Origin):
    others = (message("prices are in", origin=origin), "in French please")
    results = await meanwhile(bot, *others, script=(LOOK, "to both", "to the other"))

    assert [one.text for one in results] == ["to both", "to the other", "to both"]
    assert asked(bot, 1) == ["one", "in French please"]


async def test_what_is_said_behind_a_command_comes_after_it(bot: Bot):
    first, command, second = await meanwhile(bot, "/history", "two", script=(LOOK, "to one", "to two"))

    assert "to one" in command.text
    assert (first.text, second.text) == ("to one", "to two")


async def test_who_asks_gets_an_answer_of_their_own(bot: Bot):
    pause = Pause()
    bot.provider.script(pause, LOOK, "to the first", "to the second")
    first = asyncio.create_task(bot.run_turn(message("first")))
    await pause.reached.wait()
    second = asyncio.create_task(bot.run_turn(message("second")))
    await asyncio.sleep(0)
    pause.resume.set()

    assert [(await first).text, (await second).text] == ["to the first", "to the second"]


async def test_a_message_that_joined_ends_as_the_turn_does_without_a_second_reply(bot: Bot):
    pause, sink = Pause(), RecordingSink()
    bot.provider.script(pause, LOOK, "done")
    first = asyncio.create_task(bot.send(message("one")))
    await pause.reached.wait()
    joined = InboundMessage("phone", "bob", "7", "two")
    second = asyncio.create_task(bot.send(joined, sink))
    await asyncio.sleep(0)
    pause.resume.set()
    await asyncio.gather(first, second)
    rows = [row for row in bot.session("phone:7").messages if row["role"] == "user"]

    receipt, ended = sink.events
    assert isinstance(receipt, Notice) and receipt.kind is NoticeKind.RECEIPT
    assert isinstance(ended, TurnEnded) and (ended.outcome, ended.text) == (TurnOutcome.ANSWERED, "")
    assert [row["sender_id"] for row in rows] == ["ann", "bob"]
    assert len({row["turn_id"] for row in rows}) == 1
