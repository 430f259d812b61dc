"""Questions that wait: the first answer stands, and one that came early counts for as long as a question waits."""

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.approval.pending import PendingApproval, PendingApprovals
from nanobot.agent.events import Answer
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import Address
from nanobot.utils.clock import FrozenClock


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 3, 1, 12))


@pytest.fixture
def question(tmp_path: Path, clock: FrozenClock) -> PendingApproval:
    return PendingApproval("q", ToolContext("cli:direct", Address("cli", "direct"), "t", tmp_path, clock), "exec")


async def test_of_two_answers_the_first_stands(clock: FrozenClock, question: PendingApproval):
    questions = PendingApprovals(clock)
    waiting = asyncio.create_task(questions.wait_for_answer(question))
    await asyncio.sleep(0)

    heard = [questions.answer("q", Answer.NO), questions.answer("q", Answer.ONCE)]

    assert (await waiting, heard) == (Answer.NO, [True, False])


@pytest.mark.parametrize(("after_s", "answer"), [(599, Answer.ONCE), (601, Answer.EXPIRED)])
async def test_an_answer_that_came_before_its_question_counts_for_ten_minutes(
    clock: FrozenClock, question: PendingApproval, after_s: float, answer: Answer
):
    questions = PendingApprovals(clock)
    questions.save_early("q", Answer.ONCE)
    clock.advance(after_s)
    waiting = asyncio.create_task(questions.wait_for_answer(question))
    await asyncio.sleep(0)

    questions.answer("q", Answer.EXPIRED)

    assert await waiting is answer


@pytest.mark.parametrize("answers", [(Answer.NO, Answer.ONCE), (Answer.ONCE, Answer.NO)])
async def test_of_two_early_answers_the_first_stands_too(
    clock: FrozenClock, question: PendingApproval, answers: tuple[Answer, Answer]
):
    questions = PendingApprovals(clock)
    for answer in answers:
        questions.save_early("q", answer)

    assert await questions.wait_for_answer(question) is answers[0]


@pytest.mark.parametrize(("may_always", "answer"), [(True, Answer.ALWAYS), (False, Answer.ONCE)])
async def test_always_is_no_more_than_once_where_it_was_not_offered(
    clock: FrozenClock, question: PendingApproval, answer: Answer, *, may_always: bool
):
    questions = PendingApprovals(clock)
    waiting = asyncio.create_task(questions.wait_for_answer(replace(question, may_always=may_always)))
    await asyncio.sleep(0)

    questions.answer("q", Answer.ALWAYS)
    questions.save_early("early", Answer.ALWAYS)

    assert await waiting is answer
    assert await questions.wait_for_answer(replace(question, id="early", may_always=may_always)) is answer


async def test_a_yes_that_came_behind_a_no_does_not_count_for_the_same_call_made_again(
    clock: FrozenClock, question: PendingApproval
):
    questions = PendingApprovals(clock)
    first = asyncio.create_task(questions.wait_for_answer(question))
    await asyncio.sleep(0)
    questions.answer("q", Answer.NO)
    await first

    stood = questions.settled_answer("q")
    questions.save_early("q", Answer.ONCE)
    again = asyncio.create_task(questions.wait_for_answer(question))
    await asyncio.sleep(0)

    assert (stood, again.done()) == (Answer.NO, False)
    questions.answer("q", Answer.NO)
    await again
