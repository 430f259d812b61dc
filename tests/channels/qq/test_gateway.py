"""Credentials and the gateway of QQ; and an SDK at the same fake, which shows that the fake is right."""

import asyncio
import json
import logging
import sys

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.qq import ANNA, APP_ID, HALL, SECRET
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"app_id": ""}, "channels.qq.appId is not set. Run `nanobot channels login qq`."),
        ({"secret": " "}, "channels.qq.secret is not set"),
        ({"secret": "bad"}, "does not take channels.qq.appId and channels.qq.secret (invalid appid or secret, 100016)"),
    ],
)
async def test_credentials_that_are_no_good_are_named_with_what_to_do(qq, tmp_path, section, told):
    async with live(qq, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_an_address_that_is_not_on_the_allow_list_is_told_so(qq, tmp_path):
    qq.is_listed = False
    async with live(qq, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "Add the address to the IP allow list at q.qq.com" in life.channel.status.last_error


@pytest.mark.parametrize(("code", "told"), [(4014, "may not receive private and group"), (4915, "banned the bot")])
async def test_a_bot_that_may_not_connect_is_told_why(qq, tmp_path, code, told):
    qq.close_code = code
    async with live(qq, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_login_tries_the_credentials_and_says_what_to_do_next(qq, capsys):
    assert await qq.channel(MessageBus()).login()

    assert "Your bot is Nano" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="secret"):
        await qq.channel(MessageBus(), secret="bad").login()


async def test_an_access_token_that_ran_out_is_renewed(qq, tmp_path):
    async with live(qq, tmp_path) as life:
        await life.asked("before")
        qq.expire_tokens()
        await life.asked("after")

    assert qq.calls.count("POST /app/getAppAccessToken") == 2


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


async def test_a_heartbeat_that_qq_asks_for_is_sent_at_once(qq, tmp_path):
    qq.beat_s = 30.0
    async with live(qq, tmp_path) as life:
        await life.asked("hello")
        await qq.send_to_lines({"op": 1})
        await eventually(lambda: qq.read_to == len(qq.events))


async def test_nothing_that_opens_a_door_is_in_the_log(qq, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(qq, tmp_path) as life:
        await life.asked("hello")
        await qq.drop()
        await life.asked("again")
        await qq.revoke()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("aiohttp", "asyncio")
    text = said + "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert SECRET not in text
    assert "token-" not in text


async def test_an_sdk_talks_to_the_same_fake(qq):
    server = qq
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.programs.qq_sdk_bot", APP_ID, SECRET, server.url),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        picture = {"content_type": "image/png", "filename": "p.png", "url": server.put_file("p.png", b"p")}
        private = await server.writes("hello")
        group = await server.writes("look", group=HALL, attachments=[picture])
        assert program.stdout is not None
        read = [json.loads(await asyncio.wait_for(program.stdout.readline(), 20)) for _ in range(2)]
    finally:
        program.kill()
        await program.wait()

    by_id = {one["id"]: one for one in read}
    assert (by_id[private]["text"], by_id[private]["sender"]) == ("hello", ANNA)
    assert (by_id[group]["text"], by_id[group]["group"], by_id[group]["urls"]) == ("look", HALL, [picture["url"]])
    for chat, message_id in ((ANNA, private), (HALL, group)):
        text, picture_post = server.in_chat(chat)
        assert (text.text, text.body["msg_id"], text.body["msg_seq"]) == ("You said it", message_id, 1)
        assert server.stored[picture_post.body["media"]["file_info"]][1] == b"a picture"
    assert by_id[private]["refused"] == 40054005
