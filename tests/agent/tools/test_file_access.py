"""What the file tools reach for, and that a yes opens just that."""

import contextlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.agent.tools.search import GrepTool
from nanobot.config.schema import Config
from nanobot.messages.types import text_of
from nanobot.security.files.paths import PathPolicy
from nanobot.testing import calls, open_bot
from tests.support.processes import swapping

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")


@pytest.fixture
def policy(workspace: Path) -> PathPolicy:
    home = workspace.parent / "home"
    for folder in (home / ".ssh", home / "docs"):
        folder.mkdir(parents=True)
    (home / ".ssh/key").write_text("a key\n", encoding="utf-8")
    return PathPolicy(workspace, unreadable=(home / ".ssh",), protected=(home / "law",), data_folder=home / "data")


def written(path: str, tool: str = "write_file") -> tuple[str, dict[str, Any]]:
    more = {"content": "x"} if tool == "write_file" else {"old_text": "a", "new_text": "b"}
    return tool, {"path": path, **more}


async def reaches(policy: PathPolicy, ctx: ToolContext, tool: str, arguments: dict[str, Any]) -> list[tuple[Any, ...]]:
    found = await build_tools(ToolPolicies(policy)).required_access(tool, arguments, ctx)
    home = policy.workspace.parent
    return [(reach.kind.value, str(Path(reach.target).relative_to(home)), reach.needs_approval) for reach in found]


@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("notes.txt", []),
        ("deep/new.txt", []),
        ("../home/docs/new.txt", [("folder", "home/docs", True)]),
        ("../home/docs/../new.txt", [("folder", "home", True)]),
        ("link/new.txt", [("folder", "home/docs", True)]),
        ("../home/.ssh/key", [("secrets", "home/.ssh/key", True), ("folder", "home/.ssh", True)]),
        ("AGENTS.md", [("memory", "workspace/AGENTS.md", False)]),
        ("soul.md", [("memory", "workspace/soul.md", False)]),
        ("HEARTBEAT.md", [("memory", "workspace/HEARTBEAT.md", False)]),
        ("memory/MEMORY.md", [("memory", "workspace/memory/MEMORY.md", False)]),
        ("memory/2026-01-02.md", [("memory", "workspace/memory/2026-01-02.md", False)]),
        ("./skills/a/SKILL.md", [("skill", "workspace/skills/a/SKILL.md", False)]),
        ("tools/mine.py", [("skill", "workspace/tools/mine.py", False)]),
        ("to_soul", [("memory", "workspace/SOUL.md", False)]),
        ("docs/AGENTS.md", []),
        (".git/hooks/pre-commit", [("autorun", "workspace/.git/hooks/pre-commit", False)]),
        ("repo/.GIT/config", [("autorun", "workspace/repo/.GIT/config", False)]),
        ("mirror.git/hooks/update", [("autorun", "workspace/mirror.git/hooks/update", False)]),
        (".vscode/tasks.json", [("autorun", "workspace/.vscode/tasks.json", False)]),
        ("repo/.idea/runConfigurations/a.xml", [("autorun", "workspace/repo/.idea/runConfigurations/a.xml", False)]),
        (".github/workflows/ci.yml", [("autorun", "workspace/.github/workflows/ci.yml", False)]),
        ("repo/.envrc", [("autorun", "workspace/repo/.envrc", False)]),
        ("Makefile", [("autorun", "workspace/Makefile", False)]),
        ("web/package.json", [("autorun", "workspace/web/package.json", False)]),
        ("repo/conftest.py", [("autorun", "workspace/repo/conftest.py", False)]),
        (".npmrc", [("autorun", "workspace/.npmrc", False)]),
        ("to_hooks/post-merge", [("autorun", "workspace/.git/hooks/post-merge", False)]),
        ("build.sh", [("autorun", "workspace/build.sh", False)]),
        ("draft.sh", []),
        ("Makefile.md", []),
        ("package.json.txt", []),
        ("digit/x", []),
        # what no yes gives is not asked about
        ("memory/HISTORY.md", []),
        ("sessions/x.jsonl", []),
        ("../home/law/x", []),
        ("../home/data/config.json", []),
        ("/proc/self/comm", []),
        ("a\0b", []),
    ],
)
async def test_a_write_reaches_for(policy: PathPolicy, ctx: ToolContext, path: str, wanted: list[Any], tool: str):
    (policy.workspace / "link").symlink_to(policy.workspace.parent / "home/docs")
    (policy.workspace / "to_soul").symlink_to("SOUL.md")
    (policy.workspace / "to_hooks").symlink_to(".git/hooks")
    for name, mode in (("build.sh", 0o755), ("draft.sh", 0o644)):
        (policy.workspace / name).touch()
        (policy.workspace / name).chmod(mode)

    assert await reaches(policy, ctx, *written(path, tool)) == wanted


