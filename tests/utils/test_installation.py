"""What ships is there, optional parts can be installed, and a workspace appears without touching what is the user's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nanobot.utils.installation import install_command, open_workspace, prepare_workspace, templates_dir


def test_every_template_of_a_workspace_ships():
    names = {path.relative_to(templates_dir()).as_posix() for path in templates_dir().rglob("*.md")}

    assert names == {"AGENTS.md", "SOUL.md", "USER.md", "TOOLS.md", "HEARTBEAT.md", "memory/MEMORY.md"}


def test_the_heartbeat_template_has_no_task():
    lines = (templates_dir() / "HEARTBEAT.md").read_text(encoding="utf-8").splitlines()

    tasks = [line for line in lines if line.strip() and not line.startswith(("#", "<!--")) and line.strip() != "- [ ]"]

    assert tasks == []


def test_the_tool_in_the_tools_template_works():
    text = (templates_dir() / "TOOLS.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, object] = {}

    exec(compile(code, "word_count.py", "exec"), names)

    tool = names["WordCount"]()  # type: ignore[operator]
    assert tool.to_schema()["function"]["name"] == "word_count"


@pytest.mark.skipif(sys.platform == "win32", reason="the quotes are those of a POSIX shell")
def test_what_is_typed_reaches_the_interpreter_that_runs_here():
    shown = install_command("docs").replace(" -m pip install", " -c 'import sys; print(sys.argv[1:], sys.prefix)'")

    said = subprocess.run(shown, shell=True, capture_output=True, text=True, check=True).stdout

    assert said.strip() == f"['nanobot[docs]'] {sys.prefix}"


def test_a_workspace_is_made_where_there_is_none_and_left_alone_where_there_is_one(tmp_path: Path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "notes.txt").write_text("mine", encoding="utf-8")

    open_workspace(tmp_path / "new")
    open_workspace(tmp_path / "project")

    assert (tmp_path / "new" / "AGENTS.md").is_file()
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.name == "nt", reason="links and modes are what POSIX has")
def test_a_link_of_the_users_is_not_written_through(tmp_path: Path):
    (tmp_path / "AGENTS.md").symlink_to(tmp_path / "elsewhere.md")

    prepare_workspace(tmp_path)

    assert not (tmp_path / "elsewhere.md").exists()


@pytest.mark.skipif(os.name == "nt", reason="links and modes are what POSIX has")
def test_a_new_folder_is_the_owners_alone_and_an_old_one_keeps_its_mode(tmp_path: Path):
    old = tmp_path / "old"
    old.mkdir(mode=0o755)

    prepare_workspace(old)
    prepare_workspace(tmp_path / "new")

    assert old.stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "memory").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "memory" / "MEMORY.md").stat().st_mode & 0o777 == 0o600
