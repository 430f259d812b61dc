"""/stop at every moment of a model call that does not go well: at once, and nothing of the call is left behind."""

import asyncio
import time
from pathlib import Path

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import InboundMessage
from nanobot.config.loader import load_config
from nanobot.config.paths import DataPaths
from nanobot.messages.types import Origin
from nanobot.providers.factory import ProviderChains
from nanobot.providers.metering import Spending
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.testing.model_server import CutStream, Fail, FakeModels, Hang, Reset, Say, Slow
from nanobot.utils.clock import SystemClock
from tests.support.eventually import eventually
from tests.support.home import Home, using
from tests.support.ledger_rows import rows_of

LIMITS = {"connectTimeoutS": 1, "firstTokenTimeoutS": 0.25, "idleTimeoutS": 0.25, "totalTimeoutS": 0.6}
TROUBLE = (
    Fail(529),
    Fail(429, retry_after=0.1),
    Hang(),
    Hang("Half of"),
    Reset(),
    CutStream(),
    Slow(Say("a b c"), 0.1, 0.1),
)


class Hurried:
    """Time that goes sixty times as fast for breakers and waits: a model is out for a second."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() * 60

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 60)


async def say(runtime: Runtime, text: str) -> tuple[TurnOutcome, str, float]:
    began = time.monotonic()
    message = InboundMessage.from_owner("cli", "direct", text, session_key="cli:direct", origin=Origin.CLI)
    result = await runtime.loop.run_turn(message)
    return result.outcome, result.text, time.monotonic() - began


@pytest.mark.parametrize("mode", [pytest.param("standard", marks=pytest.mark.slow), "persistent"])
async def test_a_stop_ends_it_at_once_and_the_model_is_asked_again_when_it_is_well(tmp_path: Path, mode: str):
    with FakeModels() as server:
        home = Home(tmp_path, **using("openai", "gpt-4.1", apiKey="k", apiBase=server.v1, **LIMITS))
        config = load_config(home.config_path)
        config.agents.defaults.provider_retry_mode = mode  # type: ignore[assignment]
        add_meter = Spending(config, DataPaths(home.data), SystemClock()).add_meter
        chains = ProviderChains(
            {}, home.data / "state", add_meter=add_meter, sleep=Hurried.sleep, monotonic=Hurried.monotonic
        )
        async with build_runtime(config, data_dir=home.data, environ={}, chains=chains) as runtime:
            await say(runtime, "warm up")
            await eventually(lambda: len(asyncio.all_tasks()) == 1)
            for at in range(13):
                server.default = TROUBLE[at % len(TROUBLE)]
                turn = asyncio.create_task(say(runtime, "hello"))
                await asyncio.sleep(0.02 * (at % 13))

                _, _, seconds = await say(runtime, "/stop")
                outcome, _, _ = await turn

                assert seconds < 4  # within a second, where nothing else runs
                assert outcome in (TurnOutcome.STOPPED, TurnOutcome.FAILED, TurnOutcome.ANSWERED)
                left = {task for task in asyncio.all_tasks() if task.get_name() != "traces"}
                assert left == {asyncio.current_task()}
            server.default = Say("I am well.")
            await asyncio.sleep(1.1)  # a minute, for a breaker that is open
            answer = await say(runtime, "and now?")

    assert answer[:2] == (TurnOutcome.ANSWERED, "I am well.")
    assert server.open_connections == 0
    assert server.problems == []
    assert len(rows_of(home.data)) >= len(server.chats)
