"""Runs the hooks of a turn: on its message, on messages that want to join it, and on its end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanobot.agent.events import Notice
from nanobot.agent.hooks import Deny, MessageSeen, TurnSeen
from nanobot.agent.pipeline.turn import Turn, TurnEnding
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import least_trusted

_UNREAD = "Your last message was not read any more; send it again."


async def run_message_hooks(turn: Turn, message: InboundMessage) -> str | None:
    """Run the message hooks and apply their changes. Return the reason if one denies the message."""
    if not turn.request.hook_runner.handles("on_message"):
        return None
    is_joining = message is not turn.message
    facts = replace(
        turn.request.facts, sender_id=message.sender_id, origin=message.origin, provenance=message.provenance
    )
    begins = not is_joining and turn.session.message_count == 0
    passed = await turn.request.hook_runner.message(
        MessageSeen(facts, message.content, tuple(message.media), is_joining, begins)
    )
    if isinstance(passed, Deny):
        return passed.reason
    message.content = passed.seen.text
    message.provenance = least_trusted([message.provenance, passed.provenance])
    return None


async def filter_joining(
    turn: Turn, messages: Sequence[InboundMessage], on_join: Callable[[InboundMessage], None]
) -> None:
    """Pass on the messages that the hooks allow to join; emit a notice for each denied one.

    When cancelled, the remaining messages become `turn.joining.unread`: those from the lane get turns of their own.
    """
    for index, message in enumerate(messages):
        try:
            denial = await run_message_hooks(turn, message)
        except asyncio.CancelledError:
            turn.joining.unread += messages[index:]
            from_caller = [
                message
                for message in turn.joining.unread
                if not any(message is other for other in turn.joining.from_lane)
            ]
            if from_caller and turn.ending is TurnEnding.STOP:  # after an interrupt the next start reads them
                turn.emit(Notice(text=_UNREAD))
            raise
        if denial is None:
            on_join(message)
        else:
            turn.emit(Notice(text=denial))


async def run_turn_end_hooks(turn: Turn) -> None:
    """Run the end hooks of a turn that reached BUILD and is not resumed later."""
    result = turn.result
    if turn.for_model and not result.later:
        facts = (turn.request.facts, result.outcome, result.text, result.error)
        await turn.request.hook_runner.notify(
            "on_turn_end", lambda: TurnSeen(*facts, dict(result.usage), result.cost_usd)
        )
