"""Many chats at once: their turns begin by and by, and the event loop looks after everybody else between them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import date
from pathlib import Path

from nanobot.agent.events import TurnOutcome
from nanobot.agent.loop import AgentLoop
from nanobot.agent.pipeline.turn import PromptBuilder, TurnDeps
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.status import AgentStatus
from nanobot.agent.trace.recorder import TraceRecorder
from nanobot.agent.trace.store import TraceStore
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage
from nanobot.runtime.build import Runtime, build_runtime
from nanobot.testing import ScriptedProvider
from nanobot.utils.aio import Pace
from nanobot.utils.clock import SystemClock

CHATS = 60


class CountingPrompt:
    """A prompt that counts how many were built in each pass of the event loop."""

    def __init__(self, prompt: PromptBuilder) -> None:
        self._prompt = prompt
        self._passes = 0
        self.built = Counter[int]()
        """How many were built, by the pass of the loop."""

    def watch(self) -> None:
        """Count this pass of the running loop, and each after it."""
        self._passes += 1
        asyncio.get_running_loop().call_soon(self.watch)

    def runtime_context(
        self,
        channel: str,
        chat_id: str,
        history: Sequence[ChatMessage],
        *,
        scope: Scope = OWNERS,
        note: str = "",
        folder: str = "",
    ) -> str:
        self.built[self._passes] += 1
        return self._prompt.runtime_context(channel, chat_id, history, scope=scope, note=note)

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        return self._prompt.build_system_prompt(summary, scope=scope, began=began)


def bot_in(home: Path) -> AbstractAsyncContextManager[Runtime]:
    provider = ScriptedProvider(*["hi"] * CHATS)
    return build_runtime(Config(), data_dir=home, workspace=home / "workspace", provider=provider, environ={})


def with_prompt(made: Runtime, home: Path, prompt: CountingPrompt) -> AgentLoop:
    """The bot's loop with that prompt, and no time in a pass but for one turn."""
    clock = SystemClock()
    vitals = AgentStatus(clock)
    parts = TurnDeps(
        sessions=made.sessions,
        models=made.models,
        prompt=prompt,
        tools=made.tools,
        commands=made.loop.commands,
        status=vitals,
        clock=clock,
        workspace=made.workspace,
        turns_folder=home / "turns",
        traces=TraceRecorder(TraceStore(home / "traces"), clock, made.workspace),
        pace=Pace(max_s=0),
    )
    return AgentLoop(made.bus, parts)


async def test_in_each_pass_of_the_loop_only_as_many_turns_are_built_as_it_has_time_for(tmp_path: Path):
    async with bot_in(tmp_path) as runtime:
        prompt = CountingPrompt(runtime.context)
        loop = with_prompt(runtime, tmp_path, prompt)
        messages = [InboundMessage("phone", "ann", str(chat), "hello") for chat in range(CHATS)]
        prompt.watch()

        results = await asyncio.gather(*map(loop.run_turn, messages))

    assert {result.outcome for result in results} == {TurnOutcome.ANSWERED}
    assert prompt.built.total() == CHATS
    assert max(prompt.built.values()) == 1


async def test_a_turn_that_waits_for_its_pass_is_stopped_at_once(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("nanobot.agent.loop.STOP_REPLY_S", 10.0)  # a busy machine is no tool that does not react
    async with bot_in(tmp_path) as runtime:
        prompt = CountingPrompt(runtime.context)
        loop = with_prompt(runtime, tmp_path, prompt)
        turns = [
            asyncio.create_task(loop.run_turn(InboundMessage("phone", "ann", str(chat), "hello")))
            for chat in range(CHATS)
        ]
        while not prompt.built:
            await asyncio.sleep(0)

        stopped = await loop.run_turn(InboundMessage("phone", "ann", str(CHATS - 1), "/stop"))
        results = await asyncio.gather(*turns)

    assert stopped.text == "Stopped."
    assert results.pop().outcome is TurnOutcome.STOPPED
    assert {result.outcome for result in results} == {TurnOutcome.ANSWERED}