@pytest.mark.parametrize("tool", ["read_file", "list_dir", "glob", "grep"])
@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("notes.txt", []),
        ("../home/docs", []),
        ("../home/.ssh/key", [("secrets", "home/.ssh/key", True)]),
        ("../home/.ssh", [("secrets", "home/.ssh", True)]),
        ("/proc/self/environ", []),
        (".", []),
    ],
)
async def test_a_look_reaches_for(policy: PathPolicy, ctx: ToolContext, path: str, wanted: list[Any], tool: str):
    more = {"pattern": "key"} if tool in ("glob", "grep") else {}

    assert await reaches(policy, ctx, tool, {"path": path, **more}) == wanted


@pytest.mark.parametrize("tool", ["read_file", "list_dir", "glob", "grep"])
async def test_a_yes_shows_the_place_it_was_given_for(policy: PathPolicy, ctx: ToolContext, tool: str):
    registry = build_tools(ToolPolicies(policy))
    folder = policy.workspace.parent / "home/.ssh"
    path = folder / "key" if tool == "read_file" else folder
    arguments = {"path": str(path), **({"pattern": "key"} if tool in ("glob", "grep") else {})}

    without = await registry.call(tool, arguments, ctx)
    granted = await registry.call(tool, arguments, replace(ctx, granted=frozenset({f"secrets:{path}"})))

    assert without.error
    assert "without the owner's permission" in text_of(without.content)
    assert "key" in text_of(granted.content)
    assert not granted.error


class Granting:
    """A hook that says yes to everything, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Access] = []

    async def before_call(self, planned: PlannedCall) -> Verdict:
        self.asked += planned.required_access
        return Verdict(frozenset(reach.rule for reach in planned.required_access))


async def test_in_a_turn_a_yes_lets_a_file_be_written_outside(tmp_path: Path):
    outside = tmp_path.resolve() / "elsewhere"
    outside.mkdir()
    config, hook = Config(), Granting()
    config.tools.approval = "off"
    path = str(outside / "new.txt")

    async with open_bot(tmp_path / "bot", calls(written(path)), "done", config=config, hooks=[hook]) as bot:
        await bot.say("go")

    assert hook.asked == [Access(AccessKind.FOLDER, str(outside), True, "It is outside the workspace.")]
    assert (outside / "new.txt").read_text(encoding="utf-8") == "x"


async def test_in_a_turn_without_a_yes_nothing_is_written_outside(tmp_path: Path):
    outside = tmp_path.resolve() / "elsewhere"
    outside.mkdir()

    async with open_bot(tmp_path / "bot", calls(written(str(outside / "new.txt"))), "ok") as bot:
        await bot.say("go")

        row = bot.provider.requests[1][-1]
    assert row["failure"] == "not_run"
    assert list(outside.iterdir()) == []


async def test_a_call_without_a_yes_tells_the_model_what_to_do(policy: PathPolicy, ctx: ToolContext):
    path = str(policy.workspace.parent / "home/docs/new.txt")

    result = await build_tools(ToolPolicies(policy)).call(*written(path), ctx)

    assert "the owner has not allowed writing in" in text_of(result.content)
    assert "tools.allowedPaths" in text_of(result.content)


@pytest.mark.skipif(sys.platform != "linux", reason="swaps by a call of Linux")
@pytest.mark.parametrize("ripgrep", [False, True])
async def test_a_search_tells_nothing_of_where_a_link_that_comes_and_goes_leads(workspace: Path, ripgrep: bool):
    (workspace / "folder").mkdir()
    (workspace / "folder/file").write_text("found mine\n", encoding="utf-8")
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "file").write_text("found theirs\n", encoding="utf-8")
    (workspace / "link").symlink_to(outside)
    grep = GrepTool(PathPolicy(workspace, restrict=True), ripgrep=ripgrep)
    told = text_of((await grep.execute("found")).content)

    with swapping(workspace / "folder", workspace / "link", outside, 1_000) as child:
        while child.poll() is None:
            told += text_of((await grep.execute("found", path="folder")).content)
            told += text_of((await grep.execute("found")).content)

    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1)
    assert "mine" in told
    assert "theirs" not in told
