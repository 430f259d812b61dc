"""The events of a turn as a person sees them: on a terminal that redraws, and on a pipe. Pure: events in, text out."""

import asyncio
import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nanobot.agent import events
from nanobot.agent.events import Notice, TurnOutcome
from nanobot.cli.chat.screen import Screen
from nanobot.cli.chat.turn_output import PlainOutput
from nanobot.cli.output import Paint, repair_output, strip_control
from tests.support.turn_events import ended, step


class Paper:
    """A surface that remembers what stayed, and every live picture."""

    def __init__(self, columns: int = 60, live_rows: int = 6) -> None:
        self.columns, self.live_rows = columns, live_rows
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


class Shown:
    """A screen on paper, and a clock moved by hand."""

    def __init__(self, *happened: Any, colour: bool = False, columns: int = 60, live_rows: int = 6) -> None:
        self.paper, self.clock = Paper(columns, live_rows), HandClock()
        self.screen = Screen(self.paper, Paint(colour), expand_key="Ctrl+O", monotonic=self.clock)
        self.play(*happened)

    def play(self, *happened: Any) -> str:
        """Show a turn; what stays of all of them."""
        self.screen.begin()
        for each in happened:
            self.screen(each)
        return self.paper.stayed

    def tick(self, seconds: float = 0) -> str:
        """What is live when so much time has passed."""

        async def one_tick() -> None:
            alive = asyncio.create_task(self.screen.keep_alive())
            await asyncio.sleep(0.15)
            alive.cancel()

        self.clock.now += seconds
        asyncio.run(one_tick())
        return self.paper.lives[-1]


def call(name: str, content: str, arguments: dict[str, Any] | None = None, **fields: Any) -> list[Any]:
    """A tool that has run."""
    begun = events.ToolStarted(call_id="1", name=name, arguments=arguments or {})
    return [
        begun,
        events.ToolEnded(**{"call_id": "1", "name": name, "ok": True, "content": content, "seconds": 0.02, **fields}),
    ]


BROKEN = Notice(text="The answer broke off; asking for the rest of it.")
TURNS: dict[str, tuple[list[Any], str, str, str]] = {
    "texts and a tool": (
        [*step("Let me **look**.", calls=True), *step("# Found\n", "It is `x`."), ended("It is `x`.")],
        "Let me look.\n\n  read_file a.txt  0.02s  1 line\n\nFound\n\nIt is x.\n",
        "Let me **look**.\n\n# Found\nIt is `x`.\n",
        "",
    ),
    "cut by length": (
        [*step("one tw", reason="length"), *step("o three"), ended("one two three")],
        "one two three\n",
        "one two three\n",
        "",
    ),
    "broken off": (
        [*step("one tw", reason="interrupted"), BROKEN, *step("o three"), ended("one two three")],
        "one tw\n\n  " + BROKEN.text + "\n\no three\n",
        "one two three\n",
        f"  {BROKEN.text}\n",
    ),
    "failed": (
        [*step("Half."), ended("The key was refused.\nCheck it.", TurnOutcome.FAILED)],
        "Half.\n\nThe key was refused.\nCheck it.\n",
        "Half.\n",
        "Error: The key was refused. Check it.\n",
    ),
    "failed without a reason": (
        [ended("", TurnOutcome.FAILED)],
        "The turn failed. Send the message again.\n",
        "",
        "Error: The turn failed. Send the message again.\n",
    ),
    "stopped": (
        [*step("a", "b")[:4], ended("ab", TurnOutcome.STOPPED)],
        "ab\n\n(stopped)\n",
        "ab\n",
        "(stopped)\n",
    ),
    "stopped after two texts": (
        [*step("a", calls=True), *step("b")[:3], ended("a\n\nb", TurnOutcome.STOPPED)],
        "a\n\n  read_file a.txt  0.02s  1 line\n\nb\n\n(stopped)\n",
        "a\n\nb\n",
        "(stopped)\n",
    ),
    "partial": (
        [*step("half"), ended("half\n\n(Stopped at 40.)", TurnOutcome.PARTIAL)],
        "half\n(Stopped at 40.)\n\n(this answer is partial)\n",
        "half\n\n(Stopped at 40.)\n",
        "(this answer is partial)\n",
    ),
    "our own words": (
        [ended("# Tokens: 3\n   12  *all*\n\n\nend")],
        "# Tokens: 3\n   12  *all*\n\n\nend\n",
        "# Tokens: 3\n   12  *all*\n\n\nend\n",
        "",
    ),
}


@pytest.mark.parametrize(("happened", "screen", "out", "aside"), TURNS.values(), ids=TURNS)
def test_what_was_said_stays_once_and_in_order_on_a_screen_and_on_a_pipe(happened, screen, out, aside):
    stdout, stderr = io.StringIO(), io.StringIO()
    plain = PlainOutput(stdout, stderr)
    for each in happened:
        plain(each)
    shown = Shown(*happened)

    assert (stdout.getvalue(), stderr.getvalue()) == (out, aside)
    assert (shown.paper.stayed, shown.paper.lives[-1]) == (screen, "")


