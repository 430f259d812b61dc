"""The process: exit codes, streams and the way out, in real processes; and words that no command has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app

RUN = """
import sys
from nanobot.__main__ import main
from nanobot.cli.main import COMMANDS

COMMANDS["strange"] = (f"tests.cli.strange_commands:{sys.argv.pop(1)}", "")
main()
"""


def run(end: str, *words: str, **options) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", RUN, end, "strange", *words], capture_output=True, **options)


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("refuse", 78, "Error: config.json, line 3, agents.defaults.maxTokns: did you mean maxTokens?\n"),
        ("open_what_is_missing", 1, "Error: /nowhere/at all: No such file or directory.\n"),
        ("interrupt", 130, ""),
    ],
)
def test_an_error_is_one_line_with_its_exit_code_and_ctrl_c_none(end: str, code: int, said: str):
    done = run(end)

    assert (done.returncode, done.stdout, done.stderr.decode()) == (code, b"", said)


def test_debug_shows_the_traceback_and_keeps_the_exit_code():
    done = run("refuse", "--debug")

    assert done.returncode == 78
    assert b"Traceback" in done.stderr
    assert b"strange_commands.py" in done.stderr


def test_a_bug_of_ours_says_so_and_where_without_a_traceback():
    done = run("bug")

    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert len(lines) == 2
    assert "bug in nanobot: KeyError: 'surprise', strange_commands.py:" in lines[0]
    assert "--debug" in lines[1]


@pytest.mark.parametrize(("end", "words"), [("tell", ("--debug",)), ("say_no", ())], ids=["debug", "plain"])
def test_no_error_tells_a_secret(end: str, words: tuple[str, ...]):
    done = run(end, *words)

    said = [line for line in done.stderr.decode().splitlines() if not line.lstrip().startswith("raise ")]
    assert "[key]" in "".join(said)
    assert "of ours" not in "".join(said)


def test_a_reader_who_has_seen_enough_is_no_error():
    command = [sys.executable, "-c", RUN, "talk_on", "strange"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()

        process.stdout.close()
        error = process.stderr.read()

    assert error == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_could_not_be_written_is_a_failure():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "nanobot", "--help"], stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_output_is_utf8_whatever_the_locale():
    done = run("speak", env={"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "LC_ALL": "C", "PATH": ""})

    assert done.returncode == 0
    assert done.stdout.decode() == "héllo 你好 \\udc80\n"
    assert done.stderr.decode() == "wörter\n"


def test_a_forgotten_thread_does_not_hold_the_process():
    done = run("leave_a_thread_behind", timeout=20)

    assert (done.returncode, done.stdout) == (0, b"done")


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes them")
def test_closed_streams_are_no_error():
    done = subprocess.run(f"{sys.executable} -m nanobot --version >&- 2>&-", shell=True)

    assert done.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows writes no core dumps")
def test_a_crash_leaves_no_picture_of_our_memory():
    shell = ["sh", "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$0" "$@"', sys.executable, "-c", RUN]

    done = subprocess.run([*shell, "tell_the_size_of_a_core", "strange"], capture_output=True)

    assert done.stdout == b"0\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["chat"], "nanobot agent`?"),
        (["reminders"], "nanobot cron`?"),
        (["cron", "rm"], "nanobot cron remove`?"),
        (["sessions", "rm"], "nanobot sessions delete`?"),
        (["skills", "add"], "nanobot skills install`?"),
        (["agnet"], "nanobot agent`?"),
        (["skills", "uninstall"], "nanobot skills remove`?"),
        (["crn"], "nanobot cron`"),
        (["bogus"], "nanobot agent bogus`"),
    ],
    ids=str,
)
def test_an_unknown_command_is_answered_with_the_one_that_is_meant(words: list[str], hint: str):
    done = CliRunner().invoke(app, words, prog_name="nanobot")

    assert done.exit_code == 2
    assert hint in done.stderr
