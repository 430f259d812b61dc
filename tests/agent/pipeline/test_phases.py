"""One turn: what is kept, and that it always ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.agent.tools.base import Tool
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.providers.base import CallContext, Delta, TextDelta, call_context
from nanobot.providers.errors import AuthenticationError, ModelOverloadedError
from nanobot.runtime.build import build_runtime
from nanobot.testing import Bot, Pause, ScriptedProvider, calls, open_bot


def rows(home: Path) -> list[dict[str, Any]]:
    path = home / "workspace" / "sessions" / "cli_direct.jsonl"
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [row for row in found if row.get("_type") != "metadata"]


async def test_the_message_is_on_disk_before_the_model_is_asked(tmp_path: Path):
    seen: list[str] = []

    class Looking(ScriptedProvider):
        async def chat_stream(self, *args, **kwargs):
            seen.extend(row["content"] for row in rows(tmp_path))
            async for delta in super().chat_stream(*args, **kwargs):
                yield delta

    async with open_bot(tmp_path, provider=Looking("hi")) as bot:
        await bot.say("hello")

    assert seen == ["hello"]


@pytest.mark.needs_sandbox
async def test_calls_are_on_disk_before_they_run_and_results_as_they_end(bot: Bot, tmp_path: Path):
    look = "cat sessions/cli_direct.jsonl | tail -n 1 | cut -c1-60"
    bot.provider.script(calls(("exec", {"command": look})), "done")

    await bot.say("look")

    assert '"role": "assistant"' in rows(tmp_path)[2]["content"]


async def test_a_failed_turn_keeps_one_neutral_row_so_that_roles_alternate(bot: Bot, tmp_path: Path):
    bot.provider.script(ValueError("surprise"), "hi")

    failed = await bot.turn("hello")
    await bot.say("again")

    assert failed.outcome is TurnOutcome.FAILED
    assert "surprise" in failed.text
    assert [row["role"] for row in rows(tmp_path)] == ["user", "assistant", "user", "assistant"]
    assert rows(tmp_path)[1]["error"] == "ValueError"
    assert "surprise" not in rows(tmp_path)[1]["content"]


async def test_a_message_without_a_model_is_kept_and_answered_with_what_to_do(tmp_path: Path):
    config = Config.model_validate({"agents": {"defaults": {"provider": "openai", "model": "gpt-4o"}}})
    async with build_runtime(config, data_dir=tmp_path, workspace=tmp_path / "workspace", environ={}) as runtime:
        result = await Bot(runtime, ScriptedProvider()).turn("hello")

    assert (result.outcome, result.error) == (TurnOutcome.FAILED, "ConfigError")
    assert "There is no key for OpenAI" in result.text and "or OPENAI_API_KEY in the environment" in result.text
    assert rows(tmp_path)[0]["content"] == "hello"


async def test_a_sink_that_breaks_does_not_end_the_turn(bot: Bot):
    def broken(event: object) -> None:
        raise RuntimeError("no screen")

    bot.provider.script("hi")

    message = InboundMessage.from_owner("cli", "direct", "hello", session_key="cli:direct", origin=Origin.CLI)
    assert (await bot.run_turn(message, broken)).text == "hi"


async def test_rows_of_a_turn_carry_its_id_its_context_and_where_words_came_from(bot: Bot, tmp_path: Path):
    (bot.workspace / "a.txt").write_text("hello", encoding="utf-8")
    bot.provider.script(calls(("read_file", {"path": "a.txt"})), "done")
    message = InboundMessage.from_owner("cli", "direct", "read", session_key="cli:direct", origin=Origin.CLI)
    message.media = ["bill.pdf"]

    result = await bot.run_turn(message)

    kept = rows(tmp_path)
    assert {row["turn_id"] for row in kept} == {result.turn_id}
    assert [row["provenance"] for row in kept] == ["owner", "owner", "file", "file"]
    assert kept[0]["content"] == "read\n[file: bill.pdf]"
    assert kept[0]["runtime_context"].startswith("[Runtime Context")
    assert {"timestamp", "origin", "sender_id"} <= kept[0].keys()
    assert "[file: bill.pdf]" in str(bot.provider.requests[0][-1]["content"])


async def test_a_disk_that_keeps_no_partial_text_does_not_end_the_turn(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / "turns").write_text("a file where a folder should be", encoding="utf-8")
        pause = Pause("slowly ")
        bot.provider.script(pause, "answered")
        turn = asyncio.create_task(bot.turn("hello"))
        await pause.reached.wait()
        await asyncio.sleep(0.15)
        pause.resume.set()

        result = await turn

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "answered")


async def test_a_provider_can_tell_what_a_call_is_for(tmp_path: Path):
    asked: list[CallContext] = []

    class Curious(ScriptedProvider):
        async def chat_stream(self, *args, **kwargs):
            asked.append(call_context())
            async for delta in super().chat_stream(*args, **kwargs):
                yield delta

    async with open_bot(tmp_path, provider=Curious("hi")) as bot:
        result = await bot.turn("hello", session="cli:work")

    assert asked == [CallContext("turn", "cli:work", result.turn_id)]


class SelfCancelling(ScriptedProvider):
    """Raises CancelledError though nobody has stopped it, as a library does that mixes up its tasks."""

    async def chat_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
        yield TextDelta("I am about")
        raise asyncio.CancelledError


async def test_provider_that_cancels_itself_is_a_failure_that_its_person_is_told(tmp_path: Path):
    async with open_bot(tmp_path, provider=SelfCancelling()) as bot, bot.serving() as bus:
        await bus.publish_inbound(InboundMessage("phone", "ann", "7", "hello"))
        while (out := await bus.consume_outbound()) is not None and out.kind is not OutboundKind.REPLY:
            pass

    assert out is not None
    assert "the provider cancelled its own call" in out.content


async def test_tool_that_cancels_itself_is_a_failure_that_its_person_is_told(bot: Bot):
    class Cancelling(Tool):
        """Raises CancelledError though nobody has stopped it."""

        name, description = "cancelling", "cancels itself"
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012

        async def execute(self) -> str:
            raise asyncio.CancelledError

    bot.register(Cancelling())
    bot.provider.script(calls(("cancelling", {})))

    result = await bot.turn("go")

    assert result.outcome is TurnOutcome.FAILED
    assert "cancelled this turn by itself" in result.text


async def test_failure_that_nothing_mends_is_not_tried_again(tmp_path: Path):
    async with open_bot(tmp_path, AuthenticationError(), ModelOverloadedError()) as bot:
        results = [await bot.turn("hello"), await bot.turn("hello")]

    assert [result.retryable for result in results] == [False, True]
