"""Turns as lists of events."""

from nanobot.agent import events
from nanobot.agent.events import TurnEvent, TurnOutcome


def step(*spoken: str, calls: bool = False, reason: str = "stop", number: int = 0) -> list[TurnEvent]:
    """A step that says something, in pieces; with `calls`, it then reads a file."""
    happened: list[TurnEvent] = [events.StepStarted(step=number)]
    if spoken:
        happened.append(events.TextStarted())
        happened += [events.TextDelta(text=piece) for piece in spoken]
        happened.append(events.TextEnded(text="".join(spoken), final=not calls))
    if calls:
        happened.append(events.ToolStarted(call_id="1", name="read_file", arguments={"path": "a.txt"}))
        happened.append(events.ToolEnded(call_id="1", name="read_file", ok=True, content="x", seconds=0.02))
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "cached_tokens": 500}
    happened.append(events.StepEnded(step=number, finish_reason="tool_calls" if calls else reason, usage=usage))
    return happened


def ended(text: str, outcome: TurnOutcome = TurnOutcome.ANSWERED) -> TurnEvent:
    """The end of a turn."""
    return events.TurnEnded(outcome=outcome, text=text)
