"""What lives in the gateway: a part that cannot start or that breaks is told of, and the others do their work."""

import asyncio
import os
import shutil
from typing import Any

import pytest

from nanobot.bus.events import OutboundMessage
from nanobot.channels.status import ChannelState
from nanobot.config.paths import DataPaths
from nanobot.errors import ConfigError, InstanceLockedError
from nanobot.gateway.process import ExitReason, find_lock_holder
from nanobot.gateway.service import Options
from nanobot.gateway.supervisor import SupervisedTask
from nanobot.testing import calls
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway
from tests.support.toy_gateway import free_port, written

RED = {"broken": {"enabled": True}, "slak": {"enabled": True}}


async def test_one_that_cannot_start_is_red_with_what_to_do_and_the_others_work(running: OpenGateway, tmp_path, caplog):
    toy = {"enabled": True, "folder": str(tmp_path / "toy"), "allowFrom": ["7"]}
    async with running("hello", channels={"toy": toy, **RED}) as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)

        report = await here.gateway.reporter.report()

    assert {name: told["state"] for name, told in report["channels"].items()} == {
        "toy": "up",
        "broken": "failed",
        "slak": "failed",
    }
    assert (
        "channels.broken cannot be created: RuntimeError: this toy falls apart. Its package has to fix" in caplog.text
    )
    assert "install the package" in report["channels"]["slak"]["lastError"]
    assert report["status"] == "failing"


@pytest.mark.parametrize("channels", [{}, RED])
async def test_where_nobody_could_reach_it_it_does_not_start_unless_it_may(running: OpenGateway, channels: Any):
    config = {"channels": channels, "gateway": {"port": free_port(), "web": {"enabled": False}}}
    with pytest.raises(ConfigError, match="No channel"):
        async with running(**config):
            pass

    async with running(**config, options=Options(allow_empty=True)) as here:
        assert here.gateway.supervisor.tasks["agent"].alive or await eventually(
            lambda: here.gateway.supervisor.tasks["agent"].alive
        )


async def test_where_every_platform_refuses_it_at_once_it_leaves_with_their_reasons(running: OpenGateway):
    async with running(channels={"toy": {"enabled": True, "token": "wrong"}}) as here:
        with pytest.raises(ConfigError, match=r"Set channels\.toy\.token"):
            await asyncio.wait_for(here.gateway.wait(), 5)


async def test_there_is_one_gateway_a_data_folder_and_the_lock_of_one_that_died_counts_for_nothing(
    running: OpenGateway, tmp_path
):
    state = tmp_path / "h" / "state"
    state.mkdir(parents=True)
    (state / "gateway.lock").touch()
    (state / "gateway.json").write_text('{"pid": 1, "since": "yesterday"}')
    async with running() as here:
        with pytest.raises(InstanceLockedError, match=f"pid {os.getpid()}"):
            async with running():
                pass

    assert find_lock_holder(DataPaths(here.home)) is None


async def test_one_whose_state_folder_is_taken_away_begins_anew_and_forgets_nothing(running: OpenGateway):
    async with running("hello") as here:
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        (here.home / "state").rename(here.home / "gone")  # in one step: it would be made anew while it is deleted
        shutil.rmtree(here.home / "gone")

        async with asyncio.timeout(5):
            left = await here.gateway.wait()
    async with running("again") as here:
        here.toy.write("hi", message_id="1")
        here.toy.write("and now", message_id="2")
        await eventually(lambda: len(here.toy.got()) > 1)

    assert left is ExitReason.RESTART
    assert here.toy.got() == ["hello", "again"]


async def test_a_member_that_breaks_is_begun_anew_and_the_others_never_know(running: OpenGateway):
    tries = 0

    async def tick() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise RuntimeError("a spring broke")
        await asyncio.Event().wait()

    clock = SupervisedTask("clockwork", tick)
    async with running("hello") as here:
        here.gateway.supervisor.add(clock)
        await eventually(lambda: clock.last_error)
        red = await here.gateway.reporter.report()
        here.toy.write("hi", message_id="1")
        await eventually(here.toy.got)
        await eventually(lambda: clock.restarts and clock.alive)
        green = await here.gateway.reporter.report()

    assert red["problems"] == ["clockwork: failed and restarts soon: RuntimeError: a spring broke"]
    assert green["status"] == "ok"


