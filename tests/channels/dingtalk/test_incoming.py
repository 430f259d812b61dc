"""What is read of DingTalk's messages."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.dingtalk import read_message
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.dingtalk import ANNA, HALL, ROBOT_USER, ZOE

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
        (replying_to(ROBOT_USER), "[in reply to you]\n> the plan\n> is old\nis it?"),
        (replying_to("somebody"), "[in reply to a message]\n> the plan\n> is old\nis it?"),
        (replying_to("somebody", content={}), "is it?"),
    ],
)
async def test_what_people_send_is_read(dingtalk, tmp_path, more, read):
    async with live(dingtalk, tmp_path, silent=True) as life:
        await dingtalk.writes(**more)
        message = await life.hears(read.splitlines()[-1])

    assert message.content == read


async def test_words_of_somebody_else_count_as_theirs(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path, silent=True) as life:
        life.people.admit("dingtalk", ANNA, owner=True)
        for sender in (f"$:LWCP_v1:${ANNA}", ROBOT_USER, "somebody"):
            await dingtalk.writes(**replying_to(sender))
        await dingtalk.says("that is all")
        await life.hears("that is all")

    owner, person = Provenance.OWNER, Provenance.PERSON
    assert [one.provenance for one in life.heard] == [owner, owner, person, owner]


@pytest.mark.parametrize(
    ("kind", "name", "tag"), [("file", "plan.pdf", "file"), ("video", "a.mp4", "video"), ("audio", "a.amr", "audio")]
)
async def test_files_are_fetched(dingtalk, tmp_path, kind, name, tag):
    data = {"pdf": b"%PDF-1.7 x", "mp4": b"\0\0\0 ftypisom", "amr": b"#!AMR\nx"}[name.rpartition(".")[2]]
    code = dingtalk.put_file(name, data)
    async with live(dingtalk, tmp_path, silent=True) as life:
        await dingtalk.writes(msgtype=kind, content={"downloadCode": code, "fileName": name, "duration": 1})
        message = await life.hears("[")

    (path,) = message.media
    assert Path(path).read_bytes() == data
    assert Path(path).suffix == Path(name).suffix
    assert path in message.content


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
    async with live(dingtalk, tmp_path, allow_from=["*"]) as life:
        _, shared, _ = await life.asked("hello", chat=dingtalk.group, mention=True)
    async with live(dingtalk, tmp_path, allow_from=["*"], group_user_isolation=True) as life:
        _, own, _ = await life.asked("mine", chat=dingtalk.group, mention=True)
        _, private, _ = await life.asked("alone")

    assert (shared.chat_id, shared.session_key) == (f"group:{HALL}", f"dingtalk:group:{HALL}")
    assert (own.chat_id, own.session_key) == (f"group:{HALL}", f"dingtalk:group:{HALL}:{ANNA}")
    assert (private.chat_id, private.session_key) == (ANNA, f"dingtalk:{ANNA}")


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


async def test_what_is_not_as_documented_does_not_end_the_connection(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path) as life:
        await life.is_up()
        (line,) = dingtalk.lines
        await line.socket.send_str("no JSON")
        await line.socket.send_str("[]")
        await line.socket.send_json(
            {"type": "CALLBACK", "headers": {"topic": "/v1.0/im/bot/messages/get"}, "data": "{"}
        )
        await line.socket.send_json({"type": "EVENT", "headers": {"topic": "*", "messageId": "e"}, "data": "{}"})
        await dingtalk.push({"msgId": "x", "conversationType": 7})
        await life.asked("hello")

        assert dingtalk.lines == [line]


KEYS = st.sampled_from(
    [
        "msgId",
        "conversationId",
        "conversationType",
        "senderStaffId",
        "senderId",
        "senderNick",
        "msgtype",
        "text",
        "content",
        "richText",
        "createAt",
        "repliedMsg",
        "isInAtList",
        "recognition",
        "downloadCode",
        "type",
        "fileName",
    ]
)
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(
    data=st.dictionaries(KEYS, ODD, max_size=10),
    kind=st.sampled_from(["text", "richText", "audio", "picture", "file", "other"]),
)
def test_any_message_is_read_or_ignored(data, kind):
    known = {"senderStaffId": "anna", "conversationId": "c", "msgtype": kind}

    incoming = read_message(data | known, isolate_users=True)

    assert incoming is not None
    assert incoming.sender_id == "anna"
    assert all(file.source for file in incoming.attachments)
    read_message(data, isolate_users=False)
