import asyncio
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nanobot.agent import events
from nanobot.agent.events import TurnOutcome
from nanobot.cli.chat.screen import Screen
from nanobot.cli.terminal import Paint
from tests.support.turn_events import ended, step


class Paper:
    """A surface that remembers what stayed, and every live picture."""

    columns = 60
    live_rows = 6

    def __init__(self) -> None:
        self.stayed = ""
        self.lives: list[str] = []

    def show(self, stay: str, live: str) -> None:
        assert not stay or stay.endswith("\n")
        self.stayed += stay
        self.lives.append(live)


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


@pytest.fixture
def paper():
    return Paper()


def screen_on(paper, colour: bool = False, monotonic=None) -> Screen:
    return Screen(paper, Paint(colour), monotonic=monotonic or HandClock())


def play(screen, *happened) -> None:
    screen.begin()
    for event in happened:
        screen(event)


@pytest.mark.parametrize(
    ("happened", "stayed"),
    [
        (
            [*step("Let me **look**.", calls=True), *step("# Found\n", "It is `x`."), ended("It is `x`.")],
            "Let me look.\n\n  read_file a.txt  0.02s  1 line\n\nFound\n\nIt is x.\n",
        ),
        ([*step("one tw", reason="length"), *step("o three"), ended("one two three")], "one two three\n"),
        ([*step("Half."), ended("The key was refused.", TurnOutcome.FAILED)], "Half.\n\nThe key was refused.\n"),
        ([*step("Half an ans")[:3], ended("Half an ans", TurnOutcome.STOPPED)], "Half an ans\n\n(stopped)\n"),
        ([ended("# Tokens: 3\n   12  *all*\n\n\nend")], "# Tokens: 3\n   12  *all*\n\n\nend\n"),
    ],
    ids=["texts and a tool", "cut by length", "failed", "stopped", "our own words"],
)
def test_what_was_said_stays_in_order_parted_by_empty_lines(paper, happened, stayed):
    play(screen_on(paper), *happened)

    assert (paper.stayed, paper.lives[-1]) == (stayed, "")


def test_a_running_tool_is_live_with_its_seconds_and_the_last_line_of_its_output(paper):
    screen = screen_on(paper)
    play(screen, events.ToolStarted(call_id="1", name="exec", arguments={"command": "make"}))
    assert re.fullmatch(r"  exec make  0\.\ds", paper.lives[-1])

    screen(events.ToolDelta(call_id="1", text="step 1\nstep 2\n"))
    asyncio.run(one_tick(screen))

    assert re.fullmatch(r"  exec make  0\.\ds\n    step 2", paper.lives[-1])


def test_a_model_neither_steers_the_terminal_nor_writes_beyond_its_edge(paper):
    play(screen_on(paper, colour=True), *step("a\x1b[2Jb\x1b]0;t\x07"), ended(""))
    steered, paper.stayed = paper.stayed, ""
    wide = [*step("これは長い文章です。" * 30), *step("# Head\n**bold** [a](http://x)\n\n", "```py\nx = 1\n```\n")]
    play(screen_on(paper), *wide, ended(""))

    assert "ab" in steered and "\x1b[2J" not in steered and "\x1b]" not in steered
    assert "\x1b" not in paper.stayed + paper.lives[-1]  # without colour
    assert all(cell_len(line) <= Paper.columns for line in paper.stayed.splitlines())


def test_the_unfinished_end_is_live_until_it_stays(paper):
    screen = screen_on(paper)
    play(screen, *step("one\n\ntwo is gro", "wing")[:3])

    assert paper.stayed == "one\n"
    assert paper.lives[-1] == "\ntwo is gro"


def test_somebody_who_waits_sees_it_within_a_third_of_a_second_and_nothing_is_left_of_it(paper):
    clock = HandClock()
    screen = screen_on(paper, monotonic=clock)
    screen.begin()
    clock.now += 0.2

    screen(events.StepStarted(step=0))
    clock.now += 0.3
    screen(events.ToolDelta(call_id="none", text=""))
    asyncio.run(one_tick(screen))
    waiting = paper.lives[-1]
    for event in [*step("Done.")[1:], ended("Done.")]:
        screen(event)

    assert "thinking" in waiting
    assert paper.lives[-1] == ""
    assert paper.stayed == "Done.\n"


def test_a_long_silence_in_the_middle_of_an_answer_is_told(paper):
    clock = HandClock()
    screen = screen_on(paper, monotonic=clock)
    play(screen, *step("Let me write that file.")[:3])

    asyncio.run(one_tick(screen))
    soon = paper.lives[-1]
    clock.now += 3
    asyncio.run(one_tick(screen))

    assert soon == "Let me write that file."
    assert re.fullmatch(r"Let me write that file\.\n. thinking 3s", paper.lives[-1])


