import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.search import GlobTool, GrepTool
from nanobot.messages.types import Provenance
from nanobot.security.files.paths import PathPolicy
from tests.support.privileges import nobody_special
from tests.support.tools import Call

needs_ripgrep = pytest.mark.skipif(
    shutil.which("rg") is None, reason="ripgrep is not installed: nothing to compare with"
)


@pytest.fixture
def tree(workspace: Path) -> Path:
    files = {
        "a.py": "import os\nprint('Hello')\n# end\n",
        "src/b.py": "def hello():\n    return 'héllo'\n\n\n\n\nhello()\n",
        "src/deep/c.txt": "nothing\r\nHELLO there\r\n",
        "src/deep/ä ö.md": "# hello\n",
        ".hidden/d.py": "hello = 1\n",
        ".gitignore": "src/\n",
        "node_modules/e.py": "hello\n",
        "last": "no newline hello",
    }
    for name, content in files.items():
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_bytes(content.encode())
    (workspace / "binary").write_bytes(b"hello\0hello")
    (workspace / "sixteen.txt").write_bytes("hello\n".encode("utf-16"))
    (workspace / "link").symlink_to("src")
    return workspace


async def found(tree: Path, *, ripgrep: bool = False, **params) -> list[str]:
    result = await GrepTool(PathPolicy(tree), ripgrep=ripgrep).execute(**params)
    assert isinstance(result.content, str)
    return result.content.splitlines()


async def test_grep_shows_path_line_and_text(tree: Path):
    assert await found(tree, pattern="hello") == [
        ".hidden/d.py:1: hello = 1",
        "last:1: no newline hello",
        "sixteen.txt:1: hello",
        "src/b.py:1: def hello():",
        "src/b.py:7: hello()",
        "src/deep/ä ö.md:1: # hello",
    ]


async def test_grep_context_parts_its_groups(tree: Path):
    assert await found(tree, pattern="hello", path="src/b.py", context=1) == [
        "src/b.py:1: def hello():",
        "src/b.py-2-     return 'héllo'",
        "--",
        "src/b.py-6- ",
        "src/b.py:7: hello()",
    ]


SEARCHES: list[dict[str, Any]] = [
    {"pattern": "hello"},
    {"pattern": "hello", "ignore_case": True},
    {"pattern": "hello", "context": 1},
    {"pattern": "hello", "context": 2, "path": "src"},
    {"pattern": "h.llo\\b", "glob": "*.py"},
    {"pattern": "hello", "glob": "src/**/*.md"},
    {"pattern": "hello", "glob": "*.{py,md}"},
    {"pattern": "hello", "glob": "**/b.py"},
    {"pattern": "hello()", "literal": True},
    {"pattern": "hello", "files_only": True},
    {"pattern": "hello", "max_results": 2},
    {"pattern": "hello", "path": "src/b.py"},
    {"pattern": "there$"},
    {"pattern": "(?<=def )hello"},
    {"pattern": "no such text"},
    {"pattern": "("},
]


@needs_ripgrep
@pytest.mark.parametrize("search", SEARCHES, ids=str)
async def test_with_and_without_ripgrep_the_answer_is_the_same(tree: Path, search: dict[str, Any]):
    assert await found(tree, ripgrep=True, **search) == await found(tree, **search)


@pytest.mark.parametrize("search", SEARCHES, ids=str)
async def test_every_search_is_answered_without_ripgrep(tree: Path, search: dict[str, Any]):
    assert await found(tree, **search)


async def test_enough_is_enough_and_said(tree: Path):
    rows = await found(tree, pattern="hello", max_results=2)

    assert len(rows) == 3
    assert "more than these 2 matches" in rows[-1]


async def test_an_expression_that_never_ends_is_stopped_and_does_not_hold_the_loop(tree: Path):
    (tree / "trap").write_text("a" * 40 + "b\n", encoding="utf-8")
    grep = GrepTool(PathPolicy(tree), timeout_s=0.5, ripgrep=False)
    longest, began = 0.0, time.monotonic()
    task = asyncio.create_task(grep.execute(r"(a+)+$", path="trap"))

    while not task.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)

    assert task.result().error
    assert "took longer than 0.5 s" in str(task.result().content)
    assert time.monotonic() - began < 20
    assert longest < 2


async def test_a_line_of_many_megabytes_is_clipped(tree: Path):
    (tree / "long").write_text("hello" + "x" * 5_000_000 + "\nhello\n", encoding="utf-8")

    first, second = await found(tree, pattern="hello", path="long")

    assert first.startswith("long:1: helloxxx")
    assert len(first) < 500
    assert second == "long:2: hello"


