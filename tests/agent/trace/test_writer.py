"""Traces of whole turns: they are there afterwards, tell what happened, and hold no secret."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnEvent, TurnOutcome
from nanobot.agent.trace.reader import RecordedTurn, Recording
from nanobot.agent.trace.store import TraceStore
from nanobot.bus.events import InboundMessage
from nanobot.config.schema import Config
from nanobot.messages.types import Origin
from nanobot.providers.base import call_context
from nanobot.testing import Pause, ScriptedProvider, calls, open_bot
from tests.support.eventually import eventually


def traces(home: Path, session: str = "cli:direct") -> list[list[dict[str, Any]]]:
    """The events of each turn."""
    return [*TraceStore(home / "state" / "traces").turns(session).values()]


def recorded(home: Path, session: str = "cli:direct") -> list[RecordedTurn]:
    """The turns as the traces alone tell them."""
    return Recording(session, [], TraceStore(home / "state" / "traces").turns(session)).turns


async def test_the_trace_is_what_a_sink_of_the_turn_hears_without_deltas_and_in_short(tmp_path: Path):
    heard: list[TurnEvent] = []
    message = InboundMessage.from_owner("cli", "direct", "hello", session_key="cli:direct", origin=Origin.CLI)
    big = {"path": "a.txt", "content": "x" * 100_000}
    async with open_bot(tmp_path, calls(("write_file", big)), "y" * 100_000, "Hi.") as bot:
        await bot.run_turn(message, heard.append)
        await bot.say("again")

    events, _ = traces(tmp_path)
    [file] = (tmp_path / "state" / "traces").glob("*.jsonl")
    assert file.stat().st_size < 5000
    assert len([*(tmp_path / "state" / "traces" / "blobs").iterdir()]) == 2
    started, *rest = [event["type"] for event in events]
    assert started == "turn_started"
    assert [kind for kind in rest if kind != "prompt"] == [
        event.type for event in heard if not event.type.endswith("_delta")
    ]
    assert rest.count("prompt") == 1


async def test_a_command_a_failure_and_a_stop_leave_theirs_too(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        await bot.say("/help")
        bot.provider.script(ValueError("surprise"))
        await bot.say("fail")
        pause = Pause("half of it")
        bot.provider.script(pause)
        turn = asyncio.create_task(bot.turn("stop me"))
        await pause.reached.wait()
        await bot.stop("cli:direct")
        await turn

    command, failed, stopped = recorded(tmp_path)
    assert (command.steps, command.text != "") == ([], True)
    assert (failed.outcome, failed.error) == ("failed", "ValueError")
    assert "surprise" in failed.text
    assert (stopped.outcome, stopped.steps[0].finish) == ("stopped", "interrupted")


CANARIES = {
    "config": "plain-Config-Value-7",
    "environment": "plain Env Value 8",
    "openai": "sk-canary00000001",
    "github": "ghp_canary00000000000002",
    "aws": "AKIACANARY0000000003",
    "slack": "xoxb-canary-0000-0004",
    "bearer": "canarybearer0005",
    "jwt": "eyJjYW5hcnkwMDA2.eyJjYW5hcnkwMDA2.c2ln",
    "address": "canary-in-url-7",
    "pem": "MIICANARY0008",
    "password": "canary-hunter-9",
    "token": "canary-token-10",
}


async def test_no_secret_reaches_the_state_folder(tmp_path: Path):
    said = CANARIES
    everything = "; ".join(
        [
            f"use {said['config']} or {said['environment']} or {said['openai']}",
            f"{said['github']} {said['aws']} {said['slack']} Bearer {said['bearer']} {said['jwt']}",
            f"postgres://me:{said['address']}@db/x --password {said['password']}",
            f"-----BEGIN RSA PRIVATE KEY-----\n{said['pem']}\n-----END RSA PRIVATE KEY-----",
            json.dumps({"token": said["token"]}),
        ]
    )
    planted = {"command": everything, "token": said["token"], "nested": [{"deeper": everything}]}

    class Chatty(ScriptedProvider):
        async def chat_stream(self, *args, **kwargs):
            call_context().notify(f"Trying again: {everything}")
            async for delta in super().chat_stream(*args, **kwargs):
                yield delta

    config = Config.model_validate({"providers": {"custom": {"apiKey": CANARIES["config"]}}})
    environ = {"ACME_API_KEY": CANARIES["environment"]}
    provider = Chatty(calls(("no_such_tool", planted), ("read_file", {"path": everything})), "Done.")
    async with open_bot(tmp_path, config=config, provider=provider, environ=environ) as bot:
        (tmp_path / "workspace" / "AGENTS.md").write_text(everything, encoding="utf-8")
        await bot.turn(everything)
        provider.script(RuntimeError(everything))
        await bot.turn("fail")

    written = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert b"Trying again" in written
    assert b"no_such_tool" in written
    assert [name for name, canary in CANARIES.items() if canary.encode() in written] == []


async def test_a_disk_that_refuses_costs_the_trace_and_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    async with open_bot(tmp_path, "first", "answered") as bot:
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / "traces").write_text("a file where a folder should be", encoding="utf-8")

        await bot.turn("hello")
        result = await bot.turn("hello")

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "answered")
    assert sum("traces cannot be written" in record.message for record in caplog.records) == 1


async def test_many_chats_at_once_lose_no_trace(tmp_path: Path):
    async with open_bot(tmp_path, *["hi"] * 20) as bot:
        await asyncio.gather(*(bot.turn("hello", session=f"cli:{number % 5}") for number in range(20)))

    assert sum(len(traces(tmp_path, f"cli:{number}")) for number in range(5)) == 20


async def test_what_a_turn_knows_is_written_while_it_runs_so_that_a_kill_leaves_it(tmp_path: Path):
    def two() -> list[RecordedTurn] | None:
        found = recorded(tmp_path)
        return found if found[1:] and found[1].model else None

    look, pause = calls(("list_dir", {"path": "."})), Pause("half")
    async with open_bot(tmp_path, "first", look, pause) as bot:
        await bot.say("one")
        turn = asyncio.create_task(bot.say("two"))
        await pause.reached.wait()
        done, running = await eventually(two)
        turn.cancel()
        await asyncio.wait([turn])

    assert done.outcome == "answered"
    assert (running.message, running.model, running.outcome) == ("two", "scripted", None)
