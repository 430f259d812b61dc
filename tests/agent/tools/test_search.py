"""glob and grep: what they find, what they pass over, and that no search runs away."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from nanobot.messages.types import Provenance
from tests.support.eventually import longest_pause_until
from tests.support.privileges import nobody_special
from tests.support.tools import Call, lay


@pytest.fixture(params=["ripgrep", "no ripgrep"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no ripgrep":
        monkeypatch.setenv("PATH", "/nowhere")
    elif shutil.which("rg") is None:
        pytest.skip("rg is not installed")


@pytest.fixture
def unreadable(workspace: Path) -> tuple[Path, ...]:
    return (workspace / "odd [x]{y}*", workspace / "key")


@pytest.fixture
def tree(workspace: Path) -> Path:
    files: dict[str, str | bytes] = {
        "a.py": "import os\nprint('Hello')\n# end\n",
        "src/b.py": "def hello():\n    return 'héllo'\n\n\n\n\nhello()\n",
        "src/deep/c.txt": "nothing\r\nHELLO there\r\n",
        "src/deep/ä ö.md": "# hello\n",
        ".hidden/d.py": "hello = 1\n",
        ".gitignore": "src/\n",
        "node_modules/e.py": "hello\n",
        "last": "no newline hello",
        "binary": b"hello\0hello",
        "sixteen.txt": "hello\n".encode("utf-16"),
    }
    lay(workspace, files)
    (workspace / "link").symlink_to("src")
    return workspace


async def rows_of(call: Call, tool: str, **params: Any) -> list[str]:
    return str((await call(tool, **params)).content).splitlines()


HIDDEN, LAST, SIXTEEN = ".hidden/d.py:1: hello = 1", "last:1: no newline hello", "sixteen.txt:1: hello"
DEF, CALL, MD = "src/b.py:1: def hello():", "src/b.py:7: hello()", "src/deep/ä ö.md:1: # hello"
SEARCHES: list[tuple[dict[str, Any], list[str]]] = [
    ({"pattern": "hello"}, [HIDDEN, LAST, SIXTEEN, DEF, CALL, MD]),
    ({"pattern": "hello", "ignore_case": True, "path": "src/deep"}, ["src/deep/c.txt:2: HELLO there", MD]),
    (
        {"pattern": "hello", "path": "src/b.py", "context": 1},
        [DEF, "src/b.py-2-     return 'héllo'", "--", "src/b.py-6- ", CALL],
    ),
    ({"pattern": "h.llo\\b", "glob": "*.py"}, [HIDDEN, DEF, "src/b.py:2:     return 'héllo'", CALL]),
    ({"pattern": "hello", "glob": "src/**/*.md"}, [MD]),
    ({"pattern": "hello", "glob": "*.{py,md}"}, [HIDDEN, DEF, CALL, MD]),
    ({"pattern": "hello", "glob": "**/b.py"}, [DEF, CALL]),
    ({"pattern": "hello()", "literal": True}, [DEF, CALL]),
    ({"pattern": "hello", "files_only": True, "path": "src"}, ["src/b.py", "src/deep/ä ö.md"]),
    (
        {"pattern": "hello", "max_results": 2},
        [HIDDEN, LAST, "(There are more than these 2 matches: narrow the search or raise max_results.)"],
    ),
    ({"pattern": "there$"}, ["src/deep/c.txt:2: HELLO there"]),
    ({"pattern": "(?<=def )hello"}, [DEF]),
    ({"pattern": "no such text"}, ["Nothing in . matches 'no such text'."]),
    (
        {"pattern": "("},
        [
            "Error: The search failed: '(' is not a valid regular expression (missing ), unterminated subpattern at "
            "position 0). Escape special characters, or set literal."
        ],
    ),
]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize(("search", "rows"), SEARCHES, ids=lambda value: str(value) if isinstance(value, dict) else "")
async def test_grep_shows_path_line_and_text_with_and_without_ripgrep(
    call: Call, tree: Path, search: dict[str, Any], rows: list[str]
):
    assert await rows_of(call, "grep", **search) == rows


async def test_an_expression_that_never_ends_is_stopped_and_does_not_hold_the_loop(
    call: Call, tree: Path, monkeypatch: pytest.MonkeyPatch
):
    lay(tree, {"trap": "a" * 40 + "b\n"})
    monkeypatch.setenv("PATH", "/nowhere")  # ripgrep has no such expressions
    monkeypatch.setattr("nanobot.agent.tools.search._TIMEOUT_S", 0.5)
    task = asyncio.ensure_future(call("grep", pattern=r"(a+)+$", path="trap"))

    assert await longest_pause_until(task) < 2
    assert task.result().error
    assert "took longer than 0.5 s" in str(task.result().content)


async def test_a_line_of_many_megabytes_is_clipped(call: Call, tree: Path):
    lay(tree, {"long": "hello" + "x" * 5_000_000 + "\nhello\n"})

    first, second = await rows_of(call, "grep", pattern="hello", path="long")

    assert first.startswith("long:1: helloxxx") and len(first) < 500
    assert second == "long:2: hello"


B, C, D, M = "src/b.py", "src/deep/c.txt", ".hidden/d.py", "src/deep/ä ö.md"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"pattern": "*.py"}, [D, "a.py", B]),
        ({"pattern": "**/*.py"}, [D, "a.py", B]),
        ({"pattern": "src/*.py"}, [B]),
        ({"pattern": "src/**"}, [B, C, M]),
        ({"pattern": "src/"}, [B, C, M]),
        ({"pattern": "?.{py,txt}"}, [D, "a.py", B, C]),
        ({"pattern": "[!ab].*"}, [D, C]),
        ({"pattern": "./a.py"}, ["a.py"]),
        ({"pattern": "*ö*"}, [M]),
        ({"pattern": "b.py", "path": "src"}, [B]),  # as the other tools take it
        (
            {"pattern": "*.py", "max_results": 1},
            [D, "(More than 1 files match: narrow the pattern or raise max_results.)"],
        ),
        ({"pattern": "*.rs"}, ["No file matches *.rs in .."]),
        ({"pattern": "*", "path": "nowhere"}, ["Error: There is no folder nowhere. Give the folder to search in."]),
        ({"pattern": "*", "path": "a.py"}, ["Error: a.py is a file, not a folder. Give the folder to search in."]),
    ],
)
async def test_glob_finds_files_by_pattern(call: Call, tree: Path, asked: dict[str, Any], said: list[str]):
    assert await rows_of(call, "glob", **asked) == said


@pytest.mark.parametrize(("path", "said"), [("nowhere", "no nowhere"), ("/dev/zero", "device"), ("", "empty")])
async def test_grep_refuses_what_cannot_be_searched(call: Call, tree: Path, path: str, said: str):
    result = await call("grep", pattern="x", path=path)

    assert result.error
    assert said in str(result.content)


@pytest.mark.usefixtures("both_ways")
async def test_a_search_passes_over_secrets_and_the_conversations_it_would_find_itself_in(call: Call, tree: Path):
    files = {"sessions/cli_direct.jsonl": "session", "src/sessions/mine.txt": "mine", "key": "key"}
    lay(tree, {name: f"hello {word}\n" for name, word in (files | {"odd [x]{y}*/key.txt": "secret"}).items()})

    everywhere = await call("grep", pattern="hello", files_only=True)

    assert str(everywhere.content).splitlines() == [D, "last", "sixteen.txt", B, M, "src/sessions/mine.txt"]
    assert everywhere.provenance is Provenance.FILE
    inside = await rows_of(call, "grep", pattern="hello", path="sessions")
    assert inside == ["sessions/cli_direct.jsonl:1: hello session"]
    assert await rows_of(call, "glob", pattern="{key*,*.jsonl,mine.txt}") == ["src/sessions/mine.txt"]


async def test_rows_that_their_file_does_not_have_are_left_out(call: Call, tree: Path, monkeypatch: pytest.MonkeyPatch):
    rows = r"a.py\0001:import os\na.py\0002:hello\nlink/b.py\0001:def hello():\nkey\0001:hello key\n"
    lay(tree.parent, {"bin/rg": f"#!/bin/sh\nprintf '{rows}'\n", "workspace/key": "hello key\n"})
    (tree.parent / "bin/rg").chmod(0o700)
    monkeypatch.setenv("PATH", f"{tree.parent / 'bin'}:/usr/bin:/bin")

    assert await rows_of(call, "grep", pattern="hello") == [
        "a.py:1: import os",
        "(3 rows left out: not readable, or changed meanwhile.)",
    ]


async def test_a_folder_that_may_not_be_entered_is_a_word(call: Call):
    with tempfile.TemporaryDirectory() as closed:
        Path(closed).chmod(0)
        with nobody_special():
            search = await call("grep", pattern="x", path=closed)

    assert search.error
    assert f"No permission for {closed}" in str(search.content)
