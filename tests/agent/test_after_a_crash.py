"""What the loop makes of messages that were accepted before a crash: the session says what became of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.engine.transcript import CONTINUE_INTERRUPTED
from nanobot.agent.events import TurnOutcome
from nanobot.agent.loop import MAX_IN_LANE
from nanobot.bus.events import InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.bus.queue import MessageBus
from nanobot.messages.types import INTERRUPTED, Origin
from nanobot.providers.errors import AuthenticationError
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, Line, Pause, open_bot


async def accepted(home: Path, *messages: InboundMessage) -> None:
    """A life that accepted these and did no more."""
    async with open_journal(home / "journal.db") as journal:
        for message in messages:
            await journal.receive(message)


def told(home: Path, session_key: str, *rows: tuple[str, str, dict[str, Any]]) -> None:
    """What a life left in a session: role, words, and what else the row has."""
    manager = SessionManager(home / "workspace")
    session = manager.get_or_create(session_key)
    for role, words, more in rows:
        session.add_message(role, words, **more)
    manager.save(session)


@asynccontextmanager
async def next_life(home: Path, *lines: Line) -> AsyncIterator[tuple[Bot, MessageBus]]:
    async with (
        open_journal(home / "journal.db") as journal,
        MessageBus(journal).open() as bus,
        open_bot(home, *lines, bus=bus) as bot,
        bot.serving(),
    ):
        yield bot, bus


async def reply(bus: MessageBus) -> OutboundMessage:
    """The next reply that goes out."""
    async with asyncio.timeout(5):
        while (message := await bus.consume_outbound()) is not None:
            if message.kind is OutboundKind.REPLY:
                return message
    raise AssertionError("the bus was closed")


def asked(words: str, number: str, channel: str = "phone", chat: str = "7") -> InboundMessage:
    return InboundMessage(channel, "ann", chat, words, message_id=number)


async def test_an_answer_that_was_not_sent_goes_where_its_message_wanted_it(tmp_path: Path):
    await accepted(tmp_path, asked("how is it?", "1", "system", "phone:7"))
    key = {"turn_id": "t1", "inbound": "system:phone:7:1"}
    told(tmp_path, "phone:7", ("user", "how is it?", key), ("assistant", "fine", {"turn_id": "t1"}))

    async with next_life(tmp_path) as (_, bus):
        said = await reply(bus)

    assert (said.channel, said.chat_id, said.content, said.turn_id) == ("phone", "7", "fine", "t1")


async def test_why_there_is_no_answer_is_said_though_a_crash_came_before_it_was(tmp_path: Path):
    await accepted(tmp_path, asked("how is it?", "1"))
    before = (tmp_path / "journal.db").read_bytes()
    async with next_life(tmp_path, AuthenticationError("The key is wrong. Set providers.openai.apiKey.")) as (_, bus):
        first = await reply(bus)
    (tmp_path / "journal.db").write_bytes(before)  # as if the crash had come before the reply was written down

    async with next_life(tmp_path) as (_, bus):
        second = await reply(bus)

    assert "The key is wrong." in first.content
    assert second.content == first.content


async def test_an_answer_that_was_broken_off_twice_is_given_whole(tmp_path: Path):
    await accepted(tmp_path, asked("how is it?", "1"))
    for said in ("All is ", ""):
        pause = Pause(said)
        async with next_life(tmp_path, pause):
            await pause.reached.wait()

    async with next_life(tmp_path, "well.") as (_, bus):
        answer = await reply(bus)

    assert answer.content == "All is well."


@pytest.mark.parametrize("parts", [("All is ", "well."), ("All is well.", "")])
async def test_an_answer_in_parts_that_was_not_sent_is_sent_whole(tmp_path: Path, parts: tuple[str, str]):
    await accepted(tmp_path, asked("how is it?", "1"))
    mine = {"turn_id": "t1"}
    rows: list[tuple[str, str, dict[str, Any]]] = [("user", "how is it?", mine | {"inbound": "phone:7:1"})]
    rows += [("assistant", parts[0], mine | {"error": INTERRUPTED})]
    rows += [("user", CONTINUE_INTERRUPTED, mine | {"origin": Origin.SYSTEM})]
    rows += [("assistant", parts[1], mine)] if parts[1] else []  # who has nothing to add leaves no row
    told(tmp_path, "phone:7", *rows)

    async with next_life(tmp_path) as (_, bus):
        answer = await reply(bus)

    assert answer.content == "All is well."


async def test_a_message_that_began_a_very_long_turn_is_not_asked_again(tmp_path: Path):
    await accepted(tmp_path, asked("count", "1"), asked("faster", "2"))
    rows: list[tuple[str, str, dict[str, Any]]] = [("user", "count", {"turn_id": "t1", "inbound": "phone:7:1"})]
    rows += [("user", "faster", {"turn_id": "t1", "inbound": "phone:7:2"})]
    rows += [(role, f"{number}", {"turn_id": "t1"}) for number in range(400) for role in ("user", "assistant")]
    told(tmp_path, "phone:7", *rows)

    async with next_life(tmp_path) as (_, bus):
        said = await reply(bus)
        await bus.flush()
        assert bus.journal is not None
        counts = await bus.journal.counts()

    assert said.content == "399"
    assert (counts.queued, counts.waiting_out) == (0, 1)


async def test_a_command_is_in_the_journal_before_what_follows_it_begins(tmp_path: Path):
    await accepted(tmp_path, asked("/new", "1"), asked("hello", "2"))
    async with next_life(tmp_path, "hi") as (_, bus):
        first, second = await reply(bus), await reply(bus)

    async with open_journal(tmp_path / "journal.db") as journal:
        left, unsent = await journal.load_unsettled(), await journal.load_unsent()

    assert (first.content, second.content) == ("This session is already new.", "hi")
    assert not left
    assert [one.answers for one in unsent] == ["phone:7:1", "phone:7:2"]


async def test_a_stop_from_before_a_crash_leaves_a_younger_turn_alone(tmp_path: Path):
    await accepted(tmp_path, asked("/stop", "1"))
    pause = Pause()
    younger = InboundMessage.from_owner("cli", "direct", "write", session_key="phone:7", origin=Origin.CLI)
    async with next_life(tmp_path, pause, "written") as (bot, bus):  # its loop has not begun yet
        turn = asyncio.create_task(bot.run_turn(younger))
        said = await reply(bus)
        pause.resume.set()
        result = await turn

    assert said.content == "Nothing is running."
    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "written")


async def test_a_stop_from_before_a_crash_does_not_wait_behind_what_it_stops(tmp_path: Path):
    crowd = [asked(f"word {number}", f"{number}") for number in range(MAX_IN_LANE + 1)]
    await accepted(tmp_path, *crowd, asked("/stop", "stop"))
    async with next_life(tmp_path, Pause(), *["fine"] * MAX_IN_LANE) as (_, bus):
        said = await reply(bus)

    assert (said.answers, said.content) == ("phone:7:stop", "Stopped.")
