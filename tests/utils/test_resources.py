"""What ships with the code is where the code says it is."""

from nanobot.utils.installation import templates_dir


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
