"""What a crash left of a turn is read back, and nothing else is."""

from pathlib import Path

import pytest

from nanobot.session.checkpoint import Checkpoint


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


def test_a_disk_that_refuses_costs_the_text_and_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "turns").write_text("a file where a folder should be", encoding="utf-8")
    checkpoint = Checkpoint(tmp_path / "turns", "a:b", every_s=0)

    checkpoint.partial("one")
    checkpoint.partial("two")
    checkpoint.discard()

    assert checkpoint.load().text == ""
    assert sum("checkpoint cannot be written" in message for message in caplog.messages) == 1
