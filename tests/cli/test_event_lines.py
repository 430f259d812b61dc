import pytest

from nanobot.agent.events import ToolEnded
from nanobot.cli.chat.event_lines import clip_output, running_tool_line, tool_call_lines
from nanobot.cli.terminal import Paint

PLAIN = Paint(colour=False)


def ended(**fields):
    return ToolEnded(**{"call_id": "1", "name": "read_file", "ok": True, "content": "text", "seconds": 0.02, **fields})


def test_a_call_is_one_line_with_what_it_is_about_and_how_long_it_took():
    assert tool_call_lines(ended(), {"limit": 3, "path": "AGENTS.md"}, 80, PLAIN) == ["  read_file AGENTS.md  0.02s"]


def test_a_failed_call_is_marked_and_says_why_in_its_first_line():
    lines = tool_call_lines(ended(ok=False, content="\nError: no such file\nmore"), {"path": "x"}, 80, PLAIN)

    assert lines == ["  read_file x  0.02s  failed", "    Error: no such file"]


def test_a_diff_is_shown_under_its_call_and_cut_where_it_is_long():
    diff = "\n".join(["-old", "+new", *[f" line {number}" for number in range(40)]])

    lines = tool_call_lines(ended(display=diff), {}, 80, PLAIN)

    assert lines[1:3] == ["    -old", "    +new"]
    assert lines[-1] == "    … 18 more lines"


@pytest.mark.parametrize("argument", ["x" * 300, "漢字" * 100, "a\nb\tc" * 50, "\x1b[31mred" * 40])
def test_no_line_is_wider_than_the_terminal(argument):
    from rich.cells import cell_len

    lines = [running_tool_line("exec", {"command": argument}, "half way", 40)]
    lines += tool_call_lines(ended(ok=False, content=argument), {"command": argument}, 40, PLAIN)

    assert all(cell_len(line) <= 40 and "\n" not in line and "\x1b" not in line for line in lines)


def test_clipping_never_cuts_a_wide_character_in_half():
    assert clip_output("漢字漢字", 6) == "漢字…"
    assert clip_output("漢字", 4) == "漢字"