def test_a_message_of_the_agent_before_its_answer_is_a_paragraph_of_its_own():
    stdout, stderr = io.StringIO(), io.StringIO()
    plain = PlainOutput(stdout, stderr)
    plain.show("The kettle is on.")
    for each in [*step("That was all."), ended("That was all.")]:
        plain(each)
    shown = Shown(*step("First part")[:3])
    shown.screen.show("Time to **stretch**.")
    for each in (events.TextDelta(text=" goes on."), ended("")):
        shown.screen(each)

    assert (stdout.getvalue(), stderr.getvalue()) == ("The kettle is on.\n\nThat was all.\n", "")
    assert shown.paper.stayed == "(message)\nTime to stretch.\n\nFirst part goes on.\n"


DIFF = "\n".join(["-old", "+new", *[f" line {number}" for number in range(40)]])
REASON = "notes.md is outside the workspace, and tools are restricted to it. Use a path inside."


@pytest.mark.parametrize(
    ("tool", "lines"),
    [
        (call("read_file", "a\nb", {"limit": 3, "path": "AGENTS.md"}), ["  read_file AGENTS.md  0.02s  2 lines"]),
        (
            call("exec", "one\n\ntwo\nthree\nfour\nSTDERR:\nfive\n\nExit code: 0", {"command": "x"}),
            ["  exec x  0.02s", "    one", "    two", "    three", "    … 2 more lines (Ctrl+O shows them)"],
        ),
        (
            call("exec", "one\ntwo\nthree\nfour", {"command": "x"}),
            ["  exec x  0.02s", "    one", "    two", "    three", "    four"],
        ),
        (call("exec", "(no output)\n\nExit code: 0", {"command": "true"}), ["  exec true  0.02s"]),
        (
            call("exec", "STDERR:\nTraceback\n  x\nValueError: no\n\nExit code: 1", {"command": "x"}, ok=False),
            ["  exec x  0.02s  failed", "    ValueError: no", "    Exit code: 1"],
        ),
        (
            call("edit_file", "text", display="-old\n+new\n same"),
            ["  edit_file  0.02s  +1 -1", "    -old", "    +new", "     same"],
        ),
        (
            call("read_file", REASON, {"path": "notes.md"}, ok=False),
            ["  read_file notes.md  0.02s  failed", f"    {REASON[:48]}", f"    {REASON[49:]}"],
        ),
    ],
    ids=["reading", "a long output", "one line more", "no output", "a failure", "a diff", "a reason"],
)
def test_a_call_is_a_line_with_its_subject_its_time_and_the_beginning_of_its_output(tool, lines):
    shown = Shown(*tool, ended(""))

    assert shown.paper.stayed.splitlines() == lines


def test_the_whole_output_of_the_last_call_can_be_shown():
    shown = Shown(*call("edit_file", "text", display=DIFF), ended(""))
    before = shown.paper.stayed

    shown.screen.expand_last_call()

    assert before.endswith("    … 18 more lines (Ctrl+O shows them)\n") and "line 39" not in before
    assert "the output of edit_file:" in shown.paper.stayed and "     line 39\n" in shown.paper.stayed


@pytest.mark.parametrize("text", ["x" * 300, "漢字" * 100, "a\nb\tc" * 50, "\x1b[31mred\x1b]0;title\x07" * 40])
def test_nothing_that_is_shown_is_wider_than_the_window_or_steers_it(text):
    shown = Shown(events.ToolStarted(call_id="2", name="exec", arguments={"command": text}), columns=40)
    shown.screen(events.ToolDelta(call_id="2", text=text))
    shown.tick()
    for each in (*call("exec", text, {"command": text}, ok=False), Notice(text=text), *step(text), ended("")):
        shown.screen(each)

    lines = "\n".join([shown.paper.stayed, *shown.paper.lives]).splitlines()
    assert all(cell_len(line) <= 40 and "\x1b" not in line and "\x07" not in line for line in lines)


def test_markdown_is_drawn_for_a_terminal():
    url = "https://example.org/a/very/long/path/that/does/not/fit?into=the&narrow=terminal"
    text = (
        f"Name: Ann\nPhone: 123\n\n9. nine\n10. 10\n\n| Site | URL |\n|---|---|\n| A | {url} |\n\n```py\nx = 1\n```\n"
    )

    stayed = Shown(*step(text), ended("")).paper.stayed
    coloured = Shown(*step("Use `ls`:\n\n```bash\ncd /tmp\n```\n"), ended(""), colour=True).paper.stayed

    assert stayed.startswith("Name: Ann\nPhone: 123\n\n 9. nine\n10. 10\n")  # line breaks and dots as written
    assert url in re.sub(r"[\s│━]|^.*?URL", "", stayed.partition("URL")[2]).removeprefix("A") and "…" not in stayed
    assert stayed.endswith("\n\n▎ x = 1\n")
    assert "\x1b[" in coloured and not re.search(r"\x1b\[[0-9;]*\b(?:4[0-7]|10[0-7])[0-9;]*m", coloured)


