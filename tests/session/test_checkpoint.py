"""What a crash left of a turn is read back, and nothing else is."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.session.checkpoint import Checkpoint


def test_nothing_was_left(tmp_path: Path):
    assert Checkpoint(tmp_path, "a:b", every_s=0).load().text == ""


def test_the_text_of_the_running_step_is_left(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path / "turns", "a:b", every_s=0)
    checkpoint.partial("first step")
    checkpoint.set_message_count(1)
    checkpoint.partial("Hello ")
    checkpoint.partial("wörld \ud83d")
    checkpoint.close()

    assert Checkpoint(tmp_path / "turns", "a:b", every_s=0).load().text == "Hello wörld \ud83d"


def test_discarded_is_gone(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path, "a:b", every_s=0)
    checkpoint.partial("x")

    checkpoint.discard()
    checkpoint.discard()

    assert checkpoint.load().text == ""
    assert list(tmp_path.iterdir()) == []


def test_two_keys_of_the_same_name_keep_apart(tmp_path: Path):
    Checkpoint(tmp_path, "a:b", every_s=0).partial("one")
    Checkpoint(tmp_path, "a/b", every_s=0).partial("two")

    Checkpoint(tmp_path, "a:b", every_s=0).discard()

    assert Checkpoint(tmp_path, "a:b", every_s=0).load().text == ""
    assert Checkpoint(tmp_path, "a/b", every_s=0).load().text == "two"


async def test_in_a_new_step_the_ids_of_the_last_one_have_not_begun(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path, "a:b")
    checkpoint.accept("turn", {})
    checkpoint.start_step()
    await checkpoint.calls_start(["call_0"], durable=False)
    first = Checkpoint(tmp_path, "a:b").load().started
    checkpoint.start_step()
    second = Checkpoint(tmp_path, "a:b").load().started
    await checkpoint.calls_start(["call_1"], durable=False)
    checkpoint.close()

    assert (first, second) == (frozenset({"call_0"}), frozenset())
    assert Checkpoint(tmp_path, "a:b").load().started == frozenset({"call_1"})


async def test_a_turn_that_is_taken_up_begins_its_next_step_anew_too(tmp_path: Path):
    killed = Checkpoint(tmp_path, "a:b")
    killed.accept("turn", {})
    await killed.calls_start(["call_0"], durable=False)
    killed.close()

    checkpoint = Checkpoint(tmp_path, "a:b")
    left = checkpoint.load()
    checkpoint.start_step()
    checkpoint.close()

    assert left.started == frozenset({"call_0"})
    assert Checkpoint(tmp_path, "a:b").load().started == frozenset()


def test_half_a_line_hides_nothing_else(tmp_path: Path):
    Checkpoint(tmp_path, "a:b", every_s=0).partial("one ")
    [file] = tmp_path.iterdir()
    with file.open("ab") as stream:
        stream.write(b'{"key": "a:b", "text": "tw')

    Checkpoint(tmp_path, "a:b", every_s=0).partial("three")

    assert Checkpoint(tmp_path, "a:b", every_s=0).load().text == "one three"


def test_a_killed_process_leaves_what_it_said(tmp_path: Path):
    script = (
        "import os, signal, sys; from pathlib import Path; from nanobot.session.checkpoint import Checkpoint\n"
        "c = Checkpoint(Path(sys.argv[1]), 'a:b', every_s=0)\n"
        "[c.partial(f'{n} ') for n in range(100)]; os.kill(os.getpid(), 9)"
    )

    subprocess.run([sys.executable, "-c", script, os.fspath(tmp_path)])

    left = Checkpoint(tmp_path, "a:b", every_s=0).load().text
    assert left == "".join(f"{number} " for number in range(100))


async def test_what_was_said_before_a_silence_is_written_all_the_same(tmp_path: Path):
    checkpoint = Checkpoint(tmp_path, "a:b", every_s=0.02)

    checkpoint.partial("one ")
    checkpoint.partial("two")
    await asyncio.sleep(0.1)

    assert Checkpoint(tmp_path, "a:b").load().text == "one two"
    checkpoint.partial(" three")
    checkpoint.discard()
    await asyncio.sleep(0.05)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_costs_the_text_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "turns").write_text("a file where a folder should be", encoding="utf-8")
    checkpoint = Checkpoint(tmp_path / "turns", "a:b", every_s=0)

    checkpoint.partial("one")
    checkpoint.partial("two")
    checkpoint.discard()

    assert checkpoint.load().text == ""
    assert sum("checkpoint cannot be written" in message for message in caplog.messages) == 1
