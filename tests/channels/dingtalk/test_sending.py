"""What DingTalk gets of the bot: messages, cards, files; and what it refuses."""

import io
import zipfile

import pytest

from nanobot.bus.events import Address, DeliveryFailedError, OutboundKind
from nanobot.testing.live_channel import delta, live, turn_of
from tests.fakes.dingtalk import ANNA
from tests.fakes.served import RefusedError


async def test_a_streamed_answer_is_a_card_that_ends_as_finished_also_before_a_tool(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await dingtalk.says("hello")
        message = await life.hears("hello")
        delta(life, message, "let me look ")
        growing = await life.shows("let me")
        status = dingtalk.posts[0].card["flowStatus"]
        life.post(message, "let me look", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.post(message, "read a.md", kind=OutboundKind.TOOL_HINT, **turn_of(message))
        delta(life, message, "it says ")
        await life.shows("it says")
        life.post(message, "it says so", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "it says so")
        await life.posted(message, "next")

    first, hint, second, last = dingtalk.posts
    assert (growing.text.strip(), status) == ("let me look", "2")
    assert [post.card["flowStatus"] for post in (first, second)] == ["3", "3"]
    assert [post.card["msgContent"] for post in (first, second)] == ["let me look", "it says so"]
    assert (hint.key, last.key) == ("sampleMarkdown", "sampleMarkdown")


async def test_a_reply_that_differs_from_what_was_streamed_is_in_the_finished_card(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await dingtalk.says("hello")
        message = await life.hears("hello")
        delta(life, message, "one ")
        await life.shows("one")
        life.post(message, "one", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one and more")
        await life.shows("one and more")
        await life.posted(message, "next")

    card, _ = dingtalk.posts
    assert (card.card["flowStatus"], card.card["msgContent"]) == ("3", "one and more")


async def test_without_the_permission_for_cards_answers_come_as_messages_and_status_says_why(dingtalk, tmp_path):
    dingtalk.scopes -= {"Card.Instance.Write", "Card.Streaming.Write"}
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        await dingtalk.says("hello")
        message = await life.hears("hello")
        for word in ("one ", "two "):
            delta(life, message, word)
        life.post(message, "one two", kind=OutboundKind.STREAM_END, **turn_of(message))
        life.answers(message, "one two")
        await life.shows("one two")
        why = life.channel.status.last_error
        still_streams = life.manager.streams("dingtalk")
        await dingtalk.drop()
        await dingtalk.says("again")
        await life.hears("again")

        assert life.channel.status.last_error == why

    assert "answers are not streamed" in why
    assert "lacks the permission Card.Instance.Write" in why
    assert not still_streams
    assert [post.key for post in dingtalk.posts] == ["sampleMarkdown"]
    assert dingtalk.calls.count("POST /v1.0/card/instances/createAndDeliver") == 1


@pytest.mark.parametrize(
    ("name", "data", "key"),
    [
        ("a.pdf", b"%PDF-1.7", "sampleFile"),
        ("p.jpg", b"\xff\xd8\xff\xe0", "sampleImageMsg"),
        ("notes.md", b"# a", None),
    ],
)
async def test_files_are_sent_and_those_that_dingtalk_does_not_take_in_a_zip(dingtalk, tmp_path, name, data, key):
    (tmp_path / name).write_bytes(data)
    async with live(dingtalk, tmp_path, silent=True) as life:
        await dingtalk.says("hello")
        await life.posted(await life.hears("hello"), "here", media=[str(tmp_path / name)])

    _, post = dingtalk.posts
    sent_name, sent = dingtalk.stored[post.parameters.get("mediaId") or post.parameters["photoURL"]]
    if key is None:
        with zipfile.ZipFile(io.BytesIO(sent)) as archive:
            sent = archive.read(name)
        assert (post.key, sent_name, post.parameters["fileType"]) == ("sampleFile", f"{name}.zip", "zip")
    else:
        assert (post.key, sent_name) == (key, name)
    assert sent == data


async def test_a_picture_by_its_url_is_shown_and_another_url_written(dingtalk, tmp_path):
    urls = ["https://a.test/p.png", "https://a.test/page"]
    async with live(dingtalk, tmp_path) as life:
        await life.posted(Address("dingtalk", ANNA), "", media=urls)

    picture, page = dingtalk.posts
    assert picture.parameters == {"photoURL": urls[0]}
    assert page.parameters["text"] == urls[1]


async def test_the_first_line_is_what_a_notification_shows(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path) as life:
        await life.posted(Address("dingtalk", ANNA), "## A **title**\n\nand text")

    (post,) = dingtalk.posts
    assert post.parameters == {"title": "A title", "text": "## A title  \n  \nand text"}


async def test_too_many_messages_to_a_person_are_sent_later(dingtalk, tmp_path):
    dingtalk.throttled_people.add(ANNA)
    async with live(dingtalk, tmp_path) as life:
        await life.posted(Address("dingtalk", ANNA), "patience")

    assert [post.parameters["text"] for post in dingtalk.posts] == ["patience"]


@pytest.mark.parametrize(
    ("chat", "scopes", "told"),
    [
        ("nobody", None, "the app's organisation has no such member"),
        (ANNA, set(), "the app lacks the permission qyapi_robot_sendmsg. Add it at open-dev.dingtalk.com"),
    ],
)
async def test_what_dingtalk_never_takes_is_said_in_words_to_act_on(dingtalk, tmp_path, chat, scopes, told):
    dingtalk.scopes = dingtalk.scopes if scopes is None else scopes
    async with live(dingtalk, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=told):
            await life.posted(Address("dingtalk", chat), "hello")

    assert len([call for call in dingtalk.calls if "batchSend" in call]) == 1


async def test_an_error_that_nobody_knows_is_tried_again_and_then_said(dingtalk, tmp_path):
    dingtalk.refusals.extend(RefusedError("new.code", "不知道") for _ in range(4))
    async with live(dingtalk, tmp_path) as life:
        with pytest.raises(DeliveryFailedError, match=r"不知道 \(new.code\)"):
            await life.posted(Address("dingtalk", ANNA), "lost")
        await life.posted(Address("dingtalk", ANNA), "next")

    assert len(life.dead) == 1
    assert [post.parameters["text"] for post in dingtalk.posts] == ["next"]
