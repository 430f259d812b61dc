"""Which message answers a question, and whose."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.answering import Answering
from nanobot.agent.run.questions import Question, Questions
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import Answer
from nanobot.bus.events import Address, InboundMessage
from nanobot.messages.types import Origin, Provenance
from nanobot.utils.clock import FrozenClock

HALL = Address("telegram", "-1")


class Asked:
    """One question that is open in a group."""

    def __init__(self, *, in_group: bool = False) -> None:
        clock = FrozenClock(datetime(2026, 3, 1))
        self.questions = Questions(clock)
        self.answering = Answering(self.questions, lambda chat, senders: None, lambda chat: in_group)
        self.context = ToolContext("telegram:-1", HALL, "turn", Path(), clock)
        self.answer: asyncio.Task[Answer] = asyncio.create_task(
            self.questions.answer_to(Question("ab12cd34", self.context, "exec"))
        )

    def hears(self, text: str, provenance: Provenance = Provenance.OWNER, chat: str = "-1") -> str | None:
        """What is told to who says this; None where it is no answer."""
        message = InboundMessage("telegram", "7", chat, text, provenance=provenance)
        return self.answering.take(message) if self.answering.is_answer(message) else None


@pytest.fixture
async def asked() -> AsyncIterator[Asked]:
    found = Asked()
    await asyncio.sleep(0)
    yield found
    found.answer.cancel()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes", Answer.ONCE),
        ("Ja!", Answer.ONCE),
        ("好。", Answer.ONCE),
        ("always", Answer.ALWAYS),
        ("N", Answer.NO),
        ("нет", Answer.NO),
        ("[in reply to you]\n> May I run a command?\n> exec\nyes", Answer.ONCE),
        ("/approve", Answer.ONCE),
        ("/approve ab12cd34 always", Answer.ALWAYS),
        ("/yes", Answer.ONCE),
        ("/deny ab12cd34", Answer.NO),
        ("/deny ab12cd34 yes", Answer.NO),
    ],
)
async def test_an_owner_answers_in_words_or_by_a_command(asked: Asked, text: str, answer: Answer):
    assert asked.hears(text) is not None
    assert await asked.answer is answer


async def test_in_a_group_a_word_that_may_be_meant_for_somebody_else_is_no_answer():
    asked = Asked(in_group=True)
    await asyncio.sleep(0)

    said = asked.hears("yes")
    before = asked.answer.done()
    asked.hears("[in reply to nanobot]\n> May I run a command?\nyes")

    assert (said is not None and "/approve ab12cd34" in said, before) == (True, False)
    assert await asked.answer is Answer.ONCE


@pytest.mark.parametrize("text", ["yes please do", "", "maybe", "no way, first show me", "yes\nand more"])
async def test_everything_else_is_for_the_model(asked: Asked, text: str):
    assert asked.hears(text) is None


@pytest.mark.parametrize("provenance", [one for one in Provenance if one is not Provenance.OWNER])
async def test_nobody_elses_word_counts(asked: Asked, provenance: Provenance):
    assert asked.hears("yes", provenance) is None
    assert asked.hears("/approve ab12cd34", provenance) == "Only an owner may answer that."
    assert not asked.answer.done()


async def test_a_job_that_says_yes_answers_nothing(asked: Asked):
    message = InboundMessage("telegram", "7", "-1", "/approve", origin=Origin.CRON, provenance=Provenance.OWNER)

    assert not asked.answering.is_answer(message)


async def test_a_word_in_another_chat_is_for_the_model_and_a_name_is_good_everywhere(asked: Asked):
    assert asked.hears("yes", chat="7") is None
    assert asked.hears("/approve ab12cd34", chat="7") == "Allowed, this once."


async def test_an_answer_before_its_question_counts_for_it_once(asked: Asked):
    said = asked.hears("/approve 99999999")
    question = Question("99999999", asked.context, "exec")
    first = await asked.questions.answer_to(question)
    asked.questions.expires_s = 0.01

    assert "not open" in (said or "")
    assert (first, await asked.questions.answer_to(question)) == (Answer.ONCE, Answer.EXPIRED)
