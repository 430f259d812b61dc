"""A sink gathers a turn as facts, whatever comes in whatever order, and never stands in its way."""

import asyncio
import json
from datetime import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent import events
from nanobot.agent.events import TurnOutcome
from nanobot.agent.trace.store import merge
from nanobot.agent.trace.turn_trace import MAX_NOTICES, Facts, TraceRecord, TurnTrace, bound_value
from nanobot.bus.events import InboundMessage
from nanobot.session.lines import encode
from nanobot.utils.clock import FrozenClock

MESSAGE = InboundMessage("cli", "owner", "direct", "hello")
USAGE = {"prompt_tokens": 12, "completion_tokens": 5, "cached_tokens": 4}


def trace_of(happened: list[events.TurnEvent], clock: FrozenClock | None = None) -> list[Facts]:
    pieces: list[TraceRecord] = []
    trace = TurnTrace("t1", MESSAGE, clock or FrozenClock(datetime(2026, 1, 2)), pieces.append)
    for event in happened:
        trace(event)
    trace.close()
    return [piece.facts for piece in pieces]


def test_a_turn_is_one_piece_with_steps_calls_and_their_times():
    clock = FrozenClock(datetime(2026, 1, 2, 3, 4, 5))
    pieces: list[TraceRecord] = []
    trace = TurnTrace("t1", MESSAGE, clock, pieces.append)
    trace(events.RunStarted(session_key="cli:direct", model="m"))
    trace(events.StepStarted(step=0))
    clock.advance(0.5)
    trace(events.TextStarted())
    trace(events.TextEnded(text="Let me look.", final=False))
    trace(events.ToolStarted(call_id="c1", name="list_dir", arguments={"path": "."}))
    clock.advance(0.25)
    trace(events.ToolEnded(call_id="c1", name="list_dir", ok=True, content="a.txt", seconds=0.25))
    trace(events.StepEnded(step=0, finish_reason="tool_calls", usage=USAGE, cost_usd=0.5))
    trace(events.TurnEnded(outcome=TurnOutcome.ANSWERED, text="x", usage=USAGE, phase_seconds={"run": 0.75}))

    assert [piece.facts for piece in pieces] == [
        {
            "turn": "t1",
            "session": "cli:direct",
            "at": "2026-01-02T03:04:05",
            "origin": "user",
            "message": "hello",
            "model": "m",
            "steps": [
                {
                    "at": 0.0,
                    "first_s": 0.5,
                    "said": 12,
                    "calls": [
                        {
                            "id": "c1",
                            "tool": "list_dir",
                            "at": 0.5,
                            "args": {"path": "."},
                            "seconds": 0.25,
                            "ok": True,
                            "size": 5,
                        }
                    ],
                    "finish": "tool_calls",
                    "usage": USAGE,
                    "usd": 0.5,
                    "seconds": 0.75,
                }
            ],
            "outcome": "answered",
            "seconds": 0.75,
            "phases": {"run": 0.75},
            "usage": USAGE,
        }
    ]


def test_what_no_row_keeps_is_in_the_trace_why_it_failed_and_what_a_command_answered():
    failed = trace_of([events.TurnEnded(outcome=TurnOutcome.FAILED, text="no key: set one", error="ConfigError")])
    command = trace_of([events.TurnEnded(outcome=TurnOutcome.ANSWERED, text="the list")])

    assert (failed[0]["error"], failed[0]["text"]) == ("ConfigError", "no key: set one")
    assert command[0]["text"] == "the list"


def test_a_step_that_was_cut_off_is_there_when_the_turn_is_closed():
    facts = trace_of([events.StepStarted(step=0), events.TextStarted()])

    assert facts[0]["steps"][0]["seconds"] == 0
    assert "finish" not in facts[0]["steps"][0]


def test_a_thousand_notices_are_counted_not_kept():
    notices = [events.Notice(text=f"try {number}") for number in range(1000)]

    facts = trace_of([*notices, events.TurnEnded(outcome=TurnOutcome.FAILED, text="")])

    assert len(facts[0]["notices"]) == MAX_NOTICES
    assert facts[0]["more_notices"] == 1000 - MAX_NOTICES


def test_after_its_end_nothing_is_taken_in():
    ended = events.TurnEnded(outcome=TurnOutcome.ANSWERED, text="")

    assert len(trace_of([ended, ended, events.Notice(text="late")])) == 1


async def test_of_a_turn_that_lasts_what_is_known_is_handed_on_meanwhile():
    pieces: list[TraceRecord] = []
    trace = TurnTrace("t1", MESSAGE, FrozenClock(datetime(2026, 1, 2)), pieces.append, first_s=0.01, every_s=0.01)
    trace(events.RunStarted(session_key="cli:direct", model="m"))
    await asyncio.sleep(0.05)
    begun = [piece.facts["model"] for piece in pieces]
    trace(events.StepStarted(step=0))
    trace(events.StepEnded(step=0, finish_reason="stop", usage={}))
    await asyncio.sleep(0.05)
    trace(events.TurnEnded(outcome=TurnOutcome.ANSWERED, text=""))

    known: Facts = {}
    for piece in pieces:
        merge(known, piece.facts)

    assert begun == ["m"]
    assert len(pieces) == 3
    assert (known["outcome"], len(known["steps"]), known["message"]) == ("answered", 1, "hello")


def test_arguments_are_kept_in_bounds_and_what_changes_later_does_not_reach_them():
    arguments: dict[str, Any] = {f"key{number}": number for number in range(100)}
    arguments["key0"] = [[[[["deep"]]]]]
    arguments["key1"] = [*range(100)]

    kept = bound_value(arguments)
    arguments["key1"].clear()

    assert len(kept) == 17
    assert kept["..."] == "84 more"
    assert kept["key0"] == [["[1 items]"]]
    assert kept["key1"][-1] == "... 92 more"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
usages = st.dictionaries(st.sampled_from([*USAGE]), st.integers(0))
ids = st.sampled_from(["c1", "c2", ""])
any_event = st.one_of(
    st.builds(events.RunStarted, session_key=st.text(), model=st.text()),
    st.builds(events.RunEnded, steps=st.integers(), usage=usages),
    st.builds(events.StepStarted, step=st.integers()),
    st.builds(events.StepEnded, step=st.integers(), finish_reason=st.text(), usage=usages, cost_usd=st.floats()),
    st.builds(events.TextStarted),
    st.builds(events.TextDelta, text=st.text()),
    st.builds(events.TextEnded, text=st.text(), final=st.booleans()),
    st.builds(events.ReasoningStarted),
    st.builds(events.ToolStarted, call_id=ids, name=st.text(), arguments=st.dictionaries(st.text(), json_values)),
    st.builds(
        events.ToolEnded, call_id=ids, name=st.text(), ok=st.booleans(), content=st.text(), seconds=st.floats(0, 9)
    ),
    st.builds(events.Notice, text=st.text()),
    st.builds(events.TurnEnded, outcome=st.sampled_from(TurnOutcome), text=st.text()),
)


@given(st.lists(any_event, max_size=12))
def test_any_sequence_of_events_is_one_line_that_reads_back(happened):
    (facts,) = trace_of(happened)

    line = encode(facts)

    assert line.count(b"\n") == 1
    assert json.loads(line)["turn"] == "t1"
