"""How commands print: lines that fit the window, whole words, colours only where they are wanted."""

import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

from nanobot.cli.main import COMMANDS, EXAMPLES, GROUPS, app
from nanobot.cli.output import hang

NANOBOT = [sys.executable, "-m", "nanobot"]
WORDS = st.lists(st.text("abc-/.", min_size=1, max_size=20), min_size=1, max_size=30)


@given(st.sampled_from(["", "Error: ", "  Workspace  ", "ok       files.templates  "]), WORDS, st.integers(30, 110))
def test_no_word_is_broken_and_no_line_is_wider_than_the_window(head: str, words: list[str], width: int):
    lines = hang(head, " ".join(words), width)

    assert " ".join(lines).split() == [*head.split(), *words]
    assert max(map(len, lines)) <= width


def test_wide_characters_count_as_two_columns_a_command_to_copy_stays_on_one_line_and_a_text_beside_its_head():
    text = "In WeCom (企业微信): Workbench (工作台), Smart Robot (智能机器人), create a robot, manually"
    command = hang("Error: ", "No gateway is running here at all. Start it with `nanobot gateway install`.", 60)
    head = f"  {'providers.custom.apiBase':<24}  "

    lines = hang("", text, 50)

    assert " ".join(lines) == text
    assert max(cell_len(line) for line in lines) <= 50
    assert any("`nanobot gateway install`" in line for line in command)
    assert hang(head, "environment", 60) == [f"{head}environment"]
    assert hang(head, f"in {'/a' * 20}", 60) == [head.rstrip(), f"    in {'/a' * 20}"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_help_of_a_group_says_what_each_command_does_in_whole_sentences(group: str):
    shown = CliRunner().invoke(app, [group, "--help"], prog_name="nanobot", terminal_width=60).stdout

    assert "..." not in shown.partition("Commands:")[2].partition("Examples:")[0]


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
@pytest.mark.parametrize(
    ("words", "plain"),
    [
        (["status"], {"NO_COLOR": "1"}),
        pytest.param(["status"], {"TERM": "dumb"}, marks=pytest.mark.slow),
        (["doctor", "--offline"], {}),
        (["memory", "why", "nothing of this name"], {}),
    ],
    ids=str,
)
def test_output_fits_a_narrow_window_and_has_colours_unless_they_are_unwanted(words: list[str], plain: dict[str, str]):
    from tests.support.terminal import shown  # not on Windows

    text = shown([*NANOBOT, *words], 60, **plain)

    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    home = str(Path.home())
    assert max(len(line) for line in lines if home not in line) <= 60
    assert ("\x1b[" in text) == (not plain)


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_the_log_is_wrapped_for_a_terminal_and_left_as_it_is_for_a_pipe():
    from tests.support.terminal import shown  # not on Windows

    written = (
        "2026-11-26 23:59:58.120 INFO    nanobot.agent.loop telegram:7 answered in 2.1 s, 2 tools, 5.2k tokens, $0.01\n"
        "2026-11-27 00:04:58.120 WARNING nanobot.agent.loop telegram:7 failed after 2.1 s: the API key was rejected\n"
        "  Traceback of a record with several lines\n"
    )
    file = Path.home() / ".nanobot" / "logs" / "gateway.log"
    file.parent.mkdir(parents=True)
    file.write_text(written, encoding="utf-8")

    text = shown([*NANOBOT, "gateway", "logs"], 60)

    assert re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() == [
        "2026-11-26",
        "23:59 telegram:7 answered in 2.1 s, 2 tools, 5.2k tokens,",
        "      $0.01",
        "2026-11-27",
        "00:04 warning: telegram:7 failed after 2.1 s: the API key",
        "      was rejected",
        "      Traceback of a record with several lines",
    ]
    assert "\x1b[33mwarning: " in text
    assert CliRunner().invoke(app, ["gateway", "logs"]).stdout == written


@pytest.mark.parametrize("example", [line for lines in EXAMPLES.values() for line in lines])
def test_every_example_of_the_help_is_a_command_with_options_that_exist(example: str):
    name, *words = shlex.split(example.rpartition("| ")[2])
    path = next((path for path in COMMANDS if words[: len(path.split())] == path.split()), "")
    path = path or next((group for group in GROUPS if words[:1] == [group]), "")

    shown = CliRunner().invoke(app, [*path.split(), "--help"], prog_name="nanobot").stdout

    assert name == "nanobot"
    assert path or len(words) < 2
    options = [
        word for word in words[: words.index("--") if "--" in words else None] if re.fullmatch("--?[a-z-]+", word)
    ]
    assert all(re.search(rf"{option}\b", shown) for option in options)
