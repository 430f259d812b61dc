"""Results too long for a request: head and tail for the model, the whole in a private file for a week."""

import os
import stat
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.spill import SpillFile, clip_result
from nanobot.messages.types import Provenance
from nanobot.security.provenance import ProvenanceStore
from nanobot.utils.text import clip


def test_a_long_result_keeps_head_and_tail_and_names_the_file(ctx: ToolContext, workspace: Path):
    whole = "begin" + "ü" * 50_000 + "end"

    short, clipped = clip_result("short", 100, ctx), clip_result(whole, 1_000, ctx)

    (path,) = (workspace / ".nanobot/spill").iterdir()
    assert (short, path.name) == ("short", "turn-1-1.txt")
    assert len(clipped) <= 1_000
    assert clipped.startswith("begin") and clipped.endswith("end")
    assert str(path) in clipped
    assert path.read_text(encoding="utf-8") == whole


def test_the_name_of_a_file_with_words_from_outside_says_so_and_the_book_knows_it(ctx: ToolContext, workspace: Path):
    clip_result("x" * 200, 100, ctx, Provenance.WEB)
    clip_result("x" * 200, 100, ctx, Provenance.TOOL)

    book = ProvenanceStore(workspace / "book.json", workspace / "media", workspace)
    told = {path.name: book.of(path) for path in (workspace / ".nanobot/spill").iterdir()}
    assert told == {"turn-1-web-1.txt": Provenance.WEB, "turn-1-1.txt": None}


@pytest.mark.skipif(sys.platform == "win32", reason="modes of POSIX")
def test_spill_files_are_private_numbered_and_go_after_a_week(ctx: ToolContext, workspace: Path):
    clip_result("x" * 200, 100, ctx)
    first = workspace / ".nanobot/spill/turn-1-1.txt"
    os.utime(first, (time.time() - 6 * 86_400,) * 2)
    clip_result("x" * 200, 100, ctx)
    os.utime(first, (time.time() - 8 * 86_400,) * 2)
    clip_result("x" * 200, 100, ctx)

    assert {path.name for path in first.parent.iterdir()} == {"turn-1-2.txt", "turn-1-1.txt"}
    assert first.stat().st_mtime > time.time() - 60
    assert stat.S_IMODE(first.stat().st_mode) == 0o600


def test_a_turn_id_cannot_leave_the_folder(workspace: Path):
    spill = SpillFile(workspace, "../../etc/passwd\0:ü")
    spill.close()

    assert spill.path is not None
    assert spill.path.parent == workspace / ".nanobot/spill"


@given(st.text(max_size=400), st.integers(60, 300))
def test_a_clipped_text_keeps_its_ends_and_its_limit(text: str, limit: int):
    clipped = clip(text, limit)

    assert clipped == text or len(text) > limit
    assert len(clipped) <= limit
    assert (clipped[:3], clipped[-3:]) == (text[:3], text[-3:])


@pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")
@pytest.mark.parametrize("link", [".nanobot", ".nanobot/spill"])
def test_a_link_where_spill_files_go_is_not_followed(ctx: ToolContext, workspace: Path, link: str):
    outside = workspace.parent / "outside"
    (outside / "spill").mkdir(parents=True)
    (workspace / link).parent.mkdir(exist_ok=True)
    (workspace / link).symlink_to(outside)

    clipped = clip_result("x" * 1_000, 300, ctx)

    assert "could not be saved" in clipped
    assert [path for path in outside.rglob("*") if path.is_file()] == []
