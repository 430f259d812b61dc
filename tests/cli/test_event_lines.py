import pytest

from nanobot.agent.events import ToolEnded, TurnEnded, TurnOutcome
from nanobot.cli.chat.event_lines import clip_output, format_turn_end, running_tool_lines, tool_call_lines
from nanobot.cli.terminal import Paint

PLAIN = Paint(colour=False)


def ended(**fields):
    return ToolEnded(**{"call_id": "1", "name": "read_file", "ok": True, "content": "text", "seconds": 0.02, **fields})


def test_a_call_that_reads_is_one_line_with_its_subject_its_time_and_the_size():
    lines = tool_call_lines(ended(content="a\nb"), {"limit": 3, "path": "AGENTS.md"}, 80, PLAIN)

    assert lines == ["  read_file AGENTS.md  0.02s  2 lines"]


def test_the_first_lines_of_an_output_are_shown_and_the_key_that_shows_the_rest():
    call = ended(name="exec", content="one\n\ntwo\nthree\nfour\nSTDERR:\nfive\n\nExit code: 0")

    lines = tool_call_lines(call, {"command": "x"}, 80, PLAIN, expand_key="Ctrl+O")

    assert lines[1:] == ["    one", "    two", "    three", "    … 2 more lines (Ctrl+O shows them)"]


def test_a_single_line_is_not_left_out():
    lines = tool_call_lines(ended(name="exec", content="one\ntwo\nthree\nfour"), {"command": "x"}, 80, PLAIN)

    assert lines[1:] == ["    one", "    two", "    three", "    four"]


def test_a_command_without_output_is_one_line():
    call = ended(name="exec", content="(no output)\n\nExit code: 0")

    assert tool_call_lines(call, {"command": "true"}, 80, PLAIN) == ["  exec true  0.02s"]


def test_a_failed_command_shows_the_last_line_it_printed_and_its_exit_code():
    call = ended(name="exec", ok=False, content="STDERR:\nTraceback\n  x\nValueError: no\n\nExit code: 1")

    lines = tool_call_lines(call, {"command": "x"}, 80, PLAIN)

    assert lines == ["  exec x  0.02s  failed", "    ValueError: no", "    Exit code: 1"]


def test_the_reason_of_a_refusal_is_wrapped_not_cut():
    reason = "notes.md is outside the workspace, and tools are restricted to it. Use a path inside."

    lines = tool_call_lines(ended(ok=False, content=reason), {"path": "x"}, 40, PLAIN)

    assert " ".join(line.strip() for line in lines[1:]) == reason


def test_a_diff_is_shown_under_its_call_with_its_size_and_cut_where_it_is_long():
    diff = "\n".join(["-old", "+new", *[f" line {number}" for number in range(40)]])

    lines = tool_call_lines(ended(display=diff), {}, 80, PLAIN, expand_key="Ctrl+O")

    assert lines[0].endswith("  +1 -1")
    assert lines[1:3] == ["    -old", "    +new"]
    assert lines[-1] == "    … 18 more lines (Ctrl+O shows them)"


@pytest.mark.parametrize("argument", ["x" * 300, "漢字" * 100, "a\nb\tc" * 50, "\x1b[31mred" * 40])
def test_no_line_is_wider_than_the_terminal(argument):
    from rich.cells import cell_len

    lines = running_tool_lines("exec", {"command": argument}, argument, "  3s", 40)
    lines += tool_call_lines(ended(ok=False, content=argument), {"command": argument}, 40, PLAIN)

    assert all(cell_len(line) <= 40 and "\n" not in line and "\x1b" not in line for line in lines)


def test_clipping_never_cuts_a_wide_character_in_half():
    assert clip_output("漢字漢字", 6) == "漢字…"
    assert clip_output("漢字", 4) == "漢字"


@pytest.mark.parametrize(
    ("outcome", "text", "said", "expected"),
    [
        (TurnOutcome.ANSWERED, "the answer", ["the answer"], ("", "")),
        (TurnOutcome.ANSWERED, "the answer", ["let me look", "the answer\n"], ("", "")),
        (TurnOutcome.ANSWERED, "one two", ["one ", "two"], ("", "")),
        (TurnOutcome.ANSWERED, "from a command", [], ("from a command", "")),
        (TurnOutcome.ANSWERED, "", ["said"], ("", "")),
        (
            TurnOutcome.PARTIAL,
            "half\n\n(Stopped at 40.)",
            ["half"],
            ("(Stopped at 40.)", "(this answer is partial)"),
        ),
        (TurnOutcome.STOPPED, "half", ["half"], ("", "(stopped)")),
        (TurnOutcome.STOPPED, "a\n\nb", ["a", "b"], ("", "(stopped)")),
        (TurnOutcome.STOPPED, "come back later", [], ("come back later", "(stopped)")),
        (TurnOutcome.FAILED, "the key was refused", ["half"], ("", "the key was refused")),
    ],
)
def test_what_was_not_said_yet_is_said_at_the_end_and_nothing_twice(outcome, text, said, expected):
    assert format_turn_end(TurnEnded(outcome=outcome, text=text), said) == expected


def test_a_failure_without_words_still_says_something():
    assert format_turn_end(TurnEnded(outcome=TurnOutcome.FAILED, text=""), [])[1]
