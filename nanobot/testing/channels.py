"""The conformance checks of channels, run against a fake of the platform:

@pytest.mark.parametrize("check", channel_checks(PostcardPlatform), ids=str)
def test_the_channel(check, tmp_path):
    check(tmp_path)

A check is skipped only if the platform does not support the feature; docs/writing-a-channel.md has the results of the
built-in channels.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.bus.journal import InboundState
from nanobot.channels.status import ChannelState
from nanobot.testing.checks import Check, captured_logs, checks_of
from nanobot.testing.live_channel import LiveChannel, delta, live, turn_of, until
from nanobot.testing.platform import Platform

Row = Callable[[Platform, Path], Awaitable[None]]
F = TypeVar("F", bound=Row)

WITHOUT = {
    "acknowledges": "messages are not acknowledged",
    "buttons": "there are no buttons",
    "connects": "there is no connection",
    "edits": "messages cannot be edited",
    "files": "files are not sent",
    "group": "there are no groups",
    "queues_messages": "the platform does not queue messages",
    "has_token": "there is no token",
    "limit": "messages have no length limit",
    "loses_answers": "there are no confirmations",
    "quotes": "messages cannot quote",
    "reacts": "there are no reactions",
    "resumes_edits": "messages from before a crash cannot be edited",
    "refuses": "sends are never refused",
    "shows_progress": "only replies and notices are sent",
    "speaks_first": "bots can only answer",
    "threads": "there are no threads",
    "types": "there is no typing indicator",
}
"""Optional features (class attributes of `Platform`), and the note in the matrix if one is missing."""

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c6360f8cf000002"
    "030101dce0b0df0000000049454e44ae426082"
)


def needs(*abilities: str) -> Callable[[F], F]:
    """Skip a check on platforms without these features."""

    def mark(row: F) -> F:
        row.needs = abilities  # type: ignore[attr-defined]
        return row

    assert set(abilities) <= set(WITHOUT)
    return mark


def lacking(platform: type[Platform], row: Row) -> str:
    """Return why a check is skipped on a platform, or an empty string."""
    return next((WITHOUT[name] for name in getattr(row, "needs", ()) if not getattr(platform, name)), "")


def channel_rows() -> dict[str, Row]:
    """All checks by their name, with blanks."""
    rows = {name: row for name, row in globals().items() if name.startswith("test_")}
    return {name.removeprefix("test_").replace("_", " "): row for name, row in rows.items()}


def channel_checks(platform: type[Platform]) -> list[Check]:
    """The checks for a channel on this platform."""

    async def run_check(row: Row, folder: Path) -> None:
        (own := folder / "platform").mkdir()
        async with platform(own).open() as opened:
            await row(opened, folder)

    return checks_of(globals(), run_check, partial(lacking, platform))


def words(number: int) -> list[str]:
    """Return distinct words."""
    return [f"w{index}" for index in range(number)]


def heard(life: LiveChannel) -> str:
    """The first lines of the messages that reached the agent; some platforms add text below."""
    return " ".join(message.content.strip().splitlines()[0] for message in life.heard)


# receiving


async def test_a_message_is_answered_once_however_often_it_comes_also_after_a_restart(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path) as life:
        message_id, message, _ = await life.asked("one")
        await until(lambda: not platform.acknowledges or platform.acknowledged(message_id))
        await platform.repeat_last()
        await life.asked("two")
        status = life.channel.status
        await until(lambda: status.sent == 2)
        counts = await life.counts()
        is_up = status.state is ChannelState.UP
    async with live(platform, tmp_path) as again:
        await again.is_up()
        await platform.repeat_last()
        await again.asked("three")

    assert message.message_id
    assert (message.channel, message.sender_id, message.chat_id) == (platform.name, platform.person, platform.private)
    assert (heard(life), heard(again)) == ("one two", "three")
    assert len(platform.shown()) == 3
    assert is_up
    assert (status.received, status.failed) == (2, 0)
    assert status.last_received is not None
    assert status.last_sent is not None
    assert (counts.received, counts.answered, counts.refused, counts.queued) == (2, 2, 0, 0)


@needs("acknowledges")
async def test_a_message_that_could_not_be_journaled_is_not_acknowledged_and_is_delivered_again(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path) as life:
        await life.is_up()
        life.bus.full = True
        message_id = await platform.says("hello")
        await until(lambda: life.bus.refused)
        was_acknowledged = platform.acknowledged(message_id)
        life.bus.full = False
        await platform.repeat_last()
        await life.shows("You said: hello")
        await until(lambda: platform.acknowledged(message_id))

    assert not was_acknowledged
    assert len(life.heard) == 1


async def test_messages_of_a_chat_keep_their_order_and_two_chats_never_mix(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, allow_from=["*"]) as life:
        await platform.says("yours", sender=platform.stranger, chat=platform.stranger_chat)
        for word in words(6):
            await platform.says(word)
        await life.shows("You said: w5")
        await life.shows("You said: yours", platform.stranger_chat)

    mine = [one for one in life.heard if "yours" not in one.content]
    assert [one.content.split()[0] for one in mine] == words(6)
    assert all(word in one.text for word, one in zip(words(6), platform.shown(), strict=True))
    assert ["yours" in one.text for one in platform.shown(platform.stranger_chat)] == [True]
    assert len({one.session_key for one in life.heard}) == 2


@needs("files")
async def test_an_incoming_file_is_stored_and_its_path_given_to_the_model(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PICTURE)
    async with live(platform, tmp_path) as life:
        message = await life.receives("look", file=tmp_path / "picture.png")

    (kept,) = message.media
    assert Path(kept).read_bytes() == PICTURE
    assert Path(kept).is_relative_to(life.media)
    assert f"[image: {kept}]" in message.content


@needs("threads")
async def test_a_thread_has_its_own_session_and_is_answered_in_the_thread(platform: Platform, tmp_path: Path) -> None:
    chat = platform.group or platform.private
    async with live(platform, tmp_path) as life:
        _, outside, _ = await life.asked("outside", chat=chat, mention=True)
        _, inside, answer = await life.asked("inside", chat=chat, thread=platform.thread, mention=True)

    assert inside.session_key != outside.session_key
    assert answer.thread_id == platform.thread


# access


@needs("group")
async def test_in_a_group_only_those_who_may_and_who_address_it_are_answered_and_the_rest_costs_nothing(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path) as life:
        await life.is_up()
        with captured_logs(logging.INFO) as records:
            for word in words(5):
                await platform.says(word, chat=platform.group)
            await platform.says("psst", sender=platform.stranger, chat=platform.group)
            await life.asked("after")
        lines = [one.getMessage() for one in records]
        await platform.says("me too", sender=platform.stranger, chat=platform.group, mention=True)
        _, message, _ = await life.asked("hello all", chat=platform.group, mention=True)
        written = (await life.counts()).received

    assert heard(life) == "after hello all"  # the mention itself is no word for the model
    assert message.chat_id != platform.private
    assert ["hello all" in one.text for one in platform.shown(platform.group)] == [True]
    assert life.people.pending(platform.name) == []
    assert written == 2
    assert lines == []


@needs("group")
async def test_the_agent_knows_whether_a_chat_is_a_group_and_whether_it_was_mentioned(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, group_policy="open") as life:
        _, alone, _ = await life.asked("alone")
        _, called, _ = await life.asked("called", chat=platform.group, mention=True)
        among = (await life.asked("among others", chat=platform.group))[1] if platform.hears_groups else None

    assert [one.in_group for one in (alone, called)] == [False, True]
    assert called.is_mentioned
    assert among is None or (among.in_group, among.is_mentioned) == (True, False)


async def test_an_unknown_sender_gets_a_pairing_code_once_and_is_answered_when_it_is_approved(
    platform: Platform, tmp_path: Path
) -> None:
    stranger: dict[str, Any] = {"sender": platform.stranger, "chat": platform.stranger_chat}
    async with live(platform, tmp_path) as life:
        await platform.says("let me in", **stranger)
        await until(lambda: platform.shown(platform.stranger_chat))
        await platform.says("please", **stranger)
        await life.asked("after")
        (waiting,) = life.people.pending(platform.name)
        life.people.approve(waiting.code)
        await life.asked("thanks", **stranger)

    code, _ = platform.shown(platform.stranger_chat)
    assert waiting.code in code.text
    assert heard(life) == "after thanks"


# sending


@needs("limit")
async def test_a_long_answer_is_split_with_all_its_words_in_order(platform: Platform, tmp_path: Path) -> None:
    said = words(platform.limit // 2)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        ids = await life.posted(await life.hears("hello"), " ".join(said), **turn_of(life.heard[0]))

    pieces = platform.shown()
    assert " ".join(one.text for one in pieces).split() == said
    assert all(0 < len(one.text) <= platform.limit for one in pieces)
    assert len(ids) == len(pieces) > 1


@needs("quotes")
async def test_an_answer_quotes_what_it_answers(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message_id = await platform.says("hello")
        message = await life.hears("hello")
        await life.posted(message, "to you", reply_to=message.message_id)

    assert [one.reply_to for one in platform.shown()] == [message_id]


@needs("files")
async def test_a_file_is_sent_with_its_text_and_a_missing_one_is_reported(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(PICTURE)
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        media = [str(tmp_path / name) for name in ("picture.png", "none.png")]
        await life.posted(await life.hears("hello"), "here it is", media=media)

    text = " ".join(one.text for one in platform.shown())
    assert [name for one in platform.shown() for name in one.files] == ["picture.png"]
    assert all(one in text for one in ("here it is", "none.png", "cannot be read"))


@needs("buttons")
async def test_buttons_are_shown_and_pressing_one_sends_its_value(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        (shown_id,) = await life.posted(message, "sure?", buttons=(Button("Yes", "do it"), Button("No", "leave it")))
        offered = [one.buttons for one in platform.shown()]
        await platform.press_button(shown_id, "Yes")
        pressed = await life.hears("do it")

    assert offered == [["Yes", "No"]]  # one that was pressed may be taken away
    assert heard(life) == "hello do it"
    assert pressed.session_key == message.session_key


@needs("types")
async def test_the_typing_indicator_ends_with_the_turn_however_it_ends(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(typing_s=0.02)
        for state in (InboundState.ANSWERED, InboundState.FAILED):
            before = platform.typed()
            message = await life.receives(f"hello {state}")
            life.bus.begin(message, f"turn {state}")
            await until(lambda before=before: platform.typed() > before)  # type: ignore[misc]
            life.bus.settle(message, state)
            await life.posted(message, f"next {state}")
            shown = platform.typed()
            await asyncio.sleep(0.06)

            assert platform.typed() == shown


@needs("reacts")
async def test_a_message_that_has_to_wait_gets_a_reaction_that_goes_with_its_turn(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        ids = [await platform.says("one"), await platform.says("two")]
        messages = [await life.hears("one"), await life.hears("two")]
        for message in messages:
            receipt = {"reply_to": message.message_id, "answers": message.journal_key}
            life.post(message, "Noted.", kind=OutboundKind.RECEIPT, **receipt)
        await until(lambda: all(map(platform.reactions_on, ids)))
        texts = platform.shown()
        life.answers(messages[0], "one it is")
        life.bus.settle(messages[1], InboundState.FAILED)
        if platform.takes_back:
            await until(lambda: not any(map(platform.reactions_on, ids)))

    assert texts == []


@needs("shows_progress")
async def test_progress_is_shown_in_order(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        await life.is_up()
        life.post(message, "reading", kind=OutboundKind.PROGRESS, **turn_of(message))
        life.post(message, "notes.md", kind=OutboundKind.TOOL_HINT, **turn_of(message))
        life.answers(message, "done")
        await life.shows("done")

    texts = [one.text for one in platform.shown()]
    assert len(texts) == 3
    assert all(word in text for word, text in zip(("reading", "notes.md", "done"), texts, strict=True))


# streaming


@needs("edits")
async def test_a_streamed_answer_is_one_message_and_ends_as_the_reply(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        delta(life, message, "one ")
        first = (await life.shows("one")).text
        delta(life, message, "two ")
        await life.shows("two")
        life.post(message, "one two three", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two three")
        await life.shows("one two three")
        await life.posted(message, "next")

    shown = platform.shown()
    assert "two" not in first
    assert [one.text for one in shown] == ["one two three", "next"]
    assert shown[0].edits >= 2


@needs("edits", "limit")
async def test_a_streamed_answer_past_the_length_limit_continues_in_the_next_message(
    platform: Platform, tmp_path: Path
) -> None:
    said = words(platform.limit // 2)
    parts = [said[start : start + len(said) // 8 + 1] for start in range(0, len(said), len(said) // 8 + 1)]
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        for part in parts:
            delta(life, message, " ".join(part) + " ")
            await life.shows(part[-1])
        life.post(message, " ".join(said), kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, " ".join(said))
        await life.posted(message, "next")

    *pieces, _ = platform.shown()
    assert " ".join(one.text for one in pieces).split() == said
    assert all(len(one.text) <= platform.limit for one in pieces)


async def _streamed_until_a_crash(platform: Platform, folder: Path) -> None:
    async with live(platform, folder, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        for word in ("one", "two"):  # the second is an edit, so the first is written down by then
            delta(life, message, f"{word} ")
            await life.shows(word)


@needs("edits", "resumes_edits")
async def test_a_streamed_answer_continues_in_its_messages_after_a_crash(platform: Platform, tmp_path: Path) -> None:
    await _streamed_until_a_crash(platform, tmp_path)
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.hears("hello")
        await life.is_up()
        delta(life, message, "three ")
        life.answers(message, "one two three")
        await life.posted(message, "next")

    assert [one.text for one in platform.shown()] == ["one two three", "next"]


@needs("edits")
async def test_a_streamed_answer_that_was_complete_before_a_crash_is_seen_once_or_repeated_with_a_note(
    platform: Platform, tmp_path: Path
) -> None:
    await _streamed_until_a_crash(platform, tmp_path)
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.hears("hello")
        await life.is_up()
        life.answers(message, "one two")
        await life.posted(message, "next")

    first, *again, _ = platform.shown()
    assert first.text.split() == ["one", "two"]
    assert len(again) == (0 if platform.resumes_edits else 1)
    assert all("received this before" in one.text for one in again)


@needs("edits", "refuses")
async def test_a_failed_edit_leaves_exactly_one_message_with_the_reply(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        delta(life, message, "one ")
        await life.shows("one")
        platform.refuse(1)
        life.answers(message, "one two three")
        await life.shows("one two three")
        await life.posted(message, "next")

    assert [one.text for one in platform.shown()] == ["one two three", "next"]


# refused sends


@needs("refuses")
async def test_a_failed_send_is_retried_in_the_time_the_platform_names_and_an_undeliverable_one_is_reported(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        platform.refuse(1, status=500)
        await life.posted(message, "at last")
        if platform.rate_limits:
            platform.refuse(1, status=429, retry_after_s=0.2)
        began = asyncio.get_running_loop().time()
        await life.posted(message, "patience")
        took_s = asyncio.get_running_loop().time() - began
        dead = [*life.dead]
        platform.refuse(1, status=403)
        lost = life.post(message, "lost")
        try:
            await asyncio.wait_for(lost.wait(), 10)
        except DeliveryFailedError:
            pass
        else:
            raise AssertionError("what was refused for good counts as delivered")
        await life.posted(message, "next")
        counts = await life.counts()

    assert dead == []
    assert len(life.dead) == 1
    assert all(text in one.text for text, one in zip(("at last", "patience", "next"), platform.shown(), strict=True))
    assert took_s >= 0.2 * platform.rate_limits
    assert (life.channel.status.failed, counts.failed_out) == (1, 1)


# broken connections


@needs("loses_answers")
async def test_a_message_without_a_confirmation_is_sent_four_times_at_most_and_says_so(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        platform.lose_answers(20)
        receipt = life.post(message, "news")
        await until(lambda: receipt.settled)
        platform.lose_answers(0)
        await life.posted(message, "next")

    first, *again, last = [one.text for one in platform.shown()]
    assert (first, last) == ("news", "next")
    assert len(again) == (0 if platform.dedupes else 3)
    assert all("received it before" in text for text in again)
    assert not any("interrupted" in text for text in again)
    assert len(life.dead) == (0 if platform.dedupes else 1)


@needs("edits", "loses_answers")
async def test_a_streamed_answer_without_a_confirmation_is_seen_once_or_repeated_with_a_note(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
        platform.lose_answers(2)
        delta(life, message, "one ")
        await life.shows("one")
        life.post(message, "one two", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two")
        await until(lambda: life.channel.status.sent)
        platform.lose_answers(0)
        await life.posted(message, "next")

    first, *again, last = [one.text for one in platform.shown()]
    assert "received it before" not in first
    assert all("received it before" in text for text in again)
    assert not (again and platform.dedupes)
    assert last == "next"


@needs("connects")
async def test_after_a_dropped_connection_and_a_network_outage_no_message_is_lost(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path) as life:
        _, message, _ = await life.asked("before")
        await platform.drop()
        await life.asked("dropped")
        await platform.gone(gone=True)
        if platform.queues_messages:
            await platform.says("meanwhile")
        receipt = life.post(message, "news")
        await until(lambda: not life.bus.outbound_size)  # its channel has it by now, and nobody is there
        waited = not receipt.settled
        await platform.gone(gone=False)
        await asyncio.wait_for(receipt.wait(), 10)
        if platform.queues_messages:
            await life.shows("You said: meanwhile")
        await life.asked("after")

    assert waited
    assert len([one for one in platform.shown() if one.text.startswith("news")]) == 1
    assert len(life.heard) == 3 + platform.queues_messages


@needs("connects")
async def test_a_half_open_connection_is_replaced(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path) as life:
        life.adjust(stall_s=platform.stall_s)
        await life.asked("before")
        await platform.half_open()
        await life.asked("after")

    assert heard(life) == "before after"


@needs("queues_messages")
async def test_messages_from_while_it_was_down_are_answered(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path) as life:
        await life.asked("before")
    await platform.says("meanwhile")
    async with live(platform, tmp_path) as life:
        await life.shows("You said: meanwhile")

    assert heard(life) == "meanwhile"


@needs("connects")
async def test_a_reply_that_was_unsent_at_a_stop_is_sent_once_after_the_start(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        await platform.gone(gone=True)
        life.answers(message, "the reply")
    await platform.gone(gone=False)
    async with live(platform, tmp_path, silent=True) as life:
        await life.shows("the reply")
        await life.posted(message, "next")
        counts = await life.counts()

    assert len([one for one in platform.shown() if "the reply" in one.text]) == 1
    assert (counts.received, counts.answered, counts.waiting_out) == (1, 1, 0)


async def test_a_reply_that_was_sent_just_before_a_crash_arrives_once_or_is_marked(
    platform: Platform, tmp_path: Path
) -> None:
    async with live(platform, tmp_path, silent=True) as life:
        await platform.says("hello")
        life.bus.dies = "sent"
        life.answers(await life.hears("hello"), "the reply")
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(platform, tmp_path, silent=True) as life:
        await until(lambda: life.channel.status.sent)

    first, *again = platform.shown()
    assert "received this before" not in first.text
    assert all("received this before" in one.text for one in again)
    assert len(again) < 2 - platform.dedupes


async def _dies_between_two_parts(platform: Platform, folder: Path, dies: Literal["before", "behind"]) -> str:
    """What is shown in the end."""
    said = words(platform.limit // 2)
    async with live(platform, folder, silent=True) as life:
        await platform.says("hello")
        life.bus.dies = dies
        life.answers(await life.hears("hello"), " ".join(said))
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(platform, folder, silent=True) as life:
        await life.shows(said[-1])
        await until(lambda: life.channel.status.sent)
    text = " ".join(one.text for one in platform.shown())
    assert ("received this before" in text) is not platform.dedupes
    return text


@needs("limit")
async def test_after_a_crash_between_two_parts_of_an_answer_only_the_missing_part_is_sent(
    platform: Platform, tmp_path: Path
) -> None:
    said = words(platform.limit // 2)
    assert (await _dies_between_two_parts(platform, tmp_path, "behind")).split()[: len(said)] == said


@needs("limit")
async def test_a_part_that_was_being_sent_at_a_crash_arrives_once_or_is_marked(
    platform: Platform, tmp_path: Path
) -> None:
    text = await _dies_between_two_parts(platform, tmp_path, "before")
    assert text.split().count("w0") == (1 if platform.dedupes else 2)


@needs("has_token")
async def test_a_revoked_token_makes_it_fail_with_instructions(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path) as life:
        await life.is_up()
        await platform.revoke()
        await until(lambda: life.channel.status.state is ChannelState.FAILED)

        assert f"channels.{platform.name}" in life.channel.status.last_error
        assert not life.channel.is_running


# lifecycle


async def test_it_stops_without_leaving_tasks_or_connections(platform: Platform, tmp_path: Path) -> None:
    before, sockets = asyncio.all_tasks(), open_sockets()
    async with live(platform, tmp_path) as life:
        await life.asked("hello")
        life.silent = True
        await platform.says("and now?")
        await life.hears("and now?")

    assert life.channel.status.state is ChannelState.OFF
    await until(lambda: asyncio.all_tasks() <= before)
    await until(lambda: open_sockets() <= sockets)


@needs("speaks_first")
async def test_it_can_write_first_to_a_person_known_only_by_id(platform: Platform, tmp_path: Path) -> None:
    async with live(platform, tmp_path) as life:
        await life.is_up()
        chat = await life.manager.chat_with(platform.name, platform.person)
        assert chat is not None
        await life.posted(Address(platform.name, chat), "good morning")

    assert ["good morning" in one.text for one in platform.shown()] == [True]


def open_sockets() -> int:
    """The number of sockets of this process; 0 if unknown."""
    folder = Path("/proc/self/fd")
    if not folder.is_dir():
        return 0
    return sum(named(one).startswith("socket:") for one in folder.iterdir())


def named(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""