def test_a_running_tool_is_live_with_its_seconds_and_the_last_line_of_its_output():
    shown = Shown(events.ToolStarted(call_id="1", name="exec", arguments={"command": "make"}))
    assert re.fullmatch(r"  exec make  0\.\ds", shown.paper.lives[-1])

    shown.screen(events.ToolDelta(call_id="1", text="step 1\nstep 2\n"))

    assert re.fullmatch(r"  exec make  0\.\ds\n    step 2", shown.tick())


def test_the_unfinished_end_is_live_until_it_stays_and_a_long_silence_is_told():
    shown = Shown(*step("one\n\ntwo is gro", "wing")[:4])
    first = shown.paper.stayed, shown.paper.lives[-1]

    assert first == ("one\n", "\ntwo is gro")
    assert shown.tick() == "\ntwo is growing"
    assert re.fullmatch(r"\ntwo is growing\n. thinking 3s", shown.tick(3))


@pytest.mark.parametrize(
    ("text", "stayed"),
    [
        ("one\ntwo\n\nthree", "one\ntwo\n"),
        ("before\n# Head\nafter\n", "before\n\nHead\n"),
        ("1. one\n\n   more\n\n2. two\n\n", ""),
        ("- a\n\nafter\n", "• a\n"),
        ("a\n```\nx = 1\n\n# no heading\n\n", "a\n"),
        ("````\n```\ninner\n```\n````\n\n", "▎ ```\n▎ inner\n▎ ```\n"),
    ],
)
def test_a_block_stays_once_nothing_can_belong_to_it_any_more(text, stayed):
    assert Shown(*step(text)[:3], live_rows=14).paper.stayed.replace(" • ", "• ") == stayed


def test_somebody_who_waits_sees_it_at_once_and_nothing_is_left_of_it():
    shown = Shown()
    shown.screen(events.StepStarted(step=0))
    waiting = shown.tick(0.3)
    for event in [*step("Done.")[1:], ended("Done.")]:
        shown.screen(event)

    assert "thinking" in waiting
    assert (shown.paper.stayed, shown.paper.lives[-1]) == ("Done.\n", "")


def test_reasoning_is_hidden_until_it_is_asked_for():
    said = events.ReasoningDelta(text="Let me see.")
    reasoning = (events.ReasoningStarted(), said, events.ReasoningEnded(text="Let me see."))
    shown = Shown(*reasoning, *step("One."), ended("One."))
    hidden = shown.paper.stayed

    shown.screen.toggle_reasoning()
    shown.play(*reasoning[:2])
    live = shown.tick()
    shown.play(*reasoning, *step("Two."), ended("Two."))

    assert hidden == "One.\n"
    assert "  Let me see." in live
    assert "  Let me see.\n\nTwo.\n" in shown.paper.stayed


def test_a_growing_table_keeps_its_head_in_sight():
    rows = "".join(f"| row {number} | x |\n" for number in range(20))

    live = Shown(*step(f"| Name | Value |\n|---|---|\n{rows}")[:3]).paper.lives[-1]

    assert "Name" in live and "row 19" in live
    assert live.count("\n") < 6


def test_code_taller_than_a_window_that_shrinks_stays_whole_once_and_in_its_width():
    shown = Shown(*step("```\n" + f"{'x' * 50}\n" * 20)[:3])
    assert shown.paper.stayed

    shown.paper.columns = 40
    shown.screen(events.TextDelta(text="```\n"))
    shown.screen(ended(""))

    assert shown.paper.stayed.splitlines() == [f"▎ {'x' * 50}"] * 20
    assert all(live.count("\n") < 9 for live in shown.paper.lives)


PIECES = [
    "# Head\n", "some words ", "\n", "\n\n", "- item\n", "  more\n", "1. one\n", "```py\n", "````\n", "```\n",
    "x = 1\n", "[a]: b",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.integers(1, 9))
def test_however_an_answer_is_sliced_every_word_of_it_stays_once_and_in_order(pieces, size):
    text = "".join(pieces)
    sliced = step(*[text[at : at + size] for at in range(0, len(text), size)])

    whole = Shown(*step(text), ended(text)).paper.stayed
    grown = Shown(*sliced, ended(text), live_rows=2).paper.stayed

    assert re.sub(r"[\s▎•]|\b1\.", "", grown) == re.sub(r"[\s▎•]|\b1\.", "", whole)


def test_what_would_steer_the_terminal_is_left_out_and_bytes_that_came_as_surrogates_are_read_as_utf_8():
    text = "a\x1b[2Jb\x1b]0;title\x07c\x1b]52;c;ZXZpbA==\x1b\\d\x07e\x9bf\r\ng\th"

    assert strip_control(text) == "abcdef\ng\th"
    assert repair_output("gr\udcc3\udcbc\udcc3\udc9fe \udcff") == "grüße \ufffd"


@given(st.text(st.characters(codec=None)))
def test_any_text_can_be_sent_and_shown(text):
    json.dumps(repair_output(text)).encode()
    shown = strip_control(text)

    shown.encode()
    assert "\x1b" not in shown
