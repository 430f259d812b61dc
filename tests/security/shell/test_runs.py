"""Which commands may do what a file says that they are given, and which only handle it."""

from pathlib import Path

import pytest

from nanobot.security.shell.file_runs import (
    files_run_by_convention,
    names_its_sources,
    never_runs_files,
    prints_no_content,
)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("grep -rn word . | head -3", True),
        ("grep -rin --include=*.py word src 2>/dev/null | sort | uniq | tail -n 5", True),
        ("rg word", True),
        ("grep -rh word .", False),
        ("grep -rn word . | cut -d: -f3", False),
        ("grep -rn word . > found", False),
        ("grep -rn word . | head -3 page.md", False),
        ("grep -rn word .; cat *", False),
        ("grep -rn $(cat page.md) .", False),
        ("grep -n word page.md", False),
        ("rg -I word", False),
    ],
)
def test_a_search_through_folders_names_where_its_words_stand(command: str, *, names: bool):
    assert names_its_sources(command) is names


@pytest.mark.parametrize(
    ("command", "tells"),
    [
        ("find . -name '*.py' | xargs wc -l; ls -la", False),
        ("git add -A && git commit -qm done && git status --short", False),
        ("git diff HEAD~1 --stat; git status", False),
        ("git show --name-only", True),
        ("git diff --stat -p", True),
        ("git status -v", True),
        ("git -c alias.x='!cat page.md' x", True),
        ("cp page.md /dev/stdout", True),
        ("wc -l $(cat page.md)", True),
        ("find . -exec cat {} +", True),
        ("grep -c x page.md", True),
        ("xargs < page.md", True),
        ("xargs -a page.md ls", True),
        ("sha256sum -c page.md", True),
        ("ls 'open", True),
    ],
)
def test_what_prints_names_and_counts_tells_no_words(command: str, *, tells: bool):
    assert prints_no_content(command) is not tells


@pytest.mark.parametrize(
    "command",
    [
        "cat page.md | head -3",
        "wc -l page.md && ls -la; du -sh .",
        "cp page.md b.md; mv b.md c.md; rm c.md",
        "grep -n word page.md | sort | uniq -c > counts",
        "sed -n -e '1,5p' page.md; sed -i 's/the/e/g' page.md",
        "git add -A && git commit -m 'the page' && git log -1",
        "tar czf b.tgz page.md; find . -name page.md -exec wc -l {} +",
        "timeout 5 bash -c 'cat page.md'",
    ],
)
def test_showing_moving_and_counting_runs_nothing(command: str):
    assert never_runs_files(command)


@pytest.mark.parametrize(
    "command",
    [
        "sh page.md",
        "cat page.md | sh",
        "$(cat page.md)",
        "eval `cat page.md`",
        "bash < page.md",
        "./page.md",
        "timeout 5 bash -c '. ./page.md'",
        "find . -name page.md -exec sh {} +",
        "xargs -a page.md sh -c",
        "awk '{system($0)}' page.md",
        "sed e page.md",
        "sed 's/a/b/ge;p' page.md",
        "sed -f page.md x",
        "tar xf page.md --to-command=sh",
        "git -c core.pager=./page.md log",
        "git bisect run ./page.md",
        "perl page.md",
        "cat 'page.md",
    ],
)
def test_everything_else_may(command: str):
    assert not never_runs_files(command)


def test_of_python_it_is_what_its_script_imports_and_of_pytest_all(tmp_path: Path):
    (tmp_path / "main.py").write_text("import other\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("from far.away import it\n", encoding="utf-8")

    imported = files_run_by_convention("python3 main.py", tmp_path)

    assert {"other.py", "far.py", "*/far/*.py"} <= imported
    assert "*.py" not in imported
    assert "*.py" in files_run_by_convention("python3.11 -m pytest -q", tmp_path)
    assert files_run_by_convention("ls; git status", tmp_path) >= {"*/.git/hooks/*"}
    assert not files_run_by_convention("cat main.py", tmp_path)
