"""What every channel promises, on each platform of `platforms.PLATFORMS`: a row of the matrix a test.

A row is left out only where the platform says that it has no such thing; docs/guides/channels.md shows what came of it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind, OutboundMessage
from nanobot.bus.journal import open_journal
from nanobot.channels.evidence import ChannelState
from tests.contracts.life import Life, delta, live, turn_of, until
from tests.contracts.platforms import PLATFORMS, Platform, platform_class

F = TypeVar("F", bound=Callable[..., Any])

WITHOUT = {
    "acknowledges": "nobody is told that a message arrived",
    "buttons": "there are no buttons",
    "edits": "a message cannot be edited",
    "files": "files are not sent",
    "group": "there are no groups",
    "has_poll": "nothing is kept there while the channel is down",
    "has_token": "there is no token that could be taken away",
    "limit": "a message may be as long as it likes",
    "limits_rate": "it never says after which time to try again",
    "quotes": "a message cannot quote another",
    "reacts": "there are no reactions",
    "refuses": "nothing is refused there",
    "shows_progress": "only replies and notices are worth a message there",
    "threads": "there are no threads",
    "types": "nobody sees the bot at work",
}
"""What a platform may be without (an attribute of its class), and what the matrix says then."""

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c6360f8cf000002"
    "030101dce0b0df0000000049454e44ae426082"
)


def needs(*abilities: str) -> Callable[[F], F]:
    """A row that means something only where the platform has these."""

    def marked(row: F) -> F:
        row.needs = abilities  # type: ignore[attr-defined]
        return row

    assert set(abilities) <= set(WITHOUT)
    return marked


def lacking(platform: type[Platform], row: Callable[..., Any]) -> str:
    """Why this row is left out there; empty where it is not."""
    return next((WITHOUT[one] for one in getattr(row, "needs", ()) if not getattr(platform, one)), "")


@pytest.fixture(params=PLATFORMS)
async def platform(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Platform]:
    found = platform_class(request.param)
    if reason := lacking(found, request.function):
        pytest.skip(f"{request.param}: {reason}")
    (folder := tmp_path / "platform").mkdir()
    async with found(folder).open() as platform:
        yield platform


def words(number: int) -> list[str]:
    return [f"w{one}" for one in range(number)]


def heard(life: Life) -> str:
    """The first line of what reached the agent, message by message: some platforms have more to say below."""
    return " ".join(one.content.strip().splitlines()[0] for one in life.heard)


# receiving


async def test_a_message_is_answered(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        message_id, message, _ = await life.asked("hello")
        await until(lambda: life.channel.evidence.sent == 1)
        await until(lambda: platform.acknowledged(message_id) or not platform.acknowledges)

        assert message.message_id
        assert (message.channel, message.sender_id, message.chat_id) == (
            platform.name,
            platform.person,
            platform.private,
        )
        assert len(platform.shown()) == 1


@needs("acknowledges")
async def test_a_message_that_could_not_be_written_down_is_not_acknowledged_and_comes_again(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.is_up()
        life.bus.full = True
        message_id = await platform.says("hello")
        await until(lambda: life.bus.refused)
        told = platform.acknowledged(message_id)
        life.bus.full = False
        await platform.repeat_last()
        await life.shows("You said: hello")
        await until(lambda: platform.acknowledged(message_id))

    assert not told
    assert len(life.heard) == 1


async def test_a_message_that_comes_twice_is_heard_once(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("one")
        await platform.repeat_last()
        await life.asked("two")

    assert heard(life) == "one two"


async def test_a_message_that_comes_again_after_a_restart_is_heard_once(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("one")
    async with live(platform, tmp_path) as life:
        await life.is_up()
        await platform.repeat_last()
        await life.asked("two")

    assert heard(life) == "two"


async def test_messages_of_a_chat_keep_their_order(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        for word in words(6):
            await platform.says(word)
        await life.shows("You said: w5")

    assert heard(life) == " ".join(words(6))
    assert all(word in one.text for word, one in zip(words(6), platform.shown(), strict=True))


async def test_two_chats_are_two_sessions_and_never_mix(platform, tmp_path):
    async with live(platform, tmp_path, allow_from=["*"]) as life:
        await platform.says("mine")
        await platform.says("yours", sender=platform.stranger, chat=platform.strange_chat)
        await life.shows("You said: mine")
        await life.shows("You said: yours", platform.strange_chat)

    assert len({one.session_key for one in life.heard}) == 2
    assert ["mine" in one.text for one in platform.shown()] == [True]
    assert ["yours" in one.text for one in platform.shown(platform.strange_chat)] == [True]


@needs("files")
async def test_a_file_that_comes_is_kept_and_named_to_the_model(platform, tmp_path):
    (tmp_path / "picture.png").write_bytes(PICTURE)
    async with live(platform, tmp_path) as life:
        await platform.says("look", file=tmp_path / "picture.png")
        message = await life.hears("look")

    (kept,) = message.media
    assert Path(kept).read_bytes() == PICTURE
    assert Path(kept).is_relative_to(life.media)
    assert f"[image: {kept}]" in message.content


@needs("threads")
async def test_a_thread_is_a_session_of_its_own_and_answered_where_it_is(platform, tmp_path):
    chat = platform.group or platform.private
    async with live(platform, tmp_path) as life:
        _, outside, _ = await life.asked("outside", chat=chat, mention=True)
        _, inside, answer = await life.asked("inside", chat=chat, thread=platform.thread, mention=True)

    assert inside.session_key != outside.session_key
    assert answer.thread_id == platform.thread


# who is heard


@needs("group")
async def test_a_group_where_it_is_not_meant_hears_nothing_and_costs_nothing(platform, tmp_path, caplog):
    async with live(platform, tmp_path) as life:
        await life.is_up()
        caplog.set_level(logging.INFO)
        for word in words(5):
            await platform.says(word, chat=platform.group)
        await platform.says("psst", sender=platform.stranger, chat=platform.group)
        await life.asked("after")
        written = (await life.counts()).received
        lines = [one.getMessage() for one in caplog.records if one.name.startswith("nanobot")]

    assert heard(life) == "after"
    assert platform.shown(platform.group) == []
    assert written == 1
    assert lines == []


@needs("group")
async def test_a_group_where_it_is_mentioned_is_answered_there(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        _, message, _ = await life.asked("hello all", chat=platform.group, mention=True)

    assert heard(life) == "hello all"  # the mention itself is no word for the model
    assert message.chat_id != platform.private
    assert platform.shown() == []


@needs("group")
async def test_the_agent_is_told_who_reads_along_and_what_is_meant_for_it(platform, tmp_path):
    async with live(platform, tmp_path, group_policy="open") as life:
        _, alone, _ = await life.asked("alone")
        _, among, _ = await life.asked("among others", chat=platform.group)
        _, called, _ = await life.asked("called", chat=platform.group, mention=True)

    assert [one.in_group for one in (alone, among, called)] == [False, True, True]
    assert [one.is_mentioned for one in (among, called)] == [False, True]


async def test_a_stranger_gets_a_code_once_and_nothing_else(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await platform.says("let me in", sender=platform.stranger, chat=platform.strange_chat)
        await until(lambda: platform.shown(platform.strange_chat))
        await platform.says("please", sender=platform.stranger, chat=platform.strange_chat)
        await life.asked("after")

    (told,) = platform.shown(platform.strange_chat)
    (waiting,) = life.people.waiting(platform.name)
    assert waiting.code in told.text
    assert heard(life) == "after"


async def test_a_stranger_whose_code_was_approved_is_answered(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await platform.says("let me in", sender=platform.stranger, chat=platform.strange_chat)
        await until(lambda: platform.shown(platform.strange_chat))
        life.people.approve(life.people.waiting(platform.name)[0].code)
        await life.asked("thanks", sender=platform.stranger, chat=platform.strange_chat)

    assert len(life.heard) == 1


@needs("group")
async def test_a_stranger_in_a_group_meets_silence(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await platform.says("hello", sender=platform.stranger, chat=platform.group, mention=True)
        await life.asked("after")

    assert heard(life) == "after"
    assert platform.shown(platform.group) == []
    assert life.people.waiting(platform.name) == []


async def test_an_empty_allow_from_lets_nobody_in(platform, tmp_path):
    async with live(platform, tmp_path, allow_from=[]) as life:
        await platform.says("hello")
        await until(lambda: life.people.waiting(platform.name))
        await until(platform.shown)

    assert life.heard == []


# sending


@needs("limit")
async def test_a_long_answer_comes_in_pieces_with_all_its_words_in_order(platform, tmp_path):
    said = words(platform.limit // 2)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        ids = await life.posted(await life.hears("hello"), " ".join(said), **turn_of(life.heard[0]))

    pieces = platform.shown()
    assert " ".join(one.text for one in pieces).split() == said
    assert all(0 < len(one.text) <= platform.limit for one in pieces)
    assert len(ids) == len(pieces) > 1


@needs("limit")
async def test_code_that_fits_into_one_message_is_not_torn(platform, tmp_path):
    lines = [f"line{one}" for one in range(platform.limit // 20)]
    text = f"{' '.join(words(platform.limit // 6))}\n\n```\n" + "\n".join(lines) + "\n```\nand done"
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        await life.posted(await life.hears("hello"), text)

    holds = [one.text for one in platform.shown() if "line" in one.text]
    assert len(platform.shown()) > 1
    assert len(holds) == 1
    assert all(line in holds[0] for line in lines)


@needs("quotes")
async def test_an_answer_quotes_what_it_answers(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        message_id = await platform.says("hello")
        message = await life.hears("hello")
        await life.posted(message, "to you", reply_to=message.message_id)

    assert [one.reply_to for one in platform.shown()] == [message_id]


@needs("files")
async def test_a_file_goes_out_with_its_words(platform, tmp_path):
    (tmp_path / "picture.png").write_bytes(PICTURE)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        await life.posted(await life.hears("hello"), "here it is", media=[str(tmp_path / "picture.png")])

    assert [name for one in platform.shown() for name in one.files] == ["picture.png"]
    assert "here it is" in " ".join(one.text for one in platform.shown())


async def test_a_file_that_is_not_there_is_said(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        await life.posted(await life.hears("hello"), "here it is", media=[str(tmp_path / "none.png")])

    told = " ".join(one.text for one in platform.shown())
    assert "here it is" in told
    assert "none.png" in told
    assert "cannot be read" in told
    assert all(one.files == [] for one in platform.shown())


@needs("buttons")
async def test_buttons_are_shown_and_pressing_one_says_its_value(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        (shown_id,) = await life.posted(message, "sure?", buttons=(Button("Yes", "do it"), Button("No", "leave it")))
        offered = [one.buttons for one in platform.shown()]
        await platform.presses(shown_id, "Yes")
        pressed = await life.hears("do it")

    assert offered == [["Yes", "No"]]  # one that was pressed may be taken away
    assert heard(life) == "hello do it"
    assert pressed.session_key == message.session_key


@needs("types")
async def test_the_person_sees_it_at_work(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        await life.hears("hello")

        assert await until(platform.typed)


@needs("reacts")
async def test_a_message_that_waits_its_turn_gets_a_sign(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        message_id = await platform.says("hello")
        message = await life.hears("hello")
        life.post(message, "Noted.", kind=OutboundKind.RECEIPT, reply_to=message.message_id)
        await until(lambda: platform.signs_on(message_id))

    assert platform.shown() == []


@needs("shows_progress")
async def test_progress_is_shown_and_in_its_place(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        await life.is_up()
        life.post(message, "reading", kind=OutboundKind.PROGRESS, **turn_of(message))
        life.post(message, "notes.md", kind=OutboundKind.TOOL_HINT, **turn_of(message))
        life.answers(message, "done")
        await life.shows("done")

    told = [one.text for one in platform.shown()]
    assert len(told) == 3
    assert all(word in text for word, text in zip(("reading", "notes.md", "done"), told, strict=True))


async def test_the_same_words_for_the_same_message_go_out_once(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        life.post(message, "good morning", kind=OutboundKind.NOTICE, answers=message.journal_key)
        life.answers(message, "good morning")
        life.post(message, "that was it")
        await life.shows("that was it")

    assert len(platform.shown()) == 2


# growing answers


@needs("edits")
async def test_an_answer_that_grows_is_one_message_and_ends_as_the_reply(platform, tmp_path, monkeypatch):
    async with live(platform, tmp_path, silent=True) as life:
        monkeypatch.setattr(type(life.channel), "delta_interval_s", 0.0)
        await platform.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        first = (await life.shows("one")).text
        delta(life, message, "two ")
        await life.shows("two")
        life.post(message, "one two three", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two three")
        await life.shows("one two three")
        await life.posted(message, "next")

    told = platform.shown()
    assert "two" not in first
    assert [one.text for one in told] == ["one two three", "next"]
    assert told[0].edits >= 2


@needs("edits", "limit")
async def test_an_answer_that_grows_past_the_limit_goes_on_in_the_next_message(platform, tmp_path, monkeypatch):
    said = words(platform.limit // 2)
    parts = [said[start : start + len(said) // 8 + 1] for start in range(0, len(said), len(said) // 8 + 1)]
    async with live(platform, tmp_path, silent=True) as life:
        monkeypatch.setattr(type(life.channel), "delta_interval_s", 0.0)
        await platform.says("hello")
        message = await life.hears("hello")
        for part in parts:
            delta(life, message, " ".join(part) + " ")
            await life.shows(part[-1])
        life.post(message, " ".join(said), kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, " ".join(said))
        await life.posted(message, "next")

    *pieces, _ = platform.shown()
    assert " ".join(one.text for one in pieces).split() == said
    assert all(len(one.text) <= platform.limit for one in pieces)


@needs("edits")
async def test_an_answer_that_a_crash_broke_off_grows_on_where_it_stood(platform, tmp_path, monkeypatch):
    async with live(platform, tmp_path, silent=True) as life:
        monkeypatch.setattr(type(life.channel), "delta_interval_s", 0.0)
        await platform.says("hello")
        message = await life.hears("hello")
        for word in ("one", "two"):  # the second is an edit, so the first is written down by then
            delta(life, message, f"{word} ")
            await life.shows(word)
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.hears("hello")
        await life.is_up()
        delta(life, message, "three ")
        life.answers(message, "one two three")
        await life.posted(message, "next")

    assert [one.text for one in platform.shown()] == ["one two three", "next"]


@needs("edits", "refuses")
async def test_an_edit_that_fails_leaves_one_message_that_is_the_reply(platform, tmp_path, monkeypatch):
    async with live(platform, tmp_path, silent=True) as life:
        monkeypatch.setattr(type(life.channel), "delta_interval_s", 0.0)
        await platform.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
        platform.refuse(2)  # the end of the growing part, and the first try of the reply
        life.post(message, "one two three", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two three")
        await life.shows("one two three")
        await life.posted(message, "next")

    assert [one.text for one in platform.shown()] == ["one two three", "next"]


@needs("edits")
async def test_streaming_can_be_switched_off(platform, tmp_path):
    async with live(platform, tmp_path, streaming=False) as life:
        _, _, answer = await life.asked("hello")

        assert not life.manager.streams(platform.name)
    assert answer.edits == 0


# when the platform refuses


@needs("refuses", "limits_rate")
async def test_a_platform_that_says_later_is_asked_later(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        platform.refuse(1, status=429, retry_after_s=0.2)
        began = asyncio.get_running_loop().time()
        await life.posted(message, "patience")
        took = asyncio.get_running_loop().time() - began

    assert [one.text for one in platform.shown()] == ["patience"]
    assert took >= 0.2


@needs("refuses")
async def test_a_platform_that_breaks_is_tried_again(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        platform.refuse(2, status=500)
        await life.posted(message, "at last")

    assert ["at last" in one.text for one in platform.shown()] == [True]
    assert life.dead == []


@needs("refuses")
async def test_what_the_platform_refuses_for_good_is_told_to_the_owner_and_the_next_goes_out(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        platform.refuse(1, status=403)
        with pytest.raises(DeliveryFailedError):
            await life.posted(message, "lost")
        await life.posted(message, "next")
        counts = await life.counts()

    assert len(life.dead) == 1
    assert ["next" in one.text for one in platform.shown()] == [True]
    assert (life.channel.evidence.failed, counts.failed_out) == (1, 1)


# when the line breaks


async def test_after_a_dropped_connection_it_hears_and_answers_again(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("before")
        await platform.drop()
        await life.asked("after")

    assert heard(life) == "before after"


async def test_a_network_that_goes_away_and_comes_back_loses_nothing(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        _, message, _ = await life.asked("before")
        await platform.gone(gone=True)
        if platform.has_poll:
            await platform.says("meanwhile")
        receipt = life.post(message, "news")
        await until(lambda: not life.bus.outbound_size)  # its channel has it by now, and nobody is there
        waited = not receipt.settled
        await platform.gone(gone=False)
        await asyncio.wait_for(receipt.wait(), 10)
        if platform.has_poll:
            await life.shows("You said: meanwhile")
        await life.asked("after")

    assert waited
    assert len([one for one in platform.shown() if one.text.startswith("news")]) == 1
    assert len(life.heard) == 2 + platform.has_poll


async def test_a_connection_that_only_seems_open_is_made_anew(platform, tmp_path, monkeypatch):
    async with live(platform, tmp_path) as life:
        monkeypatch.setattr(type(life.channel), "stall_s", platform.stall_s)
        await life.asked("before")
        await platform.half_open()
        await life.asked("after")

    assert heard(life) == "before after"


@needs("has_poll")
async def test_what_came_while_it_was_down_is_answered(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("before")
    await platform.says("meanwhile")
    async with live(platform, tmp_path) as life:
        await life.shows("You said: meanwhile")

    assert heard(life) == "meanwhile"


async def test_a_reply_that_a_stop_left_unsent_goes_out_once_after_the_start(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        message = await life.hears("hello")
        await platform.gone(gone=True)
        life.answers(message, "the reply")
    await platform.gone(gone=False)
    async with live(platform, tmp_path, silent=True) as life:
        await life.shows("the reply")
        await life.posted(message, "next")
        counts = await life.counts()

    assert len([one for one in platform.shown() if "the reply" in one.text]) == 1
    assert (counts.received, counts.answered, counts.waiting_out) == (1, 1, 0)


async def test_a_reply_that_may_have_been_sent_before_a_crash_says_so(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        _, message, _ = await life.asked("hello")
    async with open_journal(tmp_path / "journal.db") as journal:
        out = OutboundMessage(platform.name, message.chat_id, "the reply", thread_id=message.thread_id)
        await journal.hold([out])
        assert out.journal_id is not None
        await journal.sending(out.journal_id, ())
    async with live(platform, tmp_path) as life:
        shown = await life.shows("the reply")

    assert ("received this before" in shown.text) is not platform.takes_once


async def test_a_reply_that_was_sent_when_the_crash_came_is_seen_once_or_marked(platform, tmp_path):
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        life.bus.dies = "sent"
        life.answers(await life.hears("hello"), "the reply")
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(platform, tmp_path, silent=True) as life:
        await until(lambda: life.channel.evidence.sent)

    first, *again = platform.shown()
    assert "received this before" not in first.text
    assert all("received this before" in one.text for one in again)
    assert len(again) < 2 - platform.takes_once


@needs("limit")
async def test_a_crash_between_two_pieces_of_an_answer_sends_only_what_is_missing(platform, tmp_path):
    said = words(platform.limit // 2)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        life.bus.dies = "behind"
        life.answers(await life.hears("hello"), " ".join(said))
        await asyncio.wait_for(life.bus.died.wait(), 10)
        (first,) = platform.shown()
    async with live(platform, tmp_path, silent=True) as life:
        await life.shows(said[-1])
        await until(lambda: life.channel.evidence.sent)

    told = " ".join(one.text for one in platform.shown())
    assert platform.shown()[0].id == first.id
    assert told.split()[: len(said)] == said
    assert ("received this before" in told) is not platform.takes_once


@needs("limit")
async def test_a_piece_that_a_crash_came_upon_is_seen_once_or_marked(platform, tmp_path):
    said = words(platform.limit // 2)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        life.bus.dies = "before"
        life.answers(await life.hears("hello"), " ".join(said))
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(platform, tmp_path, silent=True) as life:
        await life.shows(said[-1])
        await until(lambda: life.channel.evidence.sent)

    told = " ".join(one.text for one in platform.shown())
    assert told.split().count("w0") == (1 if platform.takes_once else 2)
    assert ("received this before" in told) is not platform.takes_once


@needs("has_token")
async def test_a_token_that_is_taken_away_turns_it_red_and_says_what_to_do(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.is_up()
        await platform.revoke()
        await until(lambda: life.channel.evidence.state is ChannelState.FAILED)

        assert f"channels.{platform.name}" in life.channel.evidence.last_error
        assert not life.channel.is_running


# its life


async def test_it_stops_without_a_trace(platform, tmp_path):
    before, sockets = asyncio.all_tasks(), open_sockets()
    async with live(platform, tmp_path) as life:
        await life.asked("hello")
        life.silent = True
        await platform.says("and now?")
        await life.hears("and now?")

    assert life.channel.evidence.state is ChannelState.OFF
    await until(lambda: asyncio.all_tasks() <= before)
    await until(lambda: open_sockets() <= sockets)


async def test_its_evidence_is_what_came_and_went(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.asked("one")
        await life.asked("two")
        evidence = life.channel.evidence
        await until(lambda: evidence.sent == 2)
        counts = await life.counts()

        assert evidence.state is ChannelState.UP
        assert (evidence.received, evidence.sent, evidence.failed) == (2, 2, 0)
        assert evidence.last_received is not None
        assert evidence.last_sent is not None
    assert (counts.received, counts.answered, counts.refused, counts.queued) == (2, 2, 0, 0)


async def test_it_speaks_first_where_it_is_told_to(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.posted(Address(platform.name, platform.private), "good morning")

    assert ["good morning" in one.text for one in platform.shown()] == [True]


async def test_a_person_is_written_to_who_is_known_by_their_id_alone(platform, tmp_path):
    async with live(platform, tmp_path) as life:
        await life.is_up()
        chat = await life.manager.chat_with(platform.name, platform.person)
        assert chat is not None
        await life.posted(Address(platform.name, chat), "good morning")

    assert ["good morning" in one.text for one in platform.shown()] == [True]


def open_sockets() -> int:
    """How many this process holds, where the system tells."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return 0
    return sum(named(one).startswith("socket:") for one in folder.iterdir())


def named(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""