async def test_found_words_are_the_words_of_files(tree: Path):
    assert (await GrepTool(PathPolicy(tree)).execute("hello")).provenance is Provenance.FILE


@pytest.mark.parametrize(
    ("pattern", "files"),
    [
        ("*.py", [".hidden/d.py", "a.py", "src/b.py"]),
        ("**/*.py", [".hidden/d.py", "a.py", "src/b.py"]),
        ("src/*.py", ["src/b.py"]),
        ("src/**", ["src/b.py", "src/deep/c.txt", "src/deep/ä ö.md"]),
        ("src/", ["src/b.py", "src/deep/c.txt", "src/deep/ä ö.md"]),
        ("?.{py,txt}", [".hidden/d.py", "a.py", "src/b.py", "src/deep/c.txt"]),
        ("[!ab].*", [".hidden/d.py", "src/deep/c.txt"]),
        ("./a.py", ["a.py"]),
        ("*ö*", ["src/deep/ä ö.md"]),
    ],
)
async def test_glob_finds_files_by_pattern(tree: Path, pattern: str, files: list[str]):
    result = await GlobTool(PathPolicy(tree)).execute(pattern)

    assert str(result.content).splitlines() == files


async def test_glob_says_when_there_is_more_and_when_there_is_nothing(call: Call, tree: Path):
    assert "More than 1 files match" in str((await call("glob", pattern="*.py", max_results=1)).content)
    assert "No file matches *.rs" in str((await call("glob", pattern="*.rs")).content)
    assert (await call("glob", pattern="*", path="nowhere")).error
    assert (await call("glob", pattern="*", path="a.py")).error


async def test_paths_of_results_can_be_read_as_they_stand(call: Call, tree: Path):
    found_path = str((await call("glob", pattern="b.py", path="src")).content)

    assert found_path == "src/b.py"
    assert not (await call("read_file", path=found_path)).error


@pytest.mark.parametrize("path", ["nowhere", "/dev/zero", ""])
async def test_grep_refuses_what_cannot_be_searched(call: Call, tree: Path, path: str):
    assert (await call("grep", pattern="x", path=path)).error


@pytest.mark.parametrize("ripgrep", [False, pytest.param(True, marks=needs_ripgrep)])
async def test_a_search_passes_over_secrets_and_the_conversations_it_would_find_itself_in(tree: Path, ripgrep: bool):
    (tree / "sessions").mkdir()
    (tree / "sessions" / "cli_direct.jsonl").write_text("hello from a session\n", encoding="utf-8")
    (tree / "odd [x]{y}*").mkdir()
    (tree / "odd [x]{y}*" / "key.txt").write_text("hello secret\n", encoding="utf-8")
    (tree / "src" / "sessions").mkdir()
    (tree / "src" / "sessions" / "mine.txt").write_text("hello mine\n", encoding="utf-8")
    paths = PathPolicy(tree, unreadable=(tree / "odd [x]{y}*", tree / "last"))

    grep = str((await GrepTool(paths, ripgrep=ripgrep).execute("hello", files_only=True)).content)
    glob = str((await GlobTool(paths).execute("*")).content)
    inside = str((await GrepTool(paths, ripgrep=ripgrep).execute("hello", path="sessions")).content)

    for found in (grep, glob):
        assert "src/sessions/mine.txt" in found
        assert "cli_direct" not in found
        assert "key.txt" not in found
        assert "last" not in found.splitlines()
    assert "sessions/cli_direct.jsonl:1: hello from a session" in inside


async def test_rows_that_their_file_does_not_have_are_left_out(tree: Path, monkeypatch: pytest.MonkeyPatch):
    (tree / "key").write_text("hello key\n", encoding="utf-8")
    rows = r"a.py\0001:import os\na.py\0002:hello\nlink/b.py\0001:def hello():\nkey\0001:hello key\n"
    program = tree.parent / "bin" / "rg"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nprintf '{rows}'\n", encoding="utf-8")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    result = await GrepTool(PathPolicy(tree, unreadable=(tree / "key",))).execute("hello")

    assert str(result.content).splitlines() == [
        "a.py:1: import os",
        "(3 rows left out: not readable, or changed meanwhile.)",
    ]


async def test_a_folder_that_may_not_be_entered_is_a_word():
    with tempfile.TemporaryDirectory() as closed:
        Path(closed).chmod(0)
        with nobody_special():
            search = await GrepTool(PathPolicy(Path("/"))).execute("x", closed)

    assert search.error
    assert f"No permission for {closed}" in str(search.content)
