"""What is read of QQ's events."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.channels.qq import read_event
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.qq import ANNA, HALL

SPOKEN = {"content_type": "voice", "url": "//nowhere/a.silk", "filename": "a.silk", "asr_refer_text": "call me"}


async def test_a_group_has_the_ids_of_earlier_releases_and_is_answered_after_a_restart(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        _, private, _ = await life.asked("alone")
        _, group, _ = await life.asked("hello all", chat=HALL, mention=True)
    async with live(qq, tmp_path) as life:
        await life.posted(group, "good morning")

    assert (private.chat_id, private.session_key) == (ANNA, f"qq:{ANNA}")
    assert (group.chat_id, group.session_key) == (HALL, f"qq:{HALL}")
    assert [post.text for post in qq.in_chat(HALL)] == ["You said: hello all", "good morning"]


async def test_a_quoted_message_is_read_as_words_of_somebody_else(qq, tmp_path):
    quoted = {"message_type": 103, "msg_elements": [{"msg_idx": "R1", "content": "the plan\nis old"}]}
    async with live(qq, tmp_path, silent=True) as life:
        life.people.admit("qq", ANNA, owner=True)
        await qq.writes("is it?", **quoted)
        quoting = await life.hears("is it?")
        await qq.writes("mine")
        own = await life.hears("mine")

    assert quoting.content == "[in reply to a message]\n> the plan\n> is old\nis it?"
    assert (quoting.provenance, own.provenance) == (Provenance.PERSON, Provenance.OWNER)


@pytest.mark.parametrize(
    ("kind", "name", "data", "tag"),
    [
        ("file", "plan.pdf", b"%PDF-1.7 x", "file"),
        ("video/mp4", "a.mp4", b"\0\0\0 ftypisom", "video"),
        ("image/png", "p.png", b"\x89PNG\r\n\x1a\n p", "image"),
    ],
)
async def test_files_are_fetched(qq, tmp_path, kind, name, data, tag):
    url = qq.put_file(name, data)
    async with live(qq, tmp_path, silent=True) as life:
        await qq.writes(attachments=[{"content_type": kind, "filename": name, "url": url}])
        message = await life.hears(f"[{tag}")

    (path,) = message.media
    assert Path(path).read_bytes() == data
    assert Path(path).suffix == Path(name).suffix


async def test_of_a_voice_message_its_words_are_read_or_the_recording_that_others_can_play(qq, tmp_path):
    wav = qq.put_file("a.wav", b"RIFF\0\0\0\0WAVEfmt ")
    async with live(qq, tmp_path, silent=True) as life:
        await qq.writes(attachments=[SPOKEN])
        spoken = await life.hears("call me")
        await qq.writes(attachments=[{"content_type": "voice", "url": "//nowhere/a.silk", "voice_wav_url": wav}])
        recorded = await life.hears("[voice")

    assert (spoken.content, spoken.media) == ("call me", [])
    assert Path(recorded.media[0]).suffix == ".wav"


async def test_events_that_are_not_as_documented_do_not_end_the_connection(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        await life.is_up()
        (line,) = qq.lines
        await line.socket.send_str("no JSON")
        await line.socket.send_str("[]")
        await qq.push("C2C_MESSAGE_CREATE", {"id": 7, "author": "anna"})
        await qq.push("GROUP_ADD_ROBOT", {"group_openid": HALL})
        await life.asked("hello")

        assert qq.lines == [line]


KEYS = st.sampled_from(
    [
        "id", "author", "user_openid", "member_openid", "group_openid", "content", "timestamp", "attachments", "url",
        "content_type", "asr_refer_text", "voice_wav_url", "filename", "message_type", "msg_elements", "username",
    ]
)  # fmt: skip
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(data=ODD, message=st.dictionaries(KEYS, ODD, max_size=10))
def test_any_event_is_read_or_ignored(data, message):
    read_event("C2C_MESSAGE_CREATE", data)
    incoming = read_event("C2C_MESSAGE_CREATE", message | {"id": "m", "author": {"user_openid": ANNA}})

    assert incoming is not None
    assert (incoming.sender_id, incoming.chat_id) == (ANNA, ANNA)
    assert all(file.source for file in incoming.attachments)
