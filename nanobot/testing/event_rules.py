"""What holds for the events of every turn, however it ends: one truth for every test."""

from collections.abc import Iterator, Sequence

from nanobot.agent import events
from nanobot.agent.events import TurnEvent

_INSIDE = {"run": "", "step": "run", "text": "step", "reasoning": "step", "tool": "step"}


def turn_problems(told: Sequence[TurnEvent]) -> list[str]:
    """Every problem with the events of one turn in a sentence, none where they are as promised.

    Numbers without a gap under one id, what started has ended inside of what it started in, and a last event.
    """
    return [*_numbers(told), *_pairs(told)]


def _numbers(told: Sequence[TurnEvent]) -> Iterator[str]:
    if [event.seq for event in told] != [*range(len(told))]:
        yield f"numbers with a gap: {[event.seq for event in told]}"
    if len({event.turn_id for event in told}) > 1:
        yield "events of several turns"
    ends = [at for at, event in enumerate(told) if isinstance(event, events.TurnEnded)]
    if ends != [len(told) - 1] and told:
        yield f"the turn ended at {ends} of {len(told)} events"


def _pairs(told: Sequence[TurnEvent]) -> Iterator[str]:
    opened: dict[str, str] = {}
    for event in told:
        kind, _, what = event.type.partition("_")
        name = f"tool {event.call_id}" if isinstance(event, events.ToolStarted | events.ToolEnded) else kind
        if kind == "turn" or kind not in _INSIDE:
            continue
        if what == "started":
            if name in opened:
                yield f"{name} started twice"
            if _INSIDE[kind] and _INSIDE[kind] not in opened:
                yield f"{name} started outside of a {_INSIDE[kind]}"
            opened[name] = ""
        elif what == "delta" and isinstance(event, events.TextDelta | events.ReasoningDelta):
            if kind not in opened:
                yield f"{kind} outside of its pair"
            opened[kind] = opened.get(kind, "") + event.text
        elif what == "ended":
            if name not in opened:
                yield f"{name} ended without a start"
            said = opened.pop(name, "")
            if isinstance(event, events.TextEnded | events.ReasoningEnded) and event.text != said:
                yield f"{kind} ended with {event.text!r} and was {said!r}"
            if inside := [other for other in opened if _INSIDE[other.partition(" ")[0]] == kind]:
                yield f"{name} ended before {inside}"
    if opened:
        yield f"never ended: {[*opened]}"
