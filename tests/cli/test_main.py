"""The process: exit codes, streams and the way out, in real processes; and words that no command has."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app
from tests.support.home import start_program

ROOT = Path(__file__).parents[2]

STRANGE = "tests.cli.strange_commands"


def run(end: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    process = start_program(STRANGE, end, *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, aside = process.communicate(timeout=20)
    return subprocess.CompletedProcess([], process.returncode, out, aside)


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


def test_a_bug_of_ours_says_so_and_where_and_debug_shows_the_traceback():
    done, refused = run("bug"), run("refuse", "--debug")

    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (1, 2)
    assert "bug in nanobot: KeyError: 'surprise', strange_commands.py:" in lines[0]
    assert "--debug" in lines[1]
    assert refused.returncode == 78
    assert b"Traceback" in refused.stderr and b"strange_commands.py" in refused.stderr


@pytest.mark.parametrize(("end", "words"), [("tell", ("--debug",)), ("say_no", ())], ids=["debug", "plain"])
def test_no_error_tells_a_secret(end: str, words: tuple[str, ...]):
    done = run(end, *words)

    said = [line for line in done.stderr.decode().splitlines() if not line.lstrip().startswith("raise ")]
    assert "[key]" in "".join(said)
    assert "of ours" not in "".join(said)


def test_a_reader_who_has_seen_enough_is_no_error():
    process = start_program(STRANGE, "talk_on", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()

    assert process.stderr.read() == b""
    process.wait(20)
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_that_could_not_be_written_is_a_failure():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-m", "nanobot", "--help"], stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


def test_output_is_utf8_whatever_the_locale():
    env = {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0", "LC_ALL": "C", "PATH": ""}
    done = subprocess.run([sys.executable, "-m", STRANGE, "speak"], capture_output=True, env=env, cwd=ROOT)

    assert done.returncode == 0
    assert done.stdout.decode() == "héllo 你好 \\udc80\n"
    assert done.stderr.decode() == "wörter\n"


def test_a_forgotten_thread_does_not_hold_the_process():
    done = run("leave_a_thread_behind")

    assert (done.returncode, done.stdout) == (0, b"done")


@pytest.mark.skipif(os.name == "nt", reason="a POSIX shell closes them")
def test_closed_streams_are_no_error():
    done = subprocess.run(f"{sys.executable} -m nanobot --version >&- 2>&-", shell=True)

    assert done.returncode == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows writes no core dumps")
def test_a_crash_leaves_no_picture_of_our_memory():
    shell = ["sh", "-c", 'ulimit -S -c "$(ulimit -H -c)"; exec "$0" "$@"', sys.executable, "-m", STRANGE]

    done = subprocess.run([*shell, "tell_the_size_of_a_core"], capture_output=True, cwd=ROOT)

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
