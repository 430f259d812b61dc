"""The guards at work in a turn: calls that lead nowhere, answers that claim what no tool did."""

from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.agent.tools.base import Tool
from nanobot.testing import Bot, calls

LOOK = calls(("list_dir", {"path": "."}))


async def test_the_third_identical_call_is_answered_with_advice_and_the_fifth_ends_the_turn(bot: Bot):
    bot.provider.script(*[LOOK] * 40)

    result = await bot.turn("look around")

    assert result.outcome is TurnOutcome.PARTIAL
    assert "called 5 times" in result.text
    assert len(bot.provider.requests) == 5
    answers = [str(row["content"]) for row in bot.provider.requests[-1] if row["role"] == "tool"]
    assert [answer.startswith("Error: Not run") for answer in answers] == [False, False, True, True]
    bot.provider.clear()
    bot.provider.script("hi")
    assert await bot.say("hello") == "hi"
    assert "called 5 times" in str(bot.provider.requests[-1]), "what the person was told is in the session"


async def test_equal_calls_of_one_step_all_run(bot: Bot):
    class Dice(Tool):
        name = "dice"
        description = "throws it"
        parameters = {"type": "object", "properties": {}}  # noqa: RUF012
        throws = 0

        async def execute(self) -> str:
            Dice.throws += 1
            return str(Dice.throws)

    bot.register(Dice())
    bot.provider.script(calls(*[("dice", {})] * 5), "five throws")

    assert await bot.say("throw five times") == "five throws"
    assert Dice.throws == 5


async def test_a_claim_without_a_deed_gets_one_more_step(bot: Bot):
    write = calls(("write_file", {"path": "a.txt", "content": "x"}))
    bot.provider.script("I have created the file a.txt.", write, "I have created a.txt.")

    result = await bot.turn("create a.txt with x")

    assert (result.outcome, result.text) == (TurnOutcome.ANSWERED, "I have created a.txt.")
    assert (bot.workspace / "a.txt").read_text() == "x"
    assert "no tool call of this turn did that" in str(bot.provider.requests[1][-1]["content"])


@pytest.mark.parametrize(
    "call",
    [("exec", {"command": "ls"}), ("list_dir", {}), ("cron", {"action": "list"})],
    ids=["exec that looks", "list of files", "list of jobs"],
)
async def test_claim_of_a_file_is_doubted_if_tools_only_looked(bot: Bot, call: tuple[str, dict[str, Any]]):
    bot.provider.script(calls(call), "I've written the report to report.md.", "I did not write report.md.")

    assert await bot.say("write the report to report.md") == "I did not write report.md."


@pytest.mark.needs_sandbox
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("printf x > report.md", "I've written the report to report.md."),
        ("f=rep; printf x > ${f}ort.md", "I've written the report to report.md."),
        ("mkdir notes && printf x > notes/report.md", "The report has been saved to notes/report.md."),
    ],
)
async def test_claim_of_a_file_that_a_command_wrote_is_honest(bot: Bot, command: str, answer: str):
    bot.provider.script(calls(("exec", {"command": command})), answer)

    assert await bot.say("write the report to a file") == answer


@pytest.mark.needs_sandbox
async def test_a_result_that_only_reads_like_a_failure_founds_what_is_said_of_it(bot: Bot):
    bot.provider.script(calls(("exec", {"command": "echo Error: 2 of 3 tests failed"})), "I ran the tests: 2 failed.")

    assert await bot.say("run the tests") == "I ran the tests: 2 failed."


@pytest.mark.needs_sandbox
async def test_each_row_of_a_call_says_how_it_failed(bot: Bot):
    bot.provider.script(calls(("read_file", {"path": "none.txt"})), calls(("exec", {"command": "exit 3"})))
    bot.provider.script(calls(("exec", {"command": "echo Error"})), *[LOOK] * 3, "So it is.")

    await bot.say("try it all")

    rows = bot.session("cli:direct").messages
    failures = [row.get("failure") for row in rows if row["role"] == "tool"]
    assert failures == ["not_done", "ended_badly", None, None, None, "not_run"]


@pytest.mark.needs_sandbox
async def test_an_account_counts_what_ran_and_what_failed_by_what_it_was_not_by_how_it_reads(bot: Bot):
    told = calls(("exec", {"command": "echo Error: only a word"}), ("exec", {"command": "echo bad; exit 1"}))
    bot.provider.script(told, *[LOOK] * 5)

    result = await bot.turn("look around")

    assert "4 tool calls ran (exec 2 times, list_dir 2 times)." in result.text
    assert "1 of them failed, the last with: bad" in result.text


async def test_between_a_doubted_answer_and_the_next_stands_a_word_on_why_there_are_two(bot: Bot):
    bot.provider.script("I have created report.txt.", "I did not create it.")

    await bot.turn("save my notes to report.txt")

    told = [event.type for event in bot.sink.events if event.type in ("text_ended", "notice")]
    assert told == ["text_ended", "notice", "text_ended"]


async def test_a_claim_that_stays_is_told_to_the_person_in_the_language_of_the_answer(bot: Bot):
    bot.provider.script("I have created the file a.txt.", "I have created a.txt.")
    english = await bot.say("create a.txt")
    bot.provider.script("已经创建了文件 a.txt。", "我已经创建了 a.txt。")
    chinese = await bot.say("帮我创建 a.txt")

    assert english.startswith("I have created a.txt.\n\n(")
    assert "本轮没有执行任何操作" in chinese
    assert len(bot.provider.requests) == 4


async def test_what_was_done_in_an_earlier_turn_is_no_empty_claim(bot: Bot):
    bot.provider.script(calls(("write_file", {"path": "a.txt", "content": "x"})), "Created a.txt.")
    await bot.say("create a.txt with x")
    bot.provider.script("I created a.txt with one letter.")

    assert await bot.say("what did you do so far?") == "I created a.txt with one letter."
