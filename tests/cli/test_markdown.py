"""Markdown as a terminal shows it."""

import re

import pytest

from nanobot.cli.chat.markdown import markdown_lines, split_blocks


def test_line_breaks_of_the_model_are_kept():
    assert markdown_lines("Name: Ann\nPhone: 123", 60, colour=False) == ["Name: Ann", "Phone: 123"]


def test_a_numbered_list_has_its_dots():
    assert markdown_lines("9. nine\n10. 10", 60, colour=False) == [" 9. nine", "10. 10"]


def test_a_long_url_in_a_table_is_wrapped_not_cut():
    url = "https://example.org/a/very/long/path/that/does/not/fit?into=the&narrow=terminal"

    lines = markdown_lines(f"| Site | URL |\n|---|---|\n| A | {url} |", 40, colour=False)

    assert "…" not in "".join(lines)
    assert url in re.sub(r"\s", "", "".join(lines[2:])).removeprefix("A")


def test_code_has_a_bar_beside_each_line_and_no_background():
    lines = markdown_lines("Use `ls`:\n\n```bash\ncd /tmp\nls 'x'\n```", 40, colour=True)

    assert sum("▎" in line for line in lines) == 2
    assert not re.search(r"\x1b\[[0-9;]*\b(?:4[0-7]|10[0-7])[0-9;]*m", "".join(lines))


@pytest.mark.parametrize(
    ("text", "blocks", "rest"),
    [
        ("one\ntwo\n\nthree", ["one\ntwo"], "three"),
        ("before\n# Head\nafter\n", ["before", "# Head"], "after\n"),
        ("1. one\n\n   more\n\n2. two\n\n", [], "1. one\n\n   more\n\n2. two\n\n"),
        ("- a\n\nafter\n", ["- a"], "after\n"),
        ("a\n```\nx = 1\n\n# no heading\n\n", ["a"], "```\nx = 1\n\n# no heading\n\n"),
        ("````\n```\ninner\n```\n````\n\n", ["````\n```\ninner\n```\n````"], ""),
    ],
)
def test_a_block_is_complete_once_nothing_can_belong_to_it_any_more(text: str, blocks: list[str], rest: str):
    assert split_blocks(text) == (blocks, rest)
