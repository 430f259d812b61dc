"""The token, the socket and the polls of Mochat; and the plain client of python-socketio at the same fake."""

import asyncio
import json
import logging
import sys

import pytest

from nanobot.bus.queue import MessageBus
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.mochat import MochatApi
from nanobot.channels.status import ChannelState
from nanobot.testing.live_channel import live
from tests.fakes.mochat import AGENT, ANNA, DM, GENERAL, TOKEN, MochatPlatform, Session
from tests.support.eventually import eventually


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"claw_token": ""}, "channels.mochat.clawToken is not set. Run `nanobot channels login mochat`."),
        ({"agent_user_id": " "}, "channels.mochat.agentUserId is not set"),
        ({"claw_token": "claw_bad"}, "does not take channels.mochat.clawToken (invalid token"),
    ],
)
async def test_credentials_that_are_no_good_are_named_with_what_to_do(mochat, tmp_path, section, told):
    async with live(mochat, tmp_path, **section) as life:
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)

        assert told in life.channel.status.last_error


async def test_login_tries_the_token_and_says_what_to_do_next(mochat, capsys):
    assert await mochat.channel(MessageBus()).login()

    assert "The agent is in 3 chats" in capsys.readouterr().out
    with pytest.raises(ChannelSetupError, match="clawToken"):
        await mochat.channel(MessageBus(), claw_token="claw_bad").login()


async def test_without_a_socket_chats_and_panels_are_polled(mochat, tmp_path):
    mochat.has_socket = False
    async with live(mochat, tmp_path) as life:
        await life.asked("in private")
        await life.asked("in a panel", chat=GENERAL, mention=True)

        assert life.channel.is_running
    assert mochat.subscribed == []


async def test_when_the_socket_is_there_again_it_is_used(mochat, tmp_path):
    mochat.has_socket = False
    async with live(mochat, tmp_path) as life:
        await life.asked("polled")
        mochat.has_socket = True
        await eventually(lambda: mochat.subscribed)
        await life.asked("told")

    assert mochat.subscribed[0]["cursors"][DM] > 0


async def test_after_as_many_attempts_as_the_owner_wants_it_only_polls_and_says_so(mochat, tmp_path, caplog):
    mochat.has_socket = False
    async with live(mochat, tmp_path, max_retry_attempts=2) as life:
        await eventually(lambda: "no socket after 2 attempts" in caplog.text)
        mochat.has_socket = True
        await life.asked("hello")

    assert mochat.subscribed == []


async def test_a_subscription_that_is_refused_leaves_the_polls(mochat, tmp_path):
    async with live(mochat, tmp_path, sessions=[DM, "session_of_others"]) as life:
        await life.asked("hello")

    assert ("sessions/watch", DM) in {(path, body.get("sessionId")) for path, body in mochat.calls}


async def test_json_works_where_the_owner_disables_msgpack(tmp_path):
    (folder := tmp_path / "platform").mkdir()
    platform = MochatPlatform(folder, msgpack=False)
    async with platform.open() as mochat, live(mochat, tmp_path, socket_disable_msgpack=True) as life:
        await eventually(lambda: platform.server.subscribed)
        await life.asked("hello")


async def test_a_chat_that_is_opened_later_is_read_from_its_first_message(mochat, tmp_path):
    async with live(mochat, tmp_path, refresh_interval_ms=60_000) as life:
        await eventually(lambda: mochat.subscribed)
        mochat.sessions["session_new"] = Session([ANNA, AGENT])
        _, message, _ = await life.asked("hello from here", chat="session_new")

    assert message.chat_id == "session_new"


async def test_more_than_one_page_from_while_it_was_down_is_answered(mochat, tmp_path):
    async with live(mochat, tmp_path, watch_limit=2) as life:
        await life.asked("before")
        await life.asked("there", chat=GENERAL, mention=True)
    for number in range(5):
        await mochat.says(f"private {number}")
        await mochat.says(f"panel {number}", chat=GENERAL, mention=True)
    async with live(mochat, tmp_path, watch_limit=2) as life:
        await eventually(lambda: len(life.heard) == 10)

    texts = [message.content for message in life.heard]
    assert [text for text in texts if "private" in text] == [f"private {number}" for number in range(5)]
    assert [text for text in texts if "panel" in text] == [f"panel {number}" for number in range(5)]


async def test_a_message_to_a_token_that_was_revoked_waits(mochat, tmp_path):
    async with live(mochat, tmp_path, silent=True, refresh_interval_ms=500) as life:
        await mochat.says("hello")
        message = await life.hears("hello")
        mochat.token = "claw_another"
        receipt = life.post(message, "waits")
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        is_waiting = not receipt.settled
    mochat.token = TOKEN
    async with live(mochat, tmp_path) as life:
        await life.shows("waits")

    assert is_waiting


async def test_a_request_beside_the_running_channel_leaves_no_connection_open(mochat):
    api = MochatApi(mochat.channel(MessageBus()).config)

    assert await api.ask("sessions/list", {})

    await eventually(lambda: not mochat._runner.server.connections)


@pytest.mark.parametrize("payload", [None, "text", 7, [], {}, {"sessionId": 7}, {"sessionId": DM, "events": [1, {}]}])
async def test_events_that_are_not_as_expected_end_nothing(mochat, tmp_path, payload):
    async with live(mochat, tmp_path) as life:
        await life.asked("before")
        for name in ("claw.session.events", "claw.panel.events", "notify:chat.message.add", "notify:chat.inbox.append"):
            await mochat.io.emit(name, payload)
        await life.asked("after")
        subscriptions = mochat.io.manager.rooms["/"][None]

        assert len(subscriptions) == 1


async def test_nothing_that_opens_a_door_is_in_the_log(mochat, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    async with live(mochat, tmp_path) as life:
        await life.asked("hello")
        await mochat.drop()
        await life.asked("again")
        await mochat.revoke()
        await eventually(lambda: life.channel.status.state is ChannelState.FAILED)
        said = life.channel.status.last_error

    of_fakes = ("aiohttp", "asyncio")
    text = said + "".join(one.getMessage() + str(one.exc_text) for one in caplog.records if one.name not in of_fakes)
    assert TOKEN not in text


async def test_the_plain_client_of_python_socketio_talks_to_the_same_fake(mochat):
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.programs.mochat_client", TOKEN, AGENT, mochat.url, DM, GENERAL),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert program.stdout is not None
        await asyncio.wait_for(program.stdout.readline(), 20)
        panel = await mochat.writes("look", chat=GENERAL)
        private = await mochat.writes("hello")
        read = [json.loads(await asyncio.wait_for(program.stdout.readline(), 20)) for _ in range(2)]
        await asyncio.wait_for(program.wait(), 20)
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()

    by_id = {one["messageId"]: one for one in read}
    assert (by_id[private]["content"], by_id[private]["author"], by_id[private]["chat"]) == ("hello", ANNA, DM)
    assert (by_id[panel]["content"], by_id[panel]["chat"]) == ("look", GENERAL)
    assert [(post.text, post.reply_to) for post in mochat.posts] == [("You said it", private)]
    assert program.returncode == 0