async def one_tick(screen) -> None:
    alive = asyncio.create_task(screen.keep_alive())
    await asyncio.sleep(0.15)
    alive.cancel()


def test_the_whole_output_of_the_last_call_can_be_shown(paper):
    screen = screen_on(paper)
    output = "\n".join(f"line {number}" for number in range(9))
    play(screen, events.ToolEnded(call_id="1", name="exec", ok=True, content=output, seconds=1.0), ended(""))
    assert "line 8" not in paper.stayed

    screen.expand_last_call()

    assert "the output of exec:" in paper.stayed
    assert "    line 8\n" in paper.stayed


def test_reasoning_is_hidden_until_it_is_asked_for(paper):
    screen = screen_on(paper)
    reasoning = (
        events.ReasoningStarted(),
        events.ReasoningDelta(text="Let me see."),
        events.ReasoningEnded(text="Let me see."),
    )
    play(screen, *reasoning, *step("One."), ended("One."))
    assert "Let me see." not in paper.stayed

    screen.toggle_reasoning()
    play(screen, *reasoning[:2])
    asyncio.run(one_tick(screen))
    assert "  Let me see." in paper.lives[-1]
    play(screen, *reasoning, *step("Two."), ended("Two."))

    assert "  Let me see.\n\nTwo.\n" in paper.stayed


def test_a_growing_table_keeps_its_head_in_sight(paper):
    rows = "".join(f"| row {number} | x |\n" for number in range(20))

    play(screen_on(paper), *step(f"| Name | Value |\n|---|---|\n{rows}")[:3])

    assert "Name" in paper.lives[-1]
    assert "row 19" in paper.lives[-1]
    assert paper.lives[-1].count("\n") < Paper.live_rows


def test_code_taller_than_the_screen_stays_whole_and_once(paper):
    code = "".join(f"line_{number} = {number}\n" for number in range(100))

    play(
        screen_on(paper),
        *step(*f"```python\n{code}```\n".split("7")[:1], *[f"7{p}" for p in f"```python\n{code}```\n".split("7")[1:]]),
        ended(""),
    )

    assert [line.removeprefix("▎ ") for line in paper.stayed.splitlines()] == code.splitlines()
    assert all(live.count("\n") < Paper.live_rows + 3 for live in paper.lives)


def test_a_message_from_elsewhere_stays_above_an_answer_that_still_grows(paper):
    screen = screen_on(paper)
    play(screen, *step("First part")[:3])

    screen.note("(message)", "Time to **stretch**.", ours=False)
    screen(events.TextDelta(text=" goes on."))
    screen(ended(""))

    assert paper.stayed == "(message)\nTime to stretch.\n\nFirst part goes on.\n"


def test_a_long_notice_is_broken_between_words_and_keeps_its_indent(paper):
    text = "alpha (custom): the provider is overloaded or failing (HTTP 500). Retry 1 of 3 in 1 s, and so on and so on."

    play(screen_on(paper), events.Notice(text=text))

    lines = paper.stayed.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("  ") and len(line) <= 60 for line in lines)
    assert " ".join(line.strip() for line in lines) == text


def test_a_block_that_has_begun_to_stay_keeps_its_width_in_a_window_that_shrinks(paper):
    screen = screen_on(paper)
    play(screen, *step("```\n" + f"{'x' * 50}\n" * 20)[:3])
    assert paper.stayed

    paper.columns = 40
    screen(events.TextDelta(text="```\n"))
    screen(ended(""))

    assert paper.stayed.splitlines() == [f"▎ {'x' * 50}"] * 20


PIECES = [
    "# Head\n",
    "some words ",
    "\n",
    "\n\n",
    "- item\n",
    "  more\n",
    "1. one\n",
    "```py\n",
    "```\n",
    "x = 1\n",
    "[a]: b",
]


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(1, 9))
def test_however_an_answer_is_sliced_every_word_of_it_stays_once_and_in_order(pieces, size):
    text = "".join(pieces)
    whole, sliced = Paper(), Paper()
    sliced.live_rows = 2

    play(screen_on(whole), *step(text), ended(text))
    play(screen_on(sliced), *step(*[text[at : at + size] for at in range(0, len(text), size)]), ended(text))

    def words(paper):
        return re.sub(r"[\s▎•]|\b1\.", "", paper.stayed)

    assert words(sliced) == words(whole)
