"""The loop: messages find their lanes, turns are stopped, each message gets one reply."""

import asyncio
from pathlib import Path

from nanobot.agent.loop import MAX_IN_LANE
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot


def message(text: str, chat: str = "7", message_id: str | None = None) -> InboundMessage:
    return InboundMessage("phone", "ann", chat, text, message_id=message_id)


async def test_a_message_from_the_bus_gets_one_reply_at_its_own_address(bot: Bot):
    bot.provider.script("hi")
    async with bot.serving() as bus:
        await bus.publish_inbound(message("hello", message_id="m1"))
        reply = await bus.consume_outbound()

    assert reply is not None
    assert (reply.channel, reply.chat_id, reply.content, reply.kind) == ("phone", "7", "hi", OutboundKind.REPLY)
    assert reply.reply_to == "m1"
    assert bus.outbound_size == 0


async def test_the_turns_of_a_session_keep_their_order_and_sessions_run_side_by_side(bot: Bot):
    slow = Pause()
    bot.provider.script(slow, "to the other", "to the first", "to the second")

    first = asyncio.create_task(bot.run_turn(message("first")))
    await slow.reached.wait()
    second = asyncio.create_task(bot.run_turn(message("second")))
    other = await bot.run_turn(message("other", chat="8"))
    assert other.text == "to the other"
    assert not second.done()
    slow.resume.set()

    assert (await first).text == "to the first"
    assert (await second).text == "to the second"


async def test_stop_with_nothing_running_says_so(bot: Bot):
    assert await bot.say("/stop") == "Nothing is running."


async def test_a_caller_that_is_cancelled_leaves_a_session_that_works(bot: Bot):
    pause = Pause("Half an ")
    bot.provider.script(pause, "whole")
    turn = asyncio.create_task(bot.turn("go"))
    await pause.reached.wait()

    turn.cancel()
    await asyncio.wait([turn])
    reply = await bot.say("again")

    assert turn.cancelled()
    assert reply == "whole"
    assert "Half an" in str(bot.provider.requests[-1])


async def test_process_direct_returns_the_text(tmp_path: Path):
    provider = ScriptedProvider(calls(("list_dir", {"path": "."})), "done")
    heard: list[str] = []

    async with build_runtime(
        Config(), data_dir=tmp_path, workspace=tmp_path / "workspace", provider=provider, environ={}
    ) as runtime:
        text = await runtime.loop.process_direct("go", on_progress=heard.append)

    assert text == "done"
    assert any("list_dir" in line for line in heard)


async def test_jobs_never_take_the_places_that_people_have(tmp_path: Path):
    pauses = [Pause() for _ in range(3)]
    async with open_bot(
        tmp_path, *pauses, "hi", *["done"] * 5, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "4"}
    ) as bot:
        due = [InboundMessage("cli", "cron", str(number), "due", origin=Origin.CRON) for number in range(5)]
        jobs = [asyncio.create_task(bot.run_turn(message)) for message in due]
        for pause in pauses:
            await pause.reached.wait()

        reply = await bot.say("hello")

        for pause in pauses:
            pause.resume.set()
        await asyncio.gather(*jobs)

    assert reply == "hi"


async def test_more_messages_than_a_lane_holds_keep_their_order_and_hold_up_no_other_chat(tmp_path: Path):
    first, numbers = Pause(), [str(number) for number in range(2 * MAX_IN_LANE + 5)]
    config = Config.model_validate({"agents": {"defaults": {"steering": "queue"}}})
    async with open_bot(tmp_path, first, "elsewhere", "begun", *numbers, config=config) as bot, bot.serving() as bus:
        for text in ("first", *numbers):
            await bus.publish_inbound(message(text))
        await first.reached.wait()
        await bus.publish_inbound(message("hello", chat="8"))
        texts: list[str] = []
        while len(texts) < len(numbers) + 2:
            if (reply := await bus.consume_outbound()) and reply.kind is OutboundKind.REPLY:
                texts.append(reply.content)
            first.resume.set()

    assert texts == ["elsewhere", "begun", *numbers]
    asked = [str(request[-1]["content"]).partition("\n")[0] for request in bot.provider.requests]
    assert [text for text in asked if text in numbers] == numbers
