"""Credentials and the stream of DingTalk; and its own SDK at the same fake, which shows that the fake is right."""

import asyncio
import json
import logging
import os
import sys

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.dingtalk import ANNA, CLIENT_ID, HALL, MESSAGES, SECRET
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"client_id": ""}, "channels.dingtalk.clientId is not set. Run `nanobot channels login dingtalk`."),
        ({"client_secret": " "}, "channels.dingtalk.clientSecret is not set"),
        (
            {"client_secret": "bad"},
            "does not take channels.dingtalk.clientId and clientSecret. Copy both again from open-",
        ),
    ],
)
async def test_credentials_that_are_no_good_are_named_with_what_to_do(dingtalk, tmp_path, section, told):
    async with live(dingtalk, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_an_app_without_stream_mode_is_told_so(dingtalk, tmp_path):
    dingtalk.stream_mode = False

    async with live(dingtalk, tmp_path) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "Robot with Stream mode, and publish a version" in life.channel.status.last_error


async def test_login_tries_the_credentials_and_says_what_to_do_next(dingtalk, capsys):
    assert await dingtalk.channel(MessageBus()).login()

    assert f"the robot {CLIENT_ID}" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="clientSecret"):
        await dingtalk.channel(MessageBus(), client_secret="bad").login()


async def test_an_access_token_that_ran_out_is_renewed(dingtalk, tmp_path):
    async with live(dingtalk, tmp_path) as life:
        await life.asked("before")
        dingtalk.expire_tokens()
        await life.asked("after")

    assert dingtalk.calls.count("POST /v1.0/oauth2/accessToken") == 2


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


async def test_nothing_that_opens_a_door_is_in_the_log(dingtalk, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    (tmp_path / "a.pdf").write_bytes(b"%PDF-1.7")
    async with live(dingtalk, tmp_path) as life:
        _, message, _ = await life.asked("hello")
        await life.posted(message, "a file", media=[str(tmp_path / "a.pdf")])
        await dingtalk.drop()
        await life.asked("again")
        await dingtalk.revoke()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("aiohttp", "asyncio")
    text = said + "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert SECRET not in text
    assert "token1" not in text.replace("accessToken", "")
    assert "ticket" not in text


async def test_dingtalks_own_sdk_talks_to_the_same_fake(dingtalk):
    server = dingtalk
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.programs.dingtalk_sdk_bot", CLIENT_ID, SECRET),
        env=os.environ | {"DINGTALK_OPENAPI_ENDPOINT": server.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        parts = [{"text": "look"}, {"type": "picture", "downloadCode": server.put_file("p.png", b"p")}]
        private = await server.writes("hello")
        group = await server.writes(group=HALL, msgtype="richText", content={"richText": parts})
        assert program.stdout is not None
        read = [json.loads(await asyncio.wait_for(program.stdout.readline(), 20)) for _ in range(2)]
        await eventually(lambda: all(map(dingtalk.acknowledged, (private, group))))
    finally:
        program.kill()
        await program.wait()

    by_chat = {one["chat"]: one for one in read}
    assert by_chat[f"cid-of-{ANNA}"]["texts"] == ["hello"]
    assert by_chat[HALL]["texts"] == ["look"]
    assert by_chat[HALL]["urls"] == [f"{server.url}/files/{parts[1]['downloadCode']}"]
    assert server.subscriptions == [{"type": "CALLBACK", "topic": MESSAGES}]
    for chat in (ANNA, HALL):
        (post,) = server.in_chat(chat)
        assert post.card is not None
        assert (post.card["flowStatus"], post.card["msgContent"]) == ("3", "You said it all")
