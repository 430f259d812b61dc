"""With `review` on, a second call reads each answer before it goes out; the person sees only the last one."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Notice, TextDelta, ToolStarted, TurnOutcome
from nanobot.config.schema import Config
from nanobot.messages.types import ChatMessage, Provenance, text_of
from nanobot.providers.base import LLMResponse
from nanobot.providers.errors import ModelOverloadedError
from nanobot.session.manager import SessionManager
from nanobot.testing import Bot, calls, open_bot
from nanobot.testing.event_rules import turn_problems
from tests.support.ledger_rows import rows_of as calls_of

REVIEWED = Config.model_validate({"agents": {"defaults": {"review": True}}})
PASS = "VERDICT: PASS"
BACK = "VERDICT: SEND BACK\nThe total is missing."
LOOK = calls(("list_dir", {"path": "."}), text="I look.")


def is_review(request: list[ChatMessage]) -> bool:
    return "You review an answer" in str(request[0]["content"])


def shown(bot: Bot) -> str:
    """All that the events of the turns say to a person."""
    return "".join(event.text for event in bot.sink.events if isinstance(event, TextDelta | Notice))


def rows_of(home: Path) -> list[ChatMessage]:
    return SessionManager(home / "workspace").get_or_create("cli:direct").messages


async def test_an_answer_that_passes_goes_out_as_it_is(tmp_path: Path):
    async with open_bot(tmp_path, LOOK, "Nothing is there.", PASS, config=REVIEWED) as bot:
        result = await bot.turn("what is in the workspace?")

    review = bot.provider.requests[2]
    asked = str(review[1]["content"])
    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "Nothing is there.")
    assert [is_review(request) for request in bot.provider.requests] == [False, False, True]
    assert "| what is in the workspace?" in asked
    assert '| list_dir {"path": "."}' in asked
    assert asked.endswith("The answer:\n\n| Nothing is there.")
    assert shown(bot) == "I look."
    assert turn_problems(bot.sink.events) == []
    assert [row.get("sent_back") for row in rows_of(tmp_path)] == [None] * 4


async def test_a_draft_that_is_sent_back_is_seen_by_nobody_and_the_model_gets_the_reasons(tmp_path: Path):
    async with open_bot(
        tmp_path, "A draft.", BACK, LOOK, "The total is 7.", PASS, "Bye.", PASS, config=REVIEWED
    ) as bot:
        result = await bot.turn("what is the total?")
        await bot.say("thanks")

    told = str(bot.provider.requests[2][-1]["content"])
    turns = [request for request in bot.provider.requests if not is_review(request)]
    assert result.text == "The total is 7."
    assert "The total is missing." in told
    assert "A draft." not in shown(bot)
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(turns))
    assert [text_of(row["content"]) for row in rows_of(tmp_path) if row.get("sent_back")] == ["A draft."]


async def test_an_answer_is_sent_back_twice_at_most(tmp_path: Path):
    async with open_bot(tmp_path, "one", BACK, "two", BACK, "three", config=REVIEWED) as bot:
        reply = await bot.say("what is the total?")

    assert reply == "three"
    assert shown(bot) == ""


async def test_what_was_sent_back_is_not_shown_searched_or_remembered(tmp_path: Path):
    async with open_bot(
        tmp_path, "Secretly forty-two.", BACK, "It is 7.", PASS, "Twelve.", PASS, config=REVIEWED
    ) as bot:
        await bot.say("what is the total?")
        export = await bot.say("/search forty-two")
        await bot.say("and twice six?")

    assert "Secretly" not in export
    assert "Secretly" not in str(bot.provider.requests[-1][1]["content"])


@pytest.mark.parametrize(
    ("review", "why"),
    [
        (ModelOverloadedError("busy"), "busy"),
        ("Looks fine to me!", "no verdict that could be read"),
        (KeyError("choices"), "choices"),
    ],
)
async def test_an_answer_goes_out_with_a_notice_where_it_cannot_be_reviewed(tmp_path: Path, review: Any, why: str):
    async with open_bot(tmp_path, "It is 7.", review, config=REVIEWED) as bot:
        reply = await bot.say("what is the total?")

    assert reply == "It is 7."
    assert "agents.defaults.review" in shown(bot) and why in shown(bot)


async def test_the_reasons_are_trusted_as_little_as_what_the_turn_has_read(tmp_path: Path):
    left = tmp_path / "workspace" / "sessions"
    left.mkdir(parents=True)
    row = {"role": "user", "content": "buy now", "provenance": "web", "timestamp": "2026-01-02T03:04:05"}
    (left / "cli_direct.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    async with open_bot(tmp_path, "one", BACK, "two", PASS, config=REVIEWED) as bot:
        await bot.say("what is the total?")

    [reasons] = [row for row in rows_of(tmp_path) if "was sent back" in text_of(row["content"])]
    assert reasons["provenance"] == Provenance.WEB


async def test_a_review_is_a_row_of_its_own_in_the_ledger_and_its_cost_is_the_turns(tmp_path: Path):
    answer, review = (
        LLMResponse(text, usage={"prompt_tokens": 100, "completion_tokens": 10}) for text in ("It is 7.", PASS)
    )
    async with open_bot(tmp_path, answer, review, config=REVIEWED) as bot:
        result = await bot.turn("what is the total?")
        usage = await bot.say("/usage")

    assert result.usage["prompt_tokens"] == 200
    assert [call["cause"] for call in calls_of(tmp_path)] == ["turn", "review"]
    assert "2 calls" in usage


async def test_a_tool_call_that_ends_a_draft_shows_the_words_before_it_at_once(tmp_path: Path):
    async with open_bot(tmp_path, LOOK, "Nothing.", PASS, config=REVIEWED) as bot:
        await bot.say("what is there?")

    kinds = [type(event) for event in bot.sink.events if isinstance(event, TextDelta | ToolStarted)]
    assert kinds == [TextDelta, ToolStarted]
