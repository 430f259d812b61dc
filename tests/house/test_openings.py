"""No tool opens a file by itself: paths that a model writes go through the policy and its opener, without exception."""

import ast
from collections.abc import Iterator

import pytest

from tests.house.repo import ROOT

TOOLS = ROOT / "nanobot" / "agent" / "tools"
_OPENING = frozenset(
    {"open", "fdopen", "read_text", "read_bytes", "write_text", "write_bytes", "write_atomic", "write_in_place"}
    | {
        "read_own",
        "open_own",
        "replace_own",
        "rename_own",
        "unlink_own",
        "move_in",
        "open_private",
        "open_lines",
        "scandir",
        "listdir",
        "iterdir",
        "glob",
        "rglob",
        "walk",
    }
    | {"unlink", "remove", "rename", "mkdir", "makedirs", "rmdir", "rmtree", "symlink_to", "hardlink_to", "touch"}
    | {"copy", "copy2", "copyfile", "copytree", "move"}
)
"""Words that touch the disk by a path."""
ALLOWED = {
    "disk.py": {"read_text"},  # the umask, as /proc tells it
    "grep_child.py": {"open", "scandir"},  # what it finds is looked up anew before it is told (search.py)
    "mcp/listing.py": {"read_bytes", "write_atomic"},  # the cache of a server's tools, a file of ours
    "mcp/process_guard.py": {"open"},  # /proc and /dev/null
    "mcp/transport.py": {"open"},  # both ends of a pipe
    "own.py": {"read_bytes", "scandir"},  # tools of the owner, which run in this process
    "permissions.py": {"iterdir"},  # names in the /tmp of commands, a folder of our own
    "spill.py": {"open_own"},  # files with names of our own, made anew and never through a link
}
"""Who may, and with which word."""


OPENERS = ("files", "self._files")
"""What the opener of a call is called."""


def words(tree: ast.AST) -> Iterator[str]:
    """The words that touch the disk, but for those said to an opener."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            owner, _, name = ast.unparse(node.func).rpartition(".")
            if name in _OPENING and owner not in OPENERS:
                yield name


@pytest.mark.parametrize("file", sorted(path.relative_to(TOOLS).as_posix() for path in TOOLS.rglob("*.py")))
def test_a_tool_leaves_opening_to_the_opener(file: str):
    found = set(words(ast.parse((TOOLS / file).read_text(encoding="utf-8"))))

    assert found - ALLOWED.get(file, set()) == set(), f"{file} opens paths by itself: use disk.opener"


@pytest.mark.parametrize("file", sorted(ALLOWED))
def test_the_list_of_those_who_may_names_nobody_who_does_not(file: str):
    found = set(words(ast.parse((TOOLS / file).read_text(encoding="utf-8"))))

    assert ALLOWED[file] <= found
