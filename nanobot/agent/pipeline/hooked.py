"""What passes the wall of hooks in a turn: its message, those that would join it, and its end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from nanobot.agent.hooks import Deny, MessageSeen, TurnSeen
from nanobot.agent.pipeline.work import Ending, Turn
from nanobot.agent.turn import Notice
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import least_trusted

_UNREAD = "What you said last was not read any more; send it again."


async def denied(turn: Turn, message: InboundMessage) -> str | None:
    """Show a message to the hooks, and make of it what they do; why it is denied, where it is."""
    if not turn.hook_wall.minds("on_message"):
        return None
    joins = message is not turn.message
    facts = replace(turn.facts, sender_id=message.sender_id, origin=message.origin, provenance=message.provenance)
    begins = not joins and turn.session.message_count == 0
    passed = await turn.hook_wall.message(MessageSeen(facts, message.content, tuple(message.media), joins, begins))
    if isinstance(passed, Deny):
        return passed.reason
    message.content = passed.seen.text
    message.provenance = least_trusted([message.provenance, passed.provenance])
    return None


async def let_in(turn: Turn, messages: Sequence[InboundMessage], joins: Callable[[InboundMessage], None]) -> None:
    """Hand on those of the messages that may join; of the others the person is told.

    Cancelled, what is not judged yet is unread: who waits in the lane with it has a turn of its own then.
    """
    for at, message in enumerate(messages):
        try:
            why_not = await denied(turn, message)
        except asyncio.CancelledError:
            turn.unread += messages[at:]
            held = [one for one in turn.unread if not any(one is other for other in turn.taken_along)]
            if held and turn.ending is Ending.STOP:  # else they are read at the next start
                turn.emit(Notice(text=_UNREAD))
            raise
        if why_not is None:
            joins(message)
        else:
            turn.emit(Notice(text=why_not))


async def end_seen(turn: Turn) -> None:
    """Show the end of a turn that was meant for a model, and does not go on at the next start."""
    result = turn.result
    if turn.for_model and not result.later:
        await turn.hook_wall.turn_end(
            TurnSeen(turn.facts, result.outcome, result.text, result.error, dict(result.usage), result.cost_usd)
        )
