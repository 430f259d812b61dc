"""Rules that the events of every turn follow, however it ends."""

from collections.abc import Iterator, Sequence

from nanobot.agent import events
from nanobot.agent.events import TurnEvent

_INSIDE = {"run": "", "step": "run", "text": "step", "reasoning": "step", "tool": "step"}


def turn_problems(turn_events: Sequence[TurnEvent]) -> list[str]:
    """Return what is wrong with the events of one turn, one line each.

    They have one turn id and sequence numbers without gaps, starts and ends nest in pairs, and TurnEnded comes last.
    """
    return [*_numbers(turn_events), *_pairs(turn_events)]


def _numbers(turn_events: Sequence[TurnEvent]) -> Iterator[str]:
    if [event.seq for event in turn_events] != [*range(len(turn_events))]:
        yield f"numbers with a gap: {[event.seq for event in turn_events]}"
    if len({event.turn_id for event in turn_events}) > 1:
        yield "events of several turns"
    ends = [at for at, event in enumerate(turn_events) if isinstance(event, events.TurnEnded)]
    if ends != [len(turn_events) - 1] and turn_events:
        yield f"the turn ended at {ends} of {len(turn_events)} events"


def _pairs(turn_events: Sequence[TurnEvent]) -> Iterator[str]:
    opened: dict[str, str] = {}
    for event in turn_events:
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
            streamed = opened.pop(name, "")
            if isinstance(event, events.TextEnded | events.ReasoningEnded) and event.text != streamed:
                yield f"{kind} ended with {event.text!r} and was {streamed!r}"
            if still_open := [other for other in opened if _INSIDE[other.partition(" ")[0]] == kind]:
                yield f"{name} ended before {still_open}"
    if opened:
        yield f"never ended: {[*opened]}"
