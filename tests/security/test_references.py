"""A secret may be kept elsewhere: in a file, or with a command. What goes wrong is told without a word of it."""

import os
import shlex
import sys
import time

import pytest

from nanobot.errors import SecretUnavailableError
from nanobot.security import references
from nanobot.security.references import LONGEST, References

PYTHON = shlex.quote(sys.executable)


def says(program: str) -> str:
    return f"cmd:{PYTHON} -c {shlex.quote(program)}"


def test_a_file_is_read_without_its_last_line_end(tmp_path):
    (tmp_path / "key").write_bytes(b"s3cret \xc3\xa4\r\n")

    assert References(tmp_path).secret("file:key") == "s3cret ä"
    assert References(tmp_path / "elsewhere").secret(f"file:{tmp_path}/key") == "s3cret ä"


def test_a_home_is_written_out(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "key").write_text("s3cret")

    assert References(tmp_path / "elsewhere").secret("file:~/key") == "s3cret"
    assert References(tmp_path).secret(f"{says('import sys; print(open(sys.argv[1]).read())')} ~/key") == "s3cret"


def test_a_command_is_run_without_a_shell_and_once(tmp_path):
    found = References(tmp_path)
    command = says("import sys; print(sys.argv[1:], file=open('ran', 'a')); print('s3cret')") + " '$HOME; ls' \"a b\""

    assert [found.secret(command), found.secret(command)] == ["s3cret", "s3cret"]
    assert (tmp_path / "ran").read_text() == "['$HOME; ls', 'a b']\n"


@pytest.mark.parametrize(
    ("reference", "says_so"),
    [
        ("file:nowhere", "needs the file nowhere, which cannot be read: No such file or directory"),
        ("file:.", "cannot be read|is none"),
        ("file:empty", "needs a secret, and the file empty returns none"),
        ("file:big", "returns more than 64 kB"),
        ("file:bytes", "needs a text"),
        ("file:a\0b", "cannot be read"),
        ("cmd:", "has no command"),
        ("cmd:nanobot-there-is-no-such-command x", "needs the command nanobot-there-is-no-such-command, which cannot"),
        ("cmd:pass show x | head -1", "contains shell syntax"),
        ("cmd:pass show $(hostname)", "contains shell syntax"),
        ("cmd:pass 'show", "contains a command that cannot be parsed"),
        (says("print('CANARY'); import sys; print('CANARY', file=sys.stderr); sys.exit(3)"), "ended with code 3"),
        (says("pass"), "needs a secret, and the command returns none"),
        (says("while True: print('CANARY')"), "returns more than 64 kB"),
    ],
)
def test_what_goes_wrong_is_told_without_what_was_read(tmp_path, reference, says_so):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "big").write_text("CANARY" * LONGEST)
    (tmp_path / "bytes").write_bytes(b"CANARY\xff\xfe")

    with pytest.raises(SecretUnavailableError, match=says_so) as caught:
        References(tmp_path).secret(reference)

    assert "CANARY" not in str(caught.value).replace("print('CANARY", "")
    assert caught.value.__cause__ is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_nobody_waits_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(SecretUnavailableError, match="needs a plain file"):
        References(tmp_path).secret("file:pipe")


@pytest.mark.skipif(os.name != "posix", reason="a shell is needed")
def test_a_command_that_does_not_end_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(references, "TIMEOUT_S", 0.3)
    command = "cmd:sh -c 'echo $$ > pid; sleep 30 & wait'"

    began = time.monotonic()
    with pytest.raises(SecretUnavailableError, match=r"did not end within 0\.3 s"):
        References(tmp_path).secret(command)

    assert time.monotonic() - began < 5
    group = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(100):
            os.killpg(group, 0)
            time.sleep(0.02)