async def test_a_message_that_no_platform_takes_is_told_to_the_owner_elsewhere_and_to_the_agent(running: OpenGateway):
    async with running("first answer", "second answer") as here:
        here.pair(toy=["7"], plush=["8"])
        here.toy.write("hi", chat="nowhere", message_id="1")
        await eventually(here.toys["plush"].got)
        here.toy.write("hi again", chat="nowhere", message_id="2")
        await eventually(lambda: len(here.model.requests) == 2)
        report = await here.gateway.reporter.report()

    told = here.toys["plush"].got("8")[0]
    assert "toy: the last message was not delivered: there is no such chat" in report["problems"]
    assert "The message to toy:nowhere was not delivered: there is no such chat" in told
    assert "first answer" in told
    assert "was not delivered: there is no such chat" in str(here.model.requests[1])


async def test_a_report_that_nobody_gets_is_not_reported_again(running: OpenGateway):
    async with running() as here:
        here.pair(plush=["nowhere"])
        await here.gateway.runtime.bus.publish_outbound(OutboundMessage("toy", "nowhere", "hi"))
        await eventually(lambda: here.gateway.channels.statuses()["plush"].failed)
        await here.gateway.channels.manager.drain()

        assert here.gateway.reporter.dead_letters.count == 1


async def test_with_one_session_for_all_chats_the_heartbeat_speaks_in_the_owners_own(running: OpenGateway):
    decision = calls(("heartbeat", {"action": "run", "tasks": "boil water", "again_in_minutes": 60}))
    settings = {"gateway": {"port": free_port(), "heartbeat": {"intervalS": 1}}}
    unified = {"agents": {"defaults": {"unifiedSession": True}}}
    async with running(decision, "The kettle is on.", **settings, **unified) as here:
        here.pair(plush=["person8"])
        (here.home / "workspace" / "HEARTBEAT.md").write_text("- [ ] boil water\n", encoding="utf-8")

        await eventually(lambda: here.toys["plush"].got("own8") == ["The kettle is on."])


async def test_a_channel_is_down_when_its_line_is_cut_and_the_report_says_so_in_time(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nanobot.gateway.health.GONE_S", 0.0)
    async with running() as here:
        channel = here.gateway.channels.manager.get("toy")
        assert channel is not None
        await eventually(lambda: channel.is_running)
        (here.toy.folder / "cut").touch()
        await eventually(lambda: channel.status.state is ChannelState.DOWN)

        report = await here.gateway.reporter.report()

    assert report["channels"]["toy"]["lastError"] == "ConnectionError: the line was cut"
    assert report["problems"][0].startswith("toy: not connected for ")


@pytest.mark.parametrize("others", [[], ["9"]], ids=["only the owner wrote in the group", "another one, too"])
async def test_an_owner_is_told_in_the_chat_that_is_theirs_alone_and_never_in_a_group(
    running: OpenGateway, others: list[str]
):
    said = [("own", "user8", False), ("group", "user8", not others), *(("group", other, False) for other in others)]
    async with running("one", "two", "three") as here:
        people = {"owners": {"plush": ["user8"]}, "approved": {"plush": ["user8", *others]}}
        written(here.home / "pairing.json", people)
        plush = here.toys["plush"]
        for number, (chat, sender, in_group) in enumerate(said):
            plush.write("hi", chat=chat, sender=sender, message_id=str(number), in_group=in_group)
            await eventually(lambda number=number: len(plush.got()) == number + 1)  # type: ignore[misc]

        await here.gateway.runtime.bus.publish_outbound(OutboundMessage("toy", "nowhere", "a secret of mine"))
        await eventually(lambda: len(plush.got()) == len(said) + 1)

    assert "a secret of mine" in plush.got("own")[-1]
    assert "a secret of mine" not in str(plush.got("group"))
