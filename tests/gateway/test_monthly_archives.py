"""Promise: with `sessions.keepDays`, archived sessions and daily notes that are older become one file for each month.
Search finds them there, who asks for one gets it, and what is deleted is gone.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
from typer.testing import CliRunner

from nanobot.cli.main import app
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway, Running

LONG_AGO = datetime(2025, 3, 5, 12, 0)
KEEP = {"sessions": {"keepDays": 30}}


def put_session(workspace: Path, name: str, text: str, at: datetime, **row: str) -> Path:
    file = workspace / "sessions" / "archive" / f"{name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    head = {"_type": "metadata", "key": "cli:direct", "created_at": at.isoformat(), "updated_at": at.isoformat()}
    said = {"role": "user", "content": text, "timestamp": at.isoformat(), **row}
    file.write_text(f"{json.dumps(head | {'metadata': {}, 'last_consolidated': 0})}\n{json.dumps(said)}\n", "utf-8")
    return file


def in_archives(workspace: Path) -> dict[str, list[str]]:
    found = {}
    for path in (workspace / "sessions" / "archive").glob("*.zip"):
        with ZipFile(path) as packed:
            assert packed.testzip() is None
            found[path.stem] = sorted(packed.namelist())
    return found


def nanobot(home: Path, *words: str) -> str:
    result = CliRunner().invoke(
        app, [*words, "--config", str(home / "config.json"), "--workspace", str(home / "workspace")]
    )
    assert result.exit_code == 0, result.output
    return result.output


def is_answered(it: Running, said: str) -> bool:
    return any(said in text for text in it.toy.got())


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A workspace with two old conversations and one of yesterday, and the notes of two old days."""
    workspace = tmp_path / "h" / "workspace"
    put_session(workspace, "cli_direct-a", "the dentist is Dr. Plum", LONG_AGO)
    put_session(workspace, "cli_direct-b", "the car is a blue one", LONG_AGO + timedelta(days=40))
    put_session(workspace, "cli_direct-c", "the cake was good", datetime.now() - timedelta(days=1))
    for day, text in (("2025-03-05", "# 2025-03-05\n\nBought a kayak."), ("2025-03-07", "Sold the kayak.")):
        note = workspace / "memory" / f"{day}.md"
        note.parent.mkdir(exist_ok=True)
        note.write_text(text, "utf-8")
    return workspace


async def test_what_is_old_is_packed_by_the_month_and_found(running: OpenGateway, old: Path):
    for day in ("2025-05-01", "2025-05-02"):
        (old / "memory" / f"{day}.md").write_text("# Shopping\n\n- milk\n", "utf-8")
    async with running("Hm.", **KEEP) as it:
        await eventually(lambda: not (old / "memory" / "2025-05-02.md").exists())
        assert (old / "memory" / "2025-05.md").read_text().count("- milk") == 2
        assert in_archives(old) == {"2025-03": ["cli_direct-a.jsonl"], "2025-04": ["cli_direct-b.jsonl"]}
        assert [path.stem for path in (old / "sessions" / "archive").glob("*.jsonl")] == ["cli_direct-c"]
        assert (old / "memory" / "2025-03.md").read_text() == (
            "# 2025-03-05\n\nBought a kayak.\n\n# 2025-03-07\n\nSold the kayak.\n"
        )
        for word, said in (("dentist", "Dr. Plum"), ("kayak", "2025-03-07"), ("cake", "good")):
            it.toy.write(f"/search {word}", message_id=word)
            await eventually(partial(is_answered, it, said))


async def test_who_asks_for_one_gets_it_and_what_is_deleted_is_gone(running: OpenGateway, old: Path):
    async with running(**KEEP) as it:
        await eventually(lambda: len(in_archives(old)) == 2)

    assert "blue one" in nanobot(it.home, "sessions", "show", "cli_direct-b")
    assert in_archives(old) == {"2025-03": ["cli_direct-a.jsonl"]}, "it was taken out"
    assert "Plum" in nanobot(it.home, "sessions", "search", "plum")
    assert "2025-03.md" in nanobot(it.home, "memory", "search", "sold kayak")
    nanobot(it.home, "sessions", "delete", "cli_direct-a", "--yes")
    assert in_archives(old) == {}
    assert "Plum" not in nanobot(it.home, "sessions", "search", "plum")
    assert not any(b"Plum" in path.read_bytes() for path in it.home.rglob("*") if path.is_file())


async def test_without_the_setting_nothing_moves(running: OpenGateway, old: Path):
    async with running():
        await asyncio.sleep(0.3)
    assert in_archives(old) == {}
    assert (old / "memory" / "2025-03-07.md").exists()


PACK = """
import sys
from datetime import datetime
from pathlib import Path
from nanobot.session.manager import SessionManager
print("ready", flush=True)
SessionManager(Path(sys.argv[1])).pack_archive(datetime(2026, 1, 1), keep=())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
def test_a_kill_loses_no_conversation_and_the_next_run_ends_the_work(tmp_path: Path):
    texts = {f"cli_direct-{number}": f"word{number} " * 2_000 for number in range(40)}
    for name, text in texts.items():
        put_session(tmp_path, name, text, LONG_AGO)
    folder = tmp_path / "sessions" / "archive"
    for wait_s in (0.0, 0.005, 0.01, 0.02, 0.05):
        child = subprocess.Popen([sys.executable, "-c", PACK, str(tmp_path)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait_s)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        packed = in_archives(tmp_path).get("2025-03", [])
        assert {*packed, *(path.name for path in folder.glob("*.jsonl"))} == {f"{name}.jsonl" for name in texts}

    subprocess.run([sys.executable, "-c", PACK, str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    assert len(in_archives(tmp_path)["2025-03"]) == len(texts)
    assert not [*folder.glob("*.jsonl")]
