"""The account of the bot: token or password, its device, and a homeserver that is elsewhere."""

import pytest
from aiohttp import web

from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.matrix import BOT, PASSWORD
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"access_token": ""}, "channels.matrix.password is not set. Run `nanobot channels login matrix`."),
        ({"password": PASSWORD, "user_id": ""}, "channels.matrix.userId is not set"),
        ({"password": "bad"}, "does not take channels.matrix.userId and channels.matrix.password (Invalid username"),
        ({"access_token": "bad"}, "does not take channels.matrix.accessToken"),
        ({"homeserver": "example.org"}, "channels.matrix.homeserver must begin with https://"),
    ],
)
async def test_credentials_that_are_no_good_are_named_with_what_to_do(matrix, tmp_path, section, told):
    async with live(matrix, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_login_tries_the_credentials_and_says_what_to_do_next(matrix, tmp_path, capsys):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        assert await life.channel.login()

    assert f"Your bot is {BOT}; invite it" in capsys.readouterr().out


async def test_a_password_logs_in_as_the_same_device_after_a_restart_and_once_a_process(matrix, tmp_path):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("one")
        await matrix.drop()
        await life.asked("two")
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("three")

    first, second = matrix.logins
    assert not first.get("device_id")
    assert second["device_id"] == "DEVICE1"


async def test_a_password_logs_in_again_where_its_session_was_ended(matrix, tmp_path):
    async with live(matrix, tmp_path, password=PASSWORD) as life:
        await life.asked("one")
        await matrix.revoke()
        await life.asked("two")

    assert len(matrix.logins) == 2


async def test_a_domain_whose_homeserver_is_elsewhere_is_followed(matrix, tmp_path):
    async def discover(_: web.Request) -> web.Response:
        return web.json_response({"m.homeserver": {"base_url": f"{matrix.url}/"}})

    app = web.Application()
    app.add_routes([web.get("/.well-known/matrix/client", discover)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await (site := web.TCPSite(runner, "127.0.0.1", 0)).start()
    try:
        domain = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with live(matrix, tmp_path, homeserver=domain) as life:
            await life.asked("hello")
    finally:
        await site.stop()
        await runner.cleanup()


async def test_a_web_site_that_is_no_homeserver_is_named(matrix, tmp_path):
    async with live(matrix, tmp_path, homeserver=f"{matrix.url}/nothing") as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert "is no Matrix homeserver. Set channels.matrix.homeserver" in life.channel.status.last_error
