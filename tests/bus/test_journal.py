"""What is accepted is on the disk, once, and is settled once; what must reach a person is sent once, or marked."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.events import Button, InboundMessage, OutboundKind, OutboundMessage
from nanobot.bus.journal import InboundState, Journal, JournalCounts, open_journal
from nanobot.bus.queue import MessageBus
from nanobot.errors import StorageError


def inbound(number: int, chat: str = "42") -> InboundMessage:
    return InboundMessage("telegram", "ann", chat, f"hello {number}", message_id=str(number), metadata={"a": [1]})


def reply(text: str, turn: str = "t1", answers: str | None = None) -> OutboundMessage:
    return OutboundMessage("telegram", "42", text, turn_id=turn, answers=answers)


def by_tool(text: str, *files: str) -> OutboundMessage:
    kind = OutboundKind.NOTICE
    return OutboundMessage("telegram", "42", text, media=[*files], kind=kind, answers="k", by_tool=True)


KEY = "telegram:42:1"


@pytest.mark.parametrize(
    ("steps", "state", "counts"),
    [
        ("reply answered sent failed", "sent", JournalCounts(1, answered=1)),
        ("reply undeliverable", "failed", JournalCounts(1, answered=1, failed_out=1)),
        ("reply", "answered", JournalCounts(1, answered=1, waiting_out=1)),
        ("file", "answered", JournalCounts(1, answered=1, waiting_out=1)),
        ("notice", "received", JournalCounts(1, queued=1, waiting_out=1)),
        ("reply sent refused", "refused", JournalCounts(1, refused=1)),
        ("refused answered", "refused", JournalCounts(1, refused=1)),
    ],
)
async def test_a_message_ends_once_also_where_a_crash_cut_it_off(
    tmp_path: Path, steps: str, state: str, counts: JournalCounts
):
    async with open_journal(tmp_path / "journal.db") as journal:
        await journal.receive(inbound(1))
        out = OutboundMessage("telegram", "42", "hi", turn_id="t1", answers=KEY)
        for what in steps.split():
            if what in ("reply", "file", "notice"):
                out.kind = OutboundKind.NOTICE if what == "notice" else OutboundKind.REPLY
                out.media = ["chart.png"] if what == "file" else []
                await journal.add_outbound([out])
            elif what == "undeliverable":
                await journal.record_failed(out.journal_id or 0, "the chat is gone")
            elif what == "sent":
                await journal.record_sent(out.journal_id or 0, ("7", "8"))
            else:
                await journal.settle(KEY, InboundState(what))
    async with open_journal(tmp_path / "journal.db") as journal:
        left = await journal.load_unsettled()
        counted = await journal.counts()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as db:
        rows = db.execute("SELECT state, body IS NULL FROM inbound").fetchall()

    assert (rows, counted) == ([(state, state != "received")], counts)
    assert [message.message_id for message in left] == (["1"] if state == "received" else [])


QUESTION = OutboundMessage("telegram", "42", "May I?", kind=OutboundKind.NOTICE, answers="k")


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([reply("first", answers="k"), reply("second", answers="k")], [True, False]),
        ([by_tool("x"), reply("x", "t2", "k"), reply("x", "t3", "other"), reply("x", "t4")], [True, False, True, True]),
        ([QUESTION, replace(QUESTION), reply("May I?", answers="k")], [True, True, True]),
        ([by_tool("Here.", "a.txt"), by_tool("Here.", "b.txt"), by_tool("Here.", "b.txt")], [True, True, False]),
    ],
    ids=["a turn has one reply", "a text of a tool", "questions", "files"],
)
async def test_the_same_is_not_sent_twice(tmp_path: Path, messages: list[OutboundMessage], kept: list[bool]):
    async with open_journal(tmp_path / "journal.db") as journal:
        assert await journal.add_outbound(messages) == kept


async def test_settled_message_is_remembered_for_a_month_though_the_gateway_never_restarts(tmp_path: Path):
    today = 0.0
    async with open_journal(tmp_path / "journal.db", lambda: today * 86400) as journal:
        await journal.receive(inbound(1))
        await journal.settle("telegram:42:1", InboundState.SENT)
        today = 29.9
        still_known = not await journal.receive(inbound(1))
        today = 31.0
        await journal.receive(inbound(2))
        counts = await journal.counts()

    assert still_known
    assert counts == JournalCounts(received=1, queued=1)


async def test_what_was_not_sent_comes_back_and_says_whether_the_platform_may_have_it(tmp_path: Path):
    waiting = OutboundMessage(
        "slack", "C1", "waits", "9", ["a.png"], {"x": 1}, thread_id="3", turn_id="t", buttons=(Button("Yes", "y"),)
    )
    begun, done, dead = reply("begun", "t1"), reply("done", "t2"), reply("dead", "t3")
    async with open_journal(tmp_path / "journal.db") as journal:
        await journal.add_outbound([waiting, begun, done, dead])
        assert begun.journal_id and done.journal_id and dead.journal_id
        await journal.record_sending(begun.journal_id, ("11",))
        await journal.record_sent(done.journal_id, ("12",))
        await journal.record_failed(dead.journal_id, "blocked")
    async with open_journal(tmp_path / "journal.db") as journal:
        first, second = await journal.load_unsent()
        counts = await journal.counts()

    assert first == waiting
    assert (second.content, second.may_repeat, second.sent_ids) == ("begun", True, ("11",))
    assert (counts.waiting_out, counts.failed_out) == (2, 1)


async def test_half_a_character_is_kept_and_stops_nobody(tmp_path: Path):
    half = InboundMessage("telegram", "ann", "42", "a \ud83d", message_id="\ud83d", metadata={"\udc00": b"raw"})
    async with open_journal(tmp_path / "journal.db") as journal:
        bus = MessageBus(journal)
        async with bus.open():
            accepted = [await bus.publish_inbound(half), await bus.publish_inbound(inbound(1))]
            for text in ("half \ud83d", "whole"):
                await bus.publish_outbound(reply(text, turn=text[:4], answers="k"))
            out = [await bus.consume_outbound(), await bus.consume_outbound()]
    async with open_journal(tmp_path / "journal.db") as journal:
        back = await journal.load_unsettled()

    assert accepted == [True, True]
    assert [one and one.content for one in out] == ["half \ud83d", "whole"]
    assert [one.content for one in back] == ["a \ud83d", "hello 1"]


async def test_what_cannot_be_written_down_is_said_all_the_same_and_stops_nobody(tmp_path: Path):
    endless: list[object] = []
    endless.append(endless)
    odd = OutboundMessage("telegram", "42", "odd", metadata={"endless": endless})
    async with open_journal(tmp_path / "journal.db") as journal:
        bus = MessageBus(journal)
        async with bus.open():
            for message in (odd, reply("whole")):
                await bus.publish_outbound(message)
            out = [await bus.consume_outbound(), await bus.consume_outbound()]

    assert [one and one.content for one in out] == ["odd", "whole"]


async def test_a_file_that_is_no_journal_is_kept_beside_a_new_one_and_a_folder_is_an_error(tmp_path: Path):
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, but somebody's only copy" * 100)

    async with open_journal(path) as journal:
        assert await journal.receive(inbound(1))

    (kept,) = tmp_path.glob("journal.db.*.corrupt")
    assert kept.read_bytes().startswith(b"not a database")
    with pytest.raises(StorageError, match="permissions"):
        async with open_journal(tmp_path):
            pass


async def test_a_disk_that_refuses_keeps_the_platform_from_being_told(tmp_path: Path):
    async with open_journal(tmp_path / "journal.db") as journal:
        other = sqlite3.connect(tmp_path / "journal.db", isolation_level=None)
        other.execute("CREATE TRIGGER full BEFORE INSERT ON inbound BEGIN SELECT RAISE(ABORT, 'disk full'); END")
        bus = MessageBus(journal)
        async with bus.open():
            with pytest.raises(StorageError, match="disk full"):
                await bus.publish_inbound(inbound(1))
            other.execute("DROP TRIGGER full")
            accepted = await bus.publish_inbound(inbound(1))
        other.close()

    assert accepted
    assert bus.inbound_size == 1


async def test_what_a_full_disk_refused_is_written_when_it_takes_it_again(tmp_path: Path):
    path = tmp_path / "journal.db"
    refusing = "CREATE TRIGGER {0} BEFORE {1} BEGIN SELECT RAISE(ABORT, 'disk full'); END"
    async with open_journal(path) as journal:
        bus = MessageBus(journal)
        async with bus.open():
            asked, refused = inbound(1), inbound(2)
            for message in (asked, refused):
                await bus.publish_inbound(message)
                await bus.consume_inbound()
            with closing(sqlite3.connect(path, isolation_level=None)) as other, other:
                other.execute(refusing.format("no_reply", "INSERT ON outbound"))
                other.execute(refusing.format("no_end", "UPDATE ON inbound"))
            answer = reply("here you are")
            answer.answers = asked.journal_key
            bus.post_outbound(answer)
            bus.settle(asked, InboundState.ANSWERED)
            bus.settle(refused, InboundState.REFUSED, "no")
            went = await bus.consume_outbound()
            assert went is answer  # a person is answered all the same
            assert went.journal_id is None
            await bus.record_sent(answer, ("9",))
            await bus.flush()
            with closing(sqlite3.connect(path, isolation_level=None)) as other, other:
                other.execute("DROP TRIGGER no_reply")
                other.execute("DROP TRIGGER no_end")
    async with open_journal(path) as journal:
        counts = await journal.counts()

        assert (await journal.load_unsent(), await journal.load_unsettled()) == ([], [])
        assert (counts.answered, counts.refused, counts.queued) == (1, 1, 0)


JOURNAL_WRITER = [sys.executable, "-m", "tests.programs.journal_writer"]


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")
@pytest.mark.parametrize("after", [40, *(pytest.param(after, marks=pytest.mark.slow) for after in (1, 333))])
def test_what_was_told_to_the_platform_outlives_kill_9(tmp_path: Path, after: int):
    path = tmp_path / "journal.db"
    with subprocess.Popen([*JOURNAL_WRITER, str(path)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        told = [child.stdout.readline().split() for _ in range(after)]
        os.kill(child.pid, signal.SIGKILL)
        told += [words for line in child.stdout if len(words := line.split()) == 2]

    async def kept() -> list[InboundMessage]:
        async with open_journal(path) as journal:
            return await journal.load_unsettled()

    there = {(message.chat_id, message.message_id) for message in asyncio.run(kept())}
    assert {(chat, number) for chat, number in told} <= there


steps = st.lists(
    st.tuples(st.sampled_from(["receive", "begin", *[state.value for state in InboundState]]), st.integers(0, 5)),
    max_size=40,
)


@given(steps=steps)
def test_received_is_answered_and_refused_and_queued_whatever_happens(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("j") / "journal.db"

    async def play() -> tuple[JournalCounts, int]:
        known = set()
        async with open_journal(path) as journal:
            async with asyncio.TaskGroup() as group:  # handed in one after the other; none waits for the disk
                for what, number in steps:
                    group.create_task(step(journal, what, number))
                    known |= {number} if what == "receive" else set()
            return await journal.counts(), len(known)

    counts, known = asyncio.run(play())

    assert counts.received == known == counts.answered + counts.refused + counts.queued


async def step(journal: Journal, what: str, number: int) -> None:
    key = f"telegram:42:{number}"
    if what == "receive":
        await journal.receive(inbound(number))
    elif what == "begin":
        await journal.begin(key, "turn")
    else:
        await journal.settle(key, InboundState(what))
