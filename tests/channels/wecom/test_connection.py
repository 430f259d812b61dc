"""Credentials and the long connection of WeCom; and its own SDK at the same fake, which shows the fake to be right."""

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.channels.wecom import event_of, read_message, read_press
from nanobot.messages.types import Provenance
from nanobot.testing.live_channel import live
from tests.fakes.wecom import ANNA, BOT_ID, HALL, SECRET
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"bot_id": ""}, "channels.wecom.botId is not set. Run `nanobot channels login wecom`."),
        ({"secret": " "}, "channels.wecom.secret is not set"),
        ({"secret": "bad"}, "does not take channels.wecom.botId and channels.wecom.secret (invalid bot_id or secret"),
    ],
)
async def test_credentials_that_are_no_good_are_named_with_what_to_do(wecom, tmp_path, section, told):
    async with live(wecom, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_login_tries_the_credentials_and_says_what_to_do_next(wecom, capsys):
    assert await wecom.channel(MessageBus()).login()

    assert "Find the robot by its name" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="secret"):
        await wecom.channel(MessageBus(), secret="bad").login()


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


async def test_groups_quotes_and_voice_messages_are_read(wecom, tmp_path):
    quote = {"msgtype": "text", "text": {"content": "the plan\nis old"}}
    async with live(wecom, tmp_path, silent=True) as life:
        life.people.admit("wecom", ANNA, owner=True)
        await wecom.writes("is it?", group=HALL, quote=quote)
        quoting = await life.hears("is it?")
        await wecom.writes("", msgtype="voice", voice={"content": "call me"})
        spoken = await life.hears("call me")

    assert quoting.content == "[in reply to a message]\n> the plan\n> is old\nis it?"
    assert (quoting.chat_id, quoting.session_key, quoting.in_group) == (HALL, f"wecom:{HALL}", True)
    assert (quoting.provenance, spoken.provenance) == (Provenance.PERSON, Provenance.OWNER)
    assert (spoken.chat_id, spoken.session_key) == (ANNA, f"wecom:{ANNA}")


@pytest.mark.parametrize("size", [1, 31, 32, 33, 300_000])
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


async def test_nothing_that_opens_a_door_is_in_the_log(wecom, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(wecom, tmp_path) as life:
        await life.asked("hello")
        await wecom.drop()
        await life.asked("again")
        await wecom.revoke()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("aiohttp", "asyncio")
    text = said + "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert SECRET not in text


async def test_callbacks_that_are_not_as_documented_do_not_end_the_connection(wecom, tmp_path):
    async with live(wecom, tmp_path) as life:
        await life.asked("before")
        (line,) = wecom.lines
        for text in ("no JSON", "[]", '{"cmd": 7}', '{"cmd": "aibot_msg_callback", "headers": 1, "body": []}'):
            await line.socket.send_str(text)
        await wecom.push("aibot_event_callback", {"event": {"eventtype": "feedback_event"}})
        await life.asked("after")

        assert wecom.lines == [line]


KEYS = st.sampled_from(
    [
        "msgid", "chatid", "chattype", "from", "userid", "msgtype", "text", "content", "mixed", "msg_item", "image",
        "file", "voice", "url", "aeskey", "filename", "quote", "create_time", "event", "eventtype", "enter_chat",
    ]
)  # fmt: skip
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["group", "mixed", "image", "text", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@given(body=ODD, message=st.dictionaries(KEYS, ODD, max_size=10))
def test_any_callback_is_read_or_ignored(body, message):
    for odd in (body, message):
        read_message(odd)
        read_press(odd, "yes")
        event_of(odd)
    incoming = read_message(message | {"msgid": "m", "from": {"userid": ANNA}, "chattype": "single"})

    assert incoming is not None
    assert (incoming.sender_id, incoming.chat_id) == (ANNA, ANNA)


async def test_wecoms_own_sdk_talks_to_the_same_fake(wecom):
    server = wecom
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.programs.wecom_sdk_bot", BOT_ID, SECRET, server.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        items = [{"msgtype": "text", "text": {"content": "look"}}, server.put_file("image", "p.png", b"a picture")]
        message_id = await server.writes("", group=HALL, msgtype="mixed", mixed={"msg_item": items})
        assert program.stdout is not None
        read = json.loads(await asyncio.wait_for(program.stdout.readline(), 20))
    finally:
        program.kill()
        await program.wait()

    assert read == {"id": message_id, "sender": ANNA, "chat": HALL, "data": ["a picture"], "codes": [0, 0]}
    stream, message = server.in_chat(HALL)
    assert (stream.content["content"], stream.edits, stream.is_complete) == ("You said it", 1, True)
    assert message.content == {"content": "Bye"}
