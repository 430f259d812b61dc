"""A pass that is killed with -9 at any write: MEMORY.md is the old or the new, and the log says which."""

import asyncio
from pathlib import Path

from tests.support.home import POSIX, told
from tests.support.memory import FACTS, MERGED, OVER, remembering, tidying

NEW = FACTS.replace("- Home: Berlin.\n", "").replace("- Flies to Oslo on 2026-01-05.\n", "")


@POSIX
async def test_pass_that_is_killed_at_any_write_is_done_or_was_none(tmp_path: Path):
    """Before and behind each of its three writes."""
    folders = [tmp_path / str(point) for point in range(2, 9)]
    for folder in folders:
        async with remembering(folder) as it:
            it.learns()

    ends = (await asyncio.to_thread(told, "tests.programs.killed_memory", "/dream", *map(str, folders))).split()

    assert set(ends[:-1]) == {"-9"}
    assert ends[-1] == "0", "the last of them came to its end: each write was tried"
    found = [await what_a_kill_leaves(folder, look=int(folder.name) % 4 > 1) for folder in folders]
    assert found.count(True) >= 2
    assert found.count(False) >= 2


async def what_a_kill_leaves(home: Path, *, look: bool) -> bool:
    """Whether the change was made. `look` where somebody else is there first, and notes how the file stands."""
    async with remembering(home) as it:
        made = it.text == NEW
        assert made or it.text == FACTS
        if look:
            await it.say("/memory")
        assert "failed" not in await it.dream(tidying(MERGED, OVER) if not made else tidying())
        assert "changes, 109 to 62 bytes" in await it.say("/dream-log 20")
        assert it.text == NEW
        assert it.archive.count("Oslo") == 1
        await it.say("/dream-restore")
        assert (it.text, it.archive) == (FACTS, "")
        assert list(it.memory.memory_dir.rglob("*.tmp")) == []
    return made
