"""Skills of the world load as they are, in the exact shapes their formats' pages show.

https://agentskills.io/specification and https://docs.openclaw.ai/tools/skills
"""

import sys
from pathlib import Path

import pytest

from nanobot.agent.skills.lint import lint_skill
from nanobot.agent.skills.loader import SkillsLoader
from nanobot.agent.skills.manual import how_to_install, parse_manual
from nanobot.agent.skills.package import read_bundle

AGENTSKILLS = {
    "SKILL.md": (
        "---\nname: invoice-reading\n"
        "description: >\n  Reads invoices and lists what is owed. Use when a bill, an invoice\n  or a receipt is in.\n"
        "license: Apache-2.0. LICENSE.txt has the terms\n"
        "compatibility: Requires Python 3.11+ and pdftotext\n"
        'metadata:\n  author: somebody\n  version: "1.0"\n'
        "allowed-tools: Bash(python3:*) Bash(git log:*) Read\n---\n\n"
        "# Reading invoices\n\nSee [the fields](references/FIELDS.md). Run `scripts/sum.py FILE`.\n"
    ),
    "references/FIELDS.md": "# Fields\n",
    "scripts/sum.py": "import sys\nprint(sys.argv)\n",
    "assets/empty.csv": "who,what\n",
    "LICENSE.txt": "terms\n",
}
OPENCLAW = """---
name: kettle-lab
description: Heat water by a networked kettle
homepage: https://kettle.example
user-invocable: true
metadata:
  {
    "openclaw":
      {
        "emoji": "☕",
        "os": ["linux", "darwin", "win32"],
        "requires":
          { "bins": ["sh"], "anyBins": ["no-kettle", "no-pot"], "env": ["KETTLE_KEY"], "config": ["kettle.on"] },
        "primaryEnv": "KETTLE_KEY",
        "install":
          [
            { "id": "brew", "kind": "brew", "formula": "kettle-cli", "bins": ["no-kettle"], "label": "Kettle (brew)" },
            { "id": "npm", "kind": "node", "package": "@kettle/cli", "bins": ["no-kettle"] },
            { "id": "go", "kind": "go", "module": "kettle.example/cmd/pot", "bins": ["no-pot"] },
            { "id": "uv", "kind": "uv", "package": "kettle", "bins": ["no-pot"] },
            {
              "id": "bin", "kind": "download", "url": "https://kettle.example/k.tar.gz", "archive": "tar.gz",
              "extract": true, "stripComponents": 1, "targetDir": "~/.kettle", "os": ["win32"],
            },
          ],
      },
  }
---

Read {baseDir}/help.md first.
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def on_path(monkeypatch: pytest.MonkeyPatch, folder: Path, *programs: str) -> None:
    """These programs are there, and no others."""
    folder.mkdir(exist_ok=True)
    for name in programs:
        program = folder / (f"{name}.exe" if sys.platform == "win32" else name)
        program.write_text("#!/bin/sh\n", encoding="utf-8")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def test_an_agentskills_folder_loads_and_is_sound(tmp_path: Path):
    folder = written(tmp_path / "skills" / "invoice-reading", AGENTSKILLS)
    loader = SkillsLoader(tmp_path, tmp_path / "none")

    (skill,) = loader.skills()

    assert skill.available
    assert skill.description.startswith("Reads invoices and lists what is owed. Use when a bill, an invoice or")
    assert skill.manual.tools == ["Bash(python3:*)", "Bash(git log:*)", "Read"]
    assert lint_skill(read_bundle(folder)) == []


@pytest.mark.parametrize("tools", ["Bash(git:*) Read", "Bash(git:*), Read", "\n  - Bash(git:*)\n  - Read"])
def test_allowed_tools_in_every_way_they_are_written(tools: str):
    assert parse_manual(f"---\nname: a\nallowed-tools: {tools}\n---\n").tools == ["Bash(git:*)", "Read"]


@pytest.mark.parametrize("text", [OPENCLAW, OPENCLAW.replace("  ", "\t")])
def test_an_openclaw_skill_loads_however_its_braces_stand(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path / "skills" / "kettle-lab", {"SKILL.md": text, "help.md": "x"})
    monkeypatch.delenv("KETTLE_KEY", raising=False)
    on_path(monkeypatch, tmp_path / "bin", "sh", "npm")
    loader = SkillsLoader(tmp_path, tmp_path / "none")

    (skill,) = loader.skills()

    assert skill.missing == ("program: no-kettle or no-pot", "environment variable: KETTLE_KEY", "setting: kettle.on")
    assert skill.missing_hints[0] == "program: no-kettle or no-pot (npm install -g @kettle/cli)"
    assert skill.manual.primary == "KETTLE_KEY"
    assert f"{skill.path.parent}/help.md" in str(loader.load_skill("kettle-lab"))


def test_what_an_openclaw_skill_asks_for_may_all_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written(tmp_path / "skills" / "kettle-lab", {"SKILL.md": OPENCLAW})
    on_path(monkeypatch, tmp_path / "bin", "sh", "no-pot")
    monkeypatch.setenv("KETTLE_KEY", "k")

    (skill,) = SkillsLoader(tmp_path, tmp_path / "none", is_set=lambda key: key == "kettle.on").skills()

    assert skill.missing == ()


def test_a_skill_that_the_sandbox_closes_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    on_path(monkeypatch, tmp_path / "bin", "sh", "tmux")
    open_ = SkillsLoader(tmp_path)
    closed = SkillsLoader(tmp_path, why_forbidden="install {}".format)

    assert {skill.name: skill.missing for skill in open_.skills()}["tmux"] == ()
    assert {skill.name: skill.missing_hints for skill in closed.skills()}["tmux"] == (
        "sandbox: sockets (install sockets)",
    )


@pytest.mark.parametrize(
    ("entry", "here", "command"),
    [
        ({"kind": "brew", "formula": "k"}, "brew", "brew install k"),
        ({"kind": "node", "package": "@a/k"}, "npm", "npm install -g @a/k"),
        ({"kind": "go", "module": "a.org/k"}, "go", "go install a.org/k@latest"),
        ({"kind": "uv", "package": "k"}, "uv", "uv tool install k"),
        ({"kind": "apt", "package": "k"}, "apt-get", "sudo apt-get install k"),
        ({"kind": "download", "url": "https://a.org/k.zip"}, "sh", "download https://a.org/k.zip"),
        ({"kind": "brew", "formula": "k"}, "sh", "brew install k, with brew installed first"),
        ({"kind": "brew", "formula": "k", "os": ["plan9"]}, "brew", ""),
        ({"kind": "brew", "formula": "k", "bins": ["other"]}, "brew", ""),
        ({"kind": "brew", "formula": "k; rm -rf ~"}, "brew", ""),
        ({"kind": "magic", "formula": "k"}, "brew", ""),
    ],
)
def test_how_a_program_is_had_here(entry, here, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    on_path(monkeypatch, tmp_path / "bin", here)

    assert how_to_install("k", (entry,)) == command


def test_metadata_as_a_text_with_a_comma_too_many():
    found = parse_manual('---\nmetadata: \'{"nanobot": {"requires": {"bins": ["a"],},}}\'\n---\n')

    assert found.programs == ["a"]


@pytest.mark.parametrize(
    "front",
    [
        'metadata: {"nanobot": {"requires": {"skills": ["tea", "cake"]}}}',
        'metadata: {"nanobot": {"skills": ["tea", "cake"]}}',
        'metadata: {"openclaw": {"requires": {"bins": ["sh"]}}}\nrequires: {skills: [tea, cake]}',
        "depends: tea cake",
        "depends-on:\n  - tea\n  - cake",
    ],
)
def test_skills_it_needs_however_they_are_named(front: str):
    assert parse_manual(f"---\n{front}\n---\n").skills == ["tea", "cake"]
