"""A message that goes out in several parts: a second try goes on where the first ended, whatever changed meanwhile."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import Address, DeliveryFailedError, InboundMessage, OutboundMessage
from nanobot.bus.journal import InboundState
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import UNCONFIRMED_NOTE
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import NotConnectedError, RateLimitedError, SendError
from nanobot.channels.manager import ChannelManager
from nanobot.channels.outgoing import Outgoing
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import PLAIN
from nanobot.messages.types import Origin
from tests.support.clock import WarpLoop


class Pinboard(ChatChannel):
    """Everything that is posted is pinned to it. `before` is called before each part, and may raise."""

    name = "pinboard"
    dialect = replace(PLAIN, limit=100)

    def __init__(self, bus: MessageBus, before: Callable[[int], None] = lambda part: None) -> None:
        super().__init__({}, bus)
        self.before = before
        self.pinned: list[str] = []
        self.tries = 0
        self.typed: list[str] = []
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
        self.typed.append(to.chat_id)
        self.before(0)

    def _pin(self, text: str) -> str:
        self.tries += 1
        self.before(self.tries)
        self.pinned.append(text)
        return str(len(self.pinned))


def message(text: str, *files: Path) -> OutboundMessage:
    return OutboundMessage("pinboard", "1", text, media=[str(one) for one in files])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("one.txt", "two.txt")]
    for path in found:
        path.write_text("x")
    return found


async def test_second_try_sends_the_parts_of_the_first_also_where_a_file_has_gone(files: list[Path]):
    def fail_at_the_second_file(part: int) -> None:
        if part == 3:
            files[0].unlink()
            raise SendError("busy")

    board = Pinboard(MessageBus(), fail_at_the_second_file)
    sending = message("look", *files)
    with pytest.raises(SendError):
        await board.send(sending)
    ids = await board.send(sending)

    assert board.pinned == ["look", "one.txt", "two.txt"]
    assert ids == ("1", "2", "3")


async def test_file_that_has_gone_between_two_tries_is_named_in_its_place(files: list[Path]):
    def fail_at_the_first_file(part: int) -> None:
        if part == 2:
            files[0].unlink()
            raise SendError("busy")

    board = Pinboard(MessageBus(), fail_at_the_first_file)
    sending = message("look", *files)
    with pytest.raises(SendError):
        await board.send(sending)
    await board.send(sending)

    first, told, last = board.pinned
    assert (first, last) == ("look", "two.txt")
    assert str(files[0])[:30] in told


async def test_note_about_a_repeat_does_not_shift_the_parts():
    words = " ".join(f"w{number}" for number in range(48))

    def fail_at_the_second_piece(part: int) -> None:
        if part == 2:
            raise SendError("no answer", may_have_arrived=True)

    board = Pinboard(MessageBus(), fail_at_the_second_piece)
    sending = message(words)
    with pytest.raises(SendError):
        await board.send(sending)
    sending.may_repeat = sending.unconfirmed = True
    await board.send(sending)

    assert " ".join(board.pinned).split() == [*words.split(), *UNCONFIRMED_NOTE.split()]


async def test_note_about_a_repeat_comes_with_the_file_where_the_words_are_there_already(files: list[Path]):
    def fail_at_the_first_file(part: int) -> None:
        if part == 2:
            raise SendError("no answer", may_have_arrived=True)

    board = Pinboard(MessageBus(), fail_at_the_first_file)
    sending = message("look", *files)
    with pytest.raises(SendError):
        await board.send(sending)
    sending.may_repeat = sending.unconfirmed = True
    await board.send(sending)

    assert board.pinned == ["look", UNCONFIRMED_NOTE.strip(), "one.txt", "two.txt"]


def test_upload_may_take_as_long_as_its_size_needs(tmp_path: Path):
    with (large := tmp_path / "large.bin").open("wb") as file:
        file.truncate(20 << 20)

    async def sent(upload_s: float) -> list[str]:
        board = Pinboard(bus := MessageBus())
        board.upload_s = upload_s
        running = asyncio.create_task(ChannelManager([board], bus, retry_delays_s=()).run())
        receipt = bus.post_outbound(message("", large))
        with suppress(DeliveryFailedError):
            await receipt.wait()
        running.cancel()
        await asyncio.wait([running])
        return board.pinned

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        assert runner.run(sent(200.0)) == ["large.bin"]
        assert runner.run(sent(2000.0)) == []


class Chat:
    """Turns of one chat, as the loop tells the bus of them, by the clock of a loop that jumps."""

    def __init__(self, board: Pinboard, bus: MessageBus) -> None:
        self.board, self.bus = board, bus

    def asked(self, number: int, **more: Any) -> InboundMessage:
        return InboundMessage("pinboard", "anna", "1", "hello", journal_key=str(number), **more)

    async def typed(self, seconds: float) -> int:
        """How often typing was shown in the next seconds."""
        before = len(self.board.typed)
        await asyncio.sleep(seconds)
        return len(self.board.typed) - before


def in_a_chat(story: Callable[[Chat], Awaitable[None]], *fails: Exception) -> None:
    failing = [*fails]

    def fail(_: int) -> None:
        if failing:
            raise failing.pop(0)

    async def run() -> None:
        board = Pinboard(bus := MessageBus(), fail)
        running = asyncio.create_task(ChannelManager([board], bus).run())
        await board.status.connected.wait()
        await story(Chat(board, bus))
        running.cancel()
        await asyncio.wait([running])

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(run())


def test_typing_begins_with_the_turn_and_ends_with_it_also_without_a_reply():
    async def story(chat: Chat) -> None:
        before = await chat.typed(60)
        chat.bus.begin(message := chat.asked(1), "t1")
        during = await chat.typed(200)
        chat.bus.settle(message, InboundState.ANSWERED)

        assert before == 0
        assert during > 40
        assert await chat.typed(60) == 0

    in_a_chat(story)


def test_typing_is_shown_for_the_turn_that_was_queued():
    async def story(chat: Chat) -> None:
        first, second = chat.asked(1), chat.asked(2)
        chat.bus.begin(first, "t1")
        chat.bus.begin(second, "t2")
        chat.bus.settle(first, InboundState.ANSWERED)
        during = await chat.typed(60)
        chat.bus.settle(second, InboundState.FAILED)

        assert during > 10
        assert await chat.typed(60) == 0

    in_a_chat(story)


@pytest.mark.parametrize("error", [SendError("busy"), NotConnectedError("away"), RateLimitedError("slow", 9)])
def test_typing_goes_on_after_a_call_that_failed(error: SendError):
    async def story(chat: Chat) -> None:
        chat.bus.begin(chat.asked(1), "t1")

        assert await chat.typed(60) > 10

    in_a_chat(story, error)


@pytest.mark.parametrize("more", [{"origin": Origin.CRON}, {"quiet": True}])
def test_typing_is_not_shown_for_what_nobody_has_asked(more: dict[str, Any]):
    async def story(chat: Chat) -> None:
        chat.bus.begin(chat.asked(1, **more), "t1")

        assert await chat.typed(60) == 0

    in_a_chat(story)
