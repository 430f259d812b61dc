"""What only WeCom has: one connection a robot, streams, cards, encrypted files; and its own SDK at the same fake."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from nanobot.bus.events import Address, Button, OutboundKind
from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import delta, live, turn_of
from nanobot.utils.clock import FrozenClock
from tests.fakes.served import RefusedError
from tests.fakes.wecom import ANNA, BOT_ID, HALL, SECRET, STREAM_OVER
from tests.support.eventually import eventually
from tests.support.sdk_program import sdk_program
from tests.support.streaming import streamed


async def test_a_gateway_that_another_program_has_replaced_never_connects_again(wecom, tmp_path):
    async with live(wecom, tmp_path) as life:
        await life.asked("hello")
        await wecom.channel(MessageBus()).login()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        with pytest.raises(ChannelSetupError):  # what the supervisor does at each retry
            await life.channel.start()

        assert "Another program has connected as this robot" in life.channel.status.last_error
        assert sum(one["cmd"] == "aibot_subscribe" for one in wecom.calls) == 2


async def test_a_message_that_arrives_while_the_disk_is_full_waits_and_heartbeats_go_on(wecom, tmp_path):
    async with live(wecom, tmp_path) as life:
        await life.is_up()
        life.bus.full = True
        await wecom.says("hello")
        await eventually(lambda: life.bus.refused)
        beats = wecom.heartbeats
        await eventually(lambda: wecom.heartbeats > beats + 1)
        life.bus.full = False
        await life.shows("You said: hello")

    assert len(wecom.lines) == 0
    assert sum(one["cmd"] == "aibot_subscribe" for one in wecom.calls) == 1


async def test_whoever_opens_the_chat_is_welcomed_if_the_config_says_so(wecom, tmp_path):
    entered = {"msgtype": "event", "event": {"eventtype": "enter_chat"}}
    async with live(wecom, tmp_path, welcome_message="Hello, I am Nano.") as life:
        await wecom.push("aibot_event_callback", entered)
        await eventually(lambda: wecom.welcomes)
        await life.asked("hello")

    assert wecom.welcomes == ["Hello, I am Nano."]


async def test_voice_messages_are_read_as_the_words_of_who_spoke(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        life.people.admit("wecom", ANNA, owner=True)
        await wecom.writes("", msgtype="voice", voice={"content": "call me"})
        spoken = await life.hears("call me")

    assert (spoken.chat_id, spoken.session_key) == (ANNA, f"wecom:{ANNA}")
    assert spoken.provenance is Provenance.OWNER


@pytest.mark.parametrize("size", [31, 32, 300_000])
async def test_files_are_decrypted(wecom, tmp_path, size):
    data = (b"%PDF-1.7" + b"x" * size)[-size:]
    async with live(wecom, tmp_path, silent=True) as life:
        await wecom.writes("", **wecom.put_file("file", "plan.pdf", data))
        message = await life.hears("[file")

    assert Path(message.media[0]).read_bytes() == data
    assert Path(message.media[0]).suffix == ".pdf"


async def test_a_file_that_cannot_be_decrypted_is_said_to_be_missing(wecom, tmp_path, caplog):
    told = wecom.put_file("file", "plan.pdf", b"%PDF-1.7")
    told["file"]["aeskey"] = "A" * 43
    async with live(wecom, tmp_path, silent=True) as life:
        await wecom.writes("", **told)
        await life.hears("[file: download failed]")

    assert "cannot be decrypted" in caplog.text


@pytest.mark.slow
async def test_wecoms_own_sdk_talks_to_the_same_fake(wecom):
    async with sdk_program("wecom_sdk_bot", BOT_ID, SECRET, wecom.url) as read:
        items = [{"msgtype": "text", "text": {"content": "look"}}, wecom.put_file("image", "p.png", b"a picture")]
        message_id = await wecom.writes("", group=HALL, msgtype="mixed", mixed={"msg_item": items})
        told = await read()

    assert told == {"id": message_id, "sender": ANNA, "chat": HALL, "data": ["a picture"], "codes": [0, 0]}
    stream, message = wecom.in_chat(HALL)
    assert (stream.content["content"], stream.edits, stream.is_complete) == ("You said it", 1, True)
    assert message.content == {"content": "Bye"}


ADDRESS = Address("wecom", ANNA)


async def test_a_streamed_answer_is_shown_as_complete(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        message = await streamed(life, "one ")
        (growing,) = [post.is_complete for post in wecom.posts]
        life.post(message, "one two", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two")
        await eventually(lambda: wecom.posts[0].is_complete)

    assert not growing
    assert [(post.kind, post.content["content"]) for post in wecom.posts] == [("stream", "one two")]


async def test_a_stream_that_wecom_has_ended_is_followed_by_the_whole_answer(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        message = await streamed(life, "one ")
        wecom.refusals.append(RefusedError(STREAM_OVER))
        life.answers(message, "one two")
        await life.shows("one two")

    assert [(post.kind, post.content["content"]) for post in wecom.posts][1:] == [("markdown", "one two")]


async def test_a_stream_whose_end_was_not_confirmed_is_not_followed_by_the_same_answer(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        message = await streamed(life, "one two")
        wecom.lose_answers(1)
        life.answers(message, "one two")
        await eventually(lambda: life.channel.status.sent)

    assert [(post.kind, post.content["content"]) for post in wecom.posts] == [("stream", "one two")]
    assert wecom.posts[0].is_complete


async def test_after_nine_minutes_a_stream_is_completed_and_the_whole_answer_follows(wecom, tmp_path):
    clock = FrozenClock(datetime(2026, 11, 26, 12, tzinfo=UTC))
    async with live(wecom, tmp_path, silent=True, clock=clock) as life:
        message = await streamed(life, "one ")
        clock.advance(9 * 60 + 1)
        life.channel.status.touch()
        delta(life, message, "two ")
        await eventually(lambda: wecom.posts[0].is_complete)
        delta(life, message, "three ")
        life.answers(message, "one two three")
        await life.shows("one two three")

    stream, answer = wecom.posts
    assert (stream.kind, stream.content["content"].split()) == ("stream", ["one", "two"])
    assert (answer.kind, answer.content["content"]) == ("markdown", "one two three")


async def test_buttons_below_a_long_text_are_on_a_card_of_their_own_which_shows_what_was_pressed(wecom, tmp_path):
    question = "May I run this command?\n\n- `make install`"
    async with live(wecom, tmp_path, silent=True) as life:
        message = await life.receives("hello")
        await life.posted(message, question, buttons=(Button("Yes", "approve 1"), Button("No", "deny 1")))
        text, card = wecom.posts
        await wecom.presses(card, "Yes")
        await life.hears("approve 1")
        await eventually(lambda: len(card.content["button_list"]) == 1)
        await wecom.presses(card, "✓ Yes")
        await wecom.says("next")
        await life.hears("next")

    assert "make install" in text.content["content"]
    assert [one["text"] for one in card.content["button_list"]] == ["✓ Yes"]
    assert [one.content for one in life.heard] == ["hello", "approve 1", "next"]


async def test_a_card_that_is_refused_does_not_repeat_the_text_before_it(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        await life.is_up()
        receipt = life.post(ADDRESS, "A question that is longer than a title.", buttons=(Button("Yes", "yes"),))
        await eventually(lambda: wecom.posts)
        wecom.refuse(1, status=500)
        await receipt.wait()

    assert [post.kind for post in wecom.posts] == ["markdown", "template_card"]


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [("p.png", 700_000, "image"), ("a.mp4", 9, "video"), ("a.md", 9, "file"), ("big.png", 11 << 20, "file")],
)
async def test_files_are_sent_in_parts_and_large_pictures_as_files(wecom, tmp_path, name, size, kind):
    data = (b"\x89PNG\r\n\x1a\n" + b"x" * size)[:size]
    (tmp_path / name).write_bytes(data)
    async with live(wecom, tmp_path) as life:
        await life.posted(ADDRESS, "", media=[str(tmp_path / name)])

    (post,) = wecom.posts
    assert wecom.stored[post.content["media_id"]] == (kind, name, data)
    assert post.kind == kind
