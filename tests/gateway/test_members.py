"""Members live behind walls, and the report says who is gone, for how long, and what no platform took."""

import asyncio
from datetime import UTC, datetime
from itertools import pairwise

from nanobot.channels.status import REFUSED_S, ChannelState, ChannelStatus
from nanobot.gateway.health import LoopMonitor
from nanobot.gateway.supervisor import SupervisedTask, TaskSupervisor
from nanobot.utils.clock import FrozenClock, SystemClock
from tests.support.eventually import eventually


async def test_one_that_breaks_waits_longer_each_time_and_one_that_ends_is_left_alone():
    begun: list[float] = []

    async def broken() -> None:
        begun.append(asyncio.get_running_loop().time())
        raise OSError("no")

    supervisor, done = (
        TaskSupervisor(SystemClock(), first_wait_s=0.01),
        SupervisedTask("short", lambda: asyncio.sleep(0)),
    )
    for member in (SupervisedTask("broken", broken), done):
        supervisor.add(member)
    running = asyncio.create_task(supervisor.run())
    await eventually(lambda: len(begun) == 4)
    running.cancel()
    await asyncio.wait([running])

    waits = [later - before for before, later in pairwise(begun)]
    assert all(wait >= least for wait, least in zip(waits, (0.01, 0.02, 0.04), strict=True))
    assert (done.ended, done.alive, done.restarts, done.last_error) == (True, False, 0, "")


def test_how_long_a_channel_is_gone_counts_from_when_it_was_last_up_however_often_it_is_tried():
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    status = ChannelStatus(clock)
    status.set_state(ChannelState.UP)
    clock.advance(5)

    for state in (ChannelState.DOWN, ChannelState.CONNECTING) * 20:
        status.set_state(state)
        clock.advance(1)

    assert status.gone_s == 40


def test_a_message_that_no_platform_took_is_remembered_until_one_is_taken_or_for_a_while():
    clock = FrozenClock(datetime(2026, 1, 1, tzinfo=UTC))
    status = ChannelStatus(clock)
    status.record_failed("there is no such chat")
    refused = status.undelivered
    status.record_sent()
    taken = status.undelivered
    status.record_failed("no again")
    clock.advance(REFUSED_S + 1)

    assert (refused, taken, status.undelivered) == ("there is no such chat", "", "")


async def test_the_pulse_tells_the_service_manager_and_how_late_the_loop_is():
    told: list[str] = []
    pulse = LoopMonitor(SystemClock(), told.append)
    running = asyncio.create_task(pulse.run())

    await eventually(lambda: told == ["WATCHDOG=1"])

    assert (pulse.silent_s < 1, pulse.lag_s) == (True, 0.0)
    running.cancel()
    await asyncio.wait([running])
