"""Questions that wait: which words answer them and where, the first answer stands, an early one counts for a while."""

import asyncio
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.approval.pending import ApprovalRouter, PendingApproval, PendingApprovals
from nanobot.agent.events import Answer
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import Address, InboundMessage
from nanobot.messages.types import Provenance
from nanobot.runtime.audience import is_group
from nanobot.utils.clock import FrozenClock

ROOM = Address("discord", "4211")
YES, NO = Answer.ONCE, Answer.NO


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 3, 1, 12))


@pytest.fixture
def questions(clock: FrozenClock) -> PendingApprovals:
    return PendingApprovals(clock)


@pytest.fixture
def question(tmp_path: Path, clock: FrozenClock) -> PendingApproval:
    return PendingApproval("ab12", ToolContext("discord:4211", ROOM, "t", tmp_path, clock), "exec")


async def asked(questions: PendingApprovals, question: PendingApproval) -> asyncio.Task[Answer]:
    task = asyncio.create_task(questions.wait_for_answer(question))
    await asyncio.sleep(0)
    return task


async def test_of_two_answers_the_first_stands(questions: PendingApprovals, question: PendingApproval):
    waiting = await asked(questions, question)

    heard = [questions.answer("ab12", NO), questions.answer("ab12", YES)]

    assert (await waiting, heard) == (NO, [True, False])


@pytest.mark.parametrize(
    ("early", "after_s", "answer"),
    [([YES], 599, YES), ([YES], 601, Answer.EXPIRED), ([NO, YES], 0, NO), ([YES, NO], 0, YES)],
)
async def test_the_first_answer_that_came_before_its_question_counts_for_ten_minutes(
    questions: PendingApprovals, question: PendingApproval, clock: FrozenClock, early: list[Answer], after_s: float,
    answer: Answer,
):  # fmt: skip
    for said in early:
        questions.save_early("ab12", said)
    clock.advance(after_s)
    waiting = await asked(questions, question)

    questions.answer("ab12", Answer.EXPIRED)

    assert await waiting is answer


@pytest.mark.parametrize(("may_always", "answer"), [(True, Answer.ALWAYS), (False, YES)])
async def test_always_is_no_more_than_once_where_it_was_not_offered(
    questions: PendingApprovals, question: PendingApproval, answer: Answer, *, may_always: bool
):
    waiting = await asked(questions, replace(question, may_always=may_always))

    questions.answer("ab12", Answer.ALWAYS)
    questions.save_early("early", Answer.ALWAYS)

    assert await waiting is answer
    assert await questions.wait_for_answer(replace(question, id="early", may_always=may_always)) is answer


async def test_a_yes_that_came_behind_a_no_does_not_count_for_the_same_call_made_again(
    questions: PendingApprovals, question: PendingApproval
):
    first = await asked(questions, question)
    questions.answer("ab12", NO)
    await first

    stood = questions.settled_answer("ab12")
    questions.save_early("ab12", YES)
    again = await asked(questions, question)

    assert (stood, again.done(), questions.settled_answer("ab12")) == (NO, False, None)
    questions.answer("ab12", NO)
    await again


@pytest.mark.parametrize(
    ("text", "in_group", "is_mentioned", "counts"),
    [
        ("yes", False, False, True),
        ("yes", True, True, True),
        ("yes", True, False, False),
        ("[in reply to Max]\n> Soup?\nyes", True, False, False),
        ("/approve", True, False, True),
    ],
)
async def test_a_word_among_others_counts_where_it_is_said_to_the_bot(
    questions: PendingApprovals, question: PendingApproval, text: str, in_group: bool, is_mentioned: bool, counts: bool
):
    router = ApprovalRouter(questions, lambda chat, senders, *, in_group: None, is_group)
    said = InboundMessage(
        ROOM.channel, "1", ROOM.chat_id, text, provenance=Provenance.OWNER, in_group=in_group, is_mentioned=is_mentioned
    )
    answer = await asked(questions, question)

    told = router.handle_answer(said)
    questions.answer("ab12", Answer.EXPIRED)

    assert (await answer, "/approve ab12" in told) == ((YES, False) if counts else (Answer.EXPIRED, True))
