"""Nothing unfinished is on main."""

import re

from tests.house.repo import ROOT, text_of, tracked_files

SOURCES = [path for path in tracked_files() if path.suffix == ".py"]


def test_no_source_file_has_a_mark_for_unfinished_work():
    mark = re.compile(r"#.*\b(?:TO[D]O|FIX[M]E|XX[X])\b")

    found = [f"{path.relative_to(ROOT)}: {words}" for path in SOURCES for words in mark.findall(text_of(path))]

    assert found == []


def test_internal_tests_that_are_listed_exist():
    listed = (ROOT / "tests" / "internal.txt").read_text(encoding="utf-8").split()

    assert [name for name in listed if not (ROOT / name).is_file()] == []


def test_no_test_module_is_imported_by_another():
    imported = re.compile(r"^\s*(?:from|import) (tests\.[\w.]*\b(?:test_\w+|conftest))", re.MULTILINE)

    found = [f"{path.relative_to(ROOT)}: {name}" for path in SOURCES for name in imported.findall(text_of(path))]

    assert found == [], "what two test modules share belongs into tests/support, tests/fakes or tests/programs"
