"""The glossary is kept: names say what a thing is. (That a file opens by saying what it is for, ruff sees to.)"""

import ast
import re

from tests.house.repo import ROOT, text_of, tracked_files

EMPTY_WORDS = ("Helper", "Helpers", "Util", "Utils", "Handler", "Processor")
SOURCES = [path for path in tracked_files() if path.suffix == ".py"]
HOUSE = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "nanobot"]


def test_no_class_has_a_name_that_says_nothing():
    found = [
        f"{path.relative_to(ROOT)}: {node.name}"
        for path in HOUSE
        for node in ast.walk(ast.parse(text_of(path)))
        if isinstance(node, ast.ClassDef) and node.name.endswith(EMPTY_WORDS)
    ]

    assert found == []


def test_nothing_is_left_for_later():
    mark = re.compile(r"#.*\b(?:TO[D]O|FIX[M]E|XX[X])\b")

    found = [f"{path.relative_to(ROOT)}: {words}" for path in SOURCES for words in mark.findall(text_of(path))]

    assert found == []


def test_a_room_that_says_in_which_order_to_read_it_names_every_file():
    in_any_order = {"nanobot", "cli", "utils", "tools"}
    rooms = [path for path in HOUSE if path.name == "__init__.py" and path.parent.name not in in_any_order]

    missing = [
        f"{room.parent.relative_to(ROOT)}: {path.stem}"
        for room in rooms
        for path in HOUSE
        if path.name != "__init__.py" and path.parent == room.parent
        if not re.search(rf"\b{path.stem}\b", text_of(room))
    ]

    assert missing == []


def test_every_room_of_tests_mirrors_a_room_of_the_house():
    rooms = {path.name for path in (ROOT / "nanobot").iterdir() if path.is_dir()}
    others = {"contracts", "stories", "house", "bench", "__pycache__"}

    found = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}

    assert found - rooms - others == set()
