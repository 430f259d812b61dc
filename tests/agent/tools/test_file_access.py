"""What the file tools reach for, and that a yes opens just that."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import Answer
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import text_of
from nanobot.testing import calls, open_bot
from tests.support.approvals import Person
from tests.support.tools import Call, lay

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links of POSIX")


@pytest.fixture(autouse=True)
def files(workspace: Path, home: Path) -> None:
    lay(home, {".ssh/key": "a key\n", "docs/x": ""})
    lay(workspace, {"build.sh": "", "draft.sh": ""})
    (workspace / "build.sh").chmod(0o755)
    for name, target in {"link": "../home/docs", "to_soul": "SOUL.md", "to_hooks": ".git/hooks"}.items():
        (workspace / name).symlink_to(target)


WRITE = {"write_file": {"content": "x"}, "edit_file": {"old_text": "a", "new_text": "b"}}
LOOK: dict[str, dict[str, str]] = {
    "read_file": {},
    "list_dir": {},
    "glob": {"pattern": "key"},
    "grep": {"pattern": "key"},
}


async def reaches(registry: ToolRegistry, ctx: ToolContext, tools: dict[str, Any], path: str) -> list[list[Any]]:
    """What each of these tools would access there."""
    found = [await registry.required_access(tool, {"path": path, **more}, ctx) for tool, more in tools.items()]
    return [
        [
            (reach.kind.value, str(Path(reach.target).relative_to(ctx.workspace.parent)), reach.needs_approval)
            for reach in accesses
        ]
        for accesses in found
    ]


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
async def test_a_write_reaches_for(registry: ToolRegistry, ctx: ToolContext, path: str, wanted: list[Any]):
    assert await reaches(registry, ctx, WRITE, path) == [wanted] * len(WRITE)


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
async def test_a_look_reaches_for(registry: ToolRegistry, ctx: ToolContext, path: str, wanted: list[Any]):
    assert await reaches(registry, ctx, LOOK, path) == [wanted] * len(LOOK)


@pytest.mark.parametrize("tool", LOOK)
async def test_a_yes_shows_the_place_it_was_given_for(registry: ToolRegistry, ctx: ToolContext, home: Path, tool: str):
    path = home / ".ssh/key" if tool == "read_file" else home / ".ssh"
    arguments = {"path": str(path), **LOOK[tool]}

    without = await registry.call(tool, arguments, ctx)
    granted = await registry.call(tool, arguments, replace(ctx, granted=frozenset({f"secrets:{path}"})))

    assert without.error and not granted.error
    assert "without the owner's permission" in text_of(without.content)
    assert "key" in text_of(granted.content)


@pytest.mark.parametrize("answer", [Answer.ONCE, Answer.NO])
async def test_in_a_turn_a_yes_lets_a_file_be_written_outside(tmp_path: Path, answer: Answer):
    outside = tmp_path.resolve() / "elsewhere"
    outside.mkdir()

    async with open_bot(tmp_path / "bot") as bot:
        person = Person(bot, answer)
        bot.provider.script(calls(("write_file", {"path": str(outside / "new.txt"), "content": "x"})), "done")
        await person.say("go")

    assert [question.reaches for question in person.asked] == [[f"folder:{outside}"]]
    assert [file.read_text("utf-8") for file in outside.iterdir()] == ["x"] * (answer is Answer.ONCE)


async def test_a_call_without_a_yes_tells_the_model_what_to_do(call: Call, home: Path):
    result = await call("write_file", path=str(home / "docs/new.txt"), content="x")

    assert "the owner has not allowed writing in" in text_of(result.content)
    assert "tools.allowedPaths" in text_of(result.content)
