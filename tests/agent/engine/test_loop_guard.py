"""The guard against loops: calls without progress get advice, then an end; honest work is never minded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.engine.loop_guard import ADVISED_FROM, ENDED_FROM, LoopGuard
from nanobot.agent.tools.base import Effect, Tool, integer, string, takes
from nanobot.providers.base import ToolCallRequest


class Stub(Tool):
    """A tool that is only declared."""

    def __init__(self, name: str, effect: Effect = Effect.READ, *, polls: bool = False) -> None:
        self.name = name
        self.description = name
        self.parameters = takes("what", what=string("It"), limit=integer("How many", default=5))
        self.effect = effect
        self.polls = polls

    async def execute(self, what: str, limit: int = 5) -> str:
        return what


READ = Stub("read_file")
EDIT = Stub("edit_file", Effect.ONCE)
EXEC = Stub("exec", Effect.ONCE)
POLL = Stub("job_status", polls=True)


class Machine:
    """A run in short: it makes calls past a guard, and remembers which were really run."""

    def __init__(self) -> None:
        self.guard = LoopGuard()
        self.ran: list[str] = []
        self.advice: list[str] = []

    def call(self, tool: Tool | None, result: str = "same", *, ok: bool = True, **arguments: Any) -> str | None:
        """Make one call; the advice, if it was not run."""
        request = ToolCallRequest("1", tool.name if tool else "nothing", arguments or {"what": "a"})
        advice = self.guard.before(request, tool)
        if advice is None:
            self.ran.append(request.name)
            self.guard.after(request, tool, result, ok=ok)
        else:
            self.advice.append(advice)
        return advice

    def until_over(self, *round_: tuple[Tool | None, dict[str, Any]], most: int = 40) -> int:
        """Go round until the guard ends it; how many rounds were begun."""
        for number in range(1, most + 1):
            for tool, arguments in round_:
                self.call(tool, **arguments)
                if self.guard.stop_message:
                    return number
        return most + 1


@pytest.mark.parametrize(
    ("circle", "advice", "reason"),
    [
        ([(READ, {})], "same result", "called 5 times with the same arguments and the same result."),
        ([(EXEC, {"result": "Exit code: 2", "ok": False})], "failed in the same way", "the same failure"),
        ([(None, {"ok": False})], "failed", "nothing was called 5 times"),
        ([(READ, {"what": str(number)}) for number in range(7)], "same result", "5 times"),
        ([(EDIT, {"what": "x to y"}), (EDIT, {"what": "y to x"})], "same result", "5 times"),
    ],
    ids=["a call", "a failure", "no such tool", "seven calls", "changes back and forth"],
)
def test_going_in_a_circle_is_advised_in_the_third_round_and_ended_in_the_fifth(circle, advice, reason):
    machine = Machine()

    rounds = machine.until_over(*circle)

    assert rounds == 5
    assert 2 * len(circle) <= len(machine.ran) <= 2 * len(circle) + 1  # a change that is new counts as progress
    assert advice in machine.advice[0]
    assert any("ends the turn" in said for said in machine.advice)
    assert reason in (machine.guard.stop_message or "")


@pytest.mark.parametrize(
    ("round_of", "is_loop"),
    [
        (lambda n: [(EDIT, {"what": f"try {n}"}), (EXEC, {"result": "1 failed", "ok": False})], False),
        (lambda n: [(EDIT, {"what": f"try {n}", "ok": False}), (EXEC, {"result": "1 failed", "ok": False})], True),
        (lambda n: [(READ, {}), (READ, {"what": f"other {n}"})], True),
        (lambda n: [(EXEC, {"result": f"{n} % done"})], False),
        (lambda n: [(POLL, {})], False),
    ],
    ids=["edit and test", "an edit that fails", "reading something new between", "a result that changes", "polling"],
)
def test_only_progress_begins_the_count_anew(round_of, is_loop):
    machine = Machine()
    for number in range(40):
        for tool, arguments in round_of(number):
            machine.call(tool, **arguments)

    assert (machine.guard.stop_message is not None) is is_loop
    assert bool(machine.advice) is is_loop


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"limit": 5, "what": "a"}, True),  # the default, said
        ({"limit": "5", "what": "a"}, True),
        ({"what": "a\n", "limit": None}, True),
        ({"what": "a  "}, True),
        ({"what": "b"}, False),
        ({"what": " a"}, False),
        ({"what": "a", "limit": 6}, False),
    ],
)
def test_arguments_that_mean_the_same_are_the_same(other, same):
    machine = Machine()
    for _ in range(2):
        machine.call(READ, what="a")

    assert (machine.call(READ, **other) is not None) is same


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("1 failed in 0.52s", "1 failed in 0.49s", True),
        ("real\t0m1.203s\nuser\t0m0.9s", "real\t0m1.313s\nuser\t0m0.8s", True),
        ("<object at 0x7f3a5c00d2e0>", "<object at 0x7f11aa00b1f0>", True),
        ("All is in /w/.nanobot/spill/ab-1.txt;", "All is in /w/.nanobot/spill/ab-2.txt;", True),
        ("try again in 30 s", "try again in 20 s", False),
        ("notes.txt 12:01", "notes.txt 12:02", False),
        ("Exit code: 1", "Exit code: 2", False),
    ],
)
def test_what_a_repeat_changes_by_itself_is_no_change(first, second, same):
    machine = Machine()
    machine.call(EXEC, first, what="x")
    machine.call(EXEC, second, what="x")

    assert (machine.call(EXEC, first, what="x") is not None) is same


TOOLS = [READ, EDIT, EXEC]


@given(st.lists(st.tuples(st.sampled_from(TOOLS), st.integers(0, 3), st.booleans()), max_size=60), st.booleans())
def test_no_sequence_of_new_calls_or_of_changing_results_is_minded(calls, is_new):
    machine = Machine()

    for number, (tool, what, ok) in enumerate(calls):
        if is_new:
            machine.call(tool, ok=ok, what=str(number))
        else:
            machine.call(tool, f"result {number}", ok=ok, what=str(what))

    assert machine.advice == []
    assert machine.guard.stop_message is None


@given(st.lists(st.sampled_from("abcd"), min_size=17, max_size=60))
def test_whatever_the_order_reading_the_same_few_things_comes_to_an_end(order):
    machine = Machine()

    for what in order:
        machine.call(READ, what=what)
        if machine.guard.stop_message:
            break

    assert machine.guard.stop_message is not None
    assert len(machine.ran) <= 4 * (ADVISED_FROM - 1)
    assert len(machine.ran) + len(machine.advice) <= 4 * (ENDED_FROM - 1) + 1


def test_identical_calls_side_by_side_count_as_one():
    guard = LoopGuard()
    call = ToolCallRequest("1", "read_file", {"what": "a"})
    advised: list[list[bool]] = []

    while guard.stop_message is None:
        advised.append([guard.before(call, READ) is not None for _ in range(6)])
        for _ in range(advised[-1].count(False)):
            guard.after(call, READ, "same", ok=True)

    assert advised[:2] == [[False] * 6] * 2
    assert all(map(all, advised[2:]))
