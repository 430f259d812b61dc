"""What only QQ has: its gateway, replies that are counted, Markdown and links; and an SDK at the same fake."""

import asyncio
import json
import logging
from pathlib import Path

import pytest

from nanobot.bus.events import Address, DeliveryFailedError, OutboundKind
from nanobot.channels.qq import QQChannel
from nanobot.testing.live_channel import live, turn_of, until
from tests.fakes.qq import ANNA, APP_ID, HALL, SECRET
from tests.fakes.served import RefusedError
from tests.support.eventually import eventually
from tests.support.sdk_program import sdk_program


async def test_a_connection_that_qq_ends_is_resumed_and_nobody_is_alarmed(qq, tmp_path, caplog):
    async with live(qq, tmp_path) as life:
        await life.asked("before")
        await qq.send_to_lines({"op": 7})
        await eventually(lambda: qq.resumed == 1)
        await life.asked("between")
        for line in [*qq.lines]:
            await line.socket.close(code=4009)
        await eventually(lambda: qq.resumed == 2)
        await life.asked("after")

    assert len(qq.identified) == 1
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_session_that_qq_has_forgotten_is_replaced(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        await life.asked("before")
        qq.end_session()
        await qq.drop()
        await life.asked("after")

    assert len(qq.identified) == 2


async def test_a_session_that_the_disk_refused_is_saved_soon_after(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        await life.asked("before")
        path = tmp_path / "qq.json"
        first = json.loads(path.read_text())["session"]
        path.unlink()
        path.mkdir()  # cannot be replaced by a file
        qq.end_session()
        await qq.drop()
        await eventually(lambda: len(qq.identified) == 2)
        await asyncio.sleep(0.2)
        path.rmdir()

        await eventually(lambda: path.exists() and json.loads(path.read_text())["session"] != first, within_s=2)


@pytest.mark.slow
async def test_an_sdk_talks_to_the_same_fake(qq):
    async with sdk_program("qq_sdk_bot", APP_ID, SECRET, qq.url) as read:
        picture = {"content_type": "image/png", "filename": "p.png", "url": qq.put_file("p.png", b"p")}
        private = await qq.writes("hello")
        group = await qq.writes("look", group=HALL, attachments=[picture])
        by_id = {one["id"]: one for one in (await read(), await read())}

    assert (by_id[private]["text"], by_id[private]["sender"]) == ("hello", ANNA)
    assert (by_id[group]["text"], by_id[group]["group"], by_id[group]["urls"]) == ("look", HALL, [picture["url"]])
    for chat, message_id in ((ANNA, private), (HALL, group)):
        text, picture_post = qq.in_chat(chat)
        assert (text.text, text.body["msg_id"], text.body["msg_seq"]) == ("You said it", message_id, 1)
        assert qq.stored[picture_post.body["media"]["file_info"]][1] == b"a picture"
    assert by_id[private]["refused"] == 40054005


SPOKEN = {"content_type": "voice", "url": "//nowhere/a.silk", "filename": "a.silk", "asr_refer_text": "call me"}


async def test_a_group_has_the_id_of_earlier_releases_and_is_answered_after_a_restart(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        _, group, _ = await life.asked("hello all", chat=HALL, mention=True)
    async with live(qq, tmp_path) as life:
        await life.posted(group, "good morning")

    assert (group.chat_id, group.session_key) == (HALL, f"qq:{HALL}")
    assert [post.text for post in qq.in_chat(HALL)] == ["You said: hello all", "good morning"]


async def test_of_a_voice_message_its_words_are_read_or_the_recording_that_others_can_play(qq, tmp_path):
    wav = qq.put_file("a.wav", b"RIFF\0\0\0\0WAVEfmt ")
    async with live(qq, tmp_path, silent=True) as life:
        await qq.writes(attachments=[SPOKEN])
        spoken = await life.hears("call me")
        await qq.writes(attachments=[{"content_type": "voice", "url": "//nowhere/a.silk", "voice_wav_url": wav}])
        recorded = await life.hears("[voice")

    assert (spoken.content, spoken.media) == ("call me", [])
    assert Path(recorded.media[0]).suffix == ".wav"


def replies(qq, chat=ANNA):
    """The message that each post replies to, and the reply's number."""
    return [(post.body.get("msg_id"), post.body.get("msg_seq")) for post in qq.in_chat(chat)]


async def test_a_message_is_replied_to_five_times_and_then_the_bot_speaks_by_itself(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        first = await qq.says("one")
        await life.hears("one")  # messages that arrive together are answered in whichever order they are read
        second = await qq.says("two")
        message = await life.hears("two")
        for number in range(11):
            await life.posted(message, f"answer {number}")

    fives = [(one, number) for one in (first, second) for number in range(1, 6)]
    assert replies(qq) == [*fives, (None, None)]


async def test_replies_are_counted_on_after_a_restart(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        message_id = await qq.says("one")
        message = await life.hears("one")
        await life.posted(message, "first")
    async with live(qq, tmp_path, silent=True) as life:
        await life.posted(message, "second")

    assert replies(qq) == [(message_id, 1), (message_id, 2)]


async def test_when_it_is_too_late_to_reply_the_bot_speaks_by_itself(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        message_id = await qq.says("one")
        message = await life.hears("one")
        qq.too_late.add(message_id)
        await life.posted(message, "late")
        await life.posted(message, "later")

    assert replies(qq) == [(None, None), (None, None)]
    assert qq.calls.count(f"POST /v2/users/{ANNA}/messages") == 3


async def test_a_repeat_that_qq_no_longer_recognises_says_so(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        message_id = await qq.says("one")
        message = await life.hears("one")
        life.bus.dies = "sent"
        life.answers(message, "the reply")
        await asyncio.wait_for(life.bus.died.wait(), 10)
    qq.numbers.clear()
    qq.too_late.add(message_id)
    async with live(qq, tmp_path) as life:
        await until(lambda: len(qq.shown()) == 2)

    first, again = qq.shown()
    assert first.text == "the reply"
    assert "you may have received it before" in again.text


async def test_a_message_that_was_no_reply_says_that_it_may_be_a_repeat(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        life.bus.dies = "sent"
        life.post(Address("qq", ANNA), "a reminder")
        await asyncio.wait_for(life.bus.died.wait(), 10)
    async with live(qq, tmp_path) as life:
        await until(lambda: len(qq.shown()) == 2)

    assert "you may have received this before" in qq.shown()[1].text


async def test_a_number_that_another_message_has_taken_is_left_out(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        message_id = await qq.says("one")
        qq.numbers[message_id] = [1]
        await life.posted(await life.hears("one"), "answer")

    assert replies(qq) == [(message_id, 2)]


async def test_where_the_bot_may_only_reply_the_owner_is_told_and_the_next_reply_arrives(qq, tmp_path):
    qq.can_speak_first = False
    async with live(qq, tmp_path, silent=True) as life:
        with pytest.raises(DeliveryFailedError, match="It can answer once they write again"):
            await life.posted(Address("qq", ANNA), "a reminder")
        await life.posted(await life.receives("hello"), "answer")

    assert len(life.dead) == 1
    assert [post.text for post in qq.posts] == ["answer"]


async def test_progress_leaves_replies_for_the_answer_and_is_not_shown_in_groups(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        await qq.says("hello")
        await qq.says("hello all", chat=HALL, mention=True)
        for message in (await life.hears("hello"), await life.hears("hello all")):
            for number in range(5):
                life.post(message, f"step {number}", kind=OutboundKind.PROGRESS, **turn_of(message))
            await life.posted(message, "answer")

    texts = {chat: [post.text for post in qq.in_chat(chat)] for chat in (ANNA, HALL)}
    assert texts == {ANNA: ["step 0", "step 1", "step 2", "answer"], HALL: ["answer"]}
    assert all(message_id for message_id, _ in replies(qq) + replies(qq, HALL))


async def test_typing_is_shown_once_a_message_and_takes_a_reply(qq, tmp_path):
    async with live(qq, tmp_path, silent=True) as life:
        message_id = await qq.says("hello")
        message = await life.hears("hello")
        life.bus.begin(message, "turn")
        await until(qq.typed)
        assert isinstance(life.channel, QQChannel)
        await life.channel.show_typing(message.address)
        await life.posted(message, "answer")

    assert qq.typed_in == [ANNA]
    assert replies(qq) == [(message_id, 2)]


async def test_an_acknowledgement_is_sent_only_if_the_config_has_one(qq, tmp_path):
    async with live(qq, tmp_path, silent=True, ack_message="One moment.") as life:
        await qq.says("hello")
        await life.shows("One moment.")
        await life.posted(await life.hears("hello"), "answer")
    async with live(qq, tmp_path, silent=True) as life:
        await life.posted(await life.receives("again"), "another")

    assert [post.text for post in qq.posts] == ["One moment.", "answer", "another"]


async def test_answers_are_markdown_where_the_config_says_so_until_qq_refuses_it(qq, tmp_path, caplog):
    async with live(qq, tmp_path, msg_format="markdown") as life:
        await life.posted(Address("qq", ANNA), "## A title\n\na **word**")
        qq.has_markdown = False
        await life.posted(Address("qq", ANNA), "a **word**")
        await life.posted(Address("qq", ANNA), "another **word**")

    markdown, plain, next_one = qq.posts
    assert (markdown.body["msg_type"], markdown.text) == (2, "## A title  \n  \na **word**")
    assert [(post.body["msg_type"], post.text) for post in (plain, next_one)] == [(0, "a word"), (0, "another word")]
    assert caplog.text.count("answers are sent without Markdown") == 1


async def test_links_that_qq_refuses_are_sent_dead(qq, tmp_path, caplog):
    qq.allowed_links.add("https://docs.example/a")
    async with live(qq, tmp_path) as life:
        await life.posted(Address("qq", ANNA), "see https://docs.example/a")
        await life.posted(Address("qq", ANNA), "see https://www.site.example/b.html now.")

    assert [post.text for post in qq.posts] == [
        "see https://docs.example/a",
        "see https://www．site．example/b．html now.",
    ]
    assert "a message is sent with dead links" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [("p.png", b"\x89PNG\r\n\x1a\n", 1), ("a.mp4", b"\0\0\0 ftypisom", 2), ("a.md", b"# a", 4)],
)
async def test_files_are_sent(qq, tmp_path, name, data, kind):
    (tmp_path / name).write_bytes(data)
    async with live(qq, tmp_path) as life:
        await life.posted(Address("qq", ANNA), "", media=[str(tmp_path / name)])

    (post,) = qq.posts
    assert qq.stored[post.body["media"]["file_info"]] == (name, data)
    assert qq.kinds == [kind]


async def test_a_picture_by_its_url_is_shown_and_another_url_written(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        await life.posted(Address("qq", ANNA), "", media=["https://a.test/p.png", "https://a.test/page"])

    picture, page = qq.posts
    assert qq.shown()[0].files == ["p.png"]
    assert picture.body["msg_type"] == 7
    assert page.text == "https://a.test/page"


async def test_a_message_that_qq_reviews_first_counts_as_sent(qq, tmp_path):
    qq.refusals.append(RefusedError(304023, status=202))
    async with live(qq, tmp_path) as life:
        await life.posted(Address("qq", ANNA), "hello")

    assert (life.dead, qq.posts) == ([], [])  # so it is not sent again
