"""The reader of command lines on texts that nobody meant as one. What it makes of commands is tested by the guard."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.security.files.paths import PathPolicy
from nanobot.security.shell.commands import read_line
from nanobot.security.shell.guard import Guard, GuardDecision

GUARD = Guard(PathPolicy(Path("/no/such/workspace"), protected=(Path("/no/such/taxes"),)))
WORDS = [
    "cp", "mv", "rm", "-rf", "kill", "dd", "of=/dev/sda", "git", "clean", "-fdx", "chmod", "-R", "crontab", "-r",
    "find", "-exec", "{}", "+", "-delete", "xargs", "env", "-S", "sh", "-c", "-t", "eval", "trap", "watch", "su",
    "sudo", "timeout", "curl", "echo", "python3", "x.py", "init", "systemctl", "tee", "~", "/", "a.txt", "cd",
    "x=1", "for", "in", "do", "done", "case", "esac", ">", ">>", "<", "<<E", "E", "<<<", "|", "||", "&", "&&", ";",
    "(", ")", "{", "}", "$(", "`", "'", '"', "\\", "\n",
]  # fmt: skip
"""Mostly programs that rules are about, and operators; with an end of a line here and there."""


@given(
    st.text(alphabet="ab $'\"`\\(){}<>|&;\n#*=!-~/", max_size=60)
    | st.text(max_size=60)
    | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
)
def test_any_text_is_checked(text: str):
    assert isinstance(GUARD.check(text, Path("/no/such/workspace"), sandboxed=False), GuardDecision)


PIECES = ["(", "{a,b}", "$(", "`", "a b ", "${a", "<<E ", "x=1;", '"', "\\", "$'", "sh -c '", "|a", "a=$a$a;", "env "]
PIECES += ["-exec a ", "-exec b {} {} ;"]


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize(
    "head", ["", *(pytest.param(head, marks=pytest.mark.slow) for head in ("a", "a=b;", "find a b c d "))]
)
def test_no_text_takes_long(head: str, piece: str):
    text = head + piece * (30_000 // len(piece))
    began = time.process_time()

    commands = read_line(text).programs

    assert time.process_time() - began < 1  # a quadratic reader takes far longer
    assert sum(len(command.argv) for command in commands) < 200_000
