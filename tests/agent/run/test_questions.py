"""Questions that wait: the first answer stands, and one that came early counts for as long as a question waits."""

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.run.questions import Question, Questions
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import Answer
from nanobot.bus.events import Address
from nanobot.utils.clock import FrozenClock


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 3, 1, 12))


@pytest.fixture
def question(tmp_path: Path, clock: FrozenClock) -> Question:
    return Question("q", ToolContext("cli:direct", Address("cli", "direct"), "t", tmp_path, clock), "exec")


async def test_of_two_answers_the_first_stands(clock: FrozenClock, question: Question):
    questions = Questions(clock)
    waiting = asyncio.create_task(questions.answer_to(question))
    await asyncio.sleep(0)

    heard = [questions.answer("q", Answer.NO), questions.answer("q", Answer.ONCE)]

    assert (await waiting, heard) == (Answer.NO, [True, False])


@pytest.mark.parametrize(("after_s", "answer"), [(599, Answer.ONCE), (601, Answer.EXPIRED)])
async def test_an_answer_that_came_before_its_question_counts_for_ten_minutes(
    clock: FrozenClock, question: Question, after_s: float, answer: Answer
):
    questions = Questions(clock)
    questions.keep("q", Answer.ONCE)
    clock.advance(after_s)
    waiting = asyncio.create_task(questions.answer_to(question))
    await asyncio.sleep(0)

    questions.answer("q", Answer.EXPIRED)

    assert await waiting is answer


@pytest.mark.parametrize("answers", [(Answer.NO, Answer.ONCE), (Answer.ONCE, Answer.NO)])
async def test_of_two_early_answers_the_first_stands_too(
    clock: FrozenClock, question: Question, answers: tuple[Answer, Answer]
):
    questions = Questions(clock)
    for answer in answers:
        questions.keep("q", answer)

    assert await questions.answer_to(question) is answers[0]


@pytest.mark.parametrize(("may_always", "answer"), [(True, Answer.ALWAYS), (False, Answer.ONCE)])
async def test_always_is_no_more_than_once_where_it_was_not_offered(
    clock: FrozenClock, question: Question, answer: Answer, *, may_always: bool
):
    questions = Questions(clock)
    waiting = asyncio.create_task(questions.answer_to(replace(question, may_always=may_always)))
    await asyncio.sleep(0)

    questions.answer("q", Answer.ALWAYS)
    questions.keep("early", Answer.ALWAYS)

    assert await waiting is answer
    assert await questions.answer_to(replace(question, id="early", may_always=may_always)) is answer


async def test_a_yes_that_came_behind_a_no_does_not_count_for_the_same_call_made_again(
    clock: FrozenClock, question: Question
):
    questions = Questions(clock)
    first = asyncio.create_task(questions.answer_to(question))
    await asyncio.sleep(0)
    questions.answer("q", Answer.NO)
    await first

    stood = questions.settled("q")
    questions.keep("q", Answer.ONCE)
    again = asyncio.create_task(questions.answer_to(question))
    await asyncio.sleep(0)

    assert (stood, again.done()) == (Answer.NO, False)
    questions.answer("q", Answer.NO)
    await again
