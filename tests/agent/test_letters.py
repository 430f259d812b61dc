"""Letters on disk: whole or not at all, whatever a crash left before them."""

import os
import time
from pathlib import Path

import pytest

from nanobot.agent.subagent.mailbox import TeamMailbox, TeamMessage
from nanobot.messages.types import Provenance

ONE = TeamMessage("1", "aa", "prices", ("bb", "cc"), "It is in euros.\n\ud83d", Provenance.WEB)
TWO = TeamMessage("2", "bb", "flights", ("aa",), "Noted.", Provenance.TOOL)


def test_they_come_back_as_they_were_in_their_order(tmp_path: Path):
    TeamMailbox(tmp_path / "letters").add("g", ONE)
    TeamMailbox(tmp_path / "letters").add("g", TWO)

    assert TeamMailbox(tmp_path / "letters").messages("g") == [ONE, TWO]
    assert TeamMailbox(tmp_path / "letters").messages("another") == []


def test_half_a_line_of_a_crash_costs_no_other(tmp_path: Path):
    box = TeamMailbox(tmp_path)
    box.add("g", ONE)
    with (tmp_path / "g.jsonl").open("ab") as file:
        file.write(b'{"id": "x", "by": "aa", "te')

    box.add("g", TWO)

    assert box.messages("g") == [ONE, TWO]


def test_a_word_of_trust_that_nobody_knows_is_the_least(tmp_path: Path):
    box = TeamMailbox(tmp_path)
    box.add("g", TWO)
    path = tmp_path / "g.jsonl"
    path.write_text(path.read_text("utf-8").replace('"tool"', '"angels"'), "utf-8")

    assert [one.provenance for one in box.messages("g")] == [Provenance.WEB]


def test_what_the_disk_refuses_is_not_there(tmp_path: Path):
    (tmp_path / "letters").write_text("", "utf-8")

    with pytest.raises(OSError, match="letters"):
        TeamMailbox(tmp_path / "letters").add("g", ONE)


def test_old_ones_go_but_those_of_a_team_at_work(tmp_path: Path):
    box = TeamMailbox(tmp_path)
    for goal in ("old", "at work", "new"):
        box.add(goal, ONE)
    for goal in ("old", "at work"):
        os.utime(tmp_path / f"{goal}.jsonl", (1.0, 1.0))

    box.sweep(before=time.time() - 100, but_for=["at work"])

    assert [goal for goal in ("old", "at work", "new") if box.messages(goal)] == ["at work", "new"]
