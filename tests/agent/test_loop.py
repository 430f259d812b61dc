"""The loop: messages find their lanes, turns are stopped, each message gets one reply."""

import asyncio
import gc
from pathlib import Path

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.agent.loop import MAX_IN_LANE
from nanobot.agent.pipeline.turn import Turn
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot
from tests.support.eventually import eventually


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


async def test_stop_ends_the_turn_at_once_and_keeps_what_was_said(bot: Bot):
    pause = Pause("So far so good, ")
    bot.provider.script(pause)
    turn = asyncio.create_task(bot.turn("go"))
    await pause.reached.wait()

    answer = await bot.say("/stop")
    result = await turn

    assert answer == "Stopped."
    assert result.outcome is TurnOutcome.STOPPED
    assert result.text == "So far so good,".strip() or result.text.startswith("So far so good")
    bot.provider.script("next")
    assert await bot.say("and now?") == "next"


@pytest.mark.needs_sandbox
async def test_stop_kills_the_tool_that_runs(bot: Bot):
    bot.provider.script(calls(("exec", {"command": "sleep 30"})))
    turn = asyncio.create_task(bot.turn("go"))
    await eventually(lambda: "tool_started" in bot.sink.types)

    async with asyncio.timeout(3):
        await bot.say("/stop")
        result = await turn

    assert result.outcome is TurnOutcome.STOPPED


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


async def test_stopping_the_loop_tells_those_who_wait(bot: Bot):
    pause = Pause()
    bot.provider.script(pause)
    running = asyncio.create_task(bot.run_turn(message("one")))
    await pause.reached.wait()
    waiting = asyncio.create_task(bot.run_turn(message("two")))
    await asyncio.sleep(0)

    await bot.shut_down()

    assert (await running).outcome is TurnOutcome.STOPPED
    assert (await waiting).outcome is TurnOutcome.STOPPED


async def test_process_direct_returns_the_text(tmp_path: Path):
    provider = ScriptedProvider(calls(("list_dir", {"path": "."})), "done")
    heard: list[str] = []

    async with build_runtime(
        Config(), data_dir=tmp_path, workspace=tmp_path / "workspace", provider=provider, environ={}
    ) as runtime:
        text = await runtime.loop.process_direct("go", on_progress=heard.append)

    assert text == "done"
    assert any("list_dir" in line for line in heard)


async def test_a_turn_that_is_over_is_no_garbage_in_a_cycle(bot: Bot):
    """Else each full collection would look at every turn of the last minutes, and all others would wait for it."""
    bot.provider.script(*["fine"] * 3)
    await bot.say("warm up")
    await asyncio.sleep(0.05)
    gc.collect()
    gc.disable()
    try:
        await bot.say("over at once")
        left = [one for one in gc.get_objects() if isinstance(one, Turn) and one.message.content == "over at once"]
    finally:
        gc.enable()

    assert not left


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
