"""The beginning of a bot: its token, its proxy, its log."""

import logging
import sys

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.telegram import BAD_GATEWAY, BOT, CUT, TOKEN
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"token": ""}, "channels.telegram.token is not set. Run `nanobot channels login telegram`."),
        ({"token": "not a token"}, "channels.telegram.token is not a token"),
        ({"token": "1:wrong"}, "Ask @BotFather for the token of your bot"),
        ({"proxy": "socks5://127.0.0.1:1", "api_base": "http://telegram.test"}, "pip install socksio"),
        ({"proxy": "what:ever", "api_base": "http://telegram.test"}, "channels.telegram.proxy"),
    ],
)
async def test_what_its_owner_has_to_mend_is_said_at_the_start(telegram, tmp_path, monkeypatch, settings, said):
    monkeypatch.setitem(sys.modules, "socksio", None)  # as where it is not installed

    async with live(telegram, tmp_path, **settings) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert said in life.channel.status.last_error


async def test_a_bot_that_telegram_lets_hear_less_than_its_owner_wants_says_so_once(telegram, tmp_path, caplog):
    async with live(telegram, tmp_path, group_policy="open") as life:
        await life.is_up()
        await telegram.gone(gone=True)
        await eventually(lambda: life.channel.status.state is not ChannelState.UP)
        await telegram.gone(gone=False)
        await life.is_up()

    assert len([one for one in caplog.records if "/setprivacy" in one.message]) == 1


async def test_a_proxy_is_used_where_there_is_one(telegram, tmp_path):
    settings = {"proxy": telegram.server.url, "api_base": "http://telegram.test"}
    async with live(telegram, tmp_path, **settings) as life:
        await life.asked("through the proxy")


async def test_login_says_whose_token_it_is(telegram, capsys):
    assert await telegram.channel(MessageBus()).login()
    assert f"https://t.me/{BOT['username']}" in capsys.readouterr().out


async def test_login_says_what_is_wrong_with_a_token(telegram):
    with pytest.raises(ChannelSetupError, match="BotFather"):
        await telegram.channel(MessageBus(), token="1:wrong").login()


async def test_no_log_line_has_the_token(telegram, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")
        telegram.server.poll_faults += [CUT] * 3
        telegram.server.faults += [CUT, BAD_GATEWAY]
        await life.asked("again")

    assert TOKEN not in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text
