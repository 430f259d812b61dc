"""What is still to be shown when a turn ends: the words that were not streamed, and a remark on how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.agent.turn import TurnEnded, TurnEvent, TurnOutcome
from nanobot.cli.terminal import visible


@dataclass(frozen=True, slots=True)
class Closing:
    """`answer` belongs to the answer; `remark` is ours (why it failed, that it was stopped)."""

    answer: str = ""
    remark: str = ""


FAILURES = frozenset({TurnOutcome.FAILED, TurnOutcome.REFUSED})
_NO_REASON = "The turn failed. Send the message again."


def failure_line(event: TurnEvent) -> str:
    """Why the turn failed, as one line for stderr; empty where it did not."""
    if not isinstance(event, TurnEnded) or event.outcome not in FAILURES:
        return ""
    return f"Error: {' '.join(visible(event.text or event.error or _NO_REASON).split())}"


def closing_words(event: TurnEnded, said: Sequence[str]) -> Closing:
    """What a person has not read yet. `said` are the texts the model spoke in this turn, in order."""
    if event.outcome in FAILURES:
        return Closing(remark=event.text or event.error or _NO_REASON)
    unsaid = _unsaid(event.text, said)
    if event.outcome is TurnOutcome.STOPPED:
        return Closing(unsaid if not _spoken(said) else "", "(stopped)")
    if event.outcome is TurnOutcome.PARTIAL:
        return Closing(unsaid, "(this answer is partial)")
    return Closing(unsaid)


def _spoken(said: Sequence[str]) -> bool:
    return any(text.strip() for text in said)


def _unsaid(text: str, said: Sequence[str]) -> str:
    """The part of the reply that was not streamed: none of it, its end, or all of it."""
    reply = text.strip()
    for start in range(len(said)):
        spoken = "".join(said[start:]).strip()
        if spoken and reply.startswith(spoken):
            return reply[len(spoken) :].strip()
        if spoken and spoken.endswith(reply):
            return ""
    return reply
