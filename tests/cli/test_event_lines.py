"""The lines of a tool call, and what is still to be said when a turn ends."""

from typing import Any

import pytest
from rich.cells import cell_len

from nanobot.agent.events import ToolEnded, TurnEnded, TurnOutcome
from nanobot.cli.chat.event_lines import clip_output, format_turn_end, running_tool_lines, tool_call_lines
from nanobot.cli.terminal import Paint

PLAIN = Paint(colour=False)
REASON = "notes.md is outside the workspace, and tools are restricted to it. Use a path inside."
DIFF = "\n".join(["-old", "+new", *[f" line {number}" for number in range(40)]])
FAILED = {"ok": False, "name": "exec"}


def lines_of(arguments: dict[str, Any], width: int = 80, **fields: Any) -> list[str]:
    call = ToolEnded(**{"call_id": "1", "name": "exec", "ok": True, "content": "text", "seconds": 0.02, **fields})
    return tool_call_lines(call, arguments, width, PLAIN, expand_key="Ctrl+O")


@pytest.mark.parametrize(
    ("fields", "arguments", "lines"),
    [
        (
            {"name": "read_file", "content": "a\nb"},
            {"limit": 3, "path": "AGENTS.md"},
            ["  read_file AGENTS.md  0.02s  2 lines"],
        ),
        (
            {"content": "one\n\ntwo\nthree\nfour\nSTDERR:\nfive\n\nExit code: 0"},
            {"command": "x"},
            ["  exec x  0.02s", "    one", "    two", "    three", "    … 2 more lines (Ctrl+O shows them)"],
        ),
        (
            {"content": "one\ntwo\nthree\nfour"},
            {"command": "x"},
            ["  exec x  0.02s", "    one", "    two", "    three", "    four"],
        ),
        ({"content": "(no output)\n\nExit code: 0"}, {"command": "true"}, ["  exec true  0.02s"]),
        (
            {**FAILED, "content": "STDERR:\nTraceback\n  x\nValueError: no\n\nExit code: 1"},
            {"command": "x"},
            ["  exec x  0.02s  failed", "    ValueError: no", "    Exit code: 1"],
        ),
    ],
    ids=["reading", "a long output", "one line more", "no output", "a failure"],
)
def test_a_call_is_a_line_with_its_subject_its_time_and_the_beginning_of_its_output(fields, arguments, lines):
    assert lines_of(arguments, **fields) == lines


def test_a_diff_is_shown_with_its_size_and_a_reason_is_wrapped_not_cut():
    changed, refused = (
        lines_of({}, name="edit_file", display=DIFF),
        lines_of({"path": "x"}, 40, ok=False, content=REASON),
    )

    assert changed[0].endswith("  +1 -1")
    assert (changed[1:3], changed[-1]) == (["    -old", "    +new"], "    … 18 more lines (Ctrl+O shows them)")
    assert " ".join(line.strip() for line in refused[1:]) == REASON


@pytest.mark.parametrize("argument", ["x" * 300, "漢字" * 100, "a\nb\tc" * 50, "\x1b[31mred" * 40])
def test_no_line_is_wider_than_the_terminal(argument: str):
    lines = running_tool_lines("exec", {"command": argument}, argument, "  3s", 40)
    lines += lines_of({"command": argument}, 40, ok=False, content=argument)

    assert all(cell_len(line) <= 40 and "\n" not in line and "\x1b" not in line for line in lines)
    assert (clip_output("漢字漢字", 6), clip_output("漢字", 4)) == ("漢字…", "漢字")


@pytest.mark.parametrize(
    ("outcome", "text", "said", "expected"),
    [
        ("answered", "the answer", ["the answer"], ("", "")),
        ("answered", "the answer", ["let me look", "the answer\n"], ("", "")),
        ("answered", "one two", ["one ", "two"], ("", "")),
        ("answered", "from a command", [], ("from a command", "")),
        ("answered", "", ["said"], ("", "")),
        ("partial", "half\n\n(Stopped at 40.)", ["half"], ("(Stopped at 40.)", "(this answer is partial)")),
        ("stopped", "half", ["half"], ("", "(stopped)")),
        ("stopped", "a\n\nb", ["a", "b"], ("", "(stopped)")),
        ("stopped", "come back later", [], ("come back later", "(stopped)")),
        ("failed", "the key was refused", ["half"], ("", "the key was refused")),
        ("failed", "", [], ("", "The turn failed. Send the message again.")),
    ],
)
def test_what_was_not_said_yet_is_said_at_the_end_and_nothing_twice(outcome, text, said, expected):
    assert format_turn_end(TurnEnded(outcome=TurnOutcome(outcome), text=text), said) == expected
