"""The beginning of a bot, how updates are confirmed, and a line that breaks in every way."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.platform_telegram import ANNA, QUICK, ZOE
from tests.fakes.telegram import BAD_GATEWAY, BOT, CONFLICT, CUT, TOKEN, RefusedError
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


async def test_no_log_line_has_the_token(telegram, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")
        telegram.server.poll_faults += [CUT] * 3
        telegram.server.faults += [CUT, BAD_GATEWAY]
        await life.asked("again")

    assert TOKEN not in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text


async def test_login_says_whose_token_it_is_or_what_is_wrong_with_it(telegram, capsys):
    assert await telegram.channel(MessageBus()).login()
    assert f"https://t.me/{BOT['username']}" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="BotFather"):
        await telegram.channel(MessageBus(), token="1:wrong").login()


# updates


async def test_slow_download_keeps_nothing_waiting_but_its_own_chat(telegram, tmp_path):
    telegram.server.slow_files.clear()
    async with live(telegram, tmp_path, allow_from=["*"], silent=True) as life:
        slow = await telegram.server.message(ANNA, ANNA, caption="slow", document=telegram.server.file(b"data"))
        behind = await telegram.says("behind it")
        await telegram.says("quick", sender=str(ZOE), chat=str(ZOE))
        await life.hears("quick")
        await telegram.says("quick too", sender=str(ZOE), chat=str(ZOE))
        await life.hears("quick too")
        await eventually(lambda: telegram.acknowledged(str(slow)) and telegram.acknowledged(behind))
        telegram.server.slow_files.set()
        await life.hears("behind it")

    assert [one.content.split("\n")[0] for one in life.heard] == ["quick", "quick too", "slow", "behind it"]


async def test_person_is_told_that_a_message_could_not_be_read(telegram, tmp_path):
    odd = {"message_id": 1, "date": "never", "text": "hello", "chat": {"id": ANNA, "type": "private"}}
    async with live(telegram, tmp_path) as life:
        await telegram.server.update(message=odd | {"from": {"id": ZOE, "is_bot": False, "first_name": "Zoe"}})
        await telegram.server.update(message=odd | {"from": telegram.server.people[ANNA]})
        await life.shows("I could not read your last message")
        await eventually(lambda: not telegram.server.waiting())

    assert len(telegram.shown()) == 1


async def test_the_offset_of_another_bot_or_of_long_ago_hides_nothing(telegram, tmp_path):
    kept = {"bot": str(BOT["id"]), "offset": 10**6, "heard_at": time.time() - 8 * 86_400}
    for told in (kept, kept | {"bot": "1", "heard_at": time.time()}):
        (tmp_path / "telegram.json").write_text(json.dumps(told), encoding="utf-8")
        async with live(telegram, tmp_path) as life:
            await life.asked(f"hello {told['bot']}")


@pytest.mark.parametrize("damage", ["{", '{"bot": "4242", "offset": "x"}'])
async def test_a_damaged_memory_is_begun_anew(telegram, tmp_path, damage):
    (tmp_path / "telegram.json").write_text(damage, encoding="utf-8")
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")
        await eventually(lambda: '"bot":"4242","offset":1' in (tmp_path / "telegram.json").read_text(encoding="utf-8"))


CHILD = """
import asyncio, sys
from pathlib import Path
from nanobot.testing.live_channel import live
from tests.fakes.platform_telegram import TelegramPlatform

async def main(folder, port):
    platform = TelegramPlatform(folder)
    platform.server.port = port
    async with live(platform, folder, silent=True):
        await asyncio.sleep(60)

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9")
async def test_kill_9_loses_no_message_and_doubles_none(telegram, tmp_path):
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(tmp_path), str(telegram.server.port), cwd=Path(__file__).parents[3]
    )
    for number in range(150):
        await telegram.says(f"m{number}")
    await eventually(lambda: telegram.server.confirmed > 0, within_s=40)
    for number in range(150, 300):
        await telegram.says(f"m{number}")
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    first_offset = json.loads((tmp_path / "telegram.json").read_text(encoding="utf-8"))["offset"]
    async with live(telegram, tmp_path, silent=True) as life:
        await eventually(lambda: len(life.heard) >= 300)
        counts = await life.counts()

    assert first_offset > 1000
    assert sorted(one.content for one in life.heard) == sorted(f"m{number}" for number in range(300))
    assert counts.received == 300


# a line that breaks


async def test_another_program_with_the_token_is_named_once_and_outlived(telegram, tmp_path, caplog):
    caplog.set_level(logging.INFO, "nanobot")
    async with live(telegram, tmp_path) as life:
        await life.is_up()
        telegram.server.poll_faults += [CONFLICT] * 5
        await eventually(lambda: life.channel.status.state is ChannelState.DOWN)
        said = life.channel.status.last_error
        await life.asked("hello")
        await eventually(lambda: caplog.text.count("telegram: connected") == 2)

    assert "another process polls with this token" in said
    assert len([one for one in caplog.records if "another process" in one.message]) == 1


async def test_one_broken_poll_is_no_news(telegram, tmp_path, caplog):
    async with live(telegram, tmp_path) as life:
        await life.is_up()
        polls = telegram.server.polls
        telegram.server.poll_faults.append(CUT)
        await life.asked("hello")
        await eventually(lambda: telegram.server.polls > polls + 2)

        assert life.channel.status.state is ChannelState.UP
    assert "not connected" not in caplog.text


async def test_who_holds_no_poll_open_is_not_asked_without_end(telegram, tmp_path):
    telegram.server.hasty = True
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")
        polls = telegram.server.polls
        await asyncio.sleep(0.5)
        asked = telegram.server.polls - polls
        await life.asked("still here?")

    assert 0 < asked <= 0.5 / QUICK["busy_s"] + 1


async def test_a_token_that_is_refused_for_a_moment_is_good(telegram, tmp_path, caplog):
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")
        telegram.server.poll_faults.append(RefusedError(401, "Unauthorized"))
        await eventually(lambda: not telegram.server.poll_faults)
        await life.asked("still here?")

    assert "refused" not in caplog.text


async def test_a_webhook_in_the_way_is_taken_down(telegram, tmp_path, caplog):
    telegram.server.webhook = "https://example.org/hook"
    async with live(telegram, tmp_path) as life:
        await life.asked("hello")

    assert "webhook" in caplog.text
