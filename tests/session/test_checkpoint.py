"""What a crash left of a turn is read back, and nothing else is."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.session.checkpoint import Checkpoint
from nanobot.session.file_names import hashed_stem


def test_the_text_of_the_running_step_is_left_until_it_is_discarded(tmp_path: Path):
    assert Checkpoint(tmp_path, "a:b").load().text == ""
    checkpoint = Checkpoint(tmp_path, "a:b", every_s=0)
    checkpoint.partial("first step")
    checkpoint.set_message_count(1)
    checkpoint.partial("Hello ")
    checkpoint.partial("wörld \ud83d")
    checkpoint.close()
    Checkpoint(tmp_path, "a/b", every_s=0).partial("two ")
    with (tmp_path / f"{hashed_stem('a/b')}.jsonl").open("ab") as stream:
        stream.write(b'{"key": "a/b", "text": "tw')  # half a line hides nothing else
    Checkpoint(tmp_path, "a/b", every_s=0).partial("three")

    assert Checkpoint(tmp_path, "a:b").load().text == "Hello wörld \ud83d"
    for _ in range(2):
        Checkpoint(tmp_path, "a:b").discard()
    assert Checkpoint(tmp_path, "a:b").load().text == ""
    assert Checkpoint(tmp_path, "a/b").load().text == "two three"


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
    resumed = Checkpoint(tmp_path, "a:b")
    assert resumed.load().started == frozenset({"call_1"})
    resumed.start_step()
    resumed.close()
    assert Checkpoint(tmp_path, "a:b").load().started == frozenset()


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
