"""The gateway's log in a terminal."""

import os
import re
from pathlib import Path

import pytest

from tests.support.home import NANOBOT
from tests.support.toy_gateway import free_port

pexpect = pytest.importorskip("pexpect")


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
@pytest.mark.parametrize("has_colour", [True, False])
def test_lines_in_a_terminal_are_short_and_wrapped_and_coloured_unless_told_otherwise(has_colour: bool):
    from tests.support.terminal import at_home, on_screen  # not on Windows

    env = at_home(**({} if has_colour else {"NO_COLOR": "1"}))
    (folder := Path.home() / ".nanobot").mkdir()
    (folder / "config.json").write_text('{"channels": {"napcat": {"enabled": true}}}', encoding="utf-8")
    command = [*NANOBOT, "gateway", "--allow-empty", "--port", str(free_port())]
    child = on_screen(command, env=env, dimensions=(40, 60), timeout=20, encoding="utf-8")

    child.expect("ready in")
    seen = child.before
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert ("\x1b[" in seen) is has_colour
    assert re.search(r"^\d\d:\d\d error: napcat: nanobot has no channel napcat yet", plain, re.MULTILINE)
    assert re.search(r"^\d\d:\d\d channels: none", plain, re.MULTILINE)
    assert all(len(line) <= 60 for line in plain.splitlines() if "/" not in line)  # a path is not broken
    assert plain.count("napcat yet") == 1
