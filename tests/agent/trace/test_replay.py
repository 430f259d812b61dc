"""A recorded turn is shown as it was, and run again on what was recorded: no tool runs, nothing is written."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.engine.spec import Model
from nanobot.agent.hooks import CallSeen, Hook, NewArguments
from nanobot.agent.trace.reader import RecordedCall, RecordedStep, Recording, read_recording
from nanobot.agent.trace.replay import Replay, first_difference, first_request, replay
from nanobot.agent.trace.store import TraceStore
from nanobot.bus.events import InboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import Origin, shown_text
from nanobot.providers.base import CallContext, Delta, LLMResponse, call_context
from nanobot.providers.errors import ModelOverloadedError
from nanobot.session.manager import SessionManager
from nanobot.testing import Pause, ScriptedProvider, calls, open_bot
from nanobot.utils.clock import SystemClock
from tests.fakes.tools import command, page
from tests.support.approvals import Person, with_tools

LOOK = calls(("list_dir", {"path": "."}), ("read_file", {"path": "a.txt"}), text="Let me look.")


def recording(home: Path, session: str = "cli:direct") -> Recording:
    found = read_recording(session, SessionManager(home / "workspace"), folder(home))
    assert found is not None
    return found


def folder(home: Path) -> TraceStore:
    return TraceStore(home / "state" / "traces")


async def again(home: Path, *script: Any, which: str = "-1") -> tuple[Replay, ScriptedProvider]:
    """The turn again, with a model that says this. The ledger hears that it is a replay."""

    class Asked(ScriptedProvider):
        async def chat_stream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Delta]:
            assert call_context() == CallContext("replay", "cli:direct", turn.turn_id)
            async for delta in super().chat_stream(*args, **kwargs):
                yield delta

    provider = Asked(*script, model="other")
    found = recording(home)
    turn = found.find(which)
    model = Model(provider, "test", "other")
    prompt = found.prompt(turn, folder(home))
    return await replay(turn, prompt, model, clock=SystemClock(), workspace=home), provider


@pytest.fixture
async def home(tmp_path: Path) -> Path:
    """Two turns, the second with tools."""
    async with open_bot(tmp_path, "hello to you") as bot:
        await bot.say("hello")
        (bot.workspace / "a.txt").write_text("the text of a", encoding="utf-8")
        bot.provider.script(LOOK, LLMResponse("Two files.", usage={"prompt_tokens": 9}, cost_usd=0.5))
        await bot.say("what is here?")
    return tmp_path


async def test_what_was_doubted_is_no_part_of_the_answer_that_followed(tmp_path: Path):
    async with open_bot(tmp_path, "I have created report.txt.", "I did not create it.") as bot:
        await bot.say("save my notes to report.txt")

    turn = recording(tmp_path).find()

    assert [step.text for step in turn.steps] == ["I have created report.txt.", "I did not create it."]
    assert None not in [time for step in turn.steps for time in (step.first_s, step.seconds)]
    assert turn.text == "I did not create it."


async def test_the_prompt_comes_back_as_it_was_sent_byte_for_byte(tmp_path: Path):
    async with open_bot(tmp_path, "hello to you", LOOK, "Two files.", "bye") as bot:
        for text in ("hello", "what is here?", "thanks"):
            await bot.say(text)
        sent, tools = [bot.provider.requests[at] for at in (0, 1, 3)], bot.provider.tools[0]
        (bot.workspace / "AGENTS.md").write_text("another rule", encoding="utf-8")
        bot.provider.script("changed")
        await bot.say("and now?")
    found = recording(tmp_path)

    for turn, request in zip(found.turns, sent, strict=False):
        prompt = found.prompt(turn, folder(tmp_path))
        assert first_request(turn, prompt) == request
        assert prompt.tools == tools
    assert "another rule" in found.prompt(found.find(), folder(tmp_path)).system


async def test_the_same_model_does_the_same_without_running_a_tool(home: Path):
    (home / "workspace" / "a.txt").unlink()
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}

    replayed, provider = await again(home, LOOK, "Two files.")

    assert first_difference(recording(home).find().steps, replayed.turn.steps) is None
    assert [row["content"] for row in provider.requests[0][1:]] == ["hello", "hello to you", "what is here?"]
    assert provider.requests[0][-1]["runtime_context"].startswith("[Runtime Context")
    assert "the text of a" in str(provider.requests[1][-1]["content"])
    assert (replayed.turn.text, replayed.unrecorded) == ("Two files.", [])
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


class Turning(Hook):
    """Makes every call one for the memory."""

    async def before_tool(self, call: CallSeen) -> NewArguments:
        return NewArguments({"path": "memory", "max_entries": 7})


async def test_a_call_that_a_hook_changed_gets_its_result_again_and_no_hook_runs(tmp_path: Path):
    look, secret = calls(("list_dir", {"path": "."})), calls(("list_dir", {"path": "sk-abcdefghijklmnopqrstuvwx"}))
    async with open_bot(tmp_path, look, "Done.", secret, "Done.", own_hooks=[Turning()]) as bot:
        await bot.say("look")
        await bot.say("look")

    made, provider = await again(tmp_path, look, "Done.", which="-2")

    first, second = (turn.steps[0].calls[0] for turn in recording(tmp_path).turns)
    assert (first.arguments, first.asked) == ({"path": "memory", "max_entries": 7}, {"path": "."})
    assert second.asked is not None and "sk-abcd" not in json.dumps(second.asked)
    assert made.turn.steps[0].calls[0].arguments == {"path": "."}
    assert first_difference(recording(tmp_path).find("-2").steps, made.turn.steps) is None
    assert made.unrecorded == []
    assert "not run" not in str(provider.requests[-1][-1]["content"])


async def test_what_joined_the_turn_joins_it_again_at_the_same_place(tmp_path: Path):
    def said(text: str) -> InboundMessage:
        return InboundMessage.from_owner("cli", "direct", text, session_key="cli:direct", origin=Origin.CLI)

    waiting = [said("in one line, please")]
    look = calls(("list_dir", {"path": "."}))
    async with open_bot(tmp_path, look, "One line.") as bot:
        await bot.run_turn(said("what is here?"), waiting=lambda most: [waiting.pop()] if waiting else [])

    replayed, provider = await again(tmp_path, look, "Another line.")

    assert [row["role"] for row in provider.requests[1]] == ["system", "user", "assistant", "tool", "user"]
    assert provider.requests[1][-1]["content"] == "in one line, please"
    assert [shown_text(row) for row in replayed.turn.steps[1].joined] == ["in one line, please"]


async def test_a_turn_that_was_taken_up_after_a_crash_is_one_turn(tmp_path: Path):
    async with open_bot(tmp_path) as bot:
        pause = Pause("half ")
        bot.provider.script(calls(("list_dir", {"path": "."})), pause)
        turn = asyncio.create_task(bot.turn("go"))
        await pause.reached.wait()
        await bot.shut_down()  # nanobot ends
        await turn
    async with open_bot(tmp_path, "and the rest.") as bot:
        await bot.resume("cli:direct")

    (found,) = recording(tmp_path).turns
    replayed, _ = await again(tmp_path, calls(("list_dir", {"path": "."})), "half and the rest.")

    assert (found.message, found.outcome) == ("go", "answered")
    assert [step.text for step in found.steps] == ["", "half ", "and the rest."]
    assert [call.name for call in found.steps[0].calls] == ["list_dir"]
    assert (replayed.turn.text, replayed.unrecorded) == ("half and the rest.", [])


async def test_a_model_that_never_ends_is_stopped_soon_and_one_that_fails_is_an_outcome(home: Path):
    replayed, provider = await again(home, *(calls(("glob", {"pattern": f"{number}"})) for number in range(50)))
    failed, _ = await again(home, LOOK, ModelOverloadedError("busy"))

    assert (len(provider.requests) <= 6, replayed.turn.outcome) == (True, "partial")
    assert (failed.turn.outcome, failed.turn.error) == ("failed", "ModelOverloadedError")
    assert "busy" in failed.turn.text


def step(*made: tuple[str, dict[str, Any]], text: str = "") -> RecordedStep:
    return RecordedStep(text, calls=[RecordedCall("", name, arguments) for name, arguments in made])


Call = tuple[str, dict[str, Any]]
A: Call = ("read", {"path": "a"})
B: Call = ("read", {"path": "b"})
OTHER: Call = ("list", {})


@pytest.mark.parametrize(
    ("then", "now", "found"),
    [
        ([step(A), step(text="x")], [step(A), step(text="x")], None),
        ([step(A, B)], [step(B, A)], None),
        ([step(A)], [step(B)], (1, "other calls")),
        ([step(A)], [step(OTHER)], (1, "other calls")),
        ([step(A), step(text="x")], [step(text="x")], (1, "a call less")),
        ([step(A, B)], [step(A)], (1, "a call less")),
        ([step(A)], [step(A, B)], (1, "a call more")),
        ([step(text="x")], [step(A), step(text="x")], (1, "a call more")),
        ([step(A), step(text="x")], [step(A), step(A), step(text="x")], (2, "a call more")),
        ([step(A, text="hm"), step(B)], [step(A, text="so"), step(OTHER)], (2, "other calls")),
        ([step(A), step(text="x")], [step(A), step(text="y")], (2, "other words")),
        ([], [], None),
    ],
)
def test_the_first_difference_is_named_and_deeds_go_before_words(then, now, found):
    difference = first_difference(then, now)

    assert (difference and (difference.step, difference.what)) == found


async def test_a_step_that_was_paid_for_before_the_turn_failed_is_counted(tmp_path: Path):
    paid = calls(("list_dir", {"path": "."}))
    paid.usage, paid.cost_usd = {"prompt_tokens": 9}, 0.25
    async with open_bot(tmp_path, paid, ModelOverloadedError("busy")) as bot:
        await bot.say("go")

    turn = recording(tmp_path).find()

    assert (turn.outcome, turn.cost_usd, turn.usage) == ("failed", 0.25, {"prompt_tokens": 9})
    assert [step.text for step in turn.steps] == ["", ""]
    assert None not in [turn.seconds, *(step.seconds for step in turn.steps)]


async def test_turns_of_a_conversation_put_away_are_still_found(tmp_path: Path):
    async with open_bot(tmp_path, "one") as bot:
        first = await bot.turn("before")
        await bot.say("/new")
        bot.provider.script("two")
        await bot.say("after")
    found = recording(tmp_path)
    archived = next((tmp_path / "workspace" / "sessions" / "archive").glob("*.jsonl")).stem

    assert [turn.message for turn in found.turns] == ["before", "/new", "after"]
    assert found.find(first.turn_id).steps[0].text == "one"
    assert len(found.prompt(found.find("-1"), folder(tmp_path)).history) == 1
    assert [turn.message for turn in recording(tmp_path, archived).turns] == ["before"]


async def test_questions_of_a_turn_and_their_answers_are_told(tmp_path: Path):
    script = (calls(("web_page", {"url": "u"})), calls(("run", {"target": "ls"})), "done")
    async with open_bot(tmp_path, *script, *script) as bot:
        await Person(with_tools(bot, page(), command())).say("read it")
        await bot.say("and once more, where nobody can be asked")

    asked, refused = (turn.notices for turn in recording(tmp_path).turns)
    assert [(notice["kind"], "ls" in notice["text"]) for notice in asked] == [("asked", True), ("answered", False)]
    assert [notice["kind"] for notice in refused] == ["refused"] and "Nobody is" in refused[0]["text"]


async def test_swept_prompts_and_deleted_messages_are_said(home: Path):
    found = recording(home)
    turn = found.find()
    for blob in (home / "state" / "traces" / "blobs").iterdir():
        blob.unlink()
    with pytest.raises(NanobotError, match="deleted"):
        found.prompt(turn, folder(home))

    async with open_bot(home, "hi") as bot:
        await bot.say("hi")
    next((home / "workspace" / "sessions").glob("*.jsonl")).unlink()
    with pytest.raises(NanobotError, match="no longer in the session"):
        recording(home).prompt(recording(home).find(), folder(home))


def test_damaged_rows_and_events_of_another_version_are_skipped():
    odd: list[dict[str, Any]] = [{"type": "unheard_of"}, {"type": "tool_started", "t": 1.0, "call": "another name"}]
    rows: Any = [
        {"role": "user", "content": "go", "turn_id": "t1"},
        {"role": "assistant", "content": None, "turn_id": "t1", "tool_calls": [{"id": 1}, {"function": {}}]},
        {"role": "tool", "content": 7, "turn_id": "t1", "tool_call_id": "None"},
        {"role": "tool", "content": [1, "x"], "turn_id": "t1", "tool_call_id": "1"},
        {"role": "assistant", "content": ["odd"], "turn_id": "t1", "reasoning_content": 3},
    ]

    (turn,) = Recording("s", [rows], {"t1": odd}).turns

    assert turn.message == "go"


@pytest.mark.needs_sandbox
async def test_a_failed_call_fails_again(tmp_path: Path):
    fail = calls(("exec", {"command": "echo 'I failed.'; exit 1"}))
    async with open_bot(tmp_path, fail, "So it is.") as bot:
        await bot.say("go")

    replayed, _ = await again(tmp_path, fail, "So it is.")

    [call] = replayed.turn.steps[0].calls
    assert (call.ok, call.failure) == (False, "ended_badly")
