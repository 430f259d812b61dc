"""Sessions that release 0.2 of the original left in the middle of its work go on: results, questions, goals."""

import json
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Notice
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, open_bot

CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}},
    {"id": "c2", "type": "function", "function": {"name": "message", "arguments": '{"content": "hi"}'}},
]
SAID = {"role": "assistant", "content": "I look.", "tool_calls": CALLS}
READ = {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "the words of the file"}
GOAL = {"status": "active", "objective": "sort the photos by year", "ui_summary": "photos", "started_at": "2026-01-02"}
QUESTION = {"role": "user", "content": "what is in a.txt?", "timestamp": "2026-01-02T03:04:05"}


def checkpoint(results: list[Any], pending: list[Any], said: Any = SAID) -> dict[str, Any]:
    return {
        "phase": "awaiting_tools",
        "iteration": 0,
        "model": "m",
        "assistant_message": said,
        "completed_tool_results": results,
        "pending_tool_calls": pending,
    }


def left(home: Path, *rows: dict[str, Any], **metadata: Any) -> None:
    record = {"_type": "metadata", "key": "cli:direct", "metadata": metadata, "last_consolidated": 0}
    folder = home / "workspace" / "sessions"
    folder.mkdir(parents=True)
    text = "".join(json.dumps(row) + "\n" for row in (record, *rows))
    (folder / "cli_direct.jsonl").write_text(text, encoding="utf-8")


def notices(bot: Bot) -> list[str]:
    return [event.text for event in bot.sink.events if isinstance(event, Notice)]


async def test_results_that_had_finished_reach_the_next_prompt_once(tmp_path: Path):
    done = {"role": "tool", "tool_call_id": "c2", "name": "message", "content": "sent"}
    left(tmp_path, QUESTION, runtime_checkpoint=checkpoint([READ, done], []), pending_user_turn=True)

    async with open_bot(tmp_path, "one", "two") as bot:
        await bot.say("go on")
        await bot.say("and now?")

    first, second = bot.provider.requests
    assert [row["role"] for row in first] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert "the words of the file" in str(first)
    assert second[: len(first)] == first
    kept = SessionManager(tmp_path / "workspace").get_or_create("cli:direct")
    assert not {"runtime_checkpoint", "pending_user_turn", "goal_state"} & kept.metadata.keys()


async def test_a_call_that_was_under_way_is_not_run_again_and_its_outcome_is_unknown(tmp_path: Path):
    left(tmp_path, QUESTION, runtime_checkpoint=checkpoint([READ], [CALLS[1]]), pending_user_turn=True)

    async with open_bot(tmp_path, "one") as bot:
        await bot.say("go on")

    [request] = bot.provider.requests
    results = [str(row["content"]) for row in request if row["role"] == "tool"]
    assert results[0] == "the words of the file"
    assert results[1].startswith("Outcome unknown")


@pytest.mark.parametrize("there", [[SAID], [SAID, READ]])
async def test_what_the_session_holds_already_is_not_doubled(tmp_path: Path, there: list[dict[str, Any]]):
    left(tmp_path, QUESTION, *there, runtime_checkpoint=checkpoint([READ], [CALLS[1]]))

    async with open_bot(tmp_path, "one") as bot:
        await bot.say("go on")

        rows = bot.session("cli:direct").messages

    [request] = bot.provider.requests
    assert [row["role"] for row in request].count("assistant") == 1
    assert str(request).count("the words of the file") == str(rows).count("the words of the file") == 1


async def test_a_question_without_an_answer_is_read_with_the_next_message(tmp_path: Path):
    left(tmp_path, QUESTION, pending_user_turn=True)

    async with open_bot(tmp_path, "one") as bot:
        await bot.say("and b.txt?")

    [request] = bot.provider.requests
    assert "what is in a.txt?" in str(request[1]["content"])
    assert "and b.txt?" in str(request[1]["content"])


@pytest.mark.parametrize("state", [GOAL, json.dumps(GOAL)], ids=["object", "text"])
async def test_an_active_goal_becomes_ours_paused_and_its_person_is_told_once(tmp_path: Path, state: object):
    left(tmp_path, QUESTION, goal_state=state)

    async with open_bot(tmp_path, "one", "two") as bot:
        await bot.say("hello")
        await bot.say("and now?")
        status = await bot.say("/goal")

    assert len(bot.provider.requests) == 2
    assert ["sort the photos by year. It is paused." in text for text in notices(bot)] == [True]
    assert "Goal: sort the photos by year" in status
    assert "/goal resume continues it" in status
    assert "sort the photos by year" in str(bot.provider.requests[0][-1])


async def test_a_goal_is_adopted_also_where_a_command_comes_first(tmp_path: Path):
    left(tmp_path, QUESTION, goal_state=GOAL)

    async with open_bot(tmp_path) as bot:
        await bot.say("/new")
        status = await bot.say("/goal")

    assert len(notices(bot)) == 1
    assert "It waits: it was started by an earlier release." in status


@pytest.mark.parametrize(
    "metadata",
    [
        {"goal_state": GOAL | {"status": "completed"}},
        {"goal_state": {"goal": "g"}},
        {"goal_state": "{half"},
        {"goal_state": 7, "runtime_checkpoint": [1]},
        {"runtime_checkpoint": {"phase": "tools"}},
        {"runtime_checkpoint": checkpoint([None, {"tool_call_id": "zz"}], [], {"role": "assistant", "content": None})},
        {"runtime_checkpoint": {"assistant_message": {"tool_calls": [{"id": "x"}, 3]}, "completed_tool_results": 4}},
    ],
)
async def test_state_that_is_over_or_makes_no_sense_is_dropped(tmp_path: Path, metadata: dict[str, Any]):
    left(tmp_path, QUESTION, **metadata)

    async with open_bot(tmp_path, "one") as bot:
        assert await bot.say("hello") == "one"

    assert [row["role"] for row in bot.provider.requests[0]] == ["system", "user"]
    assert notices(bot) == []
    assert SessionManager(tmp_path / "workspace").get_or_create("cli:direct").metadata.keys() <= {"window"}
