"""What WeCom gets of the bot: streams, cards, messages and files; and what it refuses."""

from datetime import UTC, datetime

import pytest

from nanobot.bus.events import Address, Button, DeliveryFailedError, OutboundKind
from nanobot.testing.live_channel import delta, live, turn_of
from nanobot.utils.clock import FrozenClock
from tests.fakes.served import RefusedError
from tests.fakes.wecom import ANNA, HALL, STREAM_OVER
from tests.support.eventually import eventually

ADDRESS = Address("wecom", ANNA)


async def test_a_streamed_answer_is_shown_as_complete(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await wecom.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
        (growing,) = [post.is_complete for post in wecom.posts]
        life.post(message, "one two", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two")
        await eventually(lambda: wecom.posts[0].is_complete)

    assert not growing
    assert [(post.kind, post.content["content"]) for post in wecom.posts] == [("stream", "one two")]


async def test_a_stream_that_wecom_has_ended_is_followed_by_the_whole_answer(wecom, tmp_path):
    async with live(wecom, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await wecom.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
        wecom.refusals.append(RefusedError(STREAM_OVER))
        life.answers(message, "one two")
        await life.shows("one two")

    assert [(post.kind, post.content["content"]) for post in wecom.posts][1:] == [("markdown", "one two")]


async def test_after_nine_minutes_a_stream_is_completed_and_the_whole_answer_follows(wecom, tmp_path):
    clock = FrozenClock(datetime(2026, 11, 26, 12, tzinfo=UTC))
    async with live(wecom, tmp_path, silent=True, clock=clock) as life:
        life.adjust(delta_interval_s=0.0)
        await wecom.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
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
        await wecom.says("hello")
        message = await life.hears("hello")
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


async def test_whoever_never_wrote_gets_nothing_and_the_owner_is_told_why(wecom, tmp_path):
    wecom.wrote.discard(HALL)
    async with live(wecom, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match="they have not written to the bot yet"):
            await life.posted(Address("wecom", HALL), "a reminder")
        await life.posted(ADDRESS, "next")

    assert [post.content["content"] for post in wecom.posts] == ["next"]


async def test_an_error_that_nobody_knows_is_tried_again_and_then_said(wecom, tmp_path):
    wecom.refusals.extend(RefusedError(49999, "不知道") for _ in range(4))
    async with live(wecom, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=r"不知道 \(49999\)"):
            await life.posted(ADDRESS, "lost")
        await life.posted(ADDRESS, "next")

    assert [post.content["content"] for post in wecom.posts] == ["next"]
