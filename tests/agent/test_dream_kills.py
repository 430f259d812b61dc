"""A pass that is killed with -9 at any write: MEMORY.md is the old or the new, and the log says which."""

import asyncio
import sys
from pathlib import Path

import pytest

from nanobot.agent.memory.dream import DreamOutcome
from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.memory.revisions import PassOutcome
from tests.support.home import told
from tests.support.memory import FACTS, MERGED, OVER, DreamHarness, tidying

NEW = FACTS.replace("- Home: Berlin.\n", "").replace("- Flies to Oslo on 2026-01-05.\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
async def test_a_pass_that_is_killed_at_any_write_is_done_or_was_none(tmp_path: Path):
    """Even points lie before one of its four writes, odd ones behind it."""
    folders = [tmp_path / str(point) for point in range(2, 11)]
    for folder in folders:
        folder.mkdir()
        DreamHarness(folder).learns()

    ends = (await asyncio.to_thread(told, "tests.programs.killed_dream", *map(str, folders))).split()

    assert set(ends[:-1]) == {"-9"}
    assert ends[-1] == "0", "the last of them came to its end: each write was tried"
    found = [await what_a_kill_leaves(DreamHarness(folder), look=int(folder.name) % 4 > 1) for folder in folders]
    assert found.count(True) >= 4
    assert found.count(False) >= 2


async def what_a_kill_leaves(after: DreamHarness, *, look: bool) -> bool:
    """Whether the change was made. `look` where somebody else is there first, and notes how the file stands."""
    made = after.text == NEW
    assert made or after.text == FACTS
    if look:
        MemoryEditor(after.memory, after.clock).facts()

    again = await after.run(tidying(MERGED, OVER) if not made else tidying())

    assert again.outcome in (DreamOutcome.DONE, DreamOutcome.NOTHING)
    assert [one.outcome for one in after.passes()][-1] is PassOutcome.CHANGED
    assert after.text == NEW
    assert after.archive.count("Oslo") == 1
    after.editor.restore()
    assert (after.text, after.archive) == (FACTS, "")
    assert list(after.memory.memory_dir.rglob("*.tmp")) == []
    return made
