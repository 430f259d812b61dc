from hypothesis import given
from hypothesis import strategies as st

from nanobot.cli.chat.rendering import BlockRenderer, GrowingAnswer


def draw(source: str, width: int) -> list[str]:
    return source.split("\n")


def grown(pieces: list[str], rows: int) -> tuple[list[str], list[int]]:
    """What stays in the end, and how many lines were live after each piece."""
    answer = GrowingAnswer(BlockRenderer(draw))
    stayed, live_counts = [], []
    for piece in pieces:
        answer.feed(piece, 80)
        stay, live = answer.take(80, rows)
        stayed += stay
        live_counts.append(len(live))
    answer.end(80)
    return stayed + answer.take(80, rows)[0], live_counts


def test_each_line_stays_once_with_an_empty_line_between_blocks():
    stayed, _ = grown(["# Head\n", "one\n\ntw", "o\n\n", "three"], rows=5)

    assert stayed == ["# Head", "", "one", "", "two", "", "three"]


def test_code_longer_than_its_place_moves_up_line_by_line_and_stays_once():
    lines = ["```", *[f"line {number}" for number in range(200)], "```"]

    stayed, live_counts = grown([f"{line}\n" for line in lines], rows=6)

    assert stayed == lines
    assert max(live_counts) == 6


def test_a_table_stays_only_when_it_is_whole_because_its_columns_may_widen():
    answer = GrowingAnswer(BlockRenderer(draw))
    answer.feed("| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 50, 80)

    stay, live = answer.take(80, rows=6)

    assert stay == []
    assert len(live) == 6


def test_a_block_that_has_begun_to_stay_keeps_its_width():
    widths = []

    def draw_at(source: str, width: int) -> list[str]:
        widths.append(width)
        return source.split("\n")

    answer = GrowingAnswer(BlockRenderer(draw_at))
    answer.feed("```\n" + "x\n" * 20, 80)
    answer.take(80, rows=3)
    answer.feed("y\n```\n", 40)

    assert set(widths) == {80}


@given(st.lists(st.sampled_from(["# Head\n", "some words ", "\n", "\n\n", "- item\n", "plain line\n"]), max_size=60))
def test_however_it_grows_every_line_stays_once_and_in_order(pieces):
    stayed, _ = grown(pieces, rows=2)

    assert "".join("".join(stayed).split()) == "".join("".join(pieces).split())
