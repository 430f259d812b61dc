"""The reader of command lines on texts that nobody meant as one. What it makes of commands is tested by the guard."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.shell.parse import ParsedCommand, read_line
from nanobot.security.shell.wrappers import expand_wrappers


@given(st.text(alphabet="ab $'\"`\\(){}<>|&;\n#*=!-~/", max_size=60) | st.text(max_size=60))
def test_any_text_is_read(text: str):
    assert all(isinstance(command, ParsedCommand) for command in expand_wrappers(read_line(text)))


PIECES = ["(", "{a,b}", "$(", "`", "a b ", "${a", "<<E ", "x=1;", '"', "\\", "$'", "sh -c '", "|a", "a=$a$a;", "env "]
PIECES += ["-exec a ", "-exec b {} {} ;"]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    "head", ["", *(pytest.param(head, marks=pytest.mark.slow) for head in ("a", "a=b;", "find a b c d "))]
)
def test_no_text_takes_long(head: str, piece: str):
    text = head + piece * (30_000 // len(piece))
    began = time.process_time()

    commands = list(expand_wrappers(read_line(text)))

    assert time.process_time() - began < 1  # a quadratic reader takes far longer
    assert sum(len(command.argv) for command in commands) < 200_000
