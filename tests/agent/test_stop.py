"""/stop at any point, and the watchdog: a lane is free within a second, whatever runs in it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.agent.hooks import Hook, ResultSeen
from nanobot.agent.models import SessionModels
from nanobot.agent.pipeline.turn import TurnTimeouts
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import Origin
from nanobot.providers.base import Finished, LLMResponse, TextDelta
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot
from nanobot.testing.event_rules import turn_problems
from nanobot.testing.protocol_rules import openai_problems
from nanobot.utils.locks import ProcessLock
from tests.support.clock import WarpLoop
from tests.support.eventually import eventually
from tests.support.processes import running, unlikely_number
from tests.support.tools import DeafTool
from tests.support.work import open_tasks


async def test_a_tool_that_does_not_let_go_holds_the_lane_for_less_than_a_second(
    bot: Bot, deaf: DeafTool, tmp_path: Path
):
    bot.register(deaf)
    bot.provider.script(calls(("deaf", {}), text="I try."))
    turn = asyncio.create_task(bot.turn("go"))
    await deaf.running.wait()
    started = time.monotonic()

    answer = await bot.say("/stop")
    seconds = time.monotonic() - started
    result = await turn
    bot.provider.script("fine")
    following = await bot.say("still there?")
    deaf.over.set()
    await asyncio.sleep(0.01)

    assert answer == "Stopped. deaf ended with it."
    assert seconds < 4  # within a second, where nothing else runs
    assert result.outcome is TurnOutcome.STOPPED
    assert following == "fine"
    assert turn_problems([one for one in bot.events if one.turn_id == result.turn_id]) == []
    assert openai_problems(bot.provider.requests[-1]) == []
    assert "much too late" not in str(bot.session("cli:direct").messages)
    assert not list((tmp_path / "state" / "turns").glob("*"))


async def test_a_model_that_does_not_let_go_holds_the_lane_for_less_than_a_second(tmp_path: Path):
    over, reached = asyncio.Event(), asyncio.Event()

    class Stubborn(ScriptedProvider):
        async def chat_stream(self, *args, **kwargs):
            yield TextDelta("Well, ")
            reached.set()
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:
                    continue
            yield Finished(LLMResponse("Well, too late"))

    async with open_bot(tmp_path, provider=Stubborn()) as bot:
        turn = asyncio.create_task(bot.turn("go"))
        await reached.wait()
        started = time.monotonic()

        stopped = await bot.stop()

        assert stopped
        assert time.monotonic() - started < 4  # within a second, where nothing else runs
        assert (await turn).outcome is TurnOutcome.STOPPED
        over.set()
        await asyncio.sleep(0.01)
        assert [row["content"] for row in bot.session().messages] == ["go", "Well, "]
    assert turn_problems(bot.events) == []


class DeafHook(Hook):
    """A hook that does not hear a cancel."""

    def __init__(self, over: asyncio.Event) -> None:
        self.over = over

    async def after_tool(self, result: ResultSeen) -> None:
        while not self.over.is_set():
            with suppress(asyncio.CancelledError):
                await self.over.wait()


WAIT = calls(("spawn", {"task": "look it up", "wait": True}))


@pytest.mark.needs_sandbox
@pytest.mark.parametrize(
    ("steps", "sign"),
    [
        ([calls(("write_file", {"path": "OUTSIDE", "content": "3"}))], "approval_asked"),
        ([WAIT, calls(("write_file", {"path": "OUTSIDE", "content": "3"}))], "approval_asked"),
        ([WAIT, calls(("exec", {"command": "sleep 60"}))], "tool_delta"),
        ([calls(("list_dir", {"path": "."}))], "tool_started"),
    ],
    ids=["a question", "a subagent's question", "a subagent's command", "a hook that hears nothing"],
)
async def test_stop_is_answered_within_a_second_whatever_is_open(tmp_path: Path, steps: list[LLMResponse], sign: str):
    over = asyncio.Event()
    outside = tmp_path / "elsewhere" / "x.txt"
    outside.parent.mkdir()
    for step in steps:
        step.tool_calls[:] = [replace(call, arguments=_with(call.arguments, outside)) for call in step.tool_calls]
    async with open_bot(tmp_path, *steps, own_hooks=[DeafHook(over)]) as bot:
        message = InboundMessage.from_owner("cli", "direct", "go", session_key="cli:direct", origin=Origin.CLI)
        turn = asyncio.create_task(bot.run_turn(message, bot.sink, attended=True))
        await eventually(lambda: sign in bot.sink.types)
        started = time.monotonic()

        answer = await bot.say("/stop")
        seconds = time.monotonic() - started
        result = await turn
        over.set()
        bot.provider.clear()
        bot.provider.script("fine")
        following = await bot.say("still there?")

    assert answer.startswith("Stopped.") and seconds < 4  # within a second, where nothing else runs
    assert (result.outcome, following) == (TurnOutcome.STOPPED, "fine")
    assert not outside.exists()
    assert open_tasks(tmp_path) == []


def _with(arguments: dict[str, Any], outside: Path) -> dict[str, Any]:
    return {name: str(outside) if value == "OUTSIDE" else value for name, value in arguments.items()}


async def test_a_session_that_another_process_holds_for_good_is_given_up(tmp_path: Path):
    holder = ProcessLock(tmp_path / "workspace" / "sessions" / ".locks" / "cli_direct.lock")
    async with open_bot(tmp_path, "fine", timeouts=TurnTimeouts(restore=0.1)) as bot:
        assert holder.try_acquire()
        given_up = await bot.turn("go")
        holder.release()

        assert given_up.outcome is TurnOutcome.FAILED
        assert "phase restore" in given_up.text
        assert await bot.say("and now?") == "fine"


async def test_stop_at_the_gate(tmp_path: Path):
    pause = Pause()
    async with open_bot(tmp_path, pause, environ={"NANOBOT_MAX_CONCURRENT_REQUESTS": "1"}) as bot:
        first = asyncio.create_task(bot.turn("one", "a:1"))
        await pause.reached.wait()
        second = asyncio.create_task(bot.turn("two", "a:2"))
        await asyncio.sleep(0.01)

        assert await bot.stop("a:2")
        assert (await second).outcome is TurnOutcome.STOPPED
        pause.resume.set()
        bot.provider.script("to one")
        assert (await first).text == "to one"


@pytest.mark.needs_sandbox
async def test_the_whole_family_of_a_command_is_gone(bot: Bot):
    number = unlikely_number()
    bot.provider.script(calls(("exec", {"command": f"sh -c 'sleep {number} & setsid sleep {number} & wait'"})))
    turn = asyncio.create_task(bot.turn("go"))
    await eventually(lambda: len(running("sleep", number)) >= 2)
    started = time.monotonic()

    await bot.say("/stop")
    confirmed = time.monotonic() - started
    await eventually(lambda: not running("sleep", number))
    gone = time.monotonic() - started
    await turn

    assert confirmed < 1
    assert gone < 2


def test_a_run_that_gives_no_sign_of_life_is_given_up_and_the_lane_is_free(tmp_path: Path):
    async def ten_minutes() -> None:
        deaf = DeafTool()
        async with open_bot(tmp_path, calls(("deaf", {})), "fine", timeouts=TurnTimeouts(run_silence=600)) as bot:
            bot.register(deaf)
            try:
                result = await bot.turn("go")
                following = await bot.say("and now?")
            finally:
                deaf.over.set()

        assert result.outcome is TurnOutcome.FAILED
        assert "hung" in result.text and "run" in result.text
        assert following == "fine"

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(ten_minutes())


def test_a_run_that_gives_signs_of_life_is_not_given_up(tmp_path: Path):
    class Slow(Tool):
        name, description = "slow", "takes a minute"
        parameters = {"type": "object", "properties": {"number": {"type": "integer"}}}  # noqa: RUF012

        async def execute(self, number: int) -> str:
            await asyncio.sleep(60)
            return str(number)

    async def four_minutes() -> None:
        steps = [calls(("slow", {"number": number})) for number in range(4)]
        async with open_bot(tmp_path, *steps, "done", timeouts=TurnTimeouts(run_silence=100)) as bot:
            bot.register(Slow())
            assert await bot.say("go") == "done"

    with asyncio.Runner(loop_factory=WarpLoop) as runner:
        runner.run(four_minutes())


async def test_a_phase_that_hangs_is_given_up_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def never(models: SessionModels, wanted: str | None) -> None:
        await asyncio.Event().wait()

    async with open_bot(tmp_path, "fine", timeouts=TurnTimeouts(other_phases=0.2)) as bot:
        with monkeypatch.context() as patch:
            patch.setattr(SessionModels, "get", never)
            result = await bot.turn("go")
        following = await bot.say("and now?")

    assert result.outcome is TurnOutcome.FAILED
    assert "phase build" in result.text
    assert following == "fine"


async def test_a_stop_while_a_long_result_is_saved_ends_its_call_before_its_step(bot: Bot):
    free, ended = threading.Event(), asyncio.Event()

    class Long(Tool):
        """Ends while no thread is free to save its result."""

        name, description = "long", "says much"
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self) -> str:
            asyncio.get_running_loop().run_in_executor(None, free.wait)
            ended.set()
            return "word " * 20_000

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    bot.register(Long())
    bot.provider.script(calls(("long", {})), "done")
    turn = asyncio.create_task(bot.turn("go"))
    await ended.wait()

    stopping = asyncio.create_task(bot.stop())
    await asyncio.sleep(0)
    free.set()

    assert await stopping
    assert (await turn).outcome is TurnOutcome.STOPPED
    assert turn_problems(bot.events) == []
