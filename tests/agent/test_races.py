"""Things that happen at the same moment: each message has one visible outcome, and nobody is cancelled by another."""

import asyncio
from pathlib import Path
from typing import Any

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.messages.types import ChatMessage
from nanobot.session.checkpoint import Checkpoint
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, Pause, RecordingSink, calls, open_bot
from tests.support.bus_messages import message, take
from tests.support.tools import DeafTool

KEY = "phone:7"


async def test_what_a_person_stops_while_nanobot_ends_is_not_taken_up_again(bot: Bot, deaf: DeafTool, tmp_path: Path):
    bot.register(deaf)
    bot.provider.script(calls(("deaf", {})))
    turn = asyncio.create_task(bot.turn("go"))
    await deaf.running.wait()
    stop = asyncio.create_task(bot.stop("cli:direct"))
    await asyncio.sleep(0.05)

    await bot.shut_down()

    assert await stop
    assert (await turn).outcome is TurnOutcome.STOPPED
    assert not [*(tmp_path / "state" / "turns").glob("*")]
    deaf.over.set()


async def test_a_message_at_the_gate_is_told_to_come_back_when_nanobot_ends(tmp_path: Path):
    pause = Pause()
    async with open_bot(tmp_path, pause, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "1"}) as bot:
        async with bot.serving() as bus:
            await bus.publish_inbound(message("one", "1"))
            await pause.reached.wait()
            await bus.publish_inbound(message("two", "2"))
            await asyncio.sleep(0.05)
        replies = {}
        while bus.outbound_size:
            out = await bus.consume_outbound()
            assert out is not None
            replies[out.chat_id] = out.content

    assert "goes on at the next start" in replies["1"]
    assert "send the message again" in replies["2"]


async def test_a_session_that_cannot_be_read_does_not_end_the_service(bot: Bot, tmp_path: Path):
    (tmp_path / "workspace" / "sessions" / "phone_1.jsonl").mkdir(parents=True)
    bot.provider.script("fine")
    async with bot.serving() as bus:
        await bus.publish_inbound(message("/status", "1"))
        told = await take(bus, OutboundKind.REPLY)
        await bus.publish_inbound(message("hello", "2"))
        reply = await asyncio.wait_for(take(bus, OutboundKind.REPLY), 5)

    assert "cannot be read" in told.content
    assert reply.content == "fine"


async def test_a_service_that_is_stopped_before_it_began_ends(bot: Bot):
    async with asyncio.timeout(2), bot.serving():
        pass


async def test_whose_message_joined_a_turn_that_its_caller_gave_up_is_told(bot: Bot):
    pause, again = Pause(), Pause()
    bot.provider.script(pause, calls(("list_dir", {"path": "."})), again)
    turn = asyncio.create_task(bot.run_turn(message("one")))
    await pause.reached.wait()
    joined = asyncio.create_task(bot.send(message("two")))
    await asyncio.sleep(0)
    pause.resume.set()
    await again.reached.wait()

    turn.cancel()
    result = await joined

    assert result.outcome is TurnOutcome.STOPPED
    assert "Send the message again" in result.text


def accepted(home: Path, text: str, key: str = KEY) -> None:
    checkpoint = Checkpoint(home / "state" / "turns", key)
    checkpoint.accept("t1", InboundMessage("phone", "ann", "7", text).to_json())
    checkpoint.close()


async def test_an_answer_nobody_was_given_is_given_with_the_next_message(tmp_path: Path):
    accepted(tmp_path, "do it")
    rows: list[ChatMessage] = [
        {"role": "user", "content": "do it", "turn_id": "t1"},
        {"role": "assistant", "content": "It is done.", "turn_id": "t1"},
    ]
    manager = SessionManager(tmp_path / "workspace")
    await manager.append(manager.get_or_create(KEY), *rows)
    sink = RecordingSink()
    async with open_bot(tmp_path, "yes") as bot:
        result = await bot.run_turn(message("and?"), sink)

    told: Any = sink.events[0]
    assert "It is done." in told.text
    assert result.text == "yes"


async def test_text_that_is_a_row_already_is_not_said_twice(tmp_path: Path):
    """The kill came between the row of a step and the word that it is kept."""
    asked: Any = [{"id": "c1", "type": "function", "function": {"name": "list_dir", "arguments": '{"path": "."}'}}]
    rows: list[ChatMessage] = [
        {"role": "user", "content": "do it", "turn_id": "t1"},
        {"role": "assistant", "content": "I look.", "tool_calls": asked, "turn_id": "t1"},
    ]
    manager = SessionManager(tmp_path / "workspace")
    session = manager.get_or_create(KEY)
    await manager.append(session, rows[0])
    checkpoint = Checkpoint(tmp_path / "state" / "turns", KEY, every_s=0)
    checkpoint.accept("t1", InboundMessage("phone", "ann", "7", "do it").to_json())
    checkpoint.set_message_count(1)
    checkpoint.partial("I look.")
    await manager.append(session, rows[1])
    checkpoint.close()
    async with open_bot(tmp_path, "done") as bot:
        result = await bot.resume(KEY)
        request = bot.provider.requests[0]

    assert result is not None
    assert result.text == "done"
    assert str(request).count("I look.") == 1
    assert [row["role"] for row in request[:4]] == ["system", "user", "assistant", "tool"]
