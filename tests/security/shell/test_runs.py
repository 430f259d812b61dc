"""Which commands may do what a file says that they are given, and which only handle it."""

from pathlib import Path

import pytest

from nanobot.security.shell import programs

ROWS = {
    # a search through folders names where its words stand
    "names_its_sources": (
        ["grep -rn word . | head -3", "grep -rin --include=*.py word src 2>/dev/null | sort | uniq | tail -n 5",
         "rg word"],
        ["grep -rh word .", "grep -rn word . | cut -d: -f3", "grep -rn word . > found", "grep -n word page.md",
         "grep -rn word . | head -3 page.md", "grep -rn word .; cat *", "grep -rn $(cat page.md) .", "rg -I word"],
    ),
    # what prints names and counts tells no words
    "prints_no_content": (
        ["find . -name '*.py' | xargs wc -l; ls -la", "git add -A && git commit -qm done && git status --short",
         "git diff HEAD~1 --stat; git status"],
        ["git show --name-only", "git diff --stat -p", "git status -v", "git -c alias.x='!cat page.md' x",
         "cp page.md /dev/stdout", "wc -l $(cat page.md)", "find . -exec cat {} +", "grep -c x page.md",
         "xargs < page.md", "xargs -a page.md ls", "sha256sum -c page.md", "ls 'open"],
    ),
    # showing, moving and counting runs nothing, and everything else may
    "never_runs_files": (
        ["cat page.md | head -3", "wc -l page.md && ls -la; du -sh .", "cp page.md b.md; mv b.md c.md; rm c.md",
         "grep -n word page.md | sort | uniq -c > counts", "sed -n -e '1,5p' page.md; sed -i 's/the/e/g' page.md",
         "git add -A && git commit -m 'the page' && git log -1", "timeout 5 bash -c 'cat page.md'",
         "tar czf b.tgz page.md; find . -name page.md -exec wc -l {} +"],
        ["sh page.md", "cat page.md | sh", "$(cat page.md)", "eval `cat page.md`", "bash < page.md", "./page.md",
         "timeout 5 bash -c '. ./page.md'", "find . -name page.md -exec sh {} +", "xargs -a page.md sh -c",
         "awk '{system($0)}' page.md", "sed e page.md", "sed 's/a/b/ge;p' page.md", "sed -f page.md x",
         "tar xf page.md --to-command=sh", "git -c core.pager=./page.md log", "git bisect run ./page.md",
         "perl page.md", "cat 'page.md", "cat page.md; PATH=. ls"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("question", ROWS)
def test_what_a_line_does_with_files_is_read_from_it(question: str):
    yes, no = ROWS[question]
    is_so = getattr(programs, question)

    assert [command for command in yes if not is_so(command)] == []
    assert [command for command in no if is_so(command)] == []


def test_of_python_it_is_what_its_script_imports_and_of_pytest_all(tmp_path: Path):
    (tmp_path / "main.py").write_text("import other\n", encoding="utf-8")
    (tmp_path / "other.py").write_text("from far.away import it\n", encoding="utf-8")

    imported = programs.files_run_by_convention("python3 main.py", tmp_path)

    assert {"other.py", "far.py", "*/far/*.py"} <= imported
    assert "*.py" not in imported
    assert "*.py" in programs.files_run_by_convention("python3.11 -m pytest -q", tmp_path)
    assert programs.files_run_by_convention("ls; git status", tmp_path) >= {"*/.git/hooks/*"}
    assert not programs.files_run_by_convention("cat main.py", tmp_path)


def test_what_a_line_writes_is_read_from_its_words(tmp_path: Path):
    (tmp_path / "docs").mkdir()
    lines = {
        "echo x > a": "a", "tee a b": "b", "cp page.md docs": "docs/page.md", "cp -t docs page.md": "docs/page.md",
        "curl -o a u": "a", "curl -oa u": "a", "wget https://x.test/d/a": "a", "curl -O https://x.test/a": "a",
        "pandoc page.md -o a": "a", "sed -i s/a/b/ a": "a", "sh -c 'cat b >> a'": "a",
    }  # fmt: skip

    assert [line for line, name in lines.items() if tmp_path / name not in programs.files_written(line, tmp_path)] == []
    for line in ("cat a", "curl https://x.test/a", "sed -n 1p a"):
        assert list(programs.files_written(line, tmp_path)) == []
