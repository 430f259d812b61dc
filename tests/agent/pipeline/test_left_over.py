"""A turn that was cut off goes on where it stopped, by itself or with the next message, and the person is told."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Notice, TurnOutcome
from nanobot.agent.recovery import MAX_ATTEMPTS
from nanobot.agent.tools.base import Effect, Tool
from nanobot.bus.events import InboundMessage, OutboundKind
from nanobot.messages.types import ChatMessage
from nanobot.session.checkpoint import Checkpoint
from nanobot.session.file_format import hashed_stem
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, Pause, calls, open_bot
from nanobot.testing.protocol_rules import openai_problems

SESSION = "cli:direct"


class Counting(Tool):
    """Counts how often it ran."""

    description = "counts"
    parameters = {"type": "object", "properties": {}}  # noqa: RUF012

    def __init__(self, name: str, effect: Effect) -> None:
        self.name, self.effect, self.runs = name, effect, 0

    async def execute(self) -> str:
        self.runs += 1
        return f"{self.name} ran"


TOOLS = {"look": Effect.READ, "again": Effect.REPEATABLE, "once": Effect.ONCE, "next_one": Effect.ONCE}


def add_tools(bot: Bot) -> dict[str, Counting]:
    tools = {name: Counting(name, effect) for name, effect in TOOLS.items()}
    for tool in tools.values():
        bot.register(tool)
    return tools


async def cut_off(home: Path, *, started: list[str] | None, results: list[str], text: str = "") -> None:
    """What a crash leaves in the middle of a step of four calls, or of an answer."""
    manager = SessionManager(home / "workspace")
    session = manager.get_or_create(SESSION)
    message = InboundMessage("cli", "owner", "direct", "do it", session_key_override=SESSION)
    rows: list[ChatMessage] = [{"role": "user", "content": "do it", "turn_id": "t1"}]
    if not text:
        asked: Any = [
            {"id": f"c-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in TOOLS
        ]
        rows.append({"role": "assistant", "content": None, "tool_calls": asked, "turn_id": "t1"})
    rows += [
        {"role": "tool", "tool_call_id": f"c-{name}", "name": name, "content": f"{name} ran", "turn_id": "t1"}
        for name in results
    ]
    await manager.append(session, *rows)
    if started is None:
        return
    checkpoint = Checkpoint(home / "state" / "turns", SESSION, every_s=0)
    checkpoint.accept("t1", message.to_json())
    await checkpoint.calls_start([f"c-{name}" for name in started], durable=True)
    if text:
        checkpoint.set_message_count(len(rows))
        checkpoint.partial(text)
    checkpoint.close()


def results_in(request: list[ChatMessage]) -> dict[str, str]:
    return {row["name"]: str(row["content"]) for row in request if row["role"] == "tool"}


async def test_finished_calls_stay_what_reads_runs_again_what_never_began_runs_and_the_rest_is_unknown(tmp_path: Path):
    await cut_off(tmp_path, started=["look", "again", "once"], results=[])
    async with open_bot(tmp_path, "all done") as bot:
        tools = add_tools(bot)

        result = await bot.resume(SESSION, bot.sink)

    seen = results_in(bot.provider.requests[0])
    assert result is not None
    assert (result.outcome, result.text, result.turn_id) == (TurnOutcome.ANSWERED, "all done", "t1")
    assert {name: tool.runs for name, tool in tools.items()} == {"look": 1, "again": 0, "once": 0, "next_one": 1}
    assert seen["look"] == "look ran" and seen["next_one"] == "next_one ran"
    assert "Outcome unknown" in seen["once"] and "Outcome unknown" in seen["again"]
    assert "safe to call it again" in seen["again"]
    [notice] = [event.text for event in bot.sink.events if isinstance(event, Notice)]
    assert "May or may not have run: again, once." in notice
    assert "Runs now: look, next_one." in notice
    assert openai_problems(bot.provider.requests[0]) == []
    assert not list((tmp_path / "state" / "turns").iterdir())


async def test_a_finished_call_never_runs_again(tmp_path: Path):
    await cut_off(tmp_path, started=list(TOOLS), results=["look", "once"])
    async with open_bot(tmp_path, "done") as bot:
        tools = add_tools(bot)

        await bot.resume(SESSION, bot.sink)

    assert (tools["look"].runs, tools["once"].runs) == (0, 0)
    assert results_in(bot.provider.requests[0])["once"] == "once ran"


async def test_where_nobody_wrote_down_what_began_everything_may_have(tmp_path: Path):
    await cut_off(tmp_path, started=None, results=[])
    async with open_bot(tmp_path, "done") as bot:
        tools = add_tools(bot)

        await bot.say("and now?")

    assert {name: tool.runs for name, tool in tools.items()} == {"look": 1, "again": 0, "once": 0, "next_one": 0}


async def test_what_nobody_wrote_down_is_written_before_it_is_taken_up(tmp_path: Path):
    """Else a second crash in the middle of that would find a file that says nothing began."""
    await cut_off(tmp_path, started=None, results=[])
    pause = Pause()
    async with open_bot(tmp_path, pause) as bot:
        add_tools(bot)
        turn = asyncio.create_task(bot.turn("and now?"))
        await pause.reached.wait()
        left = Checkpoint(tmp_path / "state" / "turns", SESSION).load()
        turn.cancel()
        await asyncio.wait([turn])

    assert left.started == frozenset(f"c-{name}" for name in TOOLS)


async def test_the_next_message_joins_the_turn_that_was_cut_off(tmp_path: Path):
    await cut_off(tmp_path, started=["once"], results=[])
    async with open_bot(tmp_path, "both done") as bot:
        tools = add_tools(bot)

        reply = await bot.say("and now?")

    request = bot.provider.requests[0]
    assert reply == "both done"
    assert tools["once"].runs == 0
    assert [row["role"] for row in request] == ["system", "user", "assistant", *["tool"] * 4, "user"]
    assert "do it" in str(request[1]["content"])
    assert "interrupted" in str(request[-1]["content"]) and "and now?" in str(request[-1]["content"])
    assert openai_problems(request) == []


async def test_an_answer_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path):
    await cut_off(tmp_path, started=[], results=[], text="The answer is ")
    async with open_bot(tmp_path, "forty-two.") as bot:
        result = await bot.resume(SESSION, bot.sink)

    assert result is not None and result.text == "The answer is forty-two."
    assert "go on exactly where it stopped" in str(bot.provider.requests[0][-1]["content"]).lower()


async def test_half_an_answer_stays_with_the_turn_that_said_it(tmp_path: Path):
    await cut_off(tmp_path, started=[], results=[], text="The answer is ")
    async with open_bot(tmp_path, "forty-two.") as bot:
        await bot.say("and now?")
        rows = bot.session(SESSION).messages

    said = {str(row["content"]): row["turn_id"] for row in rows}
    assert said["The answer is "] == "t1" != said["and now?"] == said["forty-two."]


async def test_a_message_that_is_no_row_yet_is_answered(tmp_path: Path):
    message = InboundMessage("cli", "owner", "direct", "hello?", session_key_override=SESSION)
    checkpoint = Checkpoint(tmp_path / "state" / "turns", SESSION)
    checkpoint.accept("t1", message.to_json())
    checkpoint.close()
    async with open_bot(tmp_path, "hello!") as bot:
        result = await bot.resume(SESSION)

        rows = bot.session(SESSION).messages

    assert result is not None and result.text == "hello!"
    assert [row["content"] for row in rows] == ["hello?", "hello!"]


async def test_an_answer_nobody_was_given_is_given(tmp_path: Path):
    await cut_off(tmp_path, started=[], results=[], text=" ")
    manager = SessionManager(tmp_path / "workspace")
    await manager.append(manager.get_or_create(SESSION), {"role": "assistant", "content": "done", "turn_id": "t1"})
    async with open_bot(tmp_path) as bot:
        result = await bot.resume(SESSION)

    assert result is not None and (result.outcome, result.text) == (TurnOutcome.ANSWERED, "done")


async def test_a_turn_that_kills_us_each_time_is_not_tried_for_ever(tmp_path: Path):
    await cut_off(tmp_path, started=[], results=[])
    checkpoint = Checkpoint(tmp_path / "state" / "turns", SESSION)
    for _ in range(MAX_ATTEMPTS - 1):
        checkpoint.accept(
            "t1", InboundMessage("cli", "owner", "direct", "do it", session_key_override=SESSION).to_json()
        )
    checkpoint.close()
    async with open_bot(tmp_path) as bot:
        result = await bot.resume(SESSION)
        bot.provider.script("hi")
        following = await bot.say("hello")

    assert result is not None and result.outcome is TurnOutcome.FAILED
    assert f"cut off {MAX_ATTEMPTS} times" in result.text
    assert following == "hi"
    assert openai_problems(bot.provider.requests[-1]) == []


async def test_a_command_leaves_the_cut_off_turn_for_later_and_new_forgets_it(tmp_path: Path):
    await cut_off(tmp_path, started=["once"], results=[])
    async with open_bot(tmp_path) as bot:
        await bot.say("/history")
        left = bool(list((tmp_path / "state" / "turns").glob("*.jsonl")))
        await bot.say("/new")

        assert left
        assert not list((tmp_path / "state" / "turns").glob("*.jsonl"))
        assert await bot.resume(SESSION) is None


async def test_when_nanobot_stops_the_turn_goes_on_at_the_next_start_and_replies_in_its_chat(tmp_path: Path):
    message = InboundMessage("phone", "ann", "7", "go", message_id="m1", thread_id="t")
    async with open_bot(tmp_path, calls(("list_dir", {"path": "."})), pause := Pause("Almost ")) as bot:
        turn = asyncio.create_task(bot.run_turn(message))
        await pause.reached.wait()
        await bot.shut_down()
        stopped = await turn
    async with open_bot(tmp_path, "there.") as bot, bot.serving() as bus:
        outbound = [await bus.consume_outbound() for _ in range(2)]

    assert stopped.outcome is TurnOutcome.STOPPED and "goes on at the next start" in stopped.text
    notice, reply = outbound
    assert notice is not None and notice.kind is OutboundKind.NOTICE
    assert reply is not None
    assert (reply.channel, reply.chat_id, reply.thread_id, reply.reply_to) == ("phone", "7", "t", "m1")
    assert reply.content == "Almost there."


async def test_what_a_person_asked_at_a_terminal_that_is_gone_waits_for_them(tmp_path: Path):
    await cut_off(tmp_path, started=["once"], results=[])
    [file] = (tmp_path / "state" / "turns").glob("*.jsonl")
    file.write_text(file.read_text().replace('"origin": "user"', '"origin": "cli"'))
    async with open_bot(tmp_path) as bot, bot.serving():
        await asyncio.sleep(0.05)

    assert not bot.provider.requests
    assert file.exists()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b'{"key": "cli:direct"}\n', b'{"key": "cli:direct", "turn": 3, "message": {}}\n']
)
async def test_a_checkpoint_that_says_nothing_sound_hurts_nobody(tmp_path: Path, damage: bytes):
    folder = tmp_path / "state" / "turns"
    folder.mkdir(parents=True)
    (folder / f"{hashed_stem('cli:direct')}.jsonl").write_bytes(damage)
    async with open_bot(tmp_path, "hi") as bot:
        assert await bot.resume(SESSION) is None
        assert await bot.say("hello") == "hi"

    assert not list(folder.glob("*.jsonl"))
