"""Which words answer a question, and where."""

import asyncio
from pathlib import Path

import pytest

from nanobot.agent.approval.pending import PendingApproval, PendingApprovals
from nanobot.agent.approval.router import ApprovalRouter
from nanobot.agent.events import Answer
from nanobot.agent.tools.base import ToolContext
from nanobot.bus.events import Address, InboundMessage
from nanobot.messages.types import Provenance
from nanobot.runtime.audience import is_group
from nanobot.utils.clock import SystemClock

ROOM = Address("discord", "4211")


def said(text: str, *, in_group: bool, is_mentioned: bool) -> InboundMessage:
    return InboundMessage(
        ROOM.channel,
        "1",
        ROOM.chat_id,
        text,
        provenance=Provenance.OWNER,
        in_group=in_group,
        is_mentioned=is_mentioned,
    )


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
    tmp_path: Path, text: str, in_group: bool, is_mentioned: bool, counts: bool
):
    clock = SystemClock()
    questions = PendingApprovals(clock, expires_s=0.02)
    answering = ApprovalRouter(questions, lambda chat, senders, *, in_group: None, is_group)
    context = ToolContext("discord:4211", ROOM, "t", tmp_path, clock)

    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(questions.wait_for_answer(PendingApproval("ab12", context, "exec")))
        await asyncio.sleep(0)
        told = answering.handle_answer(said(text, in_group=in_group, is_mentioned=is_mentioned))

    assert (answer.result(), "/approve ab12" in told) == ((Answer.ONCE, False) if counts else (Answer.EXPIRED, True))
