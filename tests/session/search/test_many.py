"""Many messages: each chat is found among others, and all of them after a kill."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.programs.session_recall import recall_of

RECALL = [sys.executable, "-m", "tests.programs.session_recall"]


def plant(folder: Path, count: int) -> None:
    """So many messages in 50 sessions, half of them Chinese."""
    (folder / "sessions").mkdir(parents=True)
    for session in range(50):
        rows: list[dict[str, object]] = [{"_type": "metadata", "key": f"cli:{session}", "metadata": {}}]
        for at in range(count // 50):
            text = (
                f"the meeting {session}-{at} of the garden " * 4
                if at % 2
                else f"我们明天会议项目预算医生{session}-{at}, the"
            )
            rows.append({"role": "user", "content": text, "timestamp": f"2026-01-{1 + at % 28:02}T10:00:00"})
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / "sessions" / f"cli_{session}.jsonl").write_text(text, encoding="utf-8")


def test_a_chat_is_found_among_many_messages_of_others(tmp_path: Path):
    sessions = tmp_path / "sessions"
    sessions.mkdir()
    row = json.dumps({"role": "user", "content": "alpha", "timestamp": "2026-01-01T00:00:00"}) + "\n"
    (sessions / "telegram_8.jsonl").write_text(row, encoding="utf-8")
    (sessions / "telegram_9.jsonl").write_text(row * 5_200, encoding="utf-8")
    recall = recall_of(tmp_path)

    alone = recall.search("alpha", lambda file: file.key == "telegram:8")
    others = recall.search("alpha", lambda file: file.key == "telegram:9")
    nobody = recall.search("alpha f1", lambda file: False)

    assert [hit.name for hit in alone.hits] == ["telegram:8"]
    assert {hit.name for hit in others.hits} == {"telegram:9"}
    assert nobody.hits == []


@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_over_the_index_loses_nothing(tmp_path: Path, kills: int):
    plant(tmp_path, 1_500 * kills)
    chance = random.Random(3)

    for _ in range(kills):
        child = subprocess.Popen([*RECALL, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(chance.random() * 0.3)
        child.kill()
        child.communicate()

    found = recall_of(tmp_path).search("the", lambda file: True, limit=100_000)
    shown = {(hit.name, hit.text) for hit in found.hits}
    everything = recall_of(tmp_path)
    (tmp_path / "state" / "search.db").unlink()
    assert found.is_whole
    assert shown == {(hit.name, hit.text) for hit in everything.search("the", lambda file: True, limit=100_000).hits}
