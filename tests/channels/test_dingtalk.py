"""What only DingTalk has: its stream, the forms of its messages, cards, files; and its own SDK at the same fake."""

import io
import json
import logging
import zipfile
from pathlib import Path
from typing import Any

import pytest

from nanobot.bus.events import Address, OutboundKind
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import delta, live, turn_of
from tests.fakes.dingtalk import ANNA, CLIENT_ID, HALL, MESSAGES, ROBOT_USER, SECRET, ZOE
from tests.support.eventually import eventually
from tests.support.sdk_program import sdk_program


async def test_a_connection_that_dingtalk_ends_is_replaced_and_nobody_is_alarmed(dingtalk, tmp_path, caplog):
    async with live(dingtalk, tmp_path) as life:
        await life.asked("before")
        (first,) = dingtalk.lines
        await dingtalk.end_lines()
        await eventually(lambda: dingtalk.lines and first not in dingtalk.lines)
        await life.asked("after")

    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []


async def test_a_ping_of_the_protocol_is_answered_with_what_it_says(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path) as life:
        await life.is_up()
        await dingtalk.ping_lines()
        (line,) = dingtalk.lines
        (pong,) = await eventually(lambda: line.acknowledgements)

    assert (pong["code"], json.loads(pong["data"])) == (200, {"opaque": "o-1"})


@pytest.mark.slow
async def test_dingtalks_own_sdk_talks_to_the_same_fake(dingtalk):
    async with sdk_program("dingtalk_sdk_bot", CLIENT_ID, SECRET, DINGTALK_OPENAPI_ENDPOINT=dingtalk.url) as read:
        parts = [{"text": "look"}, {"type": "picture", "downloadCode": dingtalk.put_file("p.png", b"p")}]
        private = await dingtalk.writes("hello")
        group = await dingtalk.writes(group=HALL, msgtype="richText", content={"richText": parts})
        by_chat = {one["chat"]: one for one in (await read(), await read())}
        await eventually(lambda: all(map(dingtalk.acknowledged, (private, group))))

    assert by_chat[f"cid-of-{ANNA}"]["texts"] == ["hello"]
    assert by_chat[HALL]["texts"] == ["look"]
    assert by_chat[HALL]["urls"] == [f"{dingtalk.url}/files/{parts[1]['downloadCode']}"]
    assert dingtalk.subscriptions == [{"type": "CALLBACK", "topic": MESSAGES}]
    for chat in (ANNA, HALL):
        (post,) = dingtalk.in_chat(chat)
        assert (post.card["flowStatus"], post.card["msgContent"]) == ("3", "You said it all")


PICTURE = b"\x89PNG\r\n\x1a\n picture"


QUOTED = {"msgType": "text", "content": {"text": "the plan\nis old"}}


def replying_to(sender: str, **more: object) -> dict[str, object]:
    replied = {**QUOTED, "senderId": sender, **more}
    return {"text": {"content": "is it?", "isReplyMsg": True, "repliedMsg": replied}}


@pytest.mark.parametrize(
    ("more", "read"),
    [
        ({"msgtype": "audio", "content": {"recognition": "call me", "downloadCode": "c", "duration": 900}}, "call me"),
        ({"msgtype": "richText", "content": {"richText": [{"text": "one"}, {"text": "two"}]}}, "one\ntwo"),
        ({"msgtype": "interactiveCard", "content": {}}, "[a message of a kind that bots cannot read]"),
        (replying_to(f"$:LWCP_v1:${ANNA}"), "[in reply to a message]\n> the plan\n> is old\nis it?"),
        (replying_to(ROBOT_USER), "[in reply to you]\n> the plan\n> is old\nis it?"),
        (replying_to("somebody"), "[in reply to a message]\n> the plan\n> is old\nis it?"),
        (replying_to("somebody", content={}), "is it?"),
    ],
)
async def test_what_people_send_is_read_and_words_of_somebody_else_count_as_theirs(dingtalk, tmp_path, more, read):
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.people.admit("dingtalk", ANNA, owner=True)
        await dingtalk.writes(**more)
        message = await life.hears(read.splitlines()[-1])

    assert message.content == read
    is_theirs = more == replying_to("somebody")
    assert message.provenance is (Provenance.PERSON if is_theirs else Provenance.OWNER)


async def test_a_download_is_led_to_another_host_only_where_the_config_says_so(dingtalk, tmp_path, caplog):
    elsewhere = dingtalk.url.replace("127.0.0.1", "localhost")
    code = dingtalk.put_file("p.png", PICTURE)
    dingtalk.redirect_to = f"{elsewhere}/files/{code}"
    allowed: dict[str, Any] = {
        "allow_remote_media_redirects": True,
        "remote_media_redirect_allowed_hosts": ["localhost"],
    }
    async with live(dingtalk, tmp_path) as life:
        await dingtalk.writes(msgtype="file", content={"downloadCode": code, "fileName": "p.png"})
        await life.shows("download failed")
    async with live(dingtalk, tmp_path, **allowed) as life:
        await dingtalk.writes(msgtype="file", content={"downloadCode": code, "fileName": "p.png"})
        message = await life.hears(".png")

    assert "DingTalk redirects to localhost. To allow: set channels.dingtalk.allowRemoteMediaRedirects" in caplog.text
    assert Path(message.media[0]).read_bytes() == PICTURE


async def test_a_group_has_the_ids_of_earlier_releases_and_one_session_or_one_for_each_member(dingtalk, tmp_path):
    keys = []
    for isolated in (False, True):
        async with live(dingtalk, tmp_path, group_user_isolation=isolated) as life:
            for chat in (dingtalk.group, ANNA):
                _, message, _ = await life.asked(f"hello {isolated} {chat}", chat=chat, mention=True)
                keys.append((message.chat_id, message.session_key))

    group = f"group:{HALL}"
    assert keys[:2] == [(group, f"dingtalk:{group}"), (ANNA, f"dingtalk:{ANNA}")]
    assert keys[2:] == [(group, f"dingtalk:{group}:{ANNA}"), (ANNA, f"dingtalk:{ANNA}")]


async def test_private_chats_can_be_switched_off(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, disable_private_chat=True) as life:
        await dingtalk.says("psst")
        await dingtalk.says("psst", sender=ZOE)
        await life.asked("hello all", chat=dingtalk.group, mention=True)

    assert len(life.heard) == 1
    assert life.people.pending("dingtalk") == []


async def test_somebody_may_be_listed_by_either_id(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, allow_from=[f"$:LWCP_v1:${ZOE}"]) as life:
        await life.asked("hello", sender=ZOE, chat=ZOE)

    assert [one.sender_id for one in life.heard] == [ZOE]


async def test_a_streamed_answer_is_a_card_that_ends_as_finished_also_before_a_tool(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
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
    assert [(post.card["flowStatus"], post.is_final) for post in (first, second)] == [("3", True)] * 2
    assert [post.card["msgContent"] for post in (first, second)] == ["let me look", "it says so"]
    assert (hint.key, last.key) == ("sampleMarkdown", "sampleMarkdown")


async def test_without_the_permission_for_cards_answers_come_as_messages_and_status_says_why(dingtalk, tmp_path):
    dingtalk.scopes -= {"Card.Instance.Write", "Card.Streaming.Write"}
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.adjust(delta_interval_s=0.0)
        message = await life.receives("hello")
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
        await life.posted(await life.receives("hello"), "here", media=[str(tmp_path / name)])

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
