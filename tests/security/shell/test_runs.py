"""Which commands may do what a file says that they are given, and which only handle it."""

from pathlib import Path

from nanobot.security.shell.programs import (
    files_run_by_convention,
    names_its_sources,
    never_runs_files,
    prints_no_content,
)


def test_a_search_through_folders_names_where_its_words_stand():
    yes = [
        "grep -rn word . | head -3",
        "grep -rin --include=*.py word src 2>/dev/null | sort | uniq | tail -n 5",
        "rg word",
    ]
    no = [
        "grep -rh word .",
        "grep -rn word . | cut -d: -f3",
        "grep -rn word . > found",
        "grep -rn word . | head -3 page.md",
        "grep -rn word .; cat *",
        "grep -rn $(cat page.md) .",
        "grep -n word page.md",
        "rg -I word",
    ]

    assert [command for command in yes if not names_its_sources(command)] == []
    assert [command for command in no if names_its_sources(command)] == []


def test_what_prints_names_and_counts_tells_no_words():
    yes = [
        "find . -name '*.py' | xargs wc -l; ls -la",
        "git add -A && git commit -qm done && git status --short",
        "git add -A && git commit -qm done && git status --short",
        "git diff HEAD~1 --stat; git status",
    ]
    no = [
        "git show --name-only",
        "git diff --stat -p",
        "git status -v",
        "git -c alias.x='!cat page.md' x",
        "cp page.md /dev/stdout",
        "wc -l $(cat page.md)",
        "find . -exec cat {} +",
        "grep -c x page.md",
        "xargs < page.md",
        "xargs -a page.md ls",
        "sha256sum -c page.md",
        "ls 'open",
    ]

    assert [command for command in yes if not prints_no_content(command)] == []
    assert [command for command in no if prints_no_content(command)] == []


def test_showing_moving_and_counting_runs_nothing_and_everything_else_may():
    yes = [
        "cat page.md | head -3",
        "wc -l page.md && ls -la; du -sh .",
        "cp page.md b.md; mv b.md c.md; rm c.md",
        "grep -n word page.md | sort | uniq -c > counts",
        "sed -n -e '1,5p' page.md; sed -i 's/the/e/g' page.md",
        "git add -A && git commit -m 'the page' && git log -1",
        "tar czf b.tgz page.md; find . -name page.md -exec wc -l {} +",
        "timeout 5 bash -c 'cat page.md'",
    ]
    no = [
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
    ]

    assert [command for command in yes if not never_runs_files(command)] == []
    assert [command for command in no if never_runs_files(command)] == []


def test_of_python_it_is_what_its_script_imports_and_of_pytest_all(tmp_path: Path):
    (tmp_path / "main.py").write_text("import other\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("from far.away import it\n", encoding="utf-8")

    imported = files_run_by_convention("python3 main.py", tmp_path)

    assert {"other.py", "far.py", "*/far/*.py"} <= imported
    assert "*.py" not in imported
    assert "*.py" in files_run_by_convention("python3.11 -m pytest -q", tmp_path)
    assert files_run_by_convention("ls; git status", tmp_path) >= {"*/.git/hooks/*"}
    assert not files_run_by_convention("cat main.py", tmp_path)
